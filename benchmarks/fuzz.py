"""Does a planned program compute what the plain function computes, whatever the program, the mesh and the plan?

    python -m benchmarks.fuzz --count N [--compiled K] [--seed S] [--state FILE] [--json FILE] [--record]
                              [--shrink CHECKS]

N random programs are planned and run by the slow reference (interpreted: every device's shards in numpy, nothing
compiled), and K more are compiled for 8 virtual devices, where the collectives of the compiled program are compared
with the planned ones too. A case is determined by one integer: S, S + 1, ... for the interpreted, and as far for the
compiled from COMPILED_FROM on. With a state file a run goes on where the last one stopped, and the totals of all runs
are printed. A failure is printed as a program made as small as it gets. The exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.table import Table

from autopar.emit.measure import use_virtual_devices
from benchmarks.record import add_record_option, record
from tests.fuzz.case import (
    FuzzCase,
    Outcome,
    check,
    compiled,
    draw_case,
    first_difference,
    interpreted,
)
from tests.fuzz.shrink import shrink

COMPILED_FROM = 1_000_000_000
DEVICES = 8


@dataclass
class Totals:
    """What became of the cases of one way to run them; `next_seed` is where the next run goes on.

    `simplified` are those of the passed ones in which XLA saw no need for a planned collective.
    """

    next_seed: int
    passed: int = 0
    refused: int = 0
    unstable: int = 0
    failed: int = 0
    simplified: int = 0
    seconds: float = 0.0
    failures: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    refusals: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def cases(self) -> int:
        """All cases so far."""
        return self.passed + self.refused + self.unstable + self.failed

    def __str__(self) -> str:
        return (
            f"{self.cases:,} cases: {self.passed:,} passed, {self.refused:,} refused (AutoparError), "
            f"{self.unstable:,} unstable, {self.failed:,} failed; "
            f"{self.simplified:,} with collectives simplified away; {self.seconds:,.0f} s; next seed {self.next_seed:,}"
        )


State = dict[str, Totals]
RUNS = {"interpreted": interpreted, "compiled": compiled}


def read_state(path: Path | None, seed: int | None) -> State:
    """The totals in `path`, or none; `seed` moves both ways to where they are to go on."""
    state = {"interpreted": Totals(0), "compiled": Totals(COMPILED_FROM)}
    if path is not None and path.exists():
        state = {name: Totals(**totals) for name, totals in json.loads(path.read_text()).items()}
    if seed is not None:
        state["interpreted"].next_seed, state["compiled"].next_seed = seed, COMPILED_FROM + seed
    return state


def write_state(path: Path | None, state: State) -> None:
    """Writes the totals to `path`, if there is one."""
    if path is not None:
        path.write_text(
            json.dumps({name: asdict(totals) for name, totals in state.items()}, indent=1) + "\n"
        )


def run_case(seed: int, how: str, shrink_checks: int) -> tuple[Outcome, dict[str, Any] | None]:
    """The outcome of the case `seed`, and a record of it if it failed."""
    try:
        case = draw_case(seed)
    except Exception as error:  # a program that JAX itself refuses is a fault of the generator
        outcome = Outcome("failed", f"not drawn: {type(error).__name__}: {error}")
        return outcome, {"seed": seed, "how": how, "message": outcome.message}
    outcome = check(case, RUNS[how])
    return outcome, _failure(
        case, seed, how, outcome, shrink_checks
    ) if outcome.verdict == "failed" else None


def _failure(
    case: FuzzCase, seed: int, how: str, outcome: Outcome, shrink_checks: int
) -> dict[str, Any]:
    small = (
        shrink(case, lambda smaller: check(smaller, RUNS[how]), shrink_checks)
        if shrink_checks
        else case
    )
    return {
        "seed": seed,
        "how": how,
        "message": outcome.message,
        "program": str(small),
        "values": {name: value.tolist() for name, value in small.program.values.items()},
        "message_of_program": check(small, RUNS[how]).message,
        "first_difference": first_difference(small),
    }


def run(
    totals: Totals, how: str, count: int, shrink_checks: int, saved: Callable[[], None]
) -> None:
    """Runs `count` cases more."""
    for n in range(count):
        start = perf_counter()
        outcome, failure = run_case(totals.next_seed, how, shrink_checks)
        setattr(totals, outcome.verdict, getattr(totals, outcome.verdict) + 1)
        totals.simplified += outcome.verdict == "passed" and bool(outcome.message)
        totals.next_seed += 1
        totals.seconds += perf_counter() - start
        if outcome.verdict == "refused":
            kind = outcome.message.split(":")[0]
            totals.refusals[kind] = totals.refusals.get(kind, 0) + 1
        if failure is not None:
            totals.failures.append(failure)
            print(_described(failure), flush=True)
        if n % 50 == 49 or failure is not None:
            saved()
            print(f"{how}: {totals}", flush=True)
    saved()


def _described(failure: dict[str, Any]) -> str:
    lines = [f"FAILED {failure['how']} seed {failure['seed']}: {failure['message']}"]
    lines += [
        str(failure[key])
        for key in ("program", "message_of_program", "first_difference")
        if failure.get(key)
    ]
    return "\n".join(lines)


def table_of(state: State) -> Table:
    """The totals of each way to run cases."""
    table = Table()
    for head in ("run by", "cases", "passed", "refused", "unstable", "failed"):
        table.add_column(head)
    for how, totals in state.items():
        counts = (totals.cases, totals.passed, totals.refused, totals.unstable, totals.failed)
        table.add_row(how, *(f"{count:,}" for count in counts))
    return table


def main() -> int:
    """Runs what the command line asks for; 1 if a case of this run failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="interpreted cases")
    parser.add_argument("--compiled", type=int, default=0, help="compiled cases")
    parser.add_argument(
        "--seed", type=int, help="where to start; without it, where the state says, or 0"
    )
    parser.add_argument("--state", type=Path, help="file with the next seeds and the totals")
    parser.add_argument(
        "--json", type=Path, help="file for the totals and the failures of all runs"
    )
    add_record_option(parser)
    parser.add_argument(
        "--shrink", type=int, default=300, help="smaller cases that are tried for a failure"
    )
    arguments = parser.parse_args()
    use_virtual_devices(DEVICES)
    state = read_state(arguments.state, arguments.seed)
    before = sum(totals.failed for totals in state.values())
    counts = {"interpreted": arguments.count, "compiled": arguments.compiled}
    for how, count in counts.items():
        run(state[how], how, count, arguments.shrink, lambda: write_state(arguments.state, state))
        print(f"{how}: {state[how]}")
        print(
            "".join(f"  refused {times} x {kind}\n" for kind, times in state[how].refusals.items()),
            end="",
        )
    write_state(arguments.json, state)
    record(__file__, arguments.record, [table_of(state)])
    return int(sum(totals.failed for totals in state.values()) > before)


if __name__ == "__main__":
    sys.exit(main())
