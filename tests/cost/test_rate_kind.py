"""Under which name an operator's speed is stated, and that prices rest on it, at once as one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autopar.calibration.cases import Case
from autopar.core.dataflow import dataflow
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.cost.assemble import assemble
from autopar.cost.pricing import Roofline, cost_of
from autopar.ops.rate_kind import rate_kind
from autopar.redistribute.route import Router
from autopar.search.space import build_space
from autopar.trace import trace
from cost_models import Curve, Efficiency, HalfSizes, load_cluster
from cost_models.curves import CONVOLUTIONS, Packing, product_dims

FORMS = {"features last": ("NHWC", "HWIO", "NHWC"), "features first": ("NCHW", "OIHW", "NCHW")}
MESH = DeviceMesh.of({"x": 2, "y": 4})
CPU = load_cluster("cpu8")
PACKING = Packing(2, 1, 40, 8)
SLOW = Efficiency(
    {"float32": HalfSizes(10, 20, 30)},
    {"exp": {"float32": Curve((), (), 1e-6)}, "other": {"float32": Curve((), (), 1e-9)}},
    Curve((1e3,), (1e-5,), 1e-9),
    convolutions={"conv_general_dilated": PACKING},
)


def graph_of(fn: Any, *shapes: tuple[int, ...]) -> OpGraph:
    return trace(fn, tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).graph


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_convolutions_are_told_from_them(form: str, stride: int) -> None:
    dims = FORMS[form]
    shapes = (
        ((4, 16, 16, 8), (3, 3, 8, 12)) if dims[0] == "NHWC" else ((4, 8, 16, 16), (12, 8, 3, 3))
    )

    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=dims)

    def kinds(fn: Any) -> set[str]:
        graph = graph_of(fn, *shapes)
        return {rate_kind(op) for op in graph.ops if op.kind == "conv_general_dilated"}

    def loss(x: Any, w: Any) -> Any:
        return (convolve(x, w) ** 2).sum()

    name = "conv_general_dilated"
    assert kinds(convolve) == {name}
    assert kinds(jax.grad(loss, 0)) == {name, f"{name}:image"}
    assert kinds(jax.grad(loss, 1)) == {name, f"{name}:window"}


def test_reductions_over_the_last_dim_and_transposes_by_rows_are_forms_of_their_own() -> None:
    def kinds(fn: Any) -> list[str]:
        return [
            rate_kind(op)
            for op in graph_of(fn, (8, 16, 32)).ops
            if op.kind.startswith(("reduce_", "transp"))
        ]

    assert kinds(lambda x: x.sum((0, 1))) == ["reduce_sum"]
    assert kinds(lambda x: x.sum((0, 2))) == ["reduce_sum:last"]
    assert kinds(lambda x: x.max(-1)) == ["reduce_max:last"]
    assert kinds(lambda x: x.swapaxes(0, 1)) == ["transpose:rows"]
    assert kinds(lambda x: x.swapaxes(1, 2)) == ["transpose"]


def test_prices_rest_on_what_a_device_reaches() -> None:
    graph = graph_of(lambda x, w: jnp.exp(x @ w), (64, 32), (32, 48))
    cluster = replace(CPU, device=replace(CPU.device, efficiency=SLOW))
    before, after = (Roofline(graph, MESH, each) for each in (CPU, cluster))
    space = build_space(graph, dataflow(graph), MESH, keep=after.keep)
    for op, strategies in zip(graph.ops, space.strategies, strict=True):
        for strategy in strategies:
            assert after.op_cost(op, strategy) > before.op_cost(op, strategy)
            if op.kind == "exp":
                assert after.op_cost(op, strategy) == pytest.approx(
                    1e-6 * 64 * 48 / strategy.split, rel=0.5
                )


@pytest.mark.parametrize("efficiency", [None, SLOW], ids=["peaks", "curves"])
def test_all_strategies_at_once_are_as_each_on_its_own(efficiency: Efficiency | None) -> None:
    graph = graph_of(lambda x, w: jnp.exp(x @ w).T.sum(0), (64, 32), (32, 48))
    cluster = replace(CPU, device=replace(CPU.device, efficiency=efficiency))
    price, flow = Roofline(graph, MESH, cluster), dataflow(graph)
    space = build_space(graph, flow, MESH, keep=price.keep)
    problem = assemble(graph, flow, space, price, Router(MESH, price.step_cost))
    for op, strategies in zip(graph.ops, space.strategies, strict=True):
        expected = [cost_of(price, op, strategy) for strategy in strategies]
        assert problem.node_costs[len(space.inputs) + op.id].tolist() == pytest.approx(
            expected, rel=1e-12
        )


def convolved(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def of_image(y: Any, w: Any) -> Any:
    return jax.linear_transpose(
        lambda x: convolved(x, w), jax.ShapeDtypeStruct((4, 16, 16, 6), jnp.float32)
    )(y)[0]


def of_window(x: Any, y: Any) -> Any:
    return jax.linear_transpose(
        lambda w: convolved(x, w), jax.ShapeDtypeStruct((3, 3, 6, 10), jnp.float32)
    )(y)[0]


IMAGE, WINDOW, RESULT = (4, 16, 16, 6), (3, 3, 6, 10), (4, 16, 16, 10)
CONVOLVING = {
    CONVOLUTIONS[0]: (convolved, IMAGE, WINDOW),
    CONVOLUTIONS[1]: (of_image, RESULT, WINDOW),
    CONVOLUTIONS[2]: (of_window, IMAGE, RESULT),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions_are_measured_as_they_are_priced(kind: str) -> None:
    fn, *shapes = CONVOLVING[kind]
    graph = graph_of(fn, *shapes)
    price = Roofline(graph, DeviceMesh.of({"x": 1}), CPU)
    (op,) = (op for op in graph.ops if op.kind == "conv_general_dilated")
    (strategy,) = build_space(
        graph, dataflow(graph), DeviceMesh.of({"x": 1}), keep=price.keep
    ).strategies[op.id]
    work, case = price.local_work(op, strategy), Case("work", kind, (4, 16, 3, 6, 10))
    assert (work.kind, work.flops, work.elements) == (kind, case.operations, case.elements)
    dims = {
        CONVOLUTIONS[0]: (1024, 10, 54),
        CONVOLUTIONS[1]: (1024, 6, 90),
        CONVOLUTIONS[2]: (54, 10, 1024),
    }
    assert product_dims(*(work.elements or (1.0, 1.0, 1.0)), work.flops) == pytest.approx(
        dims[kind]
    )


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_convolutions_split_over_channels_lose_more_of_their_rate(groups: int) -> None:
    def fn(x: Any, w: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=dims, feature_group_count=groups
        )

    graph = graph_of(fn, (16, 16, 16, 8), (3, 3, 8 // groups, 16))
    cluster = replace(CPU, device=replace(CPU.device, efficiency=SLOW))
    price, flow = Roofline(graph, MESH, cluster), dataflow(graph)
    space = build_space(graph, flow, MESH, keep=price.keep)
    problem = assemble(graph, flow, space, price, Router(MESH, price.step_cost))
    (op,) = (op for op in graph.ops if op.kind == "conv_general_dilated")
    dims: dict[tuple[int, ...], float] = {}
    for cost, strategy in zip(
        problem.node_costs[len(space.inputs) + op.id], space.strategies[op.id], strict=True
    ):
        assert cost == pytest.approx(cost_of(price, op, strategy), rel=1e-12)
        work = price.local_work(op, strategy)
        m, n, k = product_dims(*(work.elements or (1.0, 1.0, 1.0)), work.flops)
        image, window, result = (
            placement.local_shape(tensor.shape, MESH)
            for tensor, placement in zip(
                (*op.ins, *op.outs), (*strategy.ins, *strategy.outs), strict=True
            )
        )
        assert n == pytest.approx(min(result[3], 16 // groups))
        assert k == pytest.approx(9 * window[2])
        if groups == 1:
            assert m == pytest.approx(result[0] * result[1] * result[2])
        dims[image] = n
    assert len(dims) > 3
