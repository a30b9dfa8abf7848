"""Programs of moves alone, built by hand: each input goes through the steps of a route and comes out."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp

from autopar.core.graph import TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.core.program import Move, ShardedProgram, Value
from autopar.redistribute.collective import size_bytes
from autopar.redistribute.step import Step

ONE = DeviceMesh.of({"x": 8})
TWO = DeviceMesh.of({"x": 2, "y": 4})
THREE = DeviceMesh.of({"x": 2, "y": 2, "z": 2})


def tensor(number: int, shape: Sequence[int], dtype: str) -> TensorInfo:
    return TensorInfo(number, tuple(shape), dtype, jnp.dtype(dtype).itemsize, f"input {number}")


def chains(
    mesh: DeviceMesh, dtype: str, routes: Sequence[tuple[Sequence[int], Sequence[Step]]]
) -> ShardedProgram:
    """One input and one output for each (global shape, steps), one chain after the other."""
    values: dict[int, Value] = {}
    inputs, outputs, moves = [], [], []
    for number, (shape, steps) in enumerate(routes):
        info = tensor(number, shape, dtype)
        ids = [len(values) + n for n in range(len(steps) + 1)]
        placements = [steps[0].before, *(step.after for step in steps)]
        values |= {
            n: Value(n, info, placement) for n, placement in zip(ids, placements, strict=True)
        }
        moves += [move(step, info, mesh, ids[n], ids[n + 1]) for n, step in enumerate(steps)]
        inputs.append(ids[0])
        outputs.append(ids[-1])
    return ShardedProgram(mesh, values, tuple(inputs), tuple(outputs), tuple(moves))


def chain(
    mesh: DeviceMesh, shape: Sequence[int], dtype: str, steps: Sequence[Step]
) -> ShardedProgram:
    return chains(mesh, dtype, [(shape, steps)])


def move(step: Step, info: TensorInfo, mesh: DeviceMesh, before: int, after: int) -> Move:
    size = size_bytes(step, info.shape, info.itemsize, mesh)
    return Move(
        step.kind,
        step.axes,
        (before,),
        (after,),
        size,
        1e-6,
        "redistribution",
        step.dim,
        step.to_dim,
        source="a.py:1",
    )


def bucket(moves: Sequence[Move]) -> Move:
    """Collectives of one kind as one, as the fusion pass makes it."""
    return moves[0]._replace(
        dim=None,
        ins=tuple(v for one in moves for v in one.ins),
        outs=tuple(v for one in moves for v in one.outs),
        size_bytes=sum(one.size_bytes for one in moves),
    )
