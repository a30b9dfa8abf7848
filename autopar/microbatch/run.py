"""Run: a step in rounds as a function of arrays, with one `lax.scan` over its micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from autopar._compat import pcast_varying, untyped_jax, varying_axes
from autopar.core.placement import Kind, Placement
from autopar.core.program import Compute, Instruction, Move, Value
from autopar.core.regions import BOUNDARY
from autopar.emit.control import Numbered
from autopar.emit.local.localize import localize
from autopar.emit.moves import neutral
from autopar.emit.run import Env, Runner, read_value
from autopar.emit.slicing import slice_at
from autopar.microbatch.cut import Slices
from autopar.microbatch.rounds import Rounds

Array = jax.Array
lax = untyped_jax.lax
jnp = untyped_jax.numpy
_COMBINE: dict[Kind, Callable[[Array, Array], Array]] = {
    "sum": lax.add,
    "max": lax.max,
    "min": lax.min,
}
_NARROW = frozenset({"bfloat16", "float16"})


def function_of(rounds: Rounds) -> Callable[..., tuple[Array, ...]]:
    """The function of flat inputs that runs `rounds`."""
    return Loop(rounds).run


@dataclass(frozen=True, eq=False)
class Loop:
    """The three parts of a step, and the loop in the middle."""

    rounds: Rounds

    def run(self, *inputs: Array) -> tuple[Array, ...]:
        """The flat results for these flat inputs."""
        rounds = self.rounds
        program = rounds.program
        env: Env = dict(zip(program.inputs, inputs, strict=True))
        self.runner.run(rounds.before, env, None)

        slices = [self.slices_of(env[whole], self.dim_of(part)) for whole, part in rounds.sliced]
        scanned = (jnp.arange(self._count, dtype=np.int32), slices)
        (sums, kept), stacks = lax.scan(self._round_with(env), self._nothing_yet(), scanned)

        for (_, whole), total in zip(rounds.combined, sums, strict=True):
            env[whole] = total.astype(program.values[whole].tensor.dtype)
        for (part, whole), stack in zip(rounds.stacked, stacks, strict=True):
            env[whole] = self.joined(stack, self.dim_of(part))
        env.update(zip(rounds.kept, kept, strict=True))
        self.runner.run(rounds.behind, env, None)

        return tuple(read_value(program, env, value) for value in program.outputs)

    def _round_with(self, env: Env) -> Callable[[Any, Any], tuple[Any, list[Array]]]:
        """One round of the loop, which sees what `env` has of before."""
        rounds = self.rounds
        program = rounds.program

        def one_round(carry: Any, scanned: Any) -> tuple[Any, list[Array]]:
            sums, _ = carry
            number, slices = scanned
            inside = dict(env)
            inside.update(zip((part for _, part in rounds.sliced), slices, strict=True))
            replace(self.runner, number=number).run(rounds.loop, inside, None)
            added = [
                self._combined(total, read_value(program, inside, part), part)
                for total, (part, _) in zip(sums, rounds.combined, strict=True)
            ]
            kept = [inside[value] for value in rounds.kept]
            return (added, kept), [inside[part] for part, _ in rounds.stacked]

        return one_round

    def _combined(self, total: Array, part: Array, value: int) -> Array:
        return _COMBINE[self.rounds.placement(value).kind](total, part.astype(total.dtype))

    def _nothing_yet(self) -> tuple[list[Array], list[Array]]:
        """What the loop begins with: sums of nothing, and anything in the place of what every round makes anew."""
        sums = [self._start(part) for part, _ in self.rounds.combined]
        values = self.rounds.program.values
        kept = [jnp.zeros(values[v].tensor.shape, values[v].tensor.dtype) for v in self.rounds.kept]
        return sums, kept

    def _start(self, part: int) -> Array:
        """The neutral element for a part; halves are summed in float32, as products of matrices are."""
        value = self.rounds.program.values[part]
        dtype = np.dtype(value.tensor.dtype)
        kind = value.placement.kind
        wide = np.dtype(np.float32) if kind == "sum" and dtype.name in _NARROW else dtype
        return jnp.full(value.tensor.shape, neutral(kind, wide), wide)

    @property
    def _count(self) -> int:
        return self.rounds.program.mesh.size

    def dim_of(self, part: int) -> int:
        """The dim along which a slice is cut."""
        return _split_dim(self.rounds.placement(part))

    def slice_of(self, whole: Array, part: int, number: Array) -> Array:
        """The slice of a value in the `number`th round."""
        return self.slices_of(whole, self.dim_of(part))[number]

    def slices_of(self, whole: Array, dim: int) -> Array:
        """All slices of a value along a dim, along a new first dim."""
        slices = jnp.moveaxis(numbered(whole, dim, self.rounds.slices), dim + 1, 0)
        return _one_dim(slices, dim + 1)

    def joined(self, stack: Array, dim: int) -> Array:
        """The value whose slices along a dim lie along the first one: the inverse of `slices_of`."""
        majors = self.rounds.slices.majors
        shape = stack.shape[1:]
        size = shape[dim] // majors
        rows = stack.reshape(self._count, *shape[:dim], majors, size, *shape[dim + 1 :])
        return _one_dim(_one_dim(jnp.moveaxis(rows, 0, dim + 1), dim), dim)

    @cached_property
    def runner(self) -> RoundRunner:
        """Runs instructions; to it no value varies over devices: rounds are none."""
        program = self.rounds.program
        last = {value: n for n, i in enumerate(program.instructions) for value in i.ins}
        last |= dict.fromkeys(program.outputs, len(program.instructions))
        plain = {
            number: Value(number, value.tensor, Placement.replicated(value.tensor.ndim))
            for number, value in program.values.items()
        }
        return RoundRunner(replace(program, values=plain), last, self.rounds)


@dataclass(frozen=True, eq=False)
class RoundRunner(Runner):
    """Runs the instructions of one round, the `number`th."""

    rounds: Rounds
    number: Any = 0

    def leaving(self, members: Numbered, inside: Iterable[int]) -> Iterator[int]:
        """Those of `inside` that others than `members` read: a part of a block may run before the loop."""
        positions = {position for position, _ in members}
        others = enumerate(self.program.instructions)
        read = {v for n, instruction in others if n not in positions for v in instruction.ins}
        read.update(self.program.outputs)
        return (value for value in inside if value in read)

    def step(self, position: int, instruction: Instruction, env: Env) -> None:
        """Runs one instruction with the values `env`."""
        del position
        if isinstance(instruction, Compute) and instruction.op.kind in BOUNDARY:
            return
        values = [read_value(self.program, env, value) for value in instruction.ins]
        if isinstance(instruction, Compute):
            results = self._compute(instruction, values)
        elif isinstance(instruction, Move):
            results = [self._moved(instruction, values[0])]
        else:
            raise TypeError(f"{instruction} is neither an operator nor a move")
        env.update(zip(instruction.outs, results, strict=True))

    def _compute(self, compute: Compute, values: Sequence[Array]) -> Sequence[Array]:
        if compute.op.kind == "sharding_constraint":
            payload: Any = compute.op.payload
            return [payload.primitive.bind(*values, **payload.params)]

        axes = frozenset[str]().union(*map(varying_axes, values))
        operands = [pcast_varying(value, axes) for value in values]
        mesh = self.program.mesh

        is_interleaved = self.rounds.slices.majors > 1
        local = localize(
            compute.op,
            compute.strategy,
            mesh,
            lambda _axes: self.number,
            interleaved=is_interleaved,
        )
        return local(*operands)

    def _moved(self, move: Move, whole: Array) -> Array:
        """The slice of a whole value; or all of it in the first round, and nothing in the others."""
        if move.dim is not None:
            rows = numbered(whole, move.dim, self.rounds.slices)
            return _one_dim(
                slice_at(rows, self.number, 1, move.dim + 1).squeeze(move.dim + 1), move.dim
            )
        kind = self.rounds.placement(move.outs[0]).kind
        nothing = jnp.asarray(neutral(kind, whole.dtype), whole.dtype)
        return jnp.where(self.number == 0, whole, nothing)


def numbered(whole: Array, dim: int, slices: Slices) -> Array:
    """`whole` with three dims (major, slice, minor) in the place of `dim`."""
    shape = whole.shape
    size = shape[dim] // (slices.majors * slices.count)
    return whole.reshape(*shape[:dim], slices.majors, slices.count, size, *shape[dim + 1 :])


def _one_dim(x: Array, dim: int) -> Array:
    """`x` with one dim in the place of `dim` and the one behind it."""
    shape = x.shape
    return x.reshape(*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])


def _split_dim(placement: Placement) -> int:
    return next(dim for dim, axes in enumerate(placement.dims) if axes)
