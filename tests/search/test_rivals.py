"""Rivals: the pins of the layouts that people write by hand, and what plans under them are called."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autopar
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.errors import InvalidConstraint
from autopar.search.rivals import known_rivals, solved, tensor_parallel_dims
from autopar.search.task import Planned

WIDTH = 256
HEADS = 8


def block(p: Any, x: Any) -> Any:
    rows, places, width = x.shape
    q, k, v = (
        (x @ p[name].astype(x.dtype)).reshape(rows, places, HEADS, width // HEADS) for name in "qkv"
    )
    scores = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k))
    mixed = jnp.einsum("bhts,bshd->bthd", scores, v).reshape(x.shape)
    x = x + mixed @ p["o"].astype(x.dtype)
    return x + jax.nn.gelu(x @ p["up"].astype(x.dtype)) @ p["down"].astype(x.dtype)


def loss(params: Any, tokens: Any) -> Any:
    x = params["table"].astype(jnp.bfloat16)[tokens[:, :-1]]
    for layer in params["layers"]:
        x = block(layer, x)
    logits = (x @ params["head"].astype(x.dtype)).astype(jnp.float32)
    picked = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked[..., 0])


def step(params: Any, tokens: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(params, tokens)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def shapes(layers: int = 3, rows: int = 32, places: int = 64) -> tuple[Any, ...]:
    def of(*dims: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    square = of(WIDTH, WIDTH)
    layer = dict.fromkeys("qkvo", square)
    layer |= {"up": of(WIDTH, 4 * WIDTH), "down": of(4 * WIDTH, WIDTH)}
    params = {
        "layers": [layer] * layers,
        "table": of(1024, WIDTH),
        "head": of(WIDTH, 1024),
    }
    return params, jax.ShapeDtypeStruct((rows, places + 1), jnp.int32)


@cache
def plan() -> autopar.Plan:
    mesh = {"data": 2, "model": 4}
    return autopar.plan(step, *shapes(), cluster="8xh100", mesh=mesh, donate_argnums=0)


def test_megatron_splits_by_columns_then_by_rows() -> None:
    task = plan().bound.planned.task
    graph = task.graph
    dims = tensor_parallel_dims(graph, task.find, 4)
    named = {graph.inputs[position].name: dim for position, dim in dims.items()}
    of_layer = {"q": 1, "k": 1, "v": 1, "o": 0, "up": 1, "down": 0}
    expected = {
        f"params['layers'][{layer}]['{name}']": dim
        for layer in range(3)
        for name, dim in of_layer.items()
    }
    assert named == {**expected, "params['table']": 0, "params['head']": 1}


def test_weights_that_do_not_divide_are_left_alone() -> None:
    task = plan().bound.planned.task
    assert tensor_parallel_dims(task.graph, task.find, 3) == {}


def test_rivals_lie_as_they_are_called_and_are_told_so() -> None:
    rows = {row.name: row for row in plan().rivals()}
    assert list(rows) == ["data parallel", "FSDP", "Megatron"]
    assert all(row.fits for row in rows.values())
    assert rows["data parallel"].layout == "batch over 8: data parallel"
    assert rows["FSDP"].layout.startswith("batch over 8, parameters over 8: ZeRO-3 (FSDP)")
    assert (
        rows["Megatron"].layout
        == "batch over 2, parameters over 4: data parallel, tensor parallel 4"
    )


def test_no_rival_of_a_proven_plan_has_a_smaller_objective() -> None:
    planned = plan().bound.planned
    for rival in known_rivals(planned.task, planned.ground.mesh, 8):
        found = solved(planned, rival).planned
        assert isinstance(found, Planned)
        assert found.plan.objective_s >= planned.plan.lower_bound_s


def test_what_does_not_fit_is_said_with_what_it_takes() -> None:
    peaks = {row.name: row.peak_memory_bytes for row in plan().rivals()}
    small = plan().resolve(memory_limit_bytes=int(1.05 * peaks["FSDP"]))
    rows = {row.name: row for row in small.rivals()}
    assert not rows["data parallel"].fits
    assert rows["data parallel"].peak_memory_bytes > small.peak_memory_bytes
    assert "data parallel does not fit" in " ".join(small.report().split())


def test_layouts_of_ones_own_stand_beside() -> None:
    own = autopar.pin("params['head']", jax.P("model"))
    mine = plan().rivals(by_hand=[own])[-1]
    assert mine.name == "by_hand"
    assert mine.step_time_s > 0
    with pytest.raises(InvalidConstraint):
        plan().rivals(by_hand=[autopar.pin("params['tail']", jax.P("model"))])


def test_megatron_lies_in_a_server() -> None:
    task = plan().bound.planned.task
    of = DeviceMesh.of
    meshes = {
        (("x", 64),): (("data", 8), ("model", 8)),
        (("x", 4), ("y", 16)): (("data", 8), ("model", 8)),
        (("x", 16), ("y", 4)): (("x", 16), ("y", 4)),
        (("x", 4),): (("x", 4),),
    }
    for given, expected in meshes.items():
        *_, rival = known_rivals(task, of(dict(given)), 8)
        assert rival.mesh.axes == expected
    assert known_rivals(task, of({"x": 1}), 8) == ()


def test_an_input_is_followed_through_casts() -> None:
    made = plan()
    fsdp = made.resolve(
        constraints=[
            autopar.pin("tokens", jax.P(("data", "model"))),
            autopar.pin("params['layers'][0]['up']", jax.P(("data", "model"))),
        ]
    )
    placement = fsdp.placements["params['layers'][0]['up']"]
    assert placement == Placement((("data", "model"), ()))
    said = " ".join(fsdp.explain("params['layers'][0]['up']").split())
    assert "dot_general forward" in said
    assert "bfloat16" in said
    assert "None: it is used as it is placed" not in said
    assert "all_gather over" in said
    assert "forced by pin(\"params['layers'][0]['up']\"" in said
    assert "next best" in said


def test_tokens_are_counted() -> None:
    amounts = plan().summary.throughput
    assert (amounts.rows, amounts.tokens) == (32, 32 * 64)
    per_layer = 4 * WIDTH**2 + 8 * WIDTH**2 + 2 * 64 * WIDTH
    products = 3 * 2 * (32 * 64) * (3 * per_layer + 1024 * WIDTH)
    assert amounts.product_flops == pytest.approx(products)


def test_layers_are_folded() -> None:
    rows = plan().summary.blocks
    assert {(row.name, row.phase, row.count) for row in rows if row.count == 1} >= {
        ("loss", "forward", 1)
    }
    whole = sum(row.compute_s for row in rows)
    assert whole == pytest.approx(plan().compute_time_s)
    assert sum(row.communication_s for row in rows) == pytest.approx(plan().communication_time_s)
