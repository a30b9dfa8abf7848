"""Gathers and scatters that a compiler runs as all-reduces: what they cost, which these are, how routes avoid them."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.cost.pricing import Roofline
from autopar.redistribute.route import Router
from autopar.trace import trace
from cost_models import collective_time_s, load_cluster
from cost_models.compute import moving_time_s
from cost_models.groups import group

GRAPH = trace(lambda x: x + 1, (jnp.ones(8),)).graph
SIZE = 2**26


def pricing(cluster: str, **mesh: int) -> Roofline:
    """The prices of a mesh on a cluster."""
    return Roofline(GRAPH, DeviceMesh.of(mesh), load_cluster(cluster))


def gathered_s(cluster: str, mesh: tuple[int, ...], *axes: int) -> float:
    """Seconds of an all-gather by the cluster's links."""
    return collective_time_s("all_gather", SIZE, group(load_cluster(cluster).topology, mesh, axes))


def test_a_gather_along_three_rings_of_tpus_is_an_all_reduce_of_zeros_that_are_written() -> None:
    prices = pricing("tpu-v5p-4x4x4", x=16, y=4)
    device = prices.cluster.device
    written_s = moving_time_s(SIZE, device) + device.launch_s
    summed_s = prices.step_cost("all_reduce", ("x", "y"), SIZE)
    assert prices.step_cost("all_gather", ("x", "y"), SIZE) == pytest.approx(summed_s + written_s)


@pytest.mark.parametrize(
    ("cluster", "mesh", "axes"),
    [
        ("tpu-v5p-4x4x4", (16, 4), (0,)),
        ("tpu-v5p-4x4x4", (16, 4), (1,)),
        ("tpu-v5p-2x2x2", (2, 4), (0, 1)),
        ("tpu-v5e-4x4", (4, 4), (0, 1)),
        ("8x8xh100", (8, 8), (0, 1)),
    ],
)
def test_other_gathers_are_what_they_are_called_and_scatters_but_for_those_of_tpus(
    cluster: str, mesh: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    prices = pricing(cluster, x=mesh[0], y=mesh[1])
    named = tuple("xy"[axis] for axis in axes)
    assert prices.step_cost("all_gather", named, SIZE) == gathered_s(cluster, mesh, *axes)
    summed_s = prices.step_cost("all_reduce", named, SIZE)
    scattered_s = summed_s if cluster.startswith("tpu") else gathered_s(cluster, mesh, *axes)
    assert prices.step_cost("reduce_scatter", named, SIZE) == scattered_s


def test_a_route_gathers_along_one_axis_after_the_other_where_that_takes_less() -> None:
    def kinds(cluster: str, **mesh: int) -> list[tuple[str, tuple[str, ...]]]:
        prices = pricing(cluster, **mesh)
        router = Router(prices.mesh, prices.step_cost)
        split, whole = Placement((("x", "y"), ())), Placement(((), ()))
        return [(s.kind, s.axes) for s in router.route((4096, 8192), 2, split, whole)]

    stepwise = [("all_gather", ("y",)), ("all_gather", ("x",))]
    assert kinds("tpu-v5p-4x4x4", x=16, y=4) == stepwise
    assert kinds("tpu-v5e-4x4", x=4, y=4) == [("all_gather", ("x", "y"))]
