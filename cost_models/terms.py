"""Terms: what a collective takes on a level, where that was measured: instead of the formulas of `algorithms`."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Literal

from cost_models.curves import Curve

if TYPE_CHECKING:
    from cost_models.spans import Group, Span

CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "broadcast"
]


@dataclass(frozen=True)
class Terms:
    """Seconds of one kind of collective in groups of `members` that cross a level, as measured.

        alpha + local(S) + beta * wire bytes

    S is the larger of a device's bytes before and after, `local` what the devices themselves do with them (a line of
    slope gamma, or a curve, as small messages stay in caches), and the wire bytes are those that the busiest link of
    the level carries in one direction. Continuous and monotone in S. Invariant: members >= 2; alpha_s and
    beta_s_per_byte are finite and >= 0.
    """

    kind: CollectiveKind
    members: int
    alpha_s: float
    local: Curve
    beta_s_per_byte: float

    def __post_init__(self) -> None:
        if self.members < 2:
            raise ValueError(
                f"terms of {self.kind} are for {self.members} members; at least 2 communicate"
            )
        for name, value in (("alpha_s", self.alpha_s), ("beta_s_per_byte", self.beta_s_per_byte)):
            if not (isfinite(value) and value >= 0):
                raise ValueError(
                    f"terms of {self.kind}: {name} must be finite and >= 0, got {value}"
                )


def measured_time_s(kind: CollectiveKind, size_bytes: float, group: Group) -> float | None:
    """Seconds by the terms of the outermost level that the group crosses; None if it has none for this kind.

    Of several terms of one kind those of the most members not above the group's size count, else of the fewest: what is
    measured over a level includes what goes on inside it.
    """
    crossed = next((span for span in group.spans if span.sharing), None)
    if crossed is None:
        return None
    terms = terms_for(crossed.level.terms, kind, group.size)
    if terms is None:
        return None
    return (
        terms.alpha_s
        + terms.local.time_s(size_bytes)
        + terms.beta_s_per_byte * wire_bytes(kind, size_bytes, group.size, crossed)
    )


def terms_for(known: tuple[Terms, ...], kind: CollectiveKind, members: int) -> Terms | None:
    """Those of `known` that a group of `members` goes by."""
    mine = sorted((terms for terms in known if terms.kind == kind), key=lambda terms: terms.members)
    below = [terms for terms in mine if terms.members <= members]
    return below[-1] if below else mine[0] if mine else None


def wire_bytes(kind: CollectiveKind, size_bytes: float, members: int, span: Span) -> float:
    """The bytes that the busiest link of a level carries in one direction, all groups together.

    | kind | bytes |
    |---|---|
    | all_gather, reduce_scatter | (n - 1) / n S sharing |
    | all_reduce | twice that |
    | all_to_all | S crossing_pairs |
    | permute | S crossing_members |
    | broadcast | S sharing |
    """
    if kind == "all_to_all":
        return size_bytes * span.crossing_pairs
    if kind == "permute":
        return size_bytes * span.crossing_members
    if kind == "broadcast":
        return size_bytes * span.sharing
    ring = (members - 1) / members * size_bytes * span.sharing
    return 2 * ring if kind == "all_reduce" else ring
