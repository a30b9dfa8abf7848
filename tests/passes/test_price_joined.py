"""Gathers that XLA for GPUs joins: each costs its share of those that are there."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autopar
from autopar.core.program import Move
from autopar.cost.buckets import JoinedPrice, joined_price, ready
from autopar.redistribute.step import StepKind
from autopar.trace import trace

LATENCY_S, PER_BYTE_S = 1e-3, 1e-9


def price(kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
    return LATENCY_S * len(axes) + size_bytes * PER_BYTE_S


def test_a_gather_costs_its_share_of_a_full_one() -> None:
    joined = JoinedPrice(price, 1000, 500)
    full_s = price("all_gather", ("x",), 500)
    assert joined("all_gather", ("x",), 100) == pytest.approx(full_s / 5)
    assert joined("all_gather", ("x",), 600) == price("all_gather", ("x",), 600)
    for other in ("all_reduce", "all_to_all", "slice"):
        assert joined(other, ("x",), 100) == price(other, ("x",), 100)


def test_parameters_and_what_casts_and_views_make_of_them_wait_for_nothing() -> None:
    def step(w: Any, stack: Any, x: Any) -> Any:
        h = x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16).T
        h, _ = jax.lax.scan(lambda h, v: (h @ v.astype(jnp.bfloat16), None), h, stack)
        return w - h.sum().astype(w.dtype), stack * 2, x.sum()

    args = jnp.ones((8, 4)), jnp.ones((3, 8, 8)), jnp.ones((16, 4))
    graph = trace(step, args, carry=[(0, 0), (1, 1)]).graph
    made = {t.id: op for op in graph.ops for t in op.outs}
    found = ready(graph)
    assert [t.id in found for t in graph.inputs] == [True, True, False]
    assert sorted(made[t].kind for t in found if t in made) == ["convert_element_type", "transpose"]
    assert all(made[t].region is None for t in found if t in made)


def layers(ws: list[Any], x: Any) -> Any:
    def loss(ws: list[Any]) -> Any:
        h = x
        for w in ws:
            h = jnp.tanh(h @ w)
        return (h**2).mean()

    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, jax.grad(loss)(ws))


@pytest.mark.parametrize(
    ("cluster", "is_joining"), [("8xh100-xla", True), ("tpu-v5p-2x2x2", False)]
)
def test_gathers_of_parameters_are_priced_together_on_gpus(cluster: str, is_joining: bool) -> None:
    """All of them as one over the same devices, up to 30 MiB; nothing else of the program changes."""
    ws = [jax.ShapeDtypeStruct((256, 256), "float32")] * 6
    x = jax.ShapeDtypeStruct((65536, 256), "float32")
    pins = [autopar.pin(f"ws[{n}]", jax.P("x", None)) for n in range(6)]
    pins.append(autopar.pin("x", jax.P("x")))
    plan = autopar.plan(
        layers,
        ws,
        x,
        cluster=cluster,
        mesh={"x": 8},
        constraints=pins,
    )
    planned = plan.bound.planned
    pricing = planned.pricing
    program = plan.program()
    assert (joined_price(pricing, planned.graph) is not None) == is_joining
    waiting = ready(planned.graph)
    gathers = [
        one for one in program.instructions
        if isinstance(one, Move) and one.kind == "all_gather" and program.values[one.ins[0]].tensor.id in waiting
    ]  # fmt: skip
    assert len(gathers) >= 6
    total = sum(one.size_bytes for one in gathers)
    alone_s = sum(pricing.step_cost("all_gather", ("x",), one.size_bytes) for one in gathers)
    together_s = pricing.step_cost("all_gather", ("x",), total)
    expected = together_s if is_joining else alone_s
    assert sum(one.time_s for one in gathers) == pytest.approx(expected, rel=1e-6)
    assert not is_joining or together_s < 0.7 * alone_s
