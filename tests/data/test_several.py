"""Loaders in several processes: each reads its rows, and the batches are those of one process."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from benchmarks import hosts
from tests.data.several import BATCH, ROWS, SPECS, everything

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """What one process finds, with four devices."""
    return everything(jax.devices()[:4])


@pytest.fixture(scope="module", params=[2, 4], ids=["two", "four"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What several processes found; they are started once."""
    count = request.param
    return hosts.run_everywhere(
        hosts.same_host(count), "tests.data.several", {}, local_devices=4 // count, timeout_s=240
    ) | {"count": count}


@pytest.mark.parametrize("name", SPECS)
def test_batches_are_those_of_one_process(
    name: str, found: dict[str, Any], alone: dict[str, Any]
) -> None:
    for what in ("labels", "images", "state"):
        assert found[name][what] == alone[name][what]
    first, second = alone[name]["labels"]
    assert alone[name]["images"] == [[4 * row for row in first], [4 * row for row in second]]
    assert len({*first, *second}) == 2 * BATCH <= ROWS


def test_steps_compute_the_same_of_them(found: dict[str, Any], alone: dict[str, Any]) -> None:
    rows = [[*range(n, n + BATCH)] for n in range(0, ROWS, BATCH)]
    images = np.arange(ROWS * 4).reshape(ROWS, 4)
    sums = [2 * sum(row % ROWS * images[row % ROWS].sum() for row in batch) for batch in rows]
    assert found["sums"] == alone["sums"] == sums


HELD = {
    2: {
        "split": [range(4), range(4, 8)],
        "one by one": [range(4), range(4, 8)],
        "interleaved": [[0, 1, 4, 5], [2, 3, 6, 7]],
        "whole": [range(8)] * 2,
        "columns": [range(8)] * 2,
    },
    4: {
        "split": [range(4)] * 2 + [range(4, 8)] * 2,
        "one by one": [range(n, n + 2) for n in (0, 2, 4, 6)],
        "interleaved": [range(n, n + 2) for n in (0, 4, 2, 6)],
        "whole": [range(8)] * 4,
        "columns": [range(8)] * 4,
    },
}


@pytest.mark.parametrize("name", SPECS)
def test_each_process_reads_the_rows_that_its_devices_need(
    name: str, found: dict[str, Any], alone: dict[str, Any]
) -> None:
    """And no others: from the first batch, then from the second."""
    assert alone[name]["read"] == [row for batch in alone[name]["labels"] for row in batch]
    for process, rows in enumerate(HELD[found["count"]][name]):
        expected = [batch[row] for batch in alone[name]["labels"] for row in rows]
        assert found["each"][process]["read"][name] == expected


def test_an_uneven_batch_is_as_in_one_process(found: dict[str, Any], alone: dict[str, Any]) -> None:
    assert found["uneven"]["sums"] == pytest.approx(alone["uneven"]["expected"], rel=1e-4)
    assert found["uneven"]["first"] == alone["uneven"]["first"]


def test_a_position_fits_other_processes_and_batches(
    found: dict[str, Any], alone: dict[str, Any]
) -> None:
    assert found["resumed"] == alone["resumed"]
    assert alone["resumed"]["state"]["position"] == 2 * BATCH + 4
    seen = [row for batch in alone["split"]["labels"] for row in batch]
    assert not set(alone["resumed"]["labels"]) & set(seen)  # of one epoch


def test_loaders_that_differ_are_refused_in_all_processes(found: dict[str, Any]) -> None:
    messages = {one["refused"] for one in found["each"]}
    (message,) = messages
    assert message.startswith("DifferentValues: loader: processes 0 and 1 read other rows")
    assert "seed=0" in message
    assert "seed=1" in message
    assert np.unique([one["refused"] for one in found["each"]]).size == 1
