"""Before loops: what products make there rather than hold their operands through a loop, in which programs, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autopar
from autopar._compat import varying_axes
from autopar.backends.known import XLA_CPU, XLA_GPU
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.program import Compute, ShardedProgram
from autopar.emit.barriers import BarrierReads, behind_barrier
from autopar.emit.run import local_function
from autopar.emit.wrap import device_mesh, global_function
from autopar.ops.before_loops import made_before

Step = Callable[[Any, Any], Any]


def through(layers: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda x, layer: (jnp.sin(x @ layer), None), x, layers)[0]


def descent(loss: Step) -> Step:
    return lambda w, x: jax.tree.map(lambda p, g: p - 0.1 * g, w, jax.grad(loss)(w, x))


def head(w: Any, x: jax.Array) -> Any:
    """A head behind layers: its gradient waits for theirs, and what that is made of is larger."""
    return descent(lambda w, x: jnp.square(through(w[0], x) @ w[1]).sum())(w, x)


def tied(w: Any, x: jax.Array) -> Any:
    """The head once more before the layers: both gradients are added up behind them."""
    return descent(lambda w, x: jnp.square(through(w[0], x @ w[1]) @ w[1].T).sum())(w, x)


def read_in_it(w: Any, x: jax.Array) -> Any:
    """A gradient that the next loop needs."""
    gradient = jax.grad(lambda w: jnp.square(x @ w).sum())(w[0][0])
    return through(gradient[None], x)


def without(w: Any, x: jax.Array) -> Any:
    """No loop."""
    return descent(lambda w, x: jnp.square(jnp.sin(x @ w[0][0]) @ w[1]).sum())(w, x)


def arguments(rows: int, wide: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    w = [rng.normal(size=(3, 16, 16)) / 4, rng.normal(size=(16, wide)) / 4]
    return [x.astype(np.float32) for x in w], rng.normal(size=(rows, 16)).astype(np.float32)


def program_of(step: Step, w: Any, x: Any, mesh: dict[str, int]) -> ShardedProgram:
    """The program of a plan whose rows are split over the first axis."""
    rows = autopar.pin("x", P(next(iter(mesh))))
    plan = autopar.plan(step, w, x, cluster="8xh100-xla", mesh=mesh, constraints=[rows])
    return plan.bound.planned.program


@pytest.mark.parametrize(
    ("step", "rows", "wide", "is_one"),
    [
        (head, 512, 32, True),
        (head, 16, 64, False),  # what it is made of is smaller
        (tied, 512, 16, True),
        (read_in_it, 512, 32, False),
        (without, 512, 32, False),
    ],
)
def test_where_products_are_made_before_a_loop(
    step: Step, rows: int, wide: int, is_one: bool
) -> None:
    args = arguments(rows, wide)
    program = program_of(step, *args, {"x": 8})
    found = made_before(program)
    assert len(found) == is_one
    for (awaited,) in found.values():
        product = program.instructions[awaited.product]
        assert isinstance(product, Compute)
        assert product.op.kind == "dot_general"
        assert awaited.since < awaited.product < awaited.start
        carried = program.values[awaited.carry].tensor
        assert carried.shape == args[1].shape


@pytest.mark.parametrize("mesh", [{"x": 8}, {"x": 2, "y": 4}])
@pytest.mark.parametrize("step", [head, tied])
def test_values_are_the_same_behind_the_barrier(step: Step, mesh: dict[str, int]) -> None:
    w, x = arguments(512, 32 if step is head else 16)
    assert_runs(step, w, x, program_of(step, w, x, mesh), 1)


def test_what_enters_the_loop_varies_as_the_gradient_does() -> None:
    """Behind one barrier all would vary over the axes of all: nothing of other axes is held."""
    program = program_of(head, *arguments(512, 32), {"x": 8})
    ((awaited,),) = made_before(program).values()
    carried = program.values[awaited.carry]
    assert carried.placement.varying_axes == {"x"}
    whole = carried._replace(placement=Placement.replicated(carried.tensor.ndim))
    other = program.with_instructions(program.instructions, {awaited.carry: whole})
    assert not made_before(other)


def assert_runs(step: Step, w: Any, x: Any, program: ShardedProgram, barriers: int) -> None:
    """It computes what the plain step does, with so many barriers on GPUs and none on CPUs."""
    grid = device_mesh(program.mesh, jax.devices())
    expected = jax.tree.leaves(step(w, x))
    for backend, count in ((XLA_GPU, barriers), (XLA_CPU, 0)):
        flat = global_function(program, grid, local_function(program, backend))
        assert str(jax.make_jaxpr(flat)(*w, x)).count("optimization_barrier") == count
        for own, plain in zip(jax.jit(flat)(*w, x), expected, strict=True):
            np.testing.assert_allclose(own, plain, rtol=2e-5, atol=2e-5)


def test_behind_a_barrier_values_vary_as_they_did() -> None:
    """All that go through one vary over the axes of all, so those of other axes have one of their own."""
    mesh = device_mesh(DeviceMesh.of({"x": 2, "y": 4}), jax.devices())
    seen: list[frozenset[str]] = []

    def run(rows: jax.Array, both: jax.Array) -> tuple[jax.Array, ...]:
        due = BarrierReads(frozenset((0, 1)), 2)
        found = behind_barrier(due, [0, 1], [rows, both], {0: rows, 1: both, 2: rows})
        seen.extend(varying_axes(value) for value in found)
        return tuple(found)

    specs = P("x"), P("x", "y")
    split = jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=specs)
    given = np.arange(64.0).reshape(8, 8), np.ones((8, 8))
    for found, plain in zip(jax.jit(split)(*given), given, strict=True):
        np.testing.assert_array_equal(found, plain)
    assert seen == [{"x"}, {"x", "y"}]
    assert str(jax.make_jaxpr(split)(*given)).count("optimization_barrier") == 2
