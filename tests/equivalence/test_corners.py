"""Small functions in which one thing is special: what random plans of whole models once got wrong."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autopar.core.graph import OpNode
from autopar.core.plan import Stage
from autopar.core.strategy import Strategy
from autopar.emit.wrap import device_mesh, wrap
from tests.equivalence.cases import MESHES, Case, space_of
from tests.equivalence.check import check, prove
from tests.equivalence.draw import local_plan


def rows_split(case: Case, shape: tuple[int, ...]) -> Stage:
    """Everything replicated but for tensors of this shape: their first dim is split over all devices wherever it can.

    Nothing is redistributed in between, so that a constant is split without ever having been told apart by device.
    """
    space = space_of(case, "8")
    choice = [0] * len(space.counts)
    for op in case.graph.ops:
        fitting = [
            n
            for n, strategy in enumerate(space.strategies[op.id])
            if has_rows_split(op, strategy, shape)
        ]
        choice[len(space.inputs) + op.id] = fitting[0] if fitting else 0
    assert any(choice)
    return space.stage(choice)


def has_rows_split(op: OpNode, strategy: Strategy, shape: tuple[int, ...]) -> bool:
    pairs = zip((*op.ins, *op.outs), (*strategy.ins, *strategy.outs), strict=True)
    return all(
        (placement.dims[:1] == (("x",),)) == (tensor.shape == shape) for tensor, placement in pairs
    )


def check_both(case: Case, stage: Stage) -> None:
    prove(case, case.states(stage, permutes=False)["mark_mirror"])
    check(case, case.program(stage))


def test_scattering_into_split_zeros() -> None:
    """Operand and updates are constants, alike on all devices; only where a shard begins differs."""

    def counts(ids: jax.Array) -> jax.Array:
        return jnp.zeros((16, 4), "float32").at[ids].add(1.0)

    case = Case(counts, (np.array([3, 15, 3, 0], np.int32),), "float32")
    check_both(case, rows_split(case, (16, 4)))


def test_gathering_from_a_split_table() -> None:
    def rows(ids: jax.Array) -> jax.Array:
        return jnp.arange(64, dtype="float32").reshape(16, 4)[ids] * 2

    case = Case(rows, (np.array([3, 15, 3, 0], np.int32),), "float32")
    check_both(case, rows_split(case, (16, 4)))


def test_two_dims_split_of_one_iota() -> None:
    def numbers(x: Any) -> jax.Array:
        return jax.lax.broadcasted_iota("int32", (16, 8), 0) * x

    case = Case(numbers, (np.float32(3.0),), "float32")
    space = space_of(case, "2x2x2")
    for seed in range(4):
        choice = [(seed + n) % count for n, count in enumerate(space.counts)]
        check_both(case, space.stage(choice))


def test_a_fourier_transform_is_row_major() -> None:
    """Where neighbours choose its layout, XLA's CPU runtime refuses to run it: operand and result are constrained."""
    case = Case(lambda x: jnp.fft.rfft(x).real.T, (np.ones((8, 8)),), "float64")
    space = case.space(MESHES["8"])
    program = case.program(space.stage([0] * len(space.counts)))
    check(case, program)
    with case.precision():
        emitted = wrap(program, device_mesh(program.mesh, jax.devices()))
        assert str(jax.make_jaxpr(emitted)(*case.args)).count("layout_constraint") == 3


def test_an_update_of_another_shard_is_dropped_where_the_operand_is_computed_in_place() -> None:
    """XLA's CPU compiler joins the scatter with what makes its operand: what was out of range went to row 0."""

    def fn(g: Any, w: Any) -> Any:
        rows = jax.lax.pad(jnp.outer(g, w), np.float64(0), ((0, 1, 1), (0, 0, 0)))
        return rows.at[jnp.array([4]), ..., jnp.array([4])].add(2.0)

    r = np.random.default_rng(0)
    case = Case(fn, (r.normal(size=8), r.normal(size=16)), "float64")
    space = case.space(MESHES["2x4"])
    for seed in range(12):
        check(case, case.program(local_plan(case, space, seed)))


def test_a_copy_for_readers_in_and_after_a_rematerialised_block() -> None:
    """It is made in the block, after its tensor: before the block there is nothing to copy."""

    def fn(x: Any) -> Any:
        def block(x: Any) -> Any:
            h = jnp.tanh(x @ x)
            return h, h * 2, h.sum(0)

        h, twice, sums = jax.checkpoint(block)(x)
        return h @ twice, h.T + sums, h

    case = Case(fn, (np.random.default_rng(0).normal(size=(8, 8)),), "float64")
    assert any(copy.region is not None and not copy.stored for copy in case.flow.copies)
    space = case.space(MESHES["2x4"])
    for seed in range(4):
        check(case, case.program(local_plan(case, space, seed)))


def test_a_product_of_booleans_is_true_where_a_part_of_it_is() -> None:
    """Parts of its sum over a split dim are combined by or: JAX adds no booleans."""
    draw = np.random.default_rng(0)
    case = Case(jnp.dot, (draw.random((8, 16)) < 0.3, draw.random((16, 8)) < 0.3), "float32")
    space = space_of(case, "8")
    (op,) = case.graph.ops
    parts = next(n for n, s in enumerate(space.strategies[op.id]) if s.outs[0].unreduced)
    for output, _ in enumerate(space.outputs[0]):
        choice = [0] * len(space.counts)
        choice[len(space.inputs) + op.id] = parts
        choice[-1] = output
        check(case, case.program(space.stage(choice)))
