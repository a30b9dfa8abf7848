"""Compare: which of two plans is faster, and whether the cost model can tell."""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, hypot, sqrt

from autopar.errors import AutoparError
from autopar.report.summary import Report
from autopar.report.units import format_quantity

TOLD_APART = 0.9
"""How probable it has to be that the plan that is predicted to be faster is: below, both are to be measured."""
_LARGEST = 3


@dataclass(frozen=True, repr=False)
class Comparison:
    """The step times of two plans, their difference, and one standard error of that.

    What both owe to the same number or formula errs alike in both, and cancels: `error_s` is the error of what differs.
    `sources` are what it is due to, the largest first.
    """

    this_s: float
    other_s: float
    error_s: float
    sources: tuple[str, ...] = ()

    @property
    def difference_s(self) -> float:
        """By how much the other plan is slower than this one; negative if it is faster."""
        return self.other_s - self.this_s

    @property
    def confidence(self) -> float:
        """How probable it is that the plan predicted to be faster is, with normal errors: 1/2 to 1."""
        if self.error_s == 0:
            return 0.5 if self.difference_s == 0 else 1.0
        return 0.5 * (1 + erf(abs(self.difference_s) / self.error_s / sqrt(2)))

    @property
    def is_told_apart(self) -> bool:
        """Whether the model can tell which of them is faster."""
        return self.confidence >= TOLD_APART

    def __repr__(self) -> str:
        this, other = (format_quantity(time, "time") for time in (self.this_s, self.other_s))
        sure = format_quantity(self.confidence, "percent")
        return f"Comparison(this {this}, other {other}, told apart with a probability of {sure})"

    def _repr_html_(self) -> str:
        from autopar.report.notebook import (
            line_html,  # late: what renders a report reads this module
        )

        return line_html(str(self))

    def __str__(self) -> str:
        return self.told("this", "other")

    def told(self, this: str, other: str) -> str:
        """The comparison in a sentence, the two plans by these names."""
        own_s, other_s, gap, error = (
            format_quantity(time, "time")
            for time in (self.this_s, self.other_s, abs(self.difference_s), self.error_s)
        )
        times = f"{this} {own_s}, {other} {other_s}: {gap} apart, with a standard error of {error}"
        if self.difference_s == 0 and self.error_s == 0:
            return f"{times}: as fast as each other."
        if not self.is_told_apart:
            due = f" (mostly of {', '.join(self.sources[:_LARGEST])})" if self.sources else ""
            return f"{times}{due}: within the model's error, measure both."
        faster = this if self.difference_s > 0 else other
        return f"{times}: {faster} is faster, with a probability of {format_quantity(self.confidence, 'percent')}."


def compare(this: Report, other: Report) -> Comparison:
    """Which of two plans takes less time in a step, and how sure that is.

    On two clusters nothing cancels, as their numbers differ.

    Raises:
      AutoparError: of one of them the errors are not known: it was saved by an older version, or priced otherwise.
    """
    for report in (this, other):
        if not report.errors:
            raise AutoparError(
                f"of a plan of {report.function} no errors are known: it was saved before they were, or has a "
                "pricing of its own. Plan it again with the cluster's."
            )

    mine, theirs = (
        {share.source: share.time_s for share in report.errors} for report in (this, other)
    )
    if this.cluster == other.cluster:
        apart = {
            source: theirs.get(source, 0.0) - mine.get(source, 0.0) for source in mine | theirs
        }
    else:
        sides = ((this, mine), (other, theirs))
        apart = {
            f"{report.cluster}: {source}": s
            for report, shares in sides
            for source, s in shares.items()
        }

    sources = sorted(
        (source for source in apart if apart[source]),
        key=lambda source: (-abs(apart[source]), source),
    )
    return Comparison(this.step_time_s, other.step_time_s, hypot(*apart.values()), tuple(sources))


def indistinct(reports: tuple[Report, ...]) -> tuple[tuple[int, int], ...]:
    """The pairs of neighbours in `reports` that the model cannot tell apart, by position, where errors are known."""
    pairs = [(n, n + 1) for n in range(len(reports) - 1)]
    known = [(a, b) for a, b in pairs if reports[a].errors and reports[b].errors]
    return tuple((a, b) for a, b in known if not compare(reports[a], reports[b]).is_told_apart)
