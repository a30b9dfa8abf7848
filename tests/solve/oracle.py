"""The slow, obvious truth: every choice is tried."""

from __future__ import annotations

import itertools

import numpy as np

from autopar.solve import Problem


def choices(problem: Problem):
    """Every choice."""
    return itertools.product(*(range(len(cost)) for cost in problem.node_costs))


def cost_of(problem: Problem, choice: tuple[int, ...]) -> float:
    total = 0.0
    for cost, s in zip(problem.node_costs, choice, strict=True):
        total += cost[s]
    for edge in problem.edges:
        total += edge.cost[choice[edge.u], choice[edge.v]]
    return float(total)


def peak_of(problem: Problem, choice: tuple[int, ...]) -> float:
    end = max((use.stop for use in problem.usages), default=0)
    at = [
        sum(u.size_bytes[choice[u.node]] for u in problem.usages if u.start <= t < u.stop)
        for t in range(end)
    ]
    return float(max(at, default=0.0))


def optimum(problem: Problem, slack: float = 0.0) -> float:
    """The least cost of a choice within the limit (widened by `slack`, relative); inf if there is none."""
    limit = np.inf if problem.usage_limit is None else problem.usage_limit * (1 + slack)
    return min(
        (cost_of(problem, c) for c in choices(problem) if peak_of(problem, c) <= limit),
        default=np.inf,
    )


def least_peak(problem: Problem) -> float:
    """The smallest peak of a choice of finite cost; inf if there is none."""
    finite = (c for c in choices(problem) if np.isfinite(cost_of(problem, c)))
    return min((peak_of(problem, c) for c in finite), default=np.inf)


def reparametrised(problem: Problem, node_costs, messages):
    """What messages prove of the least cost, and what each strategy costs above that at least, edge by edge."""
    nodes = [cost.copy() for cost in node_costs]
    for edge, (to_u, to_v) in zip(problem.edges, messages, strict=True):
        nodes[edge.u] += to_u
        nodes[edge.v] += to_v
    bound = sum(cost.min() for cost in nodes)
    excess = [cost - cost.min() for cost in nodes]
    for edge, (to_u, to_v) in zip(problem.edges, messages, strict=True):
        cost = edge.cost - to_u[:, None] - to_v
        bound += cost.min()
        excess[edge.u] += cost.min(axis=1) - cost.min()
        excess[edge.v] += cost.min(axis=0) - cost.min()
    return bound, excess
