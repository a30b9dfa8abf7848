"""States: all placements of a tensor of one rank as rows of numbers, and all steps between them, at once.

What `steps.moves_from` says of one placement is said here of all of them by whole arrays, in the same order.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Kind, Placement, StepKind
from autopar.redistribute.sequences import Ints, Sequences, sequences_of

MOVES: tuple[StepKind, ...] = (
    *("all_gather", "all_to_all", "slice", "reduce_scatter", "all_reduce", "mask", "permute"),
)
"""The kinds of steps in the order of `steps.moves_from`; a step's kind is its place here."""


class Moves(NamedTuple):
    """Steps from state `tail` to state `head`: the kind by its place in MOVES, the axes by the number of a sequence."""

    tail: Ints
    head: Ints
    kind: Ints
    axes: Ints


@dataclass(frozen=True, eq=False)
class States:
    """Placements of a tensor by number: state n splits dim d over the sequence `split[n, d]` of axes.

    It is unreduced over the set `unreduced[n]`, of kind `kinds[kind[n]]`; kind 0 is "sum", as where nothing is.
    """

    mesh: DeviceMesh
    kinds: tuple[Kind, ...]
    split: Ints
    unreduced: Ints
    kind: Ints

    @property
    def rank(self) -> int:
        """The number of dims."""
        return self.split.shape[1]

    @cached_property
    def sequences(self) -> Sequences:
        """Of the mesh's axes."""
        return sequences_of(self.mesh)

    @cached_property
    def parts(self) -> Ints:
        """parts[state, dim]: into how many parts the state cuts the dim."""
        return self.sequences.parts[self.split]

    @cached_property
    def code(self) -> Ints:
        """A number for each state: what its axes do, each a digit, and the kind."""
        return self.code_of(self.split, self.unreduced, self.kind)

    def code_of(self, split: Ints, unreduced: Ints, kind: Ints) -> Ints:
        """The codes of states that are given by these columns."""
        dims = self._dim_codes[np.arange(self.rank), split].sum(axis=1)
        return dims + self._set_codes[unreduced] + self._kind_code * kind

    def at(self, code: Ints) -> Ints:
        """The states of these codes."""
        return self._by_code[np.searchsorted(self.code, code, sorter=self._by_code)]

    def taken(self, order: Ints) -> States:
        """These of the states, in this order."""
        return States(
            self.mesh, self.kinds, self.split[order], self.unreduced[order], self.kind[order]
        )

    def placements(self) -> tuple[Placement, ...]:
        """The states as records."""
        names = self.mesh.names
        every = self.sequences.every
        named = [tuple(names[axis] for axis in axes) for axes in every]
        of_set = cast(list[int], self.sequences.of_set.tolist())
        split = cast(list[list[int]], self.split.tolist())
        rest = cast(list[tuple[int, int]], np.column_stack([self.unreduced, self.kind]).tolist())
        return tuple(
            Placement(tuple([named[s] for s in row]), named[of_set[unreduced]], self.kinds[kind])
            for row, (unreduced, kind) in zip(split, rest, strict=True)
        )

    @cached_property
    def inside(self) -> Ints:
        """A number that says how the state splits the dims but the first."""
        return self._dim_codes[np.arange(1, self.rank), self.split[:, 1:]].sum(axis=1)

    @cached_property
    def _by_code(self) -> Ints:
        return np.argsort(self.code)

    @property
    def _base(self) -> int:
        """What an axis may do: nothing, be unreduced, stand in some dim at some position."""
        return 2 + self.rank * len(self.mesh.axes)

    @cached_property
    def _powers(self) -> Ints:
        return self._base ** np.arange(len(self.mesh.axes), dtype=np.int64)

    @property
    def _kind_code(self) -> int:
        return self._base ** len(self.mesh.axes)

    @cached_property
    def _dim_codes(self) -> Ints:
        """code[dim, sequence]: what a dim that is split so adds to the code of a state."""
        position = self.sequences.position
        first = 2 + np.arange(self.rank)[:, None, None] * len(self.mesh.axes)
        return np.where(position >= 0, first + position, 0) @ self._powers

    @cached_property
    def _set_codes(self) -> Ints:
        """code[set]: what being unreduced over these axes adds to the code of a state."""
        sets = np.arange(1 << len(self.mesh.axes))
        return (sets[:, None] >> np.arange(len(self.mesh.axes)) & 1) @ self._powers

    @cached_property
    def _replicated(self) -> Ints:
        """The set of axes that are named nowhere."""
        every = (1 << len(self.mesh.axes)) - 1
        return every - self.unreduced - self.sequences.members[self.split].sum(axis=1)

    # The steps --------------------------------------------------------------------------------------------------------

    def moves(self) -> Moves:
        """Every step from every state, ordered by tail and then as `steps.moves_from` lists them."""
        found = (
            *(self._all_gathers(), self._all_to_alls(), self._slices(), self._reduce_scatters()),
            *(self._all_reduces(), self._masks(), self._permutes()),
        )
        tail, head, axes = (np.concatenate(side) for side in zip(*found, strict=True))
        kind = np.repeat(np.arange(len(MOVES)), [len(tails) for tails, _, _ in found])
        order = np.argsort(tail, kind="stable")
        return Moves(tail[order], head[order], kind[order], axes[order])

    def _resplit(self, state: Ints, dim: Ints, after: Ints) -> Ints:
        """What the code of `state` changes by if `dim` is split over the sequence `after`."""
        return self._dim_codes[dim, after] - self._dim_codes[dim, self.split[state, dim]]

    def _all_gathers(self) -> tuple[Ints, Ints, Ints]:
        kept, tails = self.sequences.cuts
        state, dim, cut = np.nonzero(kept[self.split] >= 0)
        axes = self.split[state, dim]
        after = self.code[state] + self._resplit(state, dim, kept[axes, cut])
        return state, self.at(after), tails[axes, cut]

    def _all_to_alls(self) -> tuple[Ints, Ints, Ints]:
        kept, tails = self.sequences.cuts
        other = ~np.eye(self.rank, dtype=np.bool_)
        state, dim, cut, to_dim = np.nonzero((kept[self.split] >= 0)[..., None] & other[:, None])
        axes = self.split[state, dim]
        tail = tails[axes, cut]
        after = self.code[state] + self._resplit(state, dim, kept[axes, cut])
        after += self._resplit(
            state, to_dim, self.sequences.joined[self.split[state, to_dim], tail]
        )
        return state, self.at(after), tail

    def _slices(self) -> tuple[Ints, Ints, Ints]:
        return self._appended(self._replicated, 0)

    def _reduce_scatters(self) -> tuple[Ints, Ints, Ints]:
        return self._appended(np.where(self.kind == 0, self.unreduced, 0), 1)

    def _appended(self, free: Ints, taken: int) -> tuple[Ints, Ints, Ints]:
        """Any sequence of the `free` axes, onto any dim; with `taken` they are unreduced before."""
        members = self.sequences.members
        state, axes = np.nonzero(members & ~free[:, None] == 0)
        state, axes = (np.repeat(side[axes > 0], self.rank) for side in (state, axes))
        dim = np.tile(np.arange(self.rank), len(state) // max(self.rank, 1))
        after = self.code[state] - taken * self._set_codes[members[axes]]
        after += self._resplit(state, dim, self.sequences.joined[self.split[state, dim], axes])
        return state, self.at(after), axes

    def _all_reduces(self) -> tuple[Ints, Ints, Ints]:
        sets = self.sequences.members[self.sequences.sorted_sets]
        state, which = np.nonzero(sets & ~self.unreduced[:, None] == 0)
        rest = self.unreduced[state] - sets[which]
        after = self.code[state] - self._set_codes[sets[which]]
        after -= np.where(rest == 0, self._kind_code * self.kind[state], 0)
        return state, self.at(after), self.sequences.sorted_sets[which]

    def _masks(self) -> tuple[Ints, Ints, Ints]:
        """What is unreduced keeps its kind; else every kind, in the order of their names."""
        sets = self.sequences.members[self.sequences.sorted_sets]
        wanted = np.array(
            sorted(range(len(self.kinds)), key=self.kinds.__getitem__), dtype=np.int64
        )
        may_be = (self.unreduced == 0)[:, None] | (self.kind[:, None] == wanted)
        inside = sets & ~self._replicated[:, None] == 0
        state, kind, which = np.nonzero(may_be[:, :, None] & inside[:, None])
        after = self.code[state] + self._set_codes[sets[which]]
        after += self._kind_code * (wanted[kind] - self.kind[state])
        return state, self.at(after), self.sequences.sorted_sets[which]

    def _permutes(self) -> tuple[Ints, Ints, Ints]:
        """Between any two states with the same local shape that are unreduced alike, ordered by their sequences."""
        alike = np.column_stack([self.parts, self.unreduced, self.kind])
        _, group, count = np.unique(alike, axis=0, return_inverse=True, return_counts=True)
        group = group.reshape(-1)
        members = np.lexsort((*self.split.T[::-1], group))
        first = np.cumsum(count) - count
        state = np.repeat(np.arange(len(group)), count[group])
        within = np.arange(len(state)) - np.repeat(
            np.cumsum(count[group]) - count[group], count[group]
        )
        head = members[first[group][state] + within]
        changed = self._roles[state] != self._roles[head]
        axes = self.sequences.of_set[changed @ (1 << np.arange(len(self.mesh.axes)))]
        moved = axes > 0

        return state[moved], head[moved], axes[moved]

    @cached_property
    def _roles(self) -> NDArray[np.int64]:
        """role[state, axis]: the dim that the axis splits, and its stride there; 0 if it splits none."""
        stride = self.sequences.stride[self.split]
        largest = self.mesh.size + 1
        return np.where(stride > 0, stride + largest * np.arange(self.rank)[:, None], 0).sum(axis=1)


def all_states(mesh: DeviceMesh, rank: int, kinds: Collection[Kind]) -> States:
    """Every placement of a tensor of `rank` dims on `mesh`, unreduced ones of these `kinds`, with every order of axes.

    The replicated one is the first; the others are in the order of their sequences, then of what is unreduced.
    """
    named: tuple[Kind, ...] = ("sum", *sorted(kind for kind in kinds if kind != "sum"))
    members = sequences_of(mesh).members
    split = np.zeros((1, 0), dtype=np.int64)
    used = np.zeros(1, dtype=np.int64)
    for _ in range(rank):
        row, axes = np.nonzero(used[:, None] & members == 0)
        split = np.column_stack([split[row], axes])
        used = used[row] | members[axes]

    row, unreduced = np.nonzero(used[:, None] & np.arange(1 << len(mesh.axes)) == 0)
    repeats = np.where(unreduced > 0, len(named), 1)
    row = np.repeat(row, repeats)
    unreduced = np.repeat(unreduced, repeats)
    kind = np.arange(len(row)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    return States(mesh, named, split[row], unreduced, kind)
