"""Which readings are tried, and which is taken, on machines that are written down: nothing is timed."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from autopar.data import Reading, Waits
from autopar.data.pipeline import is_guarded
from autopar.data.tuning import ENOUGH, FIRST, Limits, Trial, Tuner, best, next_reading
from autopar.errors import InvalidOption

BUSY_S = 0.01
Making = Callable[[Reading], float]


def tuned(making_s: Making, workers: int = 4, buffer: int = 64, busy_s: float = BUSY_S) -> Tuner:
    """A tuner after a loop over batches, of which one comes every `making_s(reading)` seconds at most."""
    tuner = Tuner(lambda: Limits(workers, buffer), depth=2)
    for _ in range(2000):
        waited_s = max(0.0, making_s(tuner.reading) - busy_s)
        tuner.sees(Waits(1, waited_s, busy_s))
    assert tuner.is_done
    return tuner


def by_lanes(seconds: float) -> Making:
    """Rows that wait for storage: as many batches at a time as there are lanes."""
    return lambda reading: seconds / reading.lanes


def by_workers(seconds: float, cores: int = 4) -> Making:
    """Rows that compute in Python: one at a time in each process."""
    return lambda reading: seconds / min(max(reading.workers, 1), cores)


def test_a_loop_that_does_not_wait_is_left_alone() -> None:
    tuner = tuned(by_lanes(BUSY_S * (1 + ENOUGH / 2)))
    assert tuner.reading == FIRST
    assert len(tuner.trials) == 1


def test_rows_that_wait_are_made_by_as_many_threads_as_it_takes() -> None:
    tuner = tuned(by_lanes(6 * BUSY_S))
    assert tuner.reading == Reading(workers=0, threads=8, buffer=8)  # 1.25 times 6
    assert tuner.trials[-1].waits.share == 0


def test_rows_that_compute_are_made_by_processes() -> None:
    tuner = tuned(by_workers(2.5 * BUSY_S))
    assert [trial.reading.threads for trial in tuner.trials] == [1, 4, 0]  # threads did not help
    assert tuner.reading == Reading(workers=4, threads=0, buffer=2)


def test_no_more_processes_are_started_than_cores_or_memory_have_room_for() -> None:
    assert tuned(by_workers(50 * BUSY_S), workers=2).reading.workers == 2
    assert tuned(by_workers(50 * BUSY_S), workers=0).reading == FIRST
    assert tuned(by_lanes(50 * BUSY_S), workers=0, buffer=3).reading == Reading(0, 3, 3)


def test_what_does_not_help_is_not_kept() -> None:
    tuner = tuned(lambda _: 3 * BUSY_S)
    assert len(tuner.trials) > 3
    assert tuner.reading == FIRST


def test_a_loop_that_does_nothing_else_is_tuned_too() -> None:
    assert tuned(by_lanes(0.1), busy_s=0.0).reading.threads == 16


def test_the_cheapest_of_equals_is_the_best() -> None:
    trials = [
        Trial(FIRST, Waits(8, 0.8, 0.8)),
        Trial(Reading(0, 3, 3), Waits(8, 0.73, 0.8)),
        Trial(Reading(3, 0, 2), Waits(8, 0.70, 0.8)),
    ]
    assert best(trials) == Reading(0, 3, 3)
    assert next_reading(trials[:2], lambda: Limits(4, 8)) == Reading(3, 0, 2)


def test_steps_in_which_buffers_fill_are_left_out() -> None:
    """The first of all is compiled: seconds in which no batch is waited for."""
    tuner = Tuner(lambda: Limits(4, 64), depth=2)
    tuner.sees(Waits(1, 0.0, 60.0))
    for _ in range(40):
        tuner.sees(Waits(1, 0.03, BUSY_S))
    assert tuner.trials[0].waits.share == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("field", "value"), [("workers", -1), ("threads", 1.5), ("buffer", True), ("buffer", 0)]
)
def test_a_reading_that_makes_no_sense_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidOption, match=f"Reading: {field} is {value!r}"):
        Reading(**{field: value})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("import x\nif __name__ == '__main__':\n    x.run()\n", True), ("import x\nx.run()\n", False)],
)
def test_a_script_that_would_run_in_every_worker_is_told(
    text: str, expected: bool, tmp_path: object
) -> None:
    script = ModuleType("__main__")
    assert is_guarded(script)  # of a prompt
    path = f"{tmp_path}/train.py"
    with open(path, "w") as file:
        file.write(text)
    script.__file__ = path
    assert is_guarded(script) is expected
