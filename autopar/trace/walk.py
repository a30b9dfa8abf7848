"""Walk: from jaxpr to a flat draft in one pass, by substitution of an environment; nothing is traced twice.

Calls (jit, custom derivatives, ...) are walked in place. A remat is walked in place too, its operators marked with
its region. Random operators and operators on typed keys are replaced by what they do to the keys' data, products of
sparse matrices by what they are lowered to. Operators that change nothing (stop_gradient, copy, ...) are aliases.
Bodies of loops and branches are walked in place between boundary operators (`control`). Everything else becomes one
operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from autopar import _compat
from autopar._compat import untyped_jax
from autopar._mesh import kernel_off_mesh, off_mesh, sharding_in_type, spec_of, without_shardings
from autopar._payload import OPERATOR, Composite, Payload
from autopar.core.blocks import Blocks
from autopar.core.graph import Effect, OpGraph, TensorInfo
from autopar.core.manual import ENTER, LEAVE
from autopar.core.pins import PINNED
from autopar.core.regions import WHILE_TRIPS
from autopar.errors import TraceError
from autopar.trace.alone import alone, axes_alone, names_axes
from autopar.trace.batches import KINDS as BATCH_KINDS
from autopar.trace.batches import stated_by_batches
from autopar.trace.by_hand import (
    MARKS,
    collective_kind,
    collective_params,
    collective_payload,
    is_walked,
)
from autopar.trace.control import WALKERS as CONTROL_WALKERS
from autopar.trace.draft import Draft, DraftOp, Surroundings
from autopar.trace.finish import finish
from autopar.trace.flat import TRACING
from autopar.trace.kernels import KERNEL, blocks_of
from autopar.trace.keys import decompose, has_keys, run_whole
from autopar.trace.known import KnownValues
from autopar.trace.params import plain_params
from autopar.trace.pins import (
    border_params,
    check_by_hand_throughout,
    is_written,
    pinned_params,
    result_params,
)
from autopar.trace.types import typed_specs
from autopar.trace.windows import KINDS as WINDOW_KINDS
from autopar.trace.windows import index_operands, stated_by_windows

CALLS = {
    "call": "call_jaxpr",
    "closed_call": "call_jaxpr",
    "composite": _compat.COMPOSITE_BODY,
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_vmap_call": "call",
    "eval_jaxpr": "call_jaxpr",
    "jit": "jaxpr",
    "linear_call": "callee",
    "pjit": "jaxpr",
    "remat_opt": "fwd_jaxpr",
    "xla_metadata_call": "jaxpr",
}
REMATS = frozenset({"checkpoint", "remat", "remat2"})
ALIASES = frozenset({
    "copy", "copy_p", "random_clone", "random_unwrap", "random_wrap", "stop_gradient", "xla_metadata_value",
})  # fmt: skip
CALLBACKS = frozenset({"debug_callback", "debug_print", "io_callback"})
KEY_AGNOSTIC = frozenset({"optimization_barrier"})
IMPLEMENTED = frozenset({
    "autopar_contract", "autopar_planned", "dot_product_attention_bwd_wrapper", "dot_product_attention_fwd_wrapper",
    "linear_solve", "nonbatchable", "nondifferentiable_backward", "nontraceable", "select_if_vmap", "unvmap_all",
    "unvmap_any", "unvmap_max", "vprim",
})  # fmt: skip
"""Primitives of autopar, JAX, equinox and lineax written in other operators: these are walked in their place."""
_PER_OPERAND = ("copy_semantics", "devices", "srcs")
"""The parameters of device_put that say something of each operand."""

Tensors = list[TensorInfo]


@dataclass
class Walker:
    """Walks jaxprs into `draft`. `while_trips` is how often a while loop is held to go round.

    Loops over samples go through their rounds in up to `loop_parts` parts at once; `has_parts` says that one does.
    The caches hold what depends on an equation only.
    """

    while_trips: float = WHILE_TRIPS
    loop_parts: int = 1
    has_parts: bool = False
    draft: Draft = field(default_factory=Draft)
    _sources: dict[Any, str] = field(default_factory=dict[Any, str])
    _scopes: dict[Any, str] = field(default_factory=dict[Any, str])
    _decomposed: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def __post_init__(self) -> None:
        self._known = KnownValues(self.draft)

    def walk(
        self, jaxpr: Any, consts: tuple[Any, ...], ins: Tensors, place: Surroundings
    ) -> Tensors:
        """The tensors of the jaxpr's results, after its equations have been added to the draft.

        Raises:
          TraceError: if an equation has a side effect.
        """
        env: dict[Any, TensorInfo] = dict(zip(jaxpr.invars, ins, strict=True))
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            env[var] = self.draft.constant(value, var.aval)

        def read(atom: Any) -> TensorInfo:
            return (
                self.draft.constant(atom.val, atom.aval) if _compat.is_literal(atom) else env[atom]
            )

        for eqn in jaxpr.eqns:
            outs = self._equation(eqn, [read(atom) for atom in eqn.invars], place)
            env.update(zip(eqn.outvars, outs, strict=True))

        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, ins: Tensors, place: Surroundings) -> Tensors:
        name = eqn.primitive.name
        if place.alone and names_axes(eqn, place.alone):
            return self.inline(eqn, alone(eqn, self.source(eqn, place)), ins, place)
        if name in ALIASES or _changes_nothing(eqn):
            return self._alias(eqn, ins)
        if name in CALLS and _compat.is_jaxpr(eqn.params.get(CALLS[name])):
            return self.inline(eqn, eqn.params[CALLS[name]], ins, place)
        if name in _WALKERS:
            return _WALKERS[name](self, eqn, ins, place)
        if name == OPERATOR:
            return self._composite(eqn, eqn.params["composite"], ins, place)
        if name not in CALLBACKS and _compat.side_effects(eqn):
            raise TraceError(_effect_message(eqn, self.source(eqn, place)))
        if name in CALLBACKS or name == "pure_callback":
            return self._callback(eqn, ins, place)
        if name in PINNED:
            return self._pinned(eqn, ins, place)
        if has_keys(eqn) and name not in KEY_AGNOSTIC:
            return self._key_operator(eqn, ins, place)

        return self._plain(eqn, ins, place)

    def _plain(self, eqn: Any, ins: Tensors, place: Surroundings) -> Tensors:
        """One operator, or what says the same in others; held to where the user wrote that its result lies."""
        if eqn.primitive.name == "convert_element_type" and isinstance(ins[0].literal, int):
            aval = eqn.outvars[0].aval
            return [self.draft.constant(np.asarray(ins[0].literal).astype(aval.dtype), aval)]

        if self.draft.manual and (kind := collective_kind(eqn)) is not None:
            return self._collective(eqn, kind, ins, place)
        if eqn.primitive.name == "pallas_call" and (blocks := blocks_of(eqn)) is not None:
            return self._kernel(eqn, blocks, ins, place)
        if (function := _compat.sparse_function(eqn.primitive.name)) is not None:
            return self._instead(eqn, partial(function, **eqn.params), ins, place)

        outs = self._at_known_places(eqn, ins, place)
        if outs is None:
            outs = self._operator(eqn, ins, place, Payload(eqn.primitive, _payload_params(eqn)))

        params = result_params(eqn, self._scope(eqn, place))
        return (
            outs
            if params is None
            else self._operator(eqn, outs, place, None, params, kind="sharding_constraint")
        )

    def _kernel(self, eqn: Any, blocks: Blocks, ins: Tensors, place: Surroundings) -> Tensors:
        """A kernel whose blocks devices may share out."""
        kept = ("cost_estimate", "input_output_aliases", "name")
        params = plain_params({name: eqn.params[name] for name in kept}) | {"blocks": blocks}
        own = _payload_params(eqn)
        if _compat.mesh_of(eqn) is not None:
            own["jaxpr"] = kernel_off_mesh(own["jaxpr"])
        payload = Payload(eqn.primitive, own)
        return self._operator(eqn, ins, place, payload, params, kind=KERNEL)

    def _alias(self, eqn: Any, ins: Tensors) -> Tensors:
        if eqn.primitive.name == "random_wrap":
            self.draft.raw_keys.add(ins[0].id)
        return ins

    def inline(self, eqn: Any, closed: Any, ins: Tensors, place: Surroundings) -> Tensors:
        """Walks a closed jaxpr in the place of `eqn`."""
        jaxpr, consts = _compat.open_jaxpr(closed)
        inner = self.inside(eqn, place)
        if place.source is None and _compat.defined_in_jax(jaxpr):
            inner = replace(inner, source=self.source(eqn, place))
        return self.walk(jaxpr, consts, ins, inner)

    def _pinned(self, eqn: Any, ins: Tensors, place: Surroundings) -> Tensors:
        if eqn.primitive.name == "shard_map":
            axes = axes_alone(eqn)
            if axes:
                inner = replace(place, alone=place.alone | axes)
                return self.inline(eqn, eqn.params["jaxpr"], ins, inner)
            if is_walked(eqn):
                return self._by_hand(eqn, ins, place)
            check_by_hand_throughout(eqn, self.source(eqn, place))
        params = pinned_params(eqn, is_written(eqn, self._scope(eqn, place)))
        if params is None:
            return ins
        return self._operator(eqn, ins, place, Payload(eqn.primitive, dict(eqn.params)), params)

    def _by_hand(self, eqn: Any, ins: Tensors, place: Surroundings) -> Tensors:
        """The body of a shard_map on the shards of one position along its axes, between its borders."""
        around = self.draft.manual
        inside = tuple(sorted({*around, *map(str, eqn.params["newly_manual_axes"])}))
        enter, leave = border_params(eqn)
        avals = [var.aval for var in _compat.open_jaxpr(eqn.params["jaxpr"])[0].invars]
        self.draft.manual = inside
        try:
            entered = [
                self._operator(eqn, [tensor], place, None, params, [aval], ENTER)[0]
                for tensor, params, aval in zip(ins, enter, avals, strict=True)
            ]
            outs = self.inline(eqn, eqn.params["jaxpr"], entered, place)
        finally:
            self.draft.manual = around

        return [
            self._operator(eqn, [tensor], place, None, params, [var.aval], LEAVE)[0]
            for tensor, params, var in zip(outs, leave, eqn.outvars, strict=True)
        ]

    def _collective(self, eqn: Any, kind: str, ins: Tensors, place: Surroundings) -> Tensors:
        """The user's own collective, an operator for each operand; it comes of the index of a device without any."""
        params = collective_params(eqn)
        payload = collective_payload(eqn)
        if not ins:
            return self._operator(eqn, [], place, payload, params, kind=kind)
        return [
            self._operator(eqn, [tensor], place, payload, params, [var.aval], kind)[0]
            for tensor, var in zip(ins, eqn.outvars, strict=True)
        ]

    def _callback(self, eqn: Any, ins: Tensors, place: Surroundings) -> Tensors:
        """A callback; typed keys come to it as their data, as in JAX. Booleans leave it as bytes, which add up."""
        avals = [spec_of(var.aval) for var in eqn.outvars]
        added = [_as_bytes(aval) for aval in avals]
        outs = self._operator(
            eqn, ins, place, Payload(eqn.primitive, dict(eqn.params)), avals=added
        )
        if added == avals:
            return outs

        def as_answered(*given: Any) -> list[Any]:
            return [value.astype(aval.dtype) for value, aval in zip(given, avals, strict=True)]

        jaxpr, consts = _compat.open_jaxpr(untyped_jax.make_jaxpr(as_answered)(*added))
        return self.walk(
            jaxpr, consts, outs, replace(self.inside(eqn, place), source=self.source(eqn, place))
        )

    def inside(self, eqn: Any, place: Surroundings) -> Surroundings:
        """The place of a jaxpr in the parameters of `eqn`."""
        return replace(place, stack=place.stack + eqn.source_info.name_stack)

    def linear_solve(self, eqn: Any, ins: Tensors, place: Surroundings) -> Tensors:
        """The function that solves, on its own constants and the right-hand sides; the others are for derivatives."""
        lengths = eqn.params["const_lengths"]
        first = lengths.matvec + lengths.vecmat
        operands = [*ins[first : first + lengths.solve], *ins[sum(lengths) :]]
        return self.inline(eqn, eqn.params["jaxprs"].solve, operands, place)

    def _at_known_places(self, eqn: Any, ins: Tensors, place: Surroundings) -> Tensors | None:
        """What reads or writes where the function says in numbers, as slices or selections; None for all else."""
        name = eqn.primitive.name
        if name not in WINDOW_KINDS:
            return None
        indices = [ins[n] for n in index_operands(name, len(ins))]
        stated = stated_by_windows(eqn, [*map(self._known.value, indices)])
        if stated is not None:
            return self._instead(eqn, stated, ins, place)
        return self._of_each_row(eqn, ins, place) if name in BATCH_KINDS else None

    def _of_each_row(self, eqn: Any, ins: Tensors, place: Surroundings) -> Tensors | None:
        """What reads or writes at places that count along a dim, as of each row by itself; None for all else.

        Where shardings are in types, what the user wrote has been given one, and is left as it is.
        """
        if any(sharding_in_type(atom.aval) is not None for atom in eqn.invars):
            return None
        operand, indices, *updates = ins
        parts = self._known.parts(indices)
        values = [*map(self._known.value, parts)]
        stated = stated_by_batches(eqn, [part.shape[-1] for part in parts], values)
        if stated is None:
            return None

        first, whole, *others = typed_specs(eqn)
        specs = [first, *(whole.update(shape=part.shape) for part in parts), *others]
        return self._instead(eqn, stated, [operand, *parts, *updates], place, specs)

    def _instead(
        self,
        eqn: Any,
        function: Callable[..., Any],
        ins: Tensors,
        place: Surroundings,
        specs: Sequence[Any] | None = None,
    ) -> Tensors:
        """What `function` does with the operands of an equation, or with `ins` of such `specs`, in its place."""
        with eqn.ctx.manager:
            closed = untyped_jax.make_jaxpr(function)(*(specs or typed_specs(eqn)))
        return self.inline(eqn, closed, ins, replace(place, source=self.source(eqn, place)))

    def lowered(self, eqn: Any, ins: Tensors, place: Surroundings) -> Tensors:
        """What JAX lowers an operator of higher level to, before it lowers the rest."""
        return self._instead(eqn, _compat.high_function(eqn), ins, place)

    def implemented(self, eqn: Any, ins: Tensors, place: Surroundings) -> Tensors:
        """What the primitive does when it is run eagerly, which is written in JAX."""
        with TRACING(True):
            return self._instead(eqn, partial(eqn.primitive.impl, **eqn.params), ins, place)

    def put(self, eqn: Any, ins: Tensors, place: Surroundings) -> Tensors:
        """A device_put of several arrays, as one of each: they need not be split alike."""
        if len(ins) == 1:
            if has_keys(eqn):
                return self._key_operator(eqn, ins, place)
            return self._plain(eqn, ins, place)
        outs: Tensors = []
        for n, tensor in enumerate(ins):
            own = slice(n, n + 1)
            params = {**eqn.params, **{name: eqn.params[name][own] for name in _PER_OPERAND}}
            one = eqn.replace(invars=eqn.invars[own], outvars=eqn.outvars[own], params=params)
            outs += self._equation(one, [tensor], place)
        return outs

    def remat(self, eqn: Any, ins: Tensors, place: Surroundings) -> Tensors:
        """The body of a rematerialised block, in a region of its own; in none where XLA may merge it with the rest."""
        prevents: bool | Sequence[bool] = eqn.params["prevent_cse"]
        if not (prevents if isinstance(prevents, bool) else any(prevents)):
            return self.inline(eqn, eqn.params["jaxpr"], ins, place)

        payload = {name: value for name, value in eqn.params.items() if name != "jaxpr"}
        region = self.draft.region("remat", place.region, payload=payload)
        return self.inline(eqn, eqn.params["jaxpr"], ins, replace(place, region=region))

    def _key_operator(self, eqn: Any, ins: Tensors, place: Surroundings) -> Tensors:
        avals = tuple((str(atom.aval), atom.aval.shape) for atom in eqn.invars)
        key = (
            eqn.primitive.name,
            avals,
            repr(sorted(eqn.params.items())),
            _compat.context_key(eqn),
        )
        if key not in self._decomposed:
            self._decomposed[key] = decompose(eqn)

        closed = self._decomposed[key]
        if closed is None:
            call = Payload(_compat.call_primitive(), {"call_jaxpr": run_whole(eqn)})
            return self._operator(eqn, ins, place, call)

        jaxpr, consts = _compat.open_jaxpr(closed)
        inner = replace(self.inside(eqn, place), source=self.source(eqn, place))
        return self.walk(jaxpr, consts, ins, inner)

    def _operator(
        self,
        eqn: Any,
        ins: Tensors,
        place: Surroundings,
        payload: Payload | None,
        params: dict[str, Any] | None = None,
        avals: Sequence[Any] | None = None,
        kind: str = "",
    ) -> Tensors:
        outs = [self.draft.tensor(aval) for aval in avals or [var.aval for var in eqn.outvars]]
        params = plain_params(without_shardings(eqn.params)) if params is None else params
        source = self.source(eqn, place)
        effect: Effect | None = None
        if _compat.side_effects(eqn):
            effect = "ordered" if _compat.is_ordered(eqn) else "unordered"

        op = DraftOp(
            *(
                kind or eqn.primitive.name,
                tuple(ins),
                tuple(outs),
                params,
                source,
                self._scope(eqn, place),
            ),
            place.region,
            *(payload, effect),
        )
        self.draft.ops.append(op)
        return outs

    def _scope(self, eqn: Any, place: Surroundings) -> str:
        """The name stack of an equation."""
        key = place.stack, eqn.source_info.name_stack
        if key not in self._scopes:
            self._scopes[key] = str(place.stack + eqn.source_info.name_stack)
        return self._scopes[key]

    def _composite(
        self, eqn: Any, composite: Composite, ins: Tensors, place: Surroundings
    ) -> Tensors:
        """One operator, with what it computes as its body; on typed keys or with pins inside it is walked in place."""
        with eqn.ctx.manager:
            closed = untyped_jax.make_jaxpr(composite.function)(*typed_specs(eqn))

        body = (
            None
            if has_keys(eqn)
            else _body(closed, [atom.aval for atom in eqn.invars], self.while_trips)
        )
        if body is None or any(op.kind in PINNED for op in body.ops):
            return self.inline(eqn, closed, ins, place)

        outs = [self.draft.tensor(var.aval) for var in eqn.outvars]
        params = {**plain_params(composite.static), "arguments": composite.arguments}
        if composite.derivation:
            params["derivation"] = composite.derivation

        scope = str(place.stack + eqn.source_info.name_stack)
        payload = Payload(eqn.primitive, dict(eqn.params))
        op = DraftOp(
            *(
                composite.kind,
                tuple(ins),
                tuple(outs),
                params,
                self.source(eqn, place),
                scope,
                place.region,
                payload,
            ),
            body=body,
        )
        self.draft.ops.append(op)
        return outs

    def source(self, eqn: Any, place: Surroundings) -> str:
        """The user's line of an equation."""
        if place.source is not None:
            return place.source
        traceback = eqn.source_info.traceback
        if traceback not in self._sources:
            self._sources[traceback] = _compat.source_line(eqn.source_info)
        return self._sources[traceback]


