"""scan_layers: equal layers one after another, which a plan may run as pipeline stages.

The stages are a dim of ordinary arrays: parameters [layers] become [rounds, layers of a run, stages], activations get a
dim of stages, and one `lax.scan` over ticks runs all stages at once and moves activations on by a roll. So the search
splits the stages over devices like any other dim, and prices what that sends; nothing else knows of pipelines.

Y. Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", NeurIPS 2019. Differs:
the derivative is JAX's, of the whole loop, and stages need not lie on devices of their own. Rounds: D. Narayanan et
al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021 (interleaved stages).
Differs: backward passes begin when all forward passes have ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from autopar._compat import open_jaxpr, untyped_jax
from autopar._mesh import aval_of
from autopar.core.graph import OpGraph
from autopar.core.program import Compute
from autopar.core.stages import Stages
from autopar.emit.run import Env
from autopar.errors import BatchNotCut, InvalidOption
from autopar.microbatch.cut import cut
from autopar.microbatch.leaves import given, returned
from autopar.microbatch.rounds import Rounds, rounds_of
from autopar.microbatch.run import Loop
from autopar.trace import Traced, trace

Array = jax.Array
Layer = Callable[[Any, Any], Any]
lax = untyped_jax.lax
jnp = untyped_jax.numpy
tree_util = untyped_jax.tree_util

_SCOPE = "scan_layers_{layers}x{rows}"
_SCOPED = re.compile(r"scan_layers_(\d+)x(\d+)")
_MANY = ((2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (1, 4), (2, 4))
"""Micro-batches a stage, and rounds: their product m leaves a bubble of 1 / (m + 1) of the step at most."""

_UNROLLED = 8
"""Layers of a run that are written out one after another. A loop in the loop over ticks would copy its parameters and
what it stacks at each tick: of 16 layers of 1024x1024 in 2 stages 2.65 s of computing for 2.32 (4 devices on 2 cores).
"""

STAGES: Any = untyped_jax.make_user_context(None)
"""The `Stages` that layers run in. A part of JAX's own tracing context, so that traces with and without do not mix."""


def scan_layers(layer: Layer, x: Any, params: Any) -> Any:
    """`x` after one equal layer after another: `lax.scan` over `params`, or pipeline stages where a plan has these.

        x = autopar.scan_layers(block, x, params["blocks"])

    Outside of plans it is `lax.scan`. The search of a plan also tries the layers in stages: each holds a run of layers,
    and micro-batches of `x` move from stage to stage. Values are those of `lax.scan`, random bits included; gradients
    are summed over micro-batches.

    Args:
      layer: a function of `x` and of one layer's parameters that returns a new `x` of the same shapes and types. It may
        be a `jax.checkpoint`, and close over other arrays.
      x: a pytree of arrays [rows, ...]. Each row is to depend on the same row alone: other layers run in no stages.
      params: a pytree of arrays [layers, ...].

    Raises:
      InvalidOption: `x` or `params` has no arrays, or they differ in their first dim.
    """
    rows = _first_dim(x, "x", "rows")
    layers = _first_dim(params, "params", "layers")
    stages: Stages | None = STAGES.value

    with untyped_jax.named_scope(_SCOPE.format(layers=layers, rows=rows)):
        if stages is None or layers % stages.runs or rows % stages.micro_batches:
            return _in_turn(layer, x, params)
        return _Pipeline(layer, x, params, stages).run()


def _in_turn(layer: Layer, x: Any, params: Any) -> Any:
    """`x` after all layers, one after another."""

    def body(x: Any, p: Any) -> tuple[Any, None]:
        return layer(x, p), None

    return lax.scan(body, x, params)[0]


def choices_of_stages(graph: OpGraph, devices: int) -> list[Stages]:
    """The stages that the layers of `graph` may be divided into for so many devices; none where it has no such layers.

    All `scan_layers` of it are divided alike.
    """
    sizes = {found.groups() for op in graph.ops for found in _SCOPED.finditer(op.scope)}
    if not sizes:
        return []

    layers = np.gcd.reduce([int(layers) for layers, _ in sizes])
    rows = np.gcd.reduce([int(rows) for _, rows in sizes])
    counts = [n for n in range(2, devices + 1) if not devices % n]
    return [
        Stages(count, count * many, rounds)
        for count in counts
        for many, rounds in _MANY
        if not rows % (count * many) and not layers % (count * rounds)
    ]


def _first_dim(tree: Any, name: str, what: str) -> int:
    """The size that the first dims of all leaves have.

    Raises:
      InvalidOption: there is no leaf, one has no dims, or they differ.
    """
    shapes = [aval_of(leaf).shape for leaf in tree_util.tree_leaves(tree)]
    sizes = {int(shape[0]) for shape in shapes if shape}
    if len(sizes) != 1 or () in shapes:
        raise InvalidOption(
            f"{name} of scan_layers has arrays of shapes {shapes}: pass arrays whose first dim is the {what}, the same "
            f"in all"
        )
    return sizes.pop()


