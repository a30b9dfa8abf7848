"""Tensors without elements: operators whose dims JAX lets be empty have their values, strategies and prices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from math import isfinite
from operator import attrgetter

import jax
import numpy as np
import pytest

from autopar.core.dataflow import dataflow
from autopar.core.mesh import DeviceMesh
from autopar.cost.assemble import assemble
from autopar.cost.pricing import Roofline
from autopar.ops.rules import rule_of
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.redistribute.route import Router
from autopar.search.space import build_space
from autopar.trace import trace
from cost_models import load_cluster
from tests.ops.all_cases import CASES
from tests.ops.build import Built, Case, build
from tests.ops.cases import ELEMENTWISE
from tests.ops.property import check_strategy

kind_of = attrgetter("kind")
MESH = DeviceMesh.of({"x": 4})
CLUSTERS = [load_cluster(name) for name in ("cpu8-zen5", "8xh100")]
ENDS_JAX = {"geqp3"}
"""What JAX's own kernel divides by zero for, which ends the process."""
BY_KIND = groupby(sorted((case for case in CASES if case not in ELEMENTWISE), key=kind_of), kind_of)
SHAPED = [next(cases) for _, cases in BY_KIND]
"""The first form of every operator that does more than go through elements."""
PARTS = 8


def emptied(case: Case) -> Iterator[tuple[Case, Built]]:
    """The case with all dims of one size empty, for every size of which JAX lets that be."""
    for size in sorted({size for arg in case.args for size in arg.shape if size}):
        shapes = [tuple(0 if n == size else n for n in arg.shape) for arg in case.args]
        args = tuple(
            replace(arg, shape=shape) for arg, shape in zip(case.args, shapes, strict=True)
        )
        changed = replace(case, name=f"{case.name}, {size} empty", args=args)
        try:
            yield changed, build(changed)
        except Exception:  # by whatever error a primitive likes: then there is nothing to plan
            continue


def check(case: Case, built: Built) -> None:
    """Some strategies against the operator run whole; the prices of all, in the whole function."""
    for strategy in enumerate_strategies(rule_of(built.op), MESH)[:3]:
        check_strategy(built, strategy, MESH)
    graph = trace(
        case.function, [jax.ShapeDtypeStruct(arg.shape, arg.dtype) for arg in case.args]
    ).graph
    for cluster in CLUSTERS:
        pricing = Roofline(graph, MESH, cluster)
        space = build_space(graph, dataflow(graph), MESH, keep=pricing.keep)
        problem = assemble(graph, dataflow(graph), space, pricing, Router(MESH, pricing.step_cost))
        for op, strategies in zip(graph.ops, space.strategies, strict=True):
            alone = [
                pricing.op_cost(op, strategy) for strategy in strategies if not strategy.exchanges
            ]
            assert all(isfinite(cost) and cost >= 0 for cost in alone), (
                f"{case.name}: {op.kind} costs {alone}"
            )
        assert all(np.isfinite(costs).all() for costs in problem.node_costs), case.name


def check_all(cases: list[Case]) -> int:
    """Checks all forms of `cases`; how many those are."""
    count = 0
    for case in cases:
        for changed, built in emptied(case) if case.kind not in ENDS_JAX else ():
            check(changed, built)
            count += 1
    return count


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))]
)
def test_one_form_of_every_operator(part: int) -> None:
    assert check_all(SHAPED[part::PARTS]) >= 8


@pytest.mark.slow
def test_every_form() -> None:
    assert check_all(CASES) > 350
