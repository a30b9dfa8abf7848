"""step: what runs, folded, against the rows of the report; what is held, against the account of the program."""

from __future__ import annotations

from math import fsum

import pytest

import autopar
from autopar.report.held import KINDS
from tests.report.test_page import planned


def test_nodes_hold_all_that_runs_and_equal_layers_once() -> None:
    plans = [planned(layers, "data_parallel") for layers in (4, 8)]
    few = plans[0].summary
    nodes, many = (plan.bound.step().nodes for plan in plans)
    time_s = fsum(node.time_s for node in nodes)
    assert time_s == pytest.approx(few.compute_time_s + few.communication_time_s)
    moved = [node for node in nodes if node.axes]
    assert fsum(node.time_s for node in moved) == pytest.approx(few.communication_time_s)
    assert sum(node.runs for node in moved) == sum(row.runs for row in few.collectives)

    main = [node for node in nodes if node.is_main]
    products = [node for node in main if node.kind == "dot_general"]
    assert [node.runs for node in products if node.phase == "forward"] == [4, 4]
    again = [node.kind for node in many if node.kind == "dot_general"]
    assert len(again) == len(products)


def test_a_node_reads_the_main_ones_behind_it() -> None:
    step = planned(mode="data_parallel").bound.step()
    forward = [n for n, node in enumerate(step.nodes) if node.phase == "forward" and node.is_main]
    up, down = (n for n in forward if step.nodes[n].kind == "dot_general")
    assert step.nodes[up].inputs == ("x", "state[0][0]['up']")
    behind = {up}
    for n in forward:
        behind |= {n} if behind.intersection(step.nodes[n].reads) else set()
    assert down in behind
    assert all(read < n for n, node in enumerate(step.nodes) for read in node.reads)
    assert all(step.nodes[read].is_main for node in step.nodes for read in node.reads)


def test_links_are_the_outermost_that_groups_cross() -> None:
    step = planned().bound.step()
    links = {node.axes: node.link for node in step.nodes if node.axes}
    assert links
    for axes, link in links.items():
        assert link == ("server" if "x" in axes else "device")


def test_events_are_those_of_the_schedule() -> None:
    plan = planned()
    step = plan.bound.step()
    slices = [one for one in plan.timeline().events() if one["ph"] == "X"]
    told = sorted((start, end) for _, start, end in (*step.computing, *step.communicating))
    expected = sorted((one["ts"], one["ts"] + one["dur"]) for one in slices)
    assert [1e6 * start for start, _ in told] == pytest.approx([start for start, _ in expected])
    assert [1e6 * end for _, end in told] == pytest.approx([end for _, end in expected])


def held_at_the_peak(plan: autopar.Plan) -> dict[str, int]:
    step = plan.bound.step()
    totals = [sum(row) for row in zip(*step.held.held_bytes, strict=True)]
    peak = totals.index(max(totals))
    assert totals[peak] == max(plan.bound.planned.account.held_bytes)
    return {kind: row[peak] for kind, row in zip(KINDS, step.held.held_bytes, strict=True)}


def test_what_is_held_adds_up_to_the_account() -> None:
    plan = planned()
    held = held_at_the_peak(plan)
    rows = plan.summary.inputs
    state = {"[0]": "parameters", "[1]": "optimizer state"}
    for key, kind in state.items():
        own = [row.local_bytes for row in rows if row.name.startswith(f"state{key}")]
        assert held[kind] == sum(own) > 0
    assert held["data"] == sum(row.local_bytes for row in rows if row.name in ("x", "y"))
    assert held["activations"] > held["temporaries"] >= 0
    # all of the state is donated: what is left is the loss
    assert held["results"] == 4


def test_a_saved_plan_has_its_step_and_no_alternatives() -> None:
    plan = planned()
    step = plan.file.report.step
    assert step == plan.bound.step()
    assert plan.detailed.step is not None
    assert step.inputs == ()
    placements = {row.name: row.placement for row in plan.summary.inputs}
    assert {one.name for one in plan.detailed.step.inputs} >= {"x", "state[0][0]['up']"}
    for one in plan.detailed.step.inputs:
        own, *others = one.alternatives
        assert (own.placement, own.costs_s) == (placements[one.name], 0.0)
        assert [other.costs_s for other in others] == sorted(other.costs_s for other in others)
    with_prices = [node for node in plan.detailed.step.nodes if node.alternatives]
    assert len(with_prices) > 5
    for node in with_prices:
        own, *others = node.alternatives
        assert (own.ins, own.outs, own.costs_s) == (node.ins, node.outs, 0.0)
        assert [one.costs_s for one in others] == sorted(one.costs_s for one in others)
