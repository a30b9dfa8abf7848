"""Step: one move of a redistribution, a collective or a local change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from autopar.core.placement import LOCAL_KINDS, Placement, StepKind


@dataclass(frozen=True)
class Step:
    """One move of a tensor from placement `before` to placement `after`, over the mesh `axes`.

    | kind | what happens to `axes` | bytes on the wire |
    |---|---|---|
    | all_gather | the minor-most axes of `dim` are dropped | |
    | slice | appended as minor-most to `dim`; local | none |
    | all_to_all | the minor-most axes of `dim` become the minor-most of `to_dim` | |
    | reduce_scatter | unreduced axes become the minor-most of `dim` | |
    | all_reduce | unreduced axes are dropped | |
    | mask | replicated axes become unreduced: the first member keeps the value, others neutral ones; local | none |
    | permute | axes change their roles; every device keeps its local shape | |

    `axes` stand major to minor as in the placement. A collective over several axes is one collective over the
    product group.
    """

    kind: StepKind
    axes: tuple[str, ...]
    before: Placement
    after: Placement
    dim: int | None = None
    to_dim: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether nothing crosses a link."""
        return self.kind in LOCAL_KINDS

    @property
    def is_inner(self) -> bool:
        """Whether it splits or joins a dim other than the first."""
        return changes_inside(self.before, self.after)


def changes_inside(before: Placement, after: Placement) -> bool:
    """Whether a dim other than the first is split over other axes in `after`."""
    return before.dims[1:] != after.dims[1:]


class StepPrice(Protocol):
    """The price of a step, as routes see it: time or any other cost, >= 0."""

    def __call__(self, kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
        """The cost of one step. `size_bytes` is the larger of a device's bytes before and after the step:
        all_gather: after; reduce_scatter: before; the others: both are equal, except slice: before.
        """
        ...


class TurnPrice(Protocol):
    """The price of what a device does beside a step along a dim other than the first: it copies in another order."""

    def __call__(self, kind: StepKind, size_bytes: int) -> float:
        """The cost beside one step of `size_bytes`, as in `StepPrice`."""
        ...


class PackPrice(Protocol):
    """The price of what a bucket takes beside the collective of all its bytes: its tensors are laid end to end."""

    def __call__(self, kind: StepKind, axes: tuple[str, ...], sizes: Sequence[int]) -> float:
        """The cost for a bucket of tensors of these sizes, as in `StepPrice`."""
        ...


def no_pack(kind: StepKind, axes: tuple[str, ...], sizes: Sequence[int]) -> float:
    """Buckets cost what their collective does."""
    del kind, axes, sizes
    return 0.0


def no_turn(kind: StepKind, size_bytes: int) -> float:
    """Steps along all dims cost the same."""
    del kind, size_bytes
    return 0.0
