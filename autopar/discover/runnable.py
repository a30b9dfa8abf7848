"""Which operators may be run at all, and how: on abstract values and on arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, cast

import numpy as np

from autopar import _compat
from autopar._compat import untyped_jax
from autopar._mesh import without_shardings
from autopar._payload import Payload
from autopar.core.graph import OpNode
from autopar.discover.process import PROCESS, Ended, Results

_NEVER = frozenset(
    {"cond", "custom_partitioning", "infeed", "outfeed", "scan", "shard_map", "while"}
)
"""Control flow, whose body is another's to split (and which may not end); what reads or writes elsewhere."""
_NEVER_PARTS = ("callback", "debug_print", "rng_", "random_")
"""Parts of the names of what calls the host or draws random numbers."""

Shape = tuple[int, ...]
_numbers = count()


class Runnable:
    """An operator that may be tried on other operands than its own: no effects, no callbacks, no random numbers.

    It runs in a process of its own, as operands that are drawn may be indices or pointers, which some operators follow
    wherever they lead. `ended` says how that process ended, if it did; then nothing is run any more.
    """

    def __init__(self, payload: Payload, op: OpNode) -> None:
        self._dtypes = tuple(tensor.dtype for tensor in op.ins)
        self._call = _bound(payload)
        self._programs: dict[tuple[Shape, ...], tuple[int, str] | None] = {}
        self.ended = ""

    def shapes(self, ins: Sequence[Shape]) -> tuple[Shape, ...] | None:
        """The shapes of the results for operands of these shapes; None if it refuses them or gives nothing."""
        specs = [
            untyped_jax.ShapeDtypeStruct(shape, dtype)
            for shape, dtype in zip(ins, self._dtypes, strict=True)
        ]
        try:
            with _compat.without_mesh():
                closed = untyped_jax.make_jaxpr(self._call)(*specs)
        except (
            Exception
        ):  # a primitive refuses shapes by whatever error it likes: that is the answer
            return None

        shapes = tuple(tuple(aval.shape) for aval in closed.out_avals)
        return None if closed.effects or any(0 in shape for shape in shapes) else shapes

    def run(self, operands: Sequence[Sequence[Any]]) -> Results | None:
        """The results of several runs, with operands of equal shapes; None if the primitive cannot be run on them."""
        program = (
            None
            if self.ended
            else self._program(tuple(np.shape(operand) for operand in operands[0]))
        )
        if program is None:
            return None
        try:
            return PROCESS.run(*program, operands)
        except Ended as error:
            self.ended = str(error)
            return None

    def _program(self, shapes: tuple[Shape, ...]) -> tuple[int, str] | None:
        """The number and the text of the program for operands of these shapes; None if there is none for CPUs."""
        if shapes not in self._programs:
            specs = [
                untyped_jax.ShapeDtypeStruct(shape, dtype)
                for shape, dtype in zip(shapes, self._dtypes, strict=True)
            ]
            try:
                with _compat.without_mesh():
                    self._programs[shapes] = next(_numbers), _compat.program_text(self._call, specs)
            except (
                Exception
            ):  # so does it refuse to be lowered; no rule is found then, and the user is told
                self._programs[shapes] = None

        return self._programs[shapes]


def runnable(op: OpNode) -> Runnable | None:
    """How to run `op`, or None if it must not or cannot be run."""
    payload = op.payload
    if (
        not isinstance(payload, Payload)
        or not op.ins
        or _forbidden(payload.primitive.name, payload.params)
    ):
        return None
    if any(not _is_plain(tensor.dtype) or 0 in tensor.shape for tensor in (*op.ins, *op.outs)):
        return None
    return Runnable(payload, op)


def _bound(payload: Payload) -> Callable[..., Any]:
    primitive = payload.primitive
    params = _compat.bind_params(primitive, without_shardings(payload.params))

    def call(*operands: Any) -> Any:
        results = primitive.bind(*operands, **params)
        return list(results) if primitive.multiple_results else [results]

    return call


def _is_plain(dtype: str) -> bool:
    try:
        return untyped_jax.numpy.dtype(dtype).kind in "biufcV"  # V: the narrow floats of ml_dtypes
    except TypeError:
        return False


def _forbidden(name: str, params: Mapping[str, Any]) -> bool:
    if (
        name in _NEVER
        or any(part in name for part in _NEVER_PARTS)
        or params.get("has_side_effect")
    ):
        return True
    return any(
        _forbidden(eqn.primitive.name, eqn.params)
        for jaxpr in _jaxprs(params)
        for eqn in jaxpr.eqns
    )


def _jaxprs(params: Mapping[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for member in cast("Sequence[Any]", value if isinstance(value, tuple | list) else (value,)):
            if _compat.is_jaxpr(member):
                yield getattr(member, "jaxpr", member)
