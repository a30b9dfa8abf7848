"""The table against experts: where their layouts put dims of a role, its models, and who is compared with whom."""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from benchmarks.ahead_of_time import Session, resuming_parser_of
from benchmarks.compiled_collectives import Made
from benchmarks.experts import CASES, Bench, Result, Row, measure, run_apart
from benchmarks.experts_layouts import Layout, fsdp, fsdp_experts, megatron


def row(layout: str, step_s: float, memory_bytes: int, predicted_s: float = 0.0) -> Row:
    """A row of which little matters."""
    made = Made(step_s, 1, 0.0, 0, 0)
    return Row(layout, "", made, memory_bytes, 1.0, predicted_s=predicted_s)


def test_an_axis_is_used_once_and_only_where_it_divides() -> None:
    layout = megatron(8)
    assert layout.spec(("data", "sequence", "model"), (16, 128, 64)) == P("data", "model", None)
    assert layout.spec(("data", "sequence"), (16, 129, 64)) == P("data", None)
    assert layout.spec(("data", "model"), (1, 64)) == P(None, "model")


def test_parameters_are_fully_sharded_along_their_largest_free_dim_but_layers() -> None:
    assert fsdp(8).parameter(("layer", None, "model"), (64, 16, 32)) == P(None, None, "data")
    assert fsdp(8).parameter((), (6, 9)) == P(None, None)
    layout = fsdp_experts(8)
    assert layout.parameter(("layer", "expert"), (2, 8, 64, 32)) == P(None, "expert", "data", None)
    assert layout.parameter((), (64, 128)) == P(None, ("data", "expert"))


@pytest.mark.parametrize("name", CASES)
def test_every_layout_by_hand_splits_data_or_parameters_of_a_model_that_suits_it(name: str) -> None:
    case = CASES[name]
    model = case.model()
    specs = model.state_specs()
    for layout in case.layouts:
        assert np.prod([*layout.mesh.values()]) == case.devices

        def place(roles: P, leaf: Any, layout: Any = layout) -> P:
            return layout.parameter(tuple(roles), np.shape(leaf))

        placed = jax.tree.map(place, specs, model.state, is_leaf=lambda leaf: isinstance(leaf, P))
        split = [spec for spec in jax.tree.leaves(placed) if any(spec)]
        rows = layout.spec(("data", "sequence"), model.batch[0].shape)
        assert any(rows)
        assert bool(split) == bool(layout.sharded or {"model", "rows"} & {*layout.roles})


def test_a_plan_is_compared_with_the_fastest_by_hand_at_no_more_memory() -> None:
    rivals = (row("a", 2.0, 10), row("b", 1.0, 100))
    wide = row("autopar", 0.5, 200, 0.5)
    within = row("autopar, limited", 0.9, 90, 0.9)
    assert Result("", "", "", (*rivals, wide, within)).rival == rivals[1]
    assert Result("", "", "", (*rivals, wide, within)).own == within
    assert Result("", "", "", (*rivals, wide)).own == wide
    assert Result("", "", "", (*rivals, replace(wide, memory_bytes=100), within)).own == replace(
        wide, memory_bytes=100
    )
    assert Result("", "", "", rivals).own is None


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    whole = Result("mlp", "MLP", "", (row("a", 2.0, 10), row("autopar", 0.5, 200, 0.5)), ("why",))
    results = [whole, replace(whole, case="gan", reason="cut off")]
    file = tmp_path / "experts.json"
    options = resuming_parser_of("").parse_args(["--json", str(file), "--resume", str(file)])
    session = Session("experts", options, "")
    for one in results:
        session.add(one)
    assert session.known(Result) == results


def test_rows_that_are_known_are_not_made_again() -> None:
    class Asked:
        """A bench that keeps what it is asked for."""

        def __init__(self) -> None:
            self.made: list[object] = []

        def by_hand(self, layout: Layout) -> Row:
            self.made.append(layout.name)
            return row(layout.name, 2.0, 10)

        def planned(self) -> Row:
            self.made.append("autopar")
            return row("autopar", 1.0, 20, 1.0)

        def limited(self, limit_bytes: int) -> Row:
            self.made.append(limit_bytes)
            return row("autopar, limited", 1.5, 10, 1.5)

    bench = Asked()
    case = CASES["mixtral-8x7b"]
    known = [row("FSDP", 1.0, 15), replace(row("autopar", 0.5, 30, 0.5), predicted_bytes=60)]
    found = list(measure(case, cast("Bench", bench), known))
    assert bench.made == ["FSDP + experts", 30]
    assert [one.layout for one in found if isinstance(one, Row)] == [
        "FSDP",
        "FSDP + experts",
        "autopar",
        "autopar, limited",
    ]
    assert not isinstance(found[0], str)
    assert found[0].made.computing_s == 1.0

    again = Asked()
    rows = [one for one in found if isinstance(one, Row)]
    assert list(measure(case, cast("Bench", again), rows)) == found
    assert again.made == []


def test_known_rows_stay_where_a_model_is_cut_off_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut_off(*_: Any, **options: Any) -> Any:
        asked.append(json.loads(options["input"]))
        raise subprocess.TimeoutExpired("experts", 1.0, output=json.dumps(asdict(first)).encode())

    asked: list[Any] = []
    first, second = row("FSDP", 2.0, 10), row("autopar", 1.0, 20, 1.0)
    monkeypatch.setattr(subprocess, "run", cut_off)
    options = argparse.Namespace(compiler="tpu", programs=None, timeout=1.0)
    found = run_apart("mixtral-8x7b", options, (second, first))
    assert found.rows == (first, second)
    assert found.reason == "cut off after 1 s"
    assert asked == [[asdict(second), asdict(first)]]
