"""Loops walked round by round: when each position of a program runs, and when a value is held. The oracle of lifetimes.

Two rounds of every loop tell all: what is read again, and what is not. A loop is entered once: what its carries start
with is read before the first round. A position at which a value is held in any round
is one at which its memory is taken: the body of a loop has one allocation for all rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from autopar.core.regions import LOOPS, RegionTree

ROUNDS = 2


@dataclass(frozen=True)
class Event:
    """One run of what stands at `position`, in these rounds (loop, number) of the loops around it, outermost first."""

    position: int
    rounds: tuple[tuple[int, int], ...] = ()


def events(tree: RegionTree, placed: Sequence[tuple[str, int | None]]) -> list[Event]:
    """Every run of every position, in order: what stands there is of kind and in region `placed[position]`."""
    entered = {position for position, (kind, _) in enumerate(placed) if kind == "carry_in"}
    every = _walk(tree, [region for _, region in placed], 0, len(placed), None, ())
    return [event for event in every if event.position not in entered or event.rounds[-1][1] == 0]


def _walk(
    tree: RegionTree,
    regions: Sequence[int | None],
    position: int,
    stop: int,
    around: int | None,
    rounds: tuple[tuple[int, int], ...],
) -> list[Event]:
    found: list[Event] = []
    while position < stop:
        inner = next((r for r in tree.path(regions[position]) if tree[r].parent == around), None)
        if inner is None or regions[position] == around:
            found.append(Event(position, rounds))
            position += 1
            continue
        end = position
        while end < stop and inner in tree.path(regions[end]):
            end += 1
        for n in range(ROUNDS) if tree[inner].kind in LOOPS else (None,):
            within = rounds if n is None else (*rounds, (inner, n))
            found += _walk(tree, regions, position, end, inner, within)
        position = end
    return found


@dataclass(frozen=True)
class Held:
    """A value: the position that makes it, the region in which it is seen, and the events that read it.

    `loop` is what it enters or leaves. `begins` says when its memory is taken: in each round that makes it, before the
    first round of `loop` (its stack), or after the last one; `after` means right after that. `stays` says that it is
    kept until the loop ends (its carry), whoever reads it.
    """

    position: int
    region: int | None
    reads: Collection[Event] = ()
    begins: Literal["made", "first round", "last round"] = "made"
    loop: int | None = None
    stays: bool = False
    after: bool = False


def made_by(
    tree: RegionTree, position: int, kind: str, region: int | None, reads: Collection[Event]
) -> Held:
    """The result of an operator of `kind` that stands in `region`."""
    if kind == "carry_in":
        return Held(position, tree.parent(region), (), loop=region, stays=True)
    if kind == "scan_stack":
        return Held(position, tree.parent(region), reads, "first round", region)
    if kind in ("carry_out", "cond_result"):
        return Held(position, tree.parent(region), reads, "last round", region)
    return Held(position, region, reads)


def positions_held(tree: RegionTree, run: Sequence[Event], value: Held) -> set[int]:
    """The positions at which `value` is in memory in some round: anew in each of the loops around its region."""
    loops = set(tree.path(value.region))

    def instance(event: Event) -> tuple[tuple[int, int], ...]:
        return tuple(number for number in event.rounds if number[0] in loops)

    found: set[int] = set()
    for which in {instance(event) for event in run if event.position == value.position}:
        mine = [event for event in run if instance(event) == which]
        begin, end = _ends(mine, value)
        found.update(event.position for event in mine[begin : end + 1])
    return found


def _ends(run: Sequence[Event], value: Held) -> tuple[int, int]:
    """From where to where in `run`, the events of one instance."""
    made = [n for n, event in enumerate(run) if event.position == value.position]
    inside = [n for n, event in enumerate(run) if value.loop in {loop for loop, _ in event.rounds}]
    begin = {"made": made[0], "first round": (inside or made)[0], "last round": made[-1]}[
        value.begins
    ] + value.after
    reads = inside if value.stays else [n for n, event in enumerate(run) if event in value.reads]
    return begin, max([begin, *reads, *(made if value.begins == "first round" else ())])
