"""Capture: from a Python function and its arguments to a `Traced` graph. The first stage of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, Unpack

import jax
import numpy as np
from jax.sharding import AbstractMesh

from autopar import _compat
from autopar._compat import untyped_jax
from autopar.core.graph import OpGraph, TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.core.regions import WHILE_TRIPS
from autopar.core.stages import Stages
from autopar.errors import AutoparError, TraceError
from autopar.trace.arguments import (
    CARRIED,
    Arguments,
    DonateArgnums,
    Donated,
    function_name,
    positions,
    read_arguments,
)
from autopar.trace.carry import Carry, Results, find_carry
from autopar.trace.draft import Draft, DraftOp, Surroundings
from autopar.trace.finish import GraphParts, Padding, numbered
from autopar.trace.flat import TRACING, FlatFunction
from autopar.trace.moving import composed
from autopar.trace.pins import on_one_mesh
from autopar.trace.returned import held_in_objects
from autopar.trace.state import Pairs, resembled_inputs
from autopar.trace.types import EXPLICIT, TypedAxes, mesh_of_types, typed, typed_axes
from autopar.trace.walk import Walker


@dataclass(frozen=True, eq=False)
class Traced:
    """A traced function: its graph, and what is needed to call it as the function was called.

    `in_tree` is the structure of (positional arguments without the static ones, keyword arguments); the graph's
    inputs are its leaves in order, then `constants`. `input_avals` are the abstract values of the leaves and
    `output_avals` those of the results, as the user sees them: typed keys, weak types. `key_inputs` and
    `key_outputs` give (flat position, implementation) of typed PRNG keys: the graph holds their uint32 data, so a
    runner applies `jax.random.key_data` on the way in and `jax.random.wrap_key_data` on the way out. Constants that
    are keys are data already. `output_names` are paths in the result. `static_argnums` were left out of the inputs.
    `mesh` are the axes of the mesh of whose Explicit axes types speak, () if they speak of none.
    `has_parts` says that a loop over samples goes through its rounds in parts.
    """

    graph: OpGraph
    in_tree: Any
    out_tree: Any
    constants: tuple[np.ndarray[Any, Any] | jax.Array, ...]
    input_avals: tuple[Any, ...]
    output_avals: tuple[Any, ...]
    key_inputs: tuple[tuple[int, str], ...]
    key_outputs: tuple[tuple[int, str], ...]
    output_names: tuple[str, ...]
    static_argnums: tuple[int, ...]
    mesh: TypedAxes = ()
    has_parts: bool = False

    def explicit_axes(self, mesh: DeviceMesh) -> frozenset[str]:
        """The axes of `mesh` of which types speak where the function is called; none if they speak of another."""
        is_own = mesh.whole.axes == tuple((name, size) for name, size, _ in self.mesh)
        return frozenset(name for name, _, kind in self.mesh if kind == EXPLICIT and is_own)


_compat.plans_without_cudnn(lambda: TRACING.value)


@dataclass(frozen=True, eq=False)
class Walked:
    """A captured function as a draft: `ops` are its operators, with chains of moving ones taken from their sources.

    `has_parts` as in Traced. Finishing it adds constants and numbers of tensors to the draft, and changes no other.
    """

    draft: Draft
    inputs: list[TensorInfo]
    ops: list[DraftOp]
    outputs: list[TensorInfo]
    has_parts: bool


@dataclass(frozen=True, eq=False)
class Capture:
    """A function as JAX traced it, once: what every graph of it is made from. It is walked once in each way."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    arguments: Arguments
    closed: Any
    results: Results
    mesh: AbstractMesh | None
    _walked: dict[tuple[float, int], Walked] = field(
        default_factory=dict[tuple[float, int], Walked]
    )

    def walked(self, while_trips: float, loop_parts: int) -> Walked:
        """The draft of it under these options (`GraphOptions`)."""
        loop_parts = 1 if self.mesh is not None else loop_parts
        key = while_trips, loop_parts
        if key not in self._walked:
            self._walked[key] = self._walk(Walker(while_trips, loop_parts))
        return self._walked[key]

    def _walk(self, walker: Walker) -> Walked:
        names = zip(self.arguments.avals, self.arguments.leaf_names, strict=True)
        inputs = [walker.draft.tensor(aval, name) for aval, name in names]
        jaxpr, consts = _compat.open_jaxpr(self.closed)
        outputs = walker.walk(jaxpr, consts, list(inputs), Surroundings(_compat.empty_name_stack()))
        return Walked(walker.draft, inputs, *composed(walker.draft, outputs), walker.has_parts)


