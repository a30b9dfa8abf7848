"""Padder: the forms of every tensor, true and padded, and how one is made of another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod
from operator import is_
from typing import Any

import jax.numpy as jnp
import numpy as np

from autopar import _compat
from autopar._compat import untyped_jax
from autopar._mesh import without_shardings
from autopar._payload import Payload
from autopar.core.graph import TensorInfo
from autopar.core.regions import RegionTree
from autopar.trace.draft import Draft, DraftOp
from autopar.trace.padding.sizes import can_pad
from autopar.trace.params import plain_params

Shape = tuple[int, ...]
Value = bool | int | float
lax: Any = untyped_jax.lax


@dataclass(frozen=True, eq=False)
class Form:
    """A tensor that holds another one at the beginning of its dims, and anything behind.

    In the dims `zero` everything behind is zero, whatever the places in other dims. `region` is where it is seen first.
    """

    tensor: TensorInfo
    zero: frozenset[int] = frozenset()
    region: int | None = None

    @property
    def shape(self) -> Shape:
        """The padded shape."""
        return self.tensor.shape


@dataclass(eq=False)
class Padder:
    """Operators as they are rewritten into `ops`; `forms` of each tensor by its id, the first one in front.

    `sizes` are the sizes that are padded. `resting` are tensors of the state, and what is computed from these alone
    element by element: they lie split along another dim, and stay as they are. `wishes` are the dims of tensors that
    had better be zero behind the true elements.
    """

    draft: Draft
    sizes: Mapping[int, int]
    resting: set[int]
    tree: RegionTree
    wishes: Mapping[int, frozenset[int]]
    ops: list[DraftOp] = field(default_factory=list[DraftOp])
    forms: dict[int, list[Form]] = field(default_factory=dict[int, list[Form]])
    _calls: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])

    def wanted(self, tensor: TensorInfo) -> Shape:
        """The shape with every dim padded whose size is to be."""
        return (
            tuple(self.sizes.get(size, size) for size in tensor.shape)
            if can_pad(tensor)
            else tensor.shape
        )

    def now(self, tensor: TensorInfo) -> Shape:
        """The shape of the form that a tensor was made in."""
        found = self.forms.get(tensor.id)
        return found[0].shape if found else tensor.shape

    def grown(self, tensor: TensorInfo) -> Shape:
        """The shape in which a reader takes a tensor: as it was made, with every uneven dim padded."""
        if tensor.id in self.resting:
            return tensor.shape
        sides = zip(tensor.shape, self.now(tensor), self.wanted(tensor), strict=True)
        return tuple(made if made != true else wanted for true, made, wanted in sides)

    def need(
        self, tensor: TensorInfo, shape: Shape, op: DraftOp, region: int | None = None
    ) -> Form:
        """The form of `tensor` of this shape that is seen where `op` stands (else in `region`), or is made there."""
        if tensor.literal is not None:
            return Form(tensor)
        where = op.region if region is None else region
        seen = [form for form in self.forms[tensor.id] if self._is_seen(form, where)]
        found = next((form for form in seen if form.shape == shape), None)
        if found is not None:
            return found
        made = self._resized(tensor, seen[0], shape, replace(op, region=where))
        self.forms[tensor.id].append(made)
        return made

    def _is_seen(self, form: Form, reader: int | None) -> bool:
        path = self.tree.path(reader)
        return all(r in path for r in self.tree.path(form.region) if self.tree.kind(r) != "remat")

    def _resized(self, tensor: TensorInfo, form: Form, shape: Shape, op: DraftOp) -> Form:
        """A form cut or padded with zeros to `shape`."""
        sides = list(zip(form.shape, shape, strict=True))

        def resize(x: Any) -> Any:
            kept = tuple(map(min, form.shape, shape))
            cut = x if kept == form.shape else lax.slice(x, (0,) * len(kept), kept)
            config = [(0, size - low, 0) for low, size in zip(kept, shape, strict=True)]
            return (
                cut
                if kept == shape
                else lax.pad(cut, np.zeros((), jnp.dtype(tensor.dtype)), config)
            )

        (made,) = self.call(
            resize, [form.tensor], op, known_as=("resized", tensor.dtype, form.shape, shape)
        )
        grown = {d for d, (was, size) in enumerate(sides) if size > was == tensor.shape[d]}
        return Form(made, frozenset(grown | form.zero), op.region)

    def masked(
        self, tensor: TensorInfo, form: Form, dims: Iterable[int], value: Value, op: DraftOp
    ) -> Form:
        """A form with `value` behind the true elements in `dims`."""
        behind = sorted(d for d in dims if form.shape[d] != tensor.shape[d])
        dtype = jnp.dtype(tensor.dtype)
        if value == 0:
            behind = [d for d in behind if d not in form.zero]
        if not behind:
            return form

        def mask(x: Any) -> Any:
            sizes = tuple(x.shape[d] for d in behind)
            along = [
                lax.lt(lax.broadcasted_iota(np.int32, sizes, n), np.int32(tensor.shape[d]))
                for n, d in enumerate(behind)
            ]
            inside = lax.broadcast_in_dim(reduce(lax.bitwise_and, along), x.shape, behind)
            return lax.select(inside, x, lax.full(x.shape, value, dtype))

        what = "masked", tensor.dtype, form.shape, tensor.shape, *behind, repr(value)
        (made,) = self.call(mask, [form.tensor], op, known_as=what)
        if value != 0:
            return Form(made, region=op.region)

        found = Form(made, form.zero.union(behind), op.region)
        known = self.forms[tensor.id]
        known.insert(0 if known[0] is form and form.region == op.region else len(known), found)
        return found

    def grant(self, op: DraftOp) -> None:
        """Makes the results of `op` zero where that is wished, for all who read them."""
        for tensor in op.outs:
            self.masked(
                tensor, self.forms[tensor.id][0], sorted(self.wishes.get(tensor.id, ())), 0, op
            )

    def call(
        self,
        function: Callable[..., Any],
        tensors: Sequence[TensorInfo],
        op: DraftOp,
        added: float = 1.0,
        known_as: Hashable = None,
    ) -> list[TensorInfo]:
        """The results of `function` on `tensors`, computed in the place of `op`; how much of it padding added.

        JAX traces it once for all calls that are `known_as` one thing.
        """
        closed = self._calls.get(known_as)
        if closed is None:
            specs = [
                untyped_jax.ShapeDtypeStruct(tensor.shape, jnp.dtype(tensor.dtype))
                for tensor in tensors
            ]
            with _compat.without_mesh():
                closed = untyped_jax.make_jaxpr(function)(*specs)
        if known_as is not None:
            self._calls[known_as] = closed
        return self._walk(closed, tensors, op, added)

    def _walk(
        self, closed: Any, tensors: Sequence[TensorInfo], op: DraftOp, added: float
    ) -> list[TensorInfo]:
        jaxpr, consts = _compat.open_jaxpr(closed)
        env: dict[Any, TensorInfo] = dict(zip(jaxpr.invars, tensors, strict=True))
        env |= {
            v: self.draft.constant(value, v.aval)
            for v, value in zip(jaxpr.constvars, consts, strict=True)
        }

        def read(atom: Any) -> TensorInfo:
            return (
                self.draft.constant(atom.val, atom.aval) if _compat.is_literal(atom) else env[atom]
            )

        for eqn in jaxpr.eqns:
            ins = tuple(map(read, eqn.invars))
            if _compat.is_jaxpr(inner := eqn.params.get("jaxpr")):
                outs = tuple(self._walk(inner, ins, op, added))
            else:
                outs = tuple(self.draft.tensor(var.aval) for var in eqn.outvars)
                payload = Payload(eqn.primitive, dict(eqn.params))
                params = plain_params(without_shardings(eqn.params))
                made = replace(
                    op, kind=eqn.primitive.name, ins=ins, outs=outs, params=params, payload=payload
                )
                self.ops.append(replace(made, effect=None, body=None, added=added))
            env.update(zip(eqn.outvars, outs, strict=True))

        return [read(atom) for atom in jaxpr.outvars]

    def put(
        self,
        op: DraftOp,
        ins: Sequence[Form],
        shapes: Sequence[Shape],
        zeros: Sequence[Collection[int]] = (),
    ) -> None:
        """Adds `op` on these forms, as it is otherwise, with results of these shapes."""
        outs = [self.like(out, shape) for out, shape in zip(op.outs, shapes, strict=True)]
        pairs = [*zip(op.ins, ins, strict=True), *zip(op.outs, map(Form, outs), strict=True)]
        self.ops.append(
            replace(
                op, ins=tuple(form.tensor for form in ins), outs=tuple(outs), added=_added(pairs)
            )
        )
        self.record(op, outs, zeros)

    def made(
        self,
        op: DraftOp,
        function: Callable[..., Any],
        ins: Sequence[Form],
        zero: Collection[int] = (),
        known_as: Hashable = None,
    ) -> None:
        """Adds `function` of these forms as what makes the one result of `op`.

        On forms of the same shapes and types all functions that are `known_as` one thing are one.
        """
        added = _added(zip(op.ins, ins, strict=False))
        tensors = [form.tensor for form in ins]
        if known_as is not None:
            known_as = (known_as, *((tensor.shape, tensor.dtype) for tensor in tensors))
        self.record(op, self.call(function, tensors, op, added, known_as), [zero])

    def bound(
        self, op: DraftOp, ins: Sequence[Form], zero: Collection[int] = (), **changed: Any
    ) -> None:
        """Adds the primitive of `op` on these forms, with these parameters changed."""
        assert op.payload is not None
        primitive = op.payload.primitive
        params = {**op.payload.params, **changed}
        self.made(
            op, lambda *xs: primitive.bind(*xs, **primitive.get_bind_params(params)), ins, zero
        )

    def record(
        self, op: DraftOp, outs: Sequence[TensorInfo], zeros: Sequence[Collection[int]] = ()
    ) -> None:
        """Notes what the results of `op` were made as."""
        region = self.tree.made_in(op.kind, op.region) if op.region is not None else None
        for n, (out, made) in enumerate(zip(op.outs, outs, strict=True)):
            zero = frozenset(zeros[n]) if zeros else frozenset[int]()
            self.forms[out.id] = [Form(made, zero, region)]

    def whole(self, op: DraftOp) -> None:
        """Adds `op` as it was, on true operands."""
        ins = tuple([self.need(tensor, tensor.shape, op).tensor for tensor in op.ins])
        self.ops.append(op if all(map(is_, ins, op.ins)) else replace(op, ins=ins))
        self.record(op, op.outs)

    def like(self, tensor: TensorInfo, shape: Shape) -> TensorInfo:
        """A new tensor of this shape and of the type of another; that one itself where it has the shape."""
        if tensor.shape == shape:
            return tensor
        return self.draft.tensor(untyped_jax.ShapeDtypeStruct(shape, jnp.dtype(tensor.dtype)))


def _added(pairs: Iterable[tuple[TensorInfo, Form]]) -> float:
    """The share of an operator's work that padding added to the true tensors; each size that grows is one index."""
    grown = {
        sides
        for tensor, form in pairs
        for sides in zip(tensor.shape, form.shape, strict=True)
        if sides[0] != sides[1]
    }
    return 1.0 - prod(true / padded for true, padded in grown)
