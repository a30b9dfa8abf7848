"""summary: rows that equal layers share, against rows made one by one; the report in a file."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

import autopar
from autopar.api.plan_file import to_json
from autopar.core.program import Compute
from autopar.report.summary import OperatorRow
from tests.small_models import gpt

LAYERS = 4


@cache
def plan() -> autopar.Plan:
    step, args = gpt(layers=LAYERS, optimiser="adam")
    shapes = jax.eval_shape(lambda: args)
    return autopar.plan(step, *shapes, cluster="2x4xh100", mesh={"x": 2, "y": 4})


def looped(rows: Any, weights: Any) -> Any:
    def layer(carry: Any, weight: Any) -> Any:
        return jnp.tanh(carry @ weight), None

    return jax.lax.scan(layer, layer(rows, weights[0])[0], weights)[0].sum()


def rows_one_by_one(made: autopar.Plan) -> list[OperatorRow]:
    planned = made.bound.planned
    return [
        OperatorRow(
            one.op.kind,
            one.op.source,
            one.op.scope,
            one.op.phase,
            tuple(map(str, one.strategy.ins)),
            tuple(map(str, one.strategy.outs)),
            one.strategy.split,
            planned.pricing.op_cost(one.op, one.strategy),
            planned.program.runs(one),
        )
        for one in planned.program.instructions
        if isinstance(one, Compute)
    ]


def of_operators(made: autopar.Plan) -> list[OperatorRow]:
    return [row for row in made.summary.operators if not row.kind.startswith("local ")]


def test_rows_are_those_made_one_by_one_and_equal_layers_share_them() -> None:
    made = plan()
    assert of_operators(made) == rows_one_by_one(made)
    assert len(set(map(id, made.summary.operators))) < len(made.summary.operators) / 2
    weights, rows = (
        jax.ShapeDtypeStruct((6, 256, 256), jnp.float32),
        jax.ShapeDtypeStruct((64, 256), jnp.float32),
    )
    inside = autopar.plan(looped, rows, weights, cluster="8xh100", mesh={"x": 8})
    assert of_operators(inside) == rows_one_by_one(inside)
    assert {row.runs for row in inside.summary.operators if row.kind == "tanh"} == {1.0, 6.0}


def test_the_file_holds_the_report() -> None:
    made = plan()
    whole = replace(made.summary, step=made.bound.step())
    assert made.file.report == whole
    assert repr(made.file.report) == repr(whole)
    assert to_json(made.file) == to_json(plan.__wrapped__().file)
