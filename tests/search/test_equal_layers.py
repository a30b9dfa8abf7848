"""A hundred equal layers are worked on once: what is asked for does not grow with them, only what is read does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autopar.core.dataflow import dataflow
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.cost.pricing import Roofline
from autopar.passes.pipeline import build_program
from autopar.redistribute.route import Router
from autopar.search import space as space_module
from autopar.search.limited_solve import account_of
from autopar.search.mesh_context import MeshContext
from autopar.solve import SolveOptions
from autopar.trace import trace
from cost_models import load_cluster

MESH = DeviceMesh.of({"x": 2, "y": 4})
CLUSTER = load_cluster("cpu8")


def graph_of(layers: int) -> OpGraph:
    """A step of training by momentum: every layer is a product, a nonlinearity and a residual."""

    def loss(params: Any, x: Any) -> Any:
        for w in params:
            x = x + jnp.tanh(x @ w)
        return (x**2).mean()

    def step(params: Any, momenta: Any, x: Any) -> Any:
        grads = jax.grad(loss)(params, x)
        momenta = [0.9 * m + g for m, g in zip(momenta, grads, strict=True)]
        return [w - 0.1 * m for w, m in zip(params, momenta, strict=True)], momenta

    weights = [np.zeros((16, 16), np.float32)] * layers
    return trace(step, (weights, weights, np.zeros((32, 16), np.float32))).graph


@contextmanager
def counted(asked: Counter[str], holder: Any, name: str) -> Generator[None]:
    """Counts the calls of a function by its name."""
    function = getattr(holder, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        asked[name] += 1
        return function(*args, **kwargs)

    with patch.object(holder, name, counting):
        yield


def asked_for(layers: int) -> Counter[str]:
    """How often what takes long is asked for, and how many different arrays come out, from candidates to account."""
    graph, asked = graph_of(layers), Counter[str]()
    flow = dataflow(graph)
    with (
        counted(asked, space_module, "enumerate_strategies"),
        counted(asked, Roofline, "op_costs"),
        counted(asked, Roofline, "op_cost"),
        counted(asked, Router, "cost_matrix"),
    ):
        ground = MeshContext(graph, flow, MESH, lambda graph, mesh: Roofline(graph, mesh, CLUSTER))
        problem = ground.problem((), None)
        standing = ground.standing((), SolveOptions())
        assert standing is not None
        choice = standing.solve(problem).choice  # pyright: ignore[reportOptionalMemberAccess]
        stage, router, pricing = ground.space.stage(choice), ground.router(()), ground.pricing(())
        program = build_program(graph, flow, stage, router, pricing.step_cost)
        account_of(graph, program, pricing)
    asked["costs of nodes"] = len(set(map(id, problem.node_costs)))
    asked["matrices"] = len({id(edge.cost) for edge in problem.edges})
    asked["kinds"] = len(standing.kinds.arrays)
    asked["nodes that go"] = len(standing.chains.order)
    return asked


def test_what_is_asked_for_does_not_grow_with_equal_layers() -> None:
    few, many = asked_for(12), asked_for(24)
    assert set(few) == set(many)
    assert all(few.values())
    kinds, gone = (many.pop(name) - few.pop(name) for name in ("kinds", "nodes that go"))
    assert few == many
    assert 3 * kinds < gone  # not none: tables also hold what the layers before cost


@pytest.mark.parametrize("layers", [1, 5])
def test_operators_that_are_alike_have_one_signature(layers: int) -> None:
    graph = graph_of(layers)
    for op, first in zip(graph.ops, graph.alike, strict=True):
        assert graph.ops[first].signature == op.signature
        assert all(before.signature != op.signature for before in graph.ops[:first])
