"""The order of elimination and its buckets, against the same worked out anew at every step."""

from __future__ import annotations

from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import Problem
from autopar.solve.buckets import Order, buckets_of
from tests.solve.draw import problems

_SMALL = 64


def scopes_of(problem: Problem, most_entries: int) -> dict[int, tuple[int, ...]] | None:
    """Round by round the nodes of smallest table, and small ones, no two adjacent; None if one has too many entries."""
    near: list[set[int]] = [set() for _ in problem.counts]
    for edge in problem.edges:
        near[edge.u].add(edge.v)
        near[edge.v].add(edge.u)
    found: dict[int, tuple[int, ...]] = {}
    while left := [v for v in range(len(near)) if v not in found]:
        entries = {v: prod(problem.counts[u] for u in near[v]) for v in left}
        least = min(entries.values())
        if least > most_entries:
            return None
        taken: list[int] = []
        for v in sorted((v for v in left if entries[v] <= max(least, _SMALL)), key=lambda v: (entries[v], v)):
            if not any(v in near[u] for u in taken):
                taken.append(v)
        for v in taken:
            found[v] = tuple(sorted(near[v]))
            for u in near[v]:
                near[u] = (near[u] | near[v]) - {u, v}
    return found


@settings(max_examples=200, deadline=None)
@given(problem=problems(limited=False), most_entries=st.sampled_from([1, 3, 8, 10**6]))
def test_the_order_is_that_of_every_round_worked_out_anew(problem: Problem, most_entries: int) -> None:
    order = Order(problem.counts, problem.edges)
    near = [set(nodes) for nodes in order.near]
    expected = scopes_of(problem, most_entries)
    assert order.rest(most_entries) == (expected is not None)
    assert list(order.scopes.items()) == list((expected or {}).items())
    assert expected is not None or order.near == near


@settings(max_examples=100, deadline=None)
@given(problem=problems(limited=False))
def test_every_table_goes_to_the_first_of_its_nodes(problem: Problem) -> None:
    order = Order(problem.counts, problem.edges)
    assert order.rest(10**6)
    rank = {v: n for n, v in enumerate(order.scopes)}
    buckets = {bucket.node: bucket for bucket in buckets_of(problem.counts, problem.edges, order.scopes)}
    held = {(b.node, id(cost), axes) for b in buckets.values() for cost, axes in b.edges}
    wanted: set[tuple[int, int, tuple[int, ...]]] = set()
    for edge in problem.edges:
        first = min(edge.u, edge.v, key=lambda v: rank[v])
        scope = buckets[first].scope
        wanted.add((first, id(edge.cost), tuple(-1 if v == first else scope.index(v) for v in (edge.u, edge.v))))
    assert held == wanted
    for bucket in buckets.values():
        if bucket.scope:
            to = buckets[min(bucket.scope, key=lambda v: rank[v])]
            axes = tuple(-1 if u == to.node else to.scope.index(u) for u in bucket.scope)
            assert (bucket.node, axes) in to.left_to_it
