"""What does autopar take, and how much of it does it split?

    python -m benchmarks.coverage [--json FILE] [--record] [--models gpt2 resnet ...]

Every model of `tests/models/table.py` (the extra `models` must be installed) runs a training step on 8 virtual devices
against plain jax.jit. For each: whether the values agree, and the share of its flops that the plan splits over all 8
devices. Latencies are set to zero and dims divide by 8 wherever the model lets them, so that splitting always pays:
what is left whole is left for want of a rule, and printed. Then the primitives of all the models: how many have a rule
written by hand, how many one that was found by trial, how many are replicated.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from rich import box
from rich.console import Console
from rich.table import Table

from autopar.emit.measure import use_virtual_devices
from autopar.errors import UnsupportedPrimitiveWarning
from autopar.ops.rules.registry import registered
from benchmarks.record import Screen, add_record_option, record
from tests.models.check import ONE_AXIS, Share, compare_with_jit, share_of
from tests.models.table import BY_NAME, Entry

DEVICES = 8
SHOWN = 3
WORTH_SHOWING = 0.01


@dataclass(frozen=True)
class Row:
    """One model: "" or what went wrong, its primitives, those of them without a written rule, its share, the reasons.

    `unsplit` names the kinds of operators that are not split over all devices, with their share of the flops; `reason`
    is the table's, for a share below the goal.
    """

    model: str
    library: str
    family: str
    failure: str
    operators: int
    seconds: float
    share: float
    goal: float
    kinds: tuple[str, ...]
    replicated: tuple[str, ...]
    found: tuple[str, ...]
    unsplit: tuple[tuple[str, float], ...]
    reason: str

    @property
    def passed(self) -> bool:
        """Whether its values are those of plain JAX."""
        return not self.failure


def main() -> None:
    """Runs the models and prints both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    add_record_option(parser)
    parser.add_argument("--models", nargs="+", choices=sorted(BY_NAME), default=list(BY_NAME))
    given = parser.parse_args()
    use_virtual_devices(DEVICES)
    console = Screen(width=140)
    rows: list[Row] = []
    for name in given.models:
        rows.append(measure(BY_NAME[name]))
        console.print(f"{name}: {rows[-1].failure or f'{rows[-1].share:.1%}'}", highlight=False)
    show_models(console, rows)
    show_primitives(console, rows)
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    record(__file__, given.record, console.tables[:1])


def measure(entry: Entry) -> Row:
    """Runs one model; what it raises is its failure."""
    start = perf_counter()
    kinds: tuple[str, ...] = ()
    share, failure = Share(0.0, 0.0, ()), ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            plan = compare_with_jit(entry, ONE_AXIS)
            share = share_of(plan)
            kinds = tuple(op.kind for op in plan.bound.traced.graph.ops)
        except Exception as error:  # whatever a model does to us is the result
            failure = f"{type(error).__name__}: {error}".splitlines()[0]
    return Row(
        entry.name,
        entry.module,
        entry.family,
        failure,
        len(kinds),
        perf_counter() - start,
        0.0 if failure else share.share,
        entry.goal,
        tuple(sorted(set(kinds))),
        _named(caught, found=False),
        _named(caught, found=True),
        _largest(share),
        entry.unsplit,
    )


def _named(caught: Sequence[warnings.WarningMessage], *, found: bool) -> tuple[str, ...]:
    """The primitives that autopar warned of: those with a rule found by trial, or those that are replicated."""
    texts = [str(w.message) for w in caught if str(w.message).startswith("no sharding rule for ")]
    whole = [str(w.message) for w in caught if w.category is UnsupportedPrimitiveWarning]
    return tuple(sorted({text.split("'")[1] for text in texts if (text not in whole) == found}))


def _largest(share: Share) -> tuple[tuple[str, float], ...]:
    """The kinds of operators that make up the rest, with their share of all flops, largest first."""
    flops: Counter[str] = Counter()
    for one in share.rest:
        flops[one.kind] += one.flops
    parts = [(kind, amount / share.flops) for kind, amount in flops.most_common(SHOWN)]
    return tuple((kind, part) for kind, part in parts if part >= WORTH_SHOWING)


def show_models(console: Console, rows: Sequence[Row]) -> None:
    """Prints a line for each model."""
    table = Table(title="Models", title_justify="left", title_style="bold", box=box.MARKDOWN)
    for head in ("model", "family", "values", "operators", "split 8 ways", "goal", "not split"):
        table.add_column(
            head, justify="right" if head in ("operators", "split 8 ways", "goal") else "left"
        )
    for row in rows:
        rest = ", ".join(f"{kind} {part:.1%}" for kind, part in row.unsplit)
        table.add_row(
            row.model,
            row.family,
            row.failure or "agree",
            str(row.operators),
            f"{row.share:.1%}",
            f"{row.goal:.0%}",
            f"{rest} ({row.reason})" if row.reason else rest,
        )
    console.print(table)
    reached = sum(row.passed and row.share >= row.goal for row in rows)
    console.print(
        f"{sum(row.passed for row in rows)} of {len(rows)} models agree with JAX; {reached} reach their goal.\n"
    )


def show_primitives(console: Console, rows: Sequence[Row]) -> None:
    """Prints how the primitives of all models came by their rules."""
    kinds = {kind for row in rows for kind in row.kinds}
    replicated = {kind for row in rows for kind in row.replicated}
    found = {kind for row in rows for kind in row.found}
    written = kinds - replicated - found
    console.print(f"{len(registered())} primitives have a rule written by hand.")
    console.print(
        f"The models use {len(kinds)}: {len(written)} of them with a rule written by hand,"
    )
    console.print(
        f"{len(found)} with one found by trial{_list(found)}, {len(replicated)} replicated{_list(replicated)}."
    )


def _list(kinds: set[str]) -> str:
    return f" ({', '.join(sorted(kinds))})" if kinds else ""


if __name__ == "__main__":
    main()
