"""What the benchmark counts: batches while all workers train, and parts that make a batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.parameter_server import BATCH, PROCESSES, WARM, Begun, rows_of


def test_batches_are_counted_while_all_workers_train(tmp_path: Path) -> None:
    """One begins a step each second, from 0; the others two a second, from 10, and end first."""
    slow = [float(n) for n in range(100)]
    quick = [10 + n / 2 for n in range(WARM + 21)]
    for n in range(PROCESSES):
        times = quick if n else slow
        (tmp_path / str(n)).write_text("".join(f"{time}\n" for time in times))
    begun = 3 * 20 + 10  # in the ten seconds from 12.5 to 22.5
    rate = Begun(str(tmp_path), "none").batches_per_s()
    assert rate == pytest.approx(begun / PROCESSES / 10)


@pytest.mark.parametrize("step", [0, 7])
def test_the_parts_of_all_workers_are_the_batch(step: int) -> None:
    parts = [rows_of(step, index, PROCESSES) for index in range(PROCESSES)]
    np.testing.assert_array_equal(np.concatenate(parts), rows_of(step, 0, 1))
    assert len(np.unique(np.concatenate(parts))) == BATCH
