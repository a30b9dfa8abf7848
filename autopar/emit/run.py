"""run: a ShardedProgram on the local shards of its inputs, instruction by instruction, inside shard_map."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import jax

from autopar._compat import (
    open_jaxpr,
    pcast_varying,
    remat_primitive,
    untyped_jax,
    varying_axes,
    written,
)
from autopar.backends.backend import Backend
from autopar.backends.known import UNKNOWN
from autopar.core.program import Compute, Instruction, Move, ShardedProgram
from autopar.core.regions import BOUNDARY, Region
from autopar.emit import control
from autopar.emit.barriers import BarrierReads, anew, behind_barrier
from autopar.emit.effects import TOKEN, is_made_once, is_ordered, run_callback, token_of
from autopar.emit.local.localize import localize
from autopar.emit.moves import run_move

Array = jax.Array
lax = untyped_jax.lax
jnp = untyped_jax.numpy
Env = dict[int, Array]


def local_function(
    program: ShardedProgram, backend: Backend = UNKNOWN, mark: str = ""
) -> Callable[..., tuple[Array, ...]]:
    """The function that every device runs: local inputs in, local outputs out.

    Args:
      program: routed (no Convert left).
      backend: what compiles it.
      mark: instruction n runs in a name scope of JAX's that is called so, and n; "": in none.
    """
    last = {value: n for n, i in enumerate(program.instructions) for value in i.ins}
    last |= dict.fromkeys(program.outputs, len(program.instructions))
    loops = backend.before_loops(program)
    written_first = backend.written(program)
    runner = _DeviceRunner(
        program, last, anew(program, backend), loops, backend, written_first, mark
    )
    numbered = list(enumerate(program.instructions))

    def run(*inputs: Array) -> tuple[Array, ...]:
        env: Env = dict(zip(program.inputs, inputs, strict=True))
        runner.run(numbered, env, None)
        return tuple(read_value(program, env, value) for value in program.outputs)

    return run


@dataclass(frozen=True, eq=False)
class Runner(ABC):
    """Runs the instructions of a program, region by region.

    `last` is the last instruction that reads each value.
    """

    program: ShardedProgram
    last: dict[int, int]

    def run(self, instructions: control.Numbered, env: Env, parent: int | None) -> None:
        """Runs `instructions`, which lie in the region `parent`, with the values `env`."""
        program = self.program
        tree = self.program.tree

        for region, members in groupby(
            instructions, key=lambda member: tree.child_towards(parent, member[1].region)
        ):
            if region is None:
                for position, instruction in members:
                    self.step(position, instruction, env)
            elif tree.kind(region) == "remat":
                self.run_remat(tree[region], list(members), env)
            else:
                self.before(region, env)
                inside = control.ControlRegion(
                    program,
                    tree[region],
                    list(members),
                    env,
                    self.run,
                    partial(read_value, program),
                )
                control.RUN[inside.region.kind](inside)

    def before(self, region: int, env: Env) -> None:
        """What is to be there before a control region begins."""
        del region, env

    @abstractmethod
    def step(self, position: int, instruction: Instruction, env: Env) -> None:
        """Runs the instruction at a position with the values `env`, and puts its results there."""

    def leaving(self, members: control.Numbered, inside: Iterable[int]) -> Iterator[int]:
        """Those of `inside`, made by `members`, which are all of a block, that others read."""
        end = members[-1][0]
        return (value for value in inside if self.last.get(value, -1) > end)

    def run_remat(self, region: Region, members: control.Numbered, env: Env) -> None:
        """Runs a rematerialised block as one operator, so that XLA cannot undo it."""
        inside = {value for _, instruction in members for value in instruction.outs}
        ins = sorted(
            {
                v
                for _, instruction in members
                for v in instruction.ins
                if v in env and v not in inside
            }
        )
        outs = sorted(self.leaving(members, inside))
        if is_ordered([instruction for _, instruction in members]):
            env[TOKEN] = token_of(self.program.mesh, env)
            ins = [*ins, TOKEN]
            outs = [*outs, TOKEN]

        def body(*values: Array) -> list[Array]:
            local: Env = dict(zip(ins, values, strict=True))
            self.run(members, local, region.id)
            return [local[value] for value in outs]

        results = _rematerialised(region, body, [env[value] for value in ins])
        env.update(zip(outs, results, strict=True))


@dataclass(frozen=True, eq=False)
class _DeviceRunner(Runner):
    """Runs instructions inside shard_map.

    `anew` is what is read through a barrier where, `loops` what goes through one before a loop; `backend` and `mark` as
    in `local_function`; `held` are values that are written before they are read.
    """

    anew: dict[int, BarrierReads]
    loops: Mapping[int, tuple[tuple[int, ...], ...]]
    backend: Backend
    held: frozenset[int]
    mark: str = ""

    def step(self, position: int, instruction: Instruction, env: Env) -> None:
        """Runs one instruction with the values `env`, in a scope of its own where these are marked."""
        scope = untyped_jax.named_scope(f"{self.mark}{position}") if self.mark else nullcontext()
        with scope:
            self._run_one(position, instruction, env)

    def before(self, region: int, env: Env) -> None:
        """See `Backend.before_loops`."""
        for values in self.loops.get(region, ()):
            held = lax.optimization_barrier([env[value] for value in values])
            env.update(zip(values, held, strict=True))

    def _run_one(self, position: int, instruction: Instruction, env: Env) -> None:
        """Runs one instruction with the values `env`, some of which it may read through a barrier."""
        program = self.program
        due = self.anew.get(position)
        values: Sequence[Array] = [read_value(program, env, value) for value in instruction.ins]
        values = values if due is None else behind_barrier(due, instruction.ins, values, env)
        if isinstance(instruction, Compute) and instruction.op.kind in BOUNDARY:
            return

        if isinstance(instruction, Compute) and is_made_once(instruction):
            results = run_callback(instruction, program.mesh, values, env)
            env.update(zip(instruction.outs, results, strict=True))
            return

        if isinstance(instruction, Compute):
            results = _compute(program, instruction, values, self.backend)
        elif isinstance(instruction, Move):
            found = run_move(program, instruction, values, self.backend)
            results = [
                written(x) if v in self.held else x
                for v, x in zip(instruction.outs, found, strict=True)
            ]
        else:
            raise TypeError(f"{instruction} was never routed")

        env.update(zip(instruction.outs, results, strict=True))


def _compute(
    program: ShardedProgram, compute: Compute, values: Sequence[Array], backend: Backend
) -> Sequence[Array]:
    """Runs the operator with all operands cast to vary over the same axes, as binding a primitive requires.

    A constant that is split need not vary of itself, but where its shard begins does. The body of a shard_map has casts
    of its own.
    """
    named = [placement.varying_axes for placement in compute.strategy.ins]
    axes = frozenset[str]().union(*named, *(varying_axes(value) for value in values))
    wanted = named if compute.op.kind == "shard_map" else [axes] * len(values)
    operands = [pcast_varying(value, axes) for value, axes in zip(values, wanted, strict=True)]
    return localize(compute.op, compute.strategy, program.mesh, backend=backend)(*operands)


def _rematerialised(
    region: Region, body: Callable[..., list[Array]], values: Sequence[Array]
) -> Sequence[Array]:
    """The results of `body`, bound as JAX's own remat operator with the parameters that the user's had."""
    jaxpr, constants = open_jaxpr(untyped_jax.make_jaxpr(body)(*values))
    closed = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    params: Any = region.payload
    return remat_primitive().bind(*constants, *values, **{**params, "jaxpr": closed})


def read_value(program: ShardedProgram, env: Env, value: int) -> Array:
    """The value numbered `value`: one of `env`, or a literal."""
    if value in env:
        return env[value]
    tensor = program.values[value].tensor
    return lax.full((), jnp.asarray(tensor.literal, tensor.dtype), tensor.dtype)
