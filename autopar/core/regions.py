"""Regions: spans of operators that are emitted as one (rematerialised blocks, loops, branches), and what lies in which.

A control region (scan, while, cond) holds boundary operators only, around regions of its own that hold the rest:

    scan   carry_in, scan_slice        body                  carry_out, scan_stack
    while  carry_in                    test (while_test)     body                      carry_out
    cond   branch_index                branch, branch, ...   cond_result

The operators that enter read outside and make values that the inner regions see; those that leave read inside and make
values outside. Other values of an inner region are not seen outside; a rematerialised block hides nothing. A program
may have slices of another round ("shift") and stacks of one (`passes.double_buffer`); around the scan then stand

    scan_first, scan_start    scan    scan_last

the slice of the first round, zeros for what one before that would leave, and the slice that the last round leaves put
into a stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

RegionKind = Literal["remat", "scan", "while", "cond", "body", "test", "branch"]
CONTROL = frozenset({"scan", "while", "cond"})
LOOPS = frozenset({"scan", "while"})
ENTERING = frozenset({"carry_in", "scan_slice", "branch_index"})
LEAVING = frozenset({"carry_out", "scan_stack", "cond_result"})
CROSSING = ENTERING | LEAVING
BOUNDARY = CROSSING | {"while_test"}
AROUND = frozenset({"scan_first", "scan_start", "scan_last"})
WHILE_TRIPS = 10.0
"""How often a while loop is held to go round where nothing else is said. A scan says it itself."""

Path = tuple[int, ...]


@dataclass(frozen=True)
class Region:
    """A span of operators. `parent` is the region around it.

    `trips` says how often it runs, on average, for once that its parent does: a body as often as its loop goes round, a
    branch as probable as it is. `unrolled` says of a scan that its rounds are written out one after another. `payload`
    is opaque to every stage but `emit`.
    """

    id: int
    kind: RegionKind
    parent: int | None = None
    trips: float = 1.0
    unrolled: bool = False
    payload: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, eq=False)
class RegionTree:
    """The regions of one graph or program. A region is given by its id; None is what lies around all of them."""

    regions: Sequence[Region]

    @cached_property
    def _paths(self) -> dict[int | None, Path]:
        found: dict[int | None, Path] = {None: ()}
        for region in self.regions:
            found[region.id] = (region.id, *found[region.parent])
        return found

    @cached_property
    def _by_id(self) -> dict[int, Region]:
        return {region.id: region for region in self.regions}

    def __getitem__(self, region: int) -> Region:
        return self._by_id[region]

    def path(self, region: int | None) -> Path:
        """The region and those around it, innermost first."""
        return self._paths[region]

    def parent(self, region: int | None) -> int | None:
        """The region around `region`."""
        return None if region is None else self._by_id[region].parent

    def children(self, region: int) -> tuple[Region, ...]:
        """The regions right under `region`, in order."""
        return self._children.get(region, ())

    @cached_property
    def _children(self) -> dict[int | None, tuple[Region, ...]]:
        found: dict[int | None, list[Region]] = {}
        for region in self.regions:
            found.setdefault(region.parent, []).append(region)
        return {parent: tuple(children) for parent, children in found.items()}

    def kind(self, region: int | None) -> RegionKind | None:
        """The kind of `region`."""
        return None if region is None else self._by_id[region].kind

    def weight(self, region: int | None) -> float:
        """How often, on average, the region runs in one call of the function."""
        return self._weights[region]

    @cached_property
    def _weights(self) -> dict[int | None, float]:
        found: dict[int | None, float] = {None: 1.0}
        for region in self.regions:
            found[region.id] = found[region.parent] * region.trips
        return found

    def reads_in(self, kind: str, region: int | None, position: int) -> int | None:
        """Where an operator of `kind` that stands in `region` reads its operand `position`."""
        if region is None or kind not in CROSSING:
            return region
        if kind in ENTERING:
            return self._by_id[region].parent
        inner = [child for child in self.children(region) if child.kind in ("body", "branch")]
        return inner[position if kind == "cond_result" else 0].id

    def reads_on_in(self, kind: str, region: int | None, position: int) -> int | None:
        """The innermost region in each round of which the operand is read: a scan_slice reads on from outside."""
        return region if kind == "scan_slice" else self.reads_in(kind, region, position)

    def made_in(self, kind: str, region: int | None) -> int | None:
        """Where the results of an operator of `kind` that stands in `region` are seen first."""
        return self.parent(region) if kind in LEAVING else region

    def common(self, regions: Iterable[int | None]) -> int | None:
        """The innermost region around all of `regions`."""
        paths = [self.path(region) for region in regions]
        return next((r for r in paths[0] if all(r in path for path in paths)), None)

    def child_towards(self, region: int | None, inner: int | None) -> int | None:
        """The region right under `region` that holds `inner`; None if `inner` is `region` itself or not in it."""
        path = self.path(inner)
        if region is None:
            return path[-1] if path else None
        return path[path.index(region) - 1] if region in path[1:] else None

    def control_towards(self, region: int | None, inner: int | None) -> int | None:
        """The outermost region inside `region` that `inner` lies in; rematerialised blocks hide nothing."""
        found = None
        for outer in self.path(inner):
            if outer == region:
                break
            if self.kind(outer) != "remat":
                found = outer
        return found

    def loop_around(self, source: int | None, reader: int | None) -> int | None:
        """The outermost loop that `reader` is in and `source` is not: it reads a value from there again and again."""
        if reader is None or reader == source:
            return None
        outside = set(self.path(source))
        loops = [r for r in self.path(reader) if r not in outside and self._by_id[r].kind in LOOPS]
        return loops[-1] if loops else None

    def site(self, source: int | None, reader: int | None) -> int | None:
        """Where a value of `source` is redistributed for `reader`: right there, but before a loop rather than in it.

        Nothing is redistributed in a control region itself: what several of its inner regions share is done before.
        """
        while reader is not None and reader != source and self._by_id[reader].kind in CONTROL:
            reader = self._by_id[reader].parent
        loop = self.loop_around(source, reader)
        return reader if loop is None else self.site(source, self._by_id[loop].parent)
