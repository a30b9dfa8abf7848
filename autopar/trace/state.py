"""State: which results are taken for the next call's inputs by themselves (carry="auto")."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from autopar._compat import untyped_jax
from autopar.trace.arguments import Argument, Arguments

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Subtree:
    """A part of the results or the arguments: its name ("" if it has none), structure, first flat position, leaves."""

    name: str
    tree: Any
    start: int
    avals: tuple[Any, ...]
    is_donated: bool = False

    @property
    def positions(self) -> range:
        """The flat positions of its leaves."""
        return range(self.start, self.start + len(self.avals))

    @property
    def is_array(self) -> bool:
        """Whether it is a bare array, whose path says nothing."""
        return bool(untyped_jax.tree_util.treedef_is_leaf(self.tree))

    def is_like(self, other: Subtree) -> bool:
        """Whether both have the same structure (so the same paths inside), shapes and dtypes; some leaf has dims."""
        if self.tree != other.tree or not any(aval.shape for aval in self.avals):
            return False
        return all(same_type(a, b) for a, b in zip(self.avals, other.avals, strict=True))

    def parts(self) -> tuple[Subtree, ...]:
        """The parts one level below; none of an array."""
        if self.is_array:
            return ()

        paths = _paths(self.tree)
        found: list[Subtree] = []
        start = 0
        for child in self.tree.children():
            stop = start + child.num_leaves
            name = _key_name(paths[start][0]) if stop > start else ""
            found.append(
                Subtree(name, child, self.start + start, self.avals[start:stop], self.is_donated)
            )
            start = stop

        return tuple(found)


def same_type(a: Any, b: Any) -> bool:
    """Whether two abstract values have one shape and dtype."""
    return a.shape == b.shape and a.dtype == b.dtype


def carried_state(arguments: Arguments, result: Subtree, donated: Collection[int | str]) -> Pairs:
    """Pairs (output position, input position) of what the results say is state, sorted by output.

    The whole result, else each of its top-level parts, is carried into an argument with the same structure, shapes and
    dtypes, of which some array has dims, if
    * it has the argument's name: the key "w" of a dict and the argument `w`, or `state["w"]`; else
    * the argument is donated, or is a tree: then the paths inside are the same.
    Each argument is taken once, equal ones in order. A bare array without a name is carried into donated arguments
    only: `transpose(x)` has the type of `x` and is no state.
    """
    given = [_subtree(argument, donated) for argument in arguments.traced]
    pairing = _Pairing()
    pairing.take((result,), given, _is_kept)
    if not pairing.pairs:
        parts = result.parts()
        named = [*given, *(part for argument in given for part in argument.parts())]
        pairing.take(parts, named, _has_the_name)
        pairing.take(parts, given, _is_kept)
    return tuple(sorted(pairing.pairs))


def resembled_inputs(arguments: Arguments, result: Subtree) -> frozenset[int]:
    """The flat inputs whose argument looks like a result, though it need not be carried: weights rather than data.

    A bare array counts if it is the first argument, or the one after an argument that counts.
    """
    given = [_subtree(argument, ()) for argument in arguments.traced]
    parts = (result,) if any(result.is_like(argument) for argument in given) else result.parts()
    found: set[int] = set()
    for part in parts:
        for number, argument in enumerate(given):
            follows = number == 0 or bool(found.intersection(given[number - 1].positions))
            if (
                argument.start not in found
                and part.is_like(argument)
                and (follows or not part.is_array)
            ):
                found.update(argument.positions)
                break

    return frozenset(found)


class _Pairing:
    """Pairs of positions; what was paired once is not paired again."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []

    def take(
        self,
        parts: Iterable[Subtree],
        places: Sequence[Subtree],
        fits: Callable[[Subtree, Subtree], bool],
    ) -> None:
        """Pairs each part with the first place left that is like it and fits."""
        for part in parts:
            made = {position for position, _ in self.pairs}
            if not made.isdisjoint(part.positions):
                continue
            taken = {position for _, position in self.pairs}
            for place in places:
                if taken.isdisjoint(place.positions) and part.is_like(place) and fits(part, place):
                    self.pairs += zip(part.positions, place.positions, strict=True)
                    break


def _is_kept(_part: Subtree, place: Subtree) -> bool:
    return place.is_donated or not place.is_array


def _has_the_name(part: Subtree, place: Subtree) -> bool:
    return bool(part.name) and part.name == place.name


def _subtree(argument: Argument, donated: Collection[int | str]) -> Subtree:
    return Subtree(
        argument.name, argument.tree, argument.start, argument.avals, argument.is_one_of(donated)
    )


def _paths(tree: Any) -> tuple[tuple[Any, ...], ...]:
    placeholder = untyped_jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
    return tuple(path for path, _ in untyped_jax.tree_util.tree_flatten_with_path(placeholder)[0])


def _key_name(key: Any) -> str:
    """The name in a path's key: a dict's key or a field; "" for a position."""
    if isinstance(key, untyped_jax.tree_util.GetAttrKey):
        return key.name
    if isinstance(key, untyped_jax.tree_util.DictKey) and isinstance(key.key, str):
        return key.key
    return ""
