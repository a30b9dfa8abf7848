"""What the Problem of recomputation counts of memory: never more than the program holds, and little less."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autopar.core.dataflow import dataflow
from autopar.core.mesh import DeviceMesh
from autopar.core.recompute import with_recomputed
from autopar.cost.assemble_recompute import RecomputeBuilder
from autopar.cost.pricing import Roofline
from autopar.search.mesh_context import MeshContext
from autopar.search.mesh_search import MeshSearch
from autopar.search.recomputable import recomputable
from autopar.search.recompute_solve import RecomputeSolve, recompute_solve
from autopar.search.task import Task
from autopar.solve import Edge, Problem, Solution, SolveOptions, Usage, solve
from autopar.solve.problem.problem import objective, peak
from autopar.trace import trace
from cost_models import load_cluster
from tests import small_models
from tests.cost.test_assemble import ARGS, normed
from tests.recompute.test_problem import CASES

MESH = DeviceMesh.of({"x": 2, "y": 4})
CLUSTER = load_cluster("8xh100")


@jax.custom_jvp
def rising(x: Any) -> Any:
    return jnp.tanh(x)


@rising.defjvp
def _(given: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    y = rising(*given)
    return y, tangents[0] * jax.lax.integer_pow(y, 2)


def rises(w: Any, x: Any) -> Any:
    """One operator of what is kept waits in a register, beside one late reader: tanh itself, in the newest JAX."""

    def loss(w: Any) -> Any:
        return (rising(rising(x @ w["a"]) @ w["b"]) ** 3).sum()

    return jax.grad(loss)(w)


MODELS: dict[str, Callable[[], Any]] = {
    "rises": lambda: (rises, CASES["chain"][1]),
    **{name: lambda name=name: CASES[name] for name in CASES},
    "normed": lambda: (normed, ARGS),
    "mlp": lambda: small_models.mlp(optimiser="adam"),
    "gpt": lambda: small_models.gpt(layers=1, width=16, heads=8, vocab=16, sequence=8, batch=8),
}
SEEDS = 4


@lru_cache
def attempt_at(name: str) -> RecomputeSolve:
    fn, args = MODELS[name]()
    graph = trace(fn, args, donate_argnums=(0,)).graph
    task = Task(
        graph, lambda graph, mesh: Roofline(graph, mesh, CLUSTER), memory_limit_bytes=10**12
    )
    attempt, _ = MeshSearch(
        task, MeshContext(graph, dataflow(graph), MESH, task.make_pricing)
    ).free()
    return recompute_solve(
        task, attempt, with_recomputed(graph, recomputable(graph), residuals=True)
    )


def builder_of(attempt: RecomputeSolve) -> RecomputeBuilder:
    return attempt.assembled().builder


@lru_cache
def drawn(name: str, seed: int) -> tuple[int, ...]:
    """The best choice where costs are shaken, a little or much."""
    problem, draw = attempt_at(name).problem(inf), np.random.default_rng(seed)
    scale = (1e-7, 1e-6, 1e-5, 1e-3)[seed % 4]
    costs = tuple(cost + scale * draw.exponential(size=len(cost)) for cost in problem.node_costs)
    found = solve(Problem(costs, problem.edges, (), None), options=SolveOptions(max_rounds=0))
    return lean(problem, found.choice, builder_of(attempt_at(name)))


def lean(problem: Problem, choice: Sequence[int], build: RecomputeBuilder) -> tuple[int, ...]:
    """`choice` without what nobody reads, and without copies of what lies as they do: memory that no program needs."""
    nodes = [build.op_node[op] for op in build.optional]
    nodes += [build.first_copy + copy for copy in build.optional_copies]
    nodes += [build.first_hold + n for n in range(len(build.holds))]
    found = list(choice)
    less = {node: len(problem.node_costs[node]) - 1 for node in nodes}
    for copy, candidates in zip(build.flow.copies, build.space.copies, strict=True):
        node = build.first_copy + copy.id
        if not copy.stored and found[node] >= len(candidates) and node not in less:
            less[node] = found[node] - len(candidates)
    beside: dict[int, list[Edge]] = {node: [] for node in less}
    for edge in problem.edges:
        for node in {edge.u, edge.v} & beside.keys():
            beside[node].append(edge)
    while True:
        before = tuple(found)
        for node, smaller in less.items():
            kept, found[node] = found[node], smaller
            if any(edge.cost[found[edge.u], found[edge.v]] == inf for edge in beside[node]):
                found[node] = kept
        if tuple(found) == before:
            return before


def peaks(name: str, problem: Problem) -> Iterator[tuple[float, int]]:
    """What the Problem counts of drawn choices, and what their programs hold."""
    attempt = attempt_at(name)
    for seed in range(SEEDS):
        choice = drawn(name, seed)
        counted = peak(problem, choice)
        planned = attempt.planned(Solution(choice, objective(problem, choice), -inf, counted))
        yield counted, planned.account.peak_memory_bytes


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in ("gpt", "mlp"))) for name in MODELS],
)
def test_the_problem_counts_no_more_than_the_program_holds(name: str) -> None:
    """So what is proven within a limit on what it counts holds within one on the program."""
    found = [*peaks(name, attempt_at(name).problem(inf))]
    assert all(counted <= held for counted, held in found)
    assert max(counted / held for counted, held in found) > 0.7


def longer(usage: Usage) -> Usage:
    return replace(usage, stop=usage.stop + 1)


def earlier(usage: Usage) -> Usage:
    return replace(usage, start=max(0, usage.start - 1))


@pytest.mark.parametrize("change", [longer, earlier])
def test_what_counts_too_much_is_noticed(change: Callable[[Usage], Usage]) -> None:
    problem = attempt_at("sines").problem(inf)
    changed = Problem(
        problem.node_costs, problem.edges, tuple(map(change, problem.usages)), problem.usage_limit
    )
    assert any(counted > held for counted, held in peaks("sines", changed))


def test_what_waits_in_registers_for_the_backward_pass_holds_its_operands() -> None:
    """1 - tanh(h)**2 is computed early and read late: whether tanh(h) is recomputed or not, it is held till then."""
    attempt = attempt_at("chain")
    build, graph = builder_of(attempt), attempt.rewritten.graph
    waiting = [
        (op, use.op)
        for op in graph.ops
        for use in build.flow.uses.get(op.outs[0].id, ())
        if op.kind in ("sub", "one_minus_square")
        and use.op is not None
        and graph.ops[use.op].phase == "backward"
        if not build.in_memory.isdisjoint(tensor.id for tensor in op.ins)
    ]
    assert waiting
    for op, reader in waiting:
        (held,) = [tensor for tensor in op.ins if tensor.literal is None]
        (use,) = [
            u
            for u in attempt.problem(inf).usages
            if u.node == build.op_node[op.id] and u.stop == reader
        ]
        assert held.id in build.join_of
        assert use.size_bytes.all()
        kept = [
            u
            for u in attempt.problem(inf).usages
            if u.node == build.first_copy + build.join_of[held.id]
        ]
        assert all(u.start >= reader for u in kept if u.size_bytes[len(u.size_bytes) // 2])


@pytest.mark.parametrize("name", ["sines", "gated", "chain"])
def test_what_serves_one_that_is_absent_is_absent(name: str) -> None:
    """A join that only one twin reads, and what is held for one: else choices would keep what nobody reads.

    Not where tensors alone are counted, to meet more choices.
    """
    for tensors_only, absent in ((False, inf), (True, 0.0)):
        build = attempt_at(name).assembled(tensors_only).builder
        problem = attempt_at(name).problem(inf, tensors_only=tensors_only)
        joins = [
            c
            for c in build.flow.copies
            if c.id in build.joins & build.optional_copies and len(c.uses) == 1
        ]
        serving = {build.first_copy + copy.id: copy.uses[0].op for copy in joins}
        serving |= {
            build.first_hold + n: hold.uses[0].op
            for n, hold in enumerate(build.holds)
            if len(hold.uses) == 1
        }
        found = [
            edge
            for edge in problem.edges
            if edge.u in serving and edge.v == build.op_node[serving[edge.u] or 0]
        ]
        assert len(found) >= len(serving) > 0
        for edge in found:
            assert (edge.cost[:-1, -1] == absent).all()
            assert edge.cost[-1, -1] == 0