def capture(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    *,
    static_argnums: int | Sequence[int],
) -> Capture:
    """What JAX traces of `fn(*args, **kwargs)`; arguments and errors as of `trace`."""
    arguments = read_arguments(fn, args, dict(kwargs or {}), static_argnums)
    leaves = arguments.leaves(args, kwargs or {})
    mesh = mesh_of_types(leaves)
    closed, results = make_jaxpr(fn, arguments, leaves, mesh)
    return Capture(fn, args, arguments, closed, results, mesh)


class GraphOptions(TypedDict, total=False):
    """How a graph is made of what was captured.

    `donate_argnums` and `donate_argnames` are arguments whose buffers may be reused for results: positions, and names
    of those passed by name; "carried" are the inputs that `carry` pairs with results. `carry` says which results become
    the next call's inputs (`find_carry`), `while_trips` how often a while loop goes round, whose trips only its run can
    tell, `padding` what sizes of dims become inside (`padding.padded_sizes`), `loop_parts` into how many parts, at
    most, the rounds of a loop over samples are divided (`trace.loop_parts`), `stages` how its layers were divided when
    it was captured.
    """

    donate_argnums: DonateArgnums
    donate_argnames: Sequence[str]
    carry: Carry
    while_trips: float
    padding: Mapping[int, int] | None
    loop_parts: int
    stages: Stages | None


def trace(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    **options: Unpack[GraphOptions],
) -> Traced:
    """The graph of `fn(*args, **kwargs)`, traced under the mesh that is set; nothing is computed.

    Args:
      fn: anything callable that JAX can trace.
      args: positional arguments: pytrees of ShapeDtypeStructs, numpy or JAX arrays and Python scalars. Shardings count
        where they are part of the type, on an Explicit mesh: the function may ask for them.
      kwargs: keyword arguments, all traced.
      static_argnums: positions of arguments that are passed to `fn` as they are.
      **options: see `GraphOptions`.

    Raises:
      TraceError: if JAX cannot trace `fn`, `fn` has side effects, or an argument or option is not valid.
    """
    return graph_of(capture(fn, args, kwargs, static_argnums=static_argnums), **options)


def graph_of(captured: Capture, **options: Unpack[GraphOptions]) -> Traced:
    """The graph of what was captured; errors as of `trace`."""
    donate_argnums = options.get("donate_argnums", ())
    donate_argnames = options.get("donate_argnames", ())
    padding = options.get("padding") or {}
    loop_parts = options.get("loop_parts", 1)
    fn = captured.fn
    arguments = captured.arguments
    results = captured.results
    mesh = captured.mesh
    donated = (*positions(donate_argnums, len(captured.args), "donate_argnums"), *donate_argnames)
    walked = captured.walked(options.get("while_trips", WHILE_TRIPS), loop_parts)
    draft = walked.draft
    inputs = walked.inputs
    pairs = find_carry(options.get("carry", "auto"), arguments, results, donated)
    taken = (
        _carried_inputs(fn, pairs)
        if donate_argnums == CARRIED
        else _donated_inputs(donated, arguments)
    )
    raw_keys = {i for i, tensor in enumerate(inputs) if tensor.id in draft.raw_keys}
    state = raw_keys.union(
        fn.state if isinstance(fn, FlatFunction) else known_state(arguments, results, pairs)
    )
    resting = frozenset(tensor.id for i, tensor in enumerate(inputs) if i in state)
    parts = numbered(draft, inputs, walked.ops, walked.outputs, Padding(padding, resting))
    graph = replace(
        on_one_mesh(_graph(parts, pairs, arguments, results, state, taken)),
        padding=tuple(padding.items()),
        stages=options.get("stages"),
    )
    if isinstance(fn, FlatFunction):
        graph = replace(graph, output_names=fn.outputs)

    return Traced(
        graph=graph,
        in_tree=arguments.tree,
        out_tree=results.tree,
        constants=tuple(_constant(value) for value in parts.constants),
        input_avals=arguments.avals,
        output_avals=results.avals,
        key_inputs=_keys(arguments.avals),
        key_outputs=_keys(results.avals),
        output_names=results.names,
        static_argnums=tuple(position for position, _ in arguments.static),
        mesh=typed_axes(mesh),
        has_parts=walked.has_parts,
    )


