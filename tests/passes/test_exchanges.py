"""Exchanges in a program: listed and priced by their pass, counted by the account, checked by verify."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import inf

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import autopar
from autopar.core.dataflow import dataflow
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.plan import Stage
from autopar.core.program import Compute, ShardedProgram
from autopar.core.strategy import MIRROR, NEXT, PREVIOUS, Exchange, Strategy
from autopar.cost.alpa import alpa_pricing
from autopar.cost.pricing import Roofline, cost_of, restricted
from autopar.errors import ProgramError
from autopar.ops.rules import rule_of
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.passes.pipeline import program_states
from autopar.passes.verify import verify
from autopar.redistribute.route import Router
from autopar.search.space import build_space
from autopar.trace import trace
from cost_models import load_cluster
from tests.cases.mindspore_pricing import MindSpore
from tests.passes.build import MESH, account, price


@cache
def graph() -> OpGraph:
    def fn(x: jnp.ndarray) -> jnp.ndarray:
        return lax.reduce_window(jnp.sin(x), 0.0, lax.add, (3, 3), (1, 1), "SAME")

    return trace(fn, (jnp.ones((8, 16)),)).graph


def windows_strategy(mesh: DeviceMesh) -> Strategy:
    """The pooling with both dims split."""
    strategies = enumerate_strategies(rule_of(graph().ops[1]), mesh)
    return max(strategies, key=lambda s: (s.split, len(s.exchanges), s.axes_of("d0") == ("x",)))


@cache
def states() -> dict[str, ShardedProgram]:
    flow = dataflow(graph())
    space = build_space(graph(), flow, MESH, keep=lambda _, strategies: strategies)
    strategy = windows_strategy(MESH)
    split = strategy.ins[0]
    first = next(s for s in space.strategies[0] if s.ins == (split,))
    stage = Stage(MESH, (split,), (first, strategy), (split,) * len(flow.copies), strategy.outs)
    return dict(program_states(graph(), flow, stage, Router(MESH, price), price))


def pooling(program: ShardedProgram) -> Compute:
    return next(i for i in program.instructions if isinstance(i, Compute) and i.strategy.exchanges)


def test_a_halo_in_two_dims_sends_the_corners_too() -> None:
    """A shard of 4 x 4: a row of 4 each way, then columns of 6."""
    strategy = windows_strategy(MESH)
    assert strategy.ins[0].dims == (("x",), ("y",))
    assert [(e.axes, e.size_bytes, e.hop) for e in strategy.exchanges] == [
        (("x",), 16, NEXT),
        (("x",), 16, PREVIOUS),
        (("y",), 24, NEXT),
        (("y",), 24, PREVIOUS),
    ]


def test_exchanges_are_collectives_of_the_program_at_their_price() -> None:
    program = states()["fuse_collectives"]
    moves = program.collectives
    assert [move.size_bytes for move in moves] == [16, 16, 24, 24]
    assert [move.time_s for move in moves] == [
        price("permute", move.axes, move.size_bytes) for move in moves
    ]
    assert {move.role for move in moves} == {"exchange"}
    assert program.proves_replication
    assert "permute[x] next 16 bytes" in str(program)
    assert states()["insert_redistribution"].collectives == ()


def test_the_account_counts_them_as_communication_and_their_copies_as_memory() -> None:
    before, after = (
        account(states()[name], lambda *_: 1.0, set())
        for name in ("insert_redistribution", "price_exchanges")
    )
    assert before.communication_time_s == 0
    assert after.communication_time_s == pytest.approx(
        sum(m.time_s for m in states()["price_exchanges"].collectives)
    )
    assert after.compute_time_s == before.compute_time_s == 2.0


def test_an_exchange_costs_what_a_step_of_its_kind_costs() -> None:
    pricing = Roofline(graph(), MESH, load_cluster("8xh100"))
    strategy = windows_strategy(MESH)
    sent = sum(pricing.step_cost(e.kind, e.axes, e.size_bytes) for e in strategy.exchanges)
    assert sent > 0
    assert cost_of(pricing, graph().ops[1], strategy) == pytest.approx(
        pricing.op_cost(graph().ops[1], strategy) + sent
    )
    assert cost_of(restricted(pricing, ("permute",)), graph().ops[1], strategy) < inf
    assert cost_of(restricted(pricing, ("all_reduce",)), graph().ops[1], strategy) == inf


def test_who_has_no_exchanges_keeps_strategies_without() -> None:
    op = graph().ops[1]
    strategies = enumerate_strategies(rule_of(op), MESH)
    assert any(s.exchanges for s in strategies)
    alpa = alpa_pricing((1.0, 1.0), (1.0, 1.0))(graph(), MESH)
    roofline = Roofline(graph(), MESH, load_cluster("8xh100"))
    for pricing in (alpa, MindSpore(graph(), MESH), restricted(roofline, ("all_reduce", "slice"))):
        kept = pricing.keep(op, strategies)
        assert kept
        assert not any(s.exchanges for s in kept)
    assert any(s.exchanges for s in restricted(roofline, ("permute",)).keep(op, strategies))


def other_tensor(exchange: Exchange) -> Exchange:
    return replace(exchange, tensor=5)


def other_axes(exchange: Exchange) -> Exchange:
    return replace(exchange, axes=("x", "y"))


def unsorted_axes(exchange: Exchange) -> Exchange:
    return replace(exchange, axes=("y", "x"))


def fewer_bytes(exchange: Exchange) -> Exchange:
    return replace(exchange, size_bytes=exchange.size_bytes - 4)


def other_hop(exchange: Exchange) -> Exchange:
    return replace(exchange, hop=MIRROR)


@pytest.mark.parametrize(
    ("bug", "complaint"),
    [
        (other_tensor, "which it has not"),
        (other_axes, "split no dim"),
        (unsorted_axes, "not in mesh order"),
        (fewer_bytes, "lists other exchanges than"),
        (other_hop, "lists other exchanges than"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_exchange_is_found(bug: Callable[[Exchange], Exchange], complaint: str) -> None:
    program = states()["fuse_collectives"]
    verify(program)
    good = pooling(program)
    first, *rest = good.strategy.exchanges
    bad = good._replace(strategy=replace(good.strategy, exchanges=(bug(first), *rest)))
    instructions = tuple(bad if i is good else i for i in program.instructions)
    with pytest.raises(ProgramError, match=complaint):
        verify(program.with_instructions(instructions))


def test_a_collective_by_hand_that_goes_over_another_axis_is_found() -> None:
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    summed = jax.shard_map(lambda x: lax.psum(x, "a"), mesh=mesh, in_specs=P("a"), out_specs=P())
    program = autopar.plan(summed, jnp.ones((8, 4)), cluster="cpu8", mesh=mesh).program()
    good = next(i for i in program.instructions if isinstance(i, Compute) and i.strategy.exchanges)
    (sent,) = good.strategy.exchanges
    bad = good._replace(strategy=replace(good.strategy, exchanges=(replace(sent, axes=("b",)),)))
    instructions = tuple(bad if i is good else i for i in program.instructions)
    verify(program)
    with pytest.raises(ProgramError, match=r"all_reduce\) exchanges over \('b',\), not its own"):
        verify(program.with_instructions(instructions))
