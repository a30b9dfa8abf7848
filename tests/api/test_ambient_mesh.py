"""A function that relies on the mesh of `jax.set_mesh` is planned for it, and plans run whatever mesh is set."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import autopar
from autopar.api import make
from autopar.errors import InvalidMesh, TraceError
from tests.api.same import SLOW, assert_same

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)


def auto(*sizes: int, names: str = "dq", devices: Any = None) -> Mesh:
    given = np.array(jax.devices() if devices is None else devices)
    return Mesh(
        given[: np.prod(sizes)].reshape(sizes),
        tuple(names[: len(sizes)]),
        axis_types=(AxisType.Auto,) * len(sizes),
    )


def reshard_like(x: Any) -> Any:
    return jax.sharding.reshard(jnp.ones_like(x), jax.typeof(x).sharding) * x


def bare_spec(x: Any) -> Any:
    return lax.with_sharding_constraint(x * 2, P("d", None))


def bare_spec_of_nothing(x: Any) -> Any:
    return lax.with_sharding_constraint(x * 2, P(None, None))


def mapped(x: Any) -> Any:
    return jax.shard_map(
        lambda mine: lax.psum(mine * 2, "d"), in_specs=P("d", None), out_specs=P(None, None)
    )(x)


def placements(plan: autopar.Plan, kind: str) -> list[str]:
    graph, stage = plan.bound.traced.graph, plan.record.stage
    return [
        str(s.outs[0]) for op, s in zip(graph.ops, stage.strategies, strict=True) if op.kind == kind
    ]


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("fn", [reshard_like, bare_spec, bare_spec_of_nothing, mapped])
@pytest.mark.parametrize("devices", [1, 8])
def test_it_is_traced_under_the_mesh_that_is_set(devices: int, fn: Callable[..., Any]) -> None:
    with jax.set_mesh(auto(devices)):
        x = jnp.asarray(X)
        plan = autopar.plan(fn, x, mesh={"d": 8}, cluster=SLOW)
        wanted = jax.jit(fn)(x)
        assert_same(plan.compile()(x), wanted)
    assert_same(plan.compile()(X), wanted)


def test_the_axes_that_it_names_are_the_plans() -> None:
    with jax.set_mesh(auto(2, 4)):
        plan = autopar.plan(bare_spec, X, cluster=SLOW)
        assert dict(plan.mesh.axes) == {"d": 2, "q": 4}
        assert placements(plan, "sharding_constraint") == ["[d, -]"]
        with pytest.raises(InvalidMesh, match=r"names mesh axes d=2, q=4, which mesh x=8 has not"):
            autopar.plan(bare_spec, X, cluster=SLOW, mesh={"x": 8})


@pytest.mark.parametrize(
    ("fn", "mesh"), [(bare_spec_of_nothing, auto(2, 4)), (bare_spec, auto(1)), (mapped, auto(1))]
)
def test_nothing_is_pinned_where_it_names_none_or_there_is_one_device(
    fn: Callable[..., Any], mesh: Mesh
) -> None:
    """Any mesh may be planned, and what it would cost without the constraint is what it costs."""
    with jax.set_mesh(mesh):
        plans = [
            autopar.plan(fn, X, cluster=SLOW, mesh=axes) for axes in ({"x": 8}, {"d": 4, "z": 2})
        ]
    for plan in plans:
        assert (
            plan.objective_s
            == autopar.plan(lambda x: x * 2, X, cluster=SLOW, mesh=dict(plan.mesh.axes)).objective_s
        )


def test_a_spec_of_no_axes_is_a_pin_beside_one_that_names_some() -> None:
    def fn(x: Any) -> Any:
        return bare_spec(bare_spec_of_nothing(x) + 1)

    with jax.set_mesh(auto(2, 4)):
        assert placements(autopar.plan(fn, X, cluster=SLOW), "sharding_constraint") == [
            "[-, -]",
            "[d, -]",
        ]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_plan_runs_under_a_mesh_of_other_devices(kind: Any) -> None:
    compiled = autopar.plan(lambda x: jnp.tanh(x @ x), X, mesh={"d": 8}, cluster=SLOW).compile()
    wanted = jax.jit(lambda x: jnp.tanh(x @ x))(X)
    for count in (0, 8, 4, 1):
        mesh = Mesh(np.array(jax.devices()[:count]), ("q",), axis_types=(kind,)) if count else None
        with jax.set_mesh(mesh) if mesh is not None else nullcontext():
            assert_same(compiled(X), wanted)
            assert compiled.lower(X) is not None


def test_the_devices_of_the_mesh_that_is_set_are_those_of_the_plan() -> None:
    devices = jax.devices()[6:1:-1][:4]
    compiled = autopar.compile(bare_spec)
    with jax.set_mesh(auto(4, devices=devices)):
        out = compiled(X)
    assert dict(out.sharding.mesh.shape) == {"d": 4}
    assert list(out.sharding.mesh.devices.flat) == devices
    with jax.set_mesh(auto(2, 4)):  # another mesh, another plan
        assert dict(compiled(X).sharding.mesh.shape) == {"d": 2, "q": 4}


def test_a_mesh_that_makes_no_difference_costs_no_second_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[int] = []
    search_best = make.search_best
    monkeypatch.setattr(
        make, "search_best", lambda *given: searched.append(1) or search_best(*given)
    )
    compiled = autopar.compile(lambda x: jnp.sin(x), cluster=SLOW)
    for mesh in (None, auto(8), auto(2, 4)):
        with jax.set_mesh(mesh) if mesh is not None else nullcontext():
            assert_same(compiled(X), jnp.sin(X))
    assert len(searched) == 1


def test_the_users_own_error_is_the_cause() -> None:
    with pytest.raises(TraceError, match="requires a non-empty mesh in context") as caught:
        autopar.plan(bare_spec, X, cluster=SLOW)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "until jax.jit takes" not in str(caught.value)