def make_jaxpr(
    fn: Callable[..., Any], arguments: Arguments, leaves: Sequence[Any], mesh: AbstractMesh | None
) -> tuple[Any, Results]:
    """The function as JAX traces it, with the arguments' own types; else, as a plan lays them anew, without these.

    Raises:
      TraceError: if JAX cannot trace it.
      AutoparError: as what it calls of autopar refuses, such as `accumulate`.
    """

    def call(dynamic: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return arguments.call(fn, dynamic, keywords)

    if not callable(fn):
        raise TraceError(f"{fn!r} is a {type(fn).__name__} and cannot be called: pass a function")

    call.__dict__["__wrapped__"] = fn  # JAX's messages speak of the user's function
    tree_util = untyped_jax.tree_util
    plain, tree = tree_util.tree_flatten(arguments.specs)
    own = [typed(aval, leaf, mesh) for aval, leaf in zip(arguments.avals, leaves, strict=True)]
    traced = untyped_jax.make_jaxpr(call, return_shape=True)
    try:
        with TRACING(True):
            closed, shapes = traced(*tree_util.tree_unflatten(tree, own))
    except AutoparError:  # of a call in the function, which says what is wrong itself
        raise
    except Exception as error:
        if own == plain:
            raise TraceError(_failure(fn, error)) from error
        try:
            with TRACING(True):
                closed, shapes = traced(*arguments.specs)
        except Exception:
            raise TraceError(_failure(fn, error)) from error

    return closed, Results(untyped_jax.tree_util.tree_structure(shapes), tuple(closed.out_avals))


def _failure(fn: Callable[..., Any], error: Exception) -> str:
    first = str(error).strip().split("\n", 1)[0].rstrip(".")
    line = _compat.user_line(error)
    where = f", at {line}" if line else ""
    return (
        f"JAX cannot trace {function_name(fn)}: {type(error).__name__}: {first}{where}. "
        f"Mend the function, or pass arguments that it takes."
    )


def _graph(
    parts: GraphParts,
    carry: Pairs,
    arguments: Arguments,
    results: Results,
    state: set[int],
    donated: tuple[int, ...],
) -> OpGraph:
    return OpGraph(
        ops=parts.ops,
        inputs=parts.inputs,
        outputs=parts.outputs,
        carry=carry,
        regions=parts.regions,
        batch_inputs=_batch_inputs(parts.inputs, arguments, state),
        donated=donated,
        key_inputs=tuple(i for i, _ in _keys(arguments.avals)),
        key_outputs=tuple(i for i, _ in _keys(results.avals)),
        output_names=tuple(f"output{path or '[0]'}" for path in results.names),
    )


def _donated_inputs(donated: Donated, arguments: Arguments) -> tuple[int, ...]:
    """The flat inputs of arguments that are donated, by position or by the name that they were passed by."""
    for position, _ in arguments.static:
        if position in donated:
            raise TraceError(f"argument {position} is both static and donated")
    return tuple(
        i for argument in arguments.traced if argument.is_one_of(donated) for i in argument.inputs
    )


def _carried_inputs(fn: Callable[..., Any], pairs: Pairs) -> tuple[int, ...]:
    """The flat inputs whose place results take.

    Raises:
      TraceError: there are none.
    """
    if not pairs:
        raise TraceError(
            f"donate_argnums is {CARRIED!r}, but no result of {function_name(fn)} takes the place of an argument: name "
            f"the arguments whose memory results may take, or say by carry= which results take their place"
        )
    return tuple(sorted(position for _, position in pairs))


def _batch_inputs(
    inputs: tuple[TensorInfo, ...], arguments: Arguments, state: set[int]
) -> tuple[int, ...]:
    """Flat inputs that are data and not state: with dims, not `state`, not keys."""
    return tuple(
        i
        for i, aval in enumerate(arguments.avals)
        if i not in state and inputs[i].ndim >= 1 and not _compat.is_key_dtype(aval.dtype)
    )


def known_state(arguments: Arguments, results: Results, carry: Pairs) -> set[int]:
    """The flat inputs that hold no data: those carried, and what objects hold; of several arguments the first and those
    like a result.
    """
    state = {flat for _, flat in carry}
    for argument in arguments.traced:
        state.update(argument.start + n for n in held_in_objects(argument.tree))
    if len(arguments.traced) > 1:
        state.update(arguments.traced[0].inputs)
        state.update(resembled_inputs(arguments, results.own))
    return state


def _keys(avals: tuple[Any, ...]) -> tuple[tuple[int, str], ...]:
    return tuple(
        (i, _compat.key_implementation_name(aval.dtype))
        for i, aval in enumerate(avals)
        if _compat.is_key_dtype(aval.dtype)
    )


def _constant(value: Any) -> np.ndarray[Any, Any] | jax.Array:
    if not isinstance(value, jax.Array):
        return np.asarray(value)
    return untyped_jax.random.key_data(value) if _compat.is_key_dtype(value.dtype) else value