@dataclass(frozen=True, eq=False)
class _Pipeline:
    """Layers in stages: `x` and `params` as in `scan_layers`."""

    layer: Layer
    x: Any
    params: Any
    stages: Stages

    def run(self) -> Any:
        """`x` after all layers."""
        stages = self.stages
        slices = [self._loop.slices_of(leaf, 0) for leaf in self._rows]
        first = [jnp.broadcast_to(rows[0], (stages.count, *rows.shape[1:])) for rows in slices]
        ticks = np.arange(stages.ticks, dtype=np.int32)
        tick = self._tick
        if stages.rounds > 1:
            tick = jax.checkpoint(
                tick, prevent_cse=False, policy=_is_kept
            )  # as no two loops are one
        _, states = lax.scan(tick, first, (ticks, [self._fed(rows) for rows in slices]))

        outs = [self._loop.joined(self._done(state), 0) for state in states]
        traced = self._sliced.traced
        return tree_util.tree_unflatten(traced.out_tree, returned(traced, outs))

    def _fed(self, slices: Array) -> Array:
        """What the first stage may take in at each tick: in the first round of a group its slices, then anything.

        What comes behind the last slice is never looked at: that slice once more keeps it finite.
        """
        count, rounds, shape = self.stages.count, self.stages.rounds, slices.shape[1:]
        more = jnp.broadcast_to(slices[-1], (count - 1, *shape))
        if rounds > 1:
            groups = slices.reshape(-1, count, *shape)
            rest = [(0, 0), (0, (rounds - 1) * count), *[(0, 0)] * len(shape)]
            slices = jnp.pad(groups, rest).reshape(-1, *shape)
        return jnp.concatenate([slices, more])

    def _done(self, states: Array) -> Array:
        """The slices of the new x, of what all stages gave at each tick: the last stage's of the last round."""
        count, rounds = self.stages.count, self.stages.rounds
        last = states[count - 1 :, count - 1]
        if rounds == 1:
            return last
        shape = last.shape[1:]
        groups = last.reshape(-1, rounds, count, *shape)
        return groups[:, rounds - 1].reshape(-1, *shape)

    def _tick(
        self, state: list[Array], fed: tuple[Array, list[Array]]
    ) -> tuple[list[Array], list[Array]]:
        """All stages once: each takes what the one before it gave, the first in its first round the next slice."""
        tick, slices = fed
        stage = np.arange(self.stages.count, dtype=np.int32)
        numbers, rounds = self._place(tick - stage)
        takes = (stage == 0) & (rounds == 0)
        moved = [
            jnp.where(takes.reshape(-1, *[1] * new.ndim), new[None], jnp.roll(old, 1, 0))
            for old, new in zip(state, slices, strict=True)
        ]

        stages = untyped_jax.vmap(self._sliced.run)

        def one_layer(state: list[Array], params: list[Array]) -> tuple[list[Array], None]:
            return stages(numbers, state, params), None

        params = [self._of_round(leaf, rounds) for leaf in self._stacked]
        layers = params[0].shape[0]
        unroll = layers if layers <= _UNROLLED else 1
        done, _ = lax.scan(one_layer, moved, params, unroll=unroll)
        return done, done

    def _place(self, since: Array) -> tuple[Array, Any]:
        """The slices and the rounds that stages are at, so many ticks `since` they began; before and after: any."""
        count, rounds = self.stages.count, self.stages.rounds
        last = rounds * self.stages.micro_batches - 1
        steps = jnp.clip(since, 0, last)
        if rounds == 1:
            return steps, np.zeros(count, np.int32)
        groups = steps // (count * rounds)
        return groups * count + steps % count, steps // count % rounds

    def _of_round(self, leaf: Array, rounds: Any) -> Array:
        """Of stacked parameters those of the round that each stage is at, [layer of a run, stage, ...]."""
        if self.stages.rounds == 1:
            return leaf
        sizes = (1, leaf.shape[1], 1, *leaf.shape[3:])
        picks = _picks(leaf.ndim)
        return lax.gather(leaf, rounds[:, None], picks, sizes, mode="promise_in_bounds")

    @cached_property
    def _stacked(self) -> list[Array]:
        """Parameters as [layer of a run, stage, ...], with a first dim of rounds if there are several."""
        count, rounds = self.stages.count, self.stages.rounds
        outer = () if rounds == 1 else (rounds,)
        leaves = [jnp.asarray(leaf) for leaf in tree_util.tree_leaves(self.params)]
        runs = [
            leaf.reshape(*outer, count, leaf.shape[0] // (rounds * count), *leaf.shape[1:])
            for leaf in leaves
        ]
        return [jnp.swapaxes(run, len(outer), len(outer) + 1) for run in runs]

    @cached_property
    def _rows(self) -> list[Array]:
        """The arrays of x."""
        return given(self._sliced.traced, tree_util.tree_leaves(self.x))

    @property
    def _loop(self) -> Loop:
        return self._sliced.loop

    @cached_property
    def _sliced(self) -> _SlicedLayer:
        whole = tree_util.tree_map(_shape_of, self.x)
        one = tree_util.tree_map(_one_layer, self.params)
        closed, result = untyped_jax.make_jaxpr(self.layer, return_shape=True)(whole, one)
        _, held = open_jaxpr(closed)

        def opened(x: Any, p: Any, held: Any) -> Any:
            jaxpr, _ = open_jaxpr(closed)
            leaves = tree_util.tree_leaves((x, p))
            outs = untyped_jax.core.eval_jaxpr(jaxpr, held, *leaves)
            return tree_util.tree_unflatten(tree_util.tree_structure(result), outs)

        traced = trace(opened, (whole, one, [_shape_of(value) for value in held]))
        rows = len(tree_util.tree_leaves(whole))
        return _SlicedLayer(traced, rows, self.stages.micro_batches, tuple(held))


def _picks(ndim: int) -> Any:
    """How a round is picked of parameters [round, layer of a run, stage, ...], for each stage its own."""
    return lax.GatherDimensionNumbers(
        offset_dims=(0, *range(2, ndim - 1)),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
        operand_batching_dims=(2,),
        start_indices_batching_dims=(0,),
    )


def _is_kept(primitive: Any, *avals: Any, **params: Any) -> bool:
    """Whether a tick keeps a result for its derivative: all but the parameters that it picks, which stay anyway."""
    return primitive is not lax.gather_p or params["dimension_numbers"] != _picks(avals[0].ndim)


def _shape_of(leaf: Any) -> Any:
    """The shape and type of an array."""
    aval = aval_of(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _one_layer(leaf: Any) -> Any:
    """The shape and type of one layer's part of parameters [layers, ...]."""
    whole = _shape_of(leaf)
    return jax.ShapeDtypeStruct(whole.shape[1:], whole.dtype, weak_type=whole.weak_type)


@dataclass(frozen=True, eq=False)
class _SlicedLayer:
    """A layer on one slice of rows at a time.

    `traced` is it on all rows: the first `rows` of its flat inputs are x, then come the parameters of one layer, and
    last what it closes over, `held`. The rows are cut into `count` slices.
    """

    traced: Traced
    rows: int
    count: int
    held: tuple[Any, ...]

    @cached_property
    def loop(self) -> Loop:
        """The layer in rounds, each of which makes a slice.

        Raises:
          BatchNotCut: rows depend on others, or a new x has no such rows.
        """
        graph = self.traced.graph
        stage, slices = cut(graph, range(self.rows), self.count)
        rounds = rounds_of(graph, stage, slices)
        x = {*rounds.program.inputs[: self.rows]}
        for _, instruction in rounds.before:
            if isinstance(instruction, Compute) and not x.isdisjoint(instruction.ins):
                op = instruction.op
                raise BatchNotCut(
                    f"{op.kind} ({op.source}) needs all rows at once, so the layers cannot be stages of a pipeline"
                )
        return Loop(rounds)

    @cached_property
    def outs(self) -> list[int]:
        """The values that are slices of the new x; an input of the program is a part of x that is passed on.

        Raises:
          BatchNotCut: one has no rows of its own.
        """
        rounds = self.loop.rounds
        part_of = {whole: part for part, whole in rounds.stacked}
        part_of |= {value: value for value in rounds.program.inputs[: self.rows]}
        wrong = [
            n
            for n, out in enumerate(rounds.program.outputs)
            if out not in part_of or not _has_rows_first(rounds, part_of[out])
        ]
        if wrong:
            raise BatchNotCut(
                f"result {wrong[0]} of the layer is made of all rows at once, or has its rows in another dim than the "
                f"first, so the layers cannot be stages of a pipeline"
            )

        return [part_of[out] for out in rounds.program.outputs]

    def run(self, number: Array, slices: Sequence[Array], params: Sequence[Array]) -> list[Array]:
        """The slices of a new x, of the `number`th slices of x."""
        rounds = self.loop.rounds
        program = rounds.program
        others: list[Any] = [
            *given(self.traced, [*params, *self.held], self.rows),
            *self.traced.constants,
        ]
        env: Env = dict(zip(program.inputs[self.rows :], others, strict=True))
        self.loop.runner.run(rounds.before, env, None)

        mine = dict(zip(program.inputs[: self.rows], slices, strict=True))
        for whole, part in rounds.sliced:
            env[part] = (
                mine[whole] if whole in mine else self.loop.slice_of(env[whole], part, number)
            )
        replace(self.loop.runner, number=number).run(rounds.loop, env, None)

        return [mine[out] if out in mine else env[out] for out in self.outs]


def _has_rows_first(rounds: Rounds, part: int) -> bool:
    """Whether a value is cut in its first dim; an input is."""
    return part in rounds.program.inputs or bool(rounds.placement(part).dims[0])