def _body(closed: Any, avals: list[Any], while_trips: float) -> OpGraph:
    """The graph of a function; its hoisted constants are inputs too, the last ones."""
    walker = Walker(while_trips)
    jaxpr, consts = _compat.open_jaxpr(closed)
    inputs = [walker.draft.tensor(aval) for aval in avals]
    outputs = walker.walk(jaxpr, consts, list(inputs), Surroundings(_compat.empty_name_stack()))
    parts = finish(walker.draft, inputs, outputs)
    return OpGraph(parts.ops, parts.inputs, parts.outputs, regions=parts.regions)


_WALKERS: dict[str, Callable[[Walker, Any, Tensors, Surroundings], Tensors]] = {
    "custom_linear_solve": Walker.linear_solve,
    "device_put": Walker.put,
    **dict.fromkeys(IMPLEMENTED, Walker.implemented),
    **dict.fromkeys(_compat.HIGH, Walker.lowered),
    **dict.fromkeys(REMATS, Walker.remat),
    **CONTROL_WALKERS,
}


def _payload_params(eqn: Any) -> dict[str, Any]:
    """The parameters with which an operator runs, on shards that lie on no mesh."""
    return dict(eqn.params) if _compat.mesh_of(eqn) is None else off_mesh(eqn.params)


def _as_bytes(aval: Any) -> Any:
    """What stands for `aval` where only what can be added may: unsigned bytes for booleans."""
    return untyped_jax.ShapeDtypeStruct(aval.shape, "uint8") if aval.dtype == bool else aval


def _changes_nothing(eqn: Any) -> bool:
    """A conversion to the type that it has, or a device_put that names no device: only the weak type changes.

    So is a mark of what varies along manual axes.
    """
    if eqn.primitive.name in MARKS:
        return True
    if eqn.primitive.name == "convert_element_type":
        return eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype
    if eqn.primitive.name == "device_put":
        return all(device is None for device in eqn.params["devices"])
    return False


def _effect_message(eqn: Any, source: str) -> str:
    effects = ", ".join(sorted(type(effect).__name__ for effect in _compat.side_effects(eqn)))
    return (
        f"{eqn.primitive.name!r} at {source or 'an unknown line'} has a side effect ({effects}), which a plan cannot "
        f"hold. Take it out of the function; debug prints, debug callbacks and io_callback can stay, but not in a "
        f"shard_map."
    )
