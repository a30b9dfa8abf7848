"""Carry: which results become the next call's inputs (a training state), as pairs of flat positions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from autopar._compat import untyped_jax
from autopar.errors import TraceError
from autopar.trace.arguments import Arguments
from autopar.trace.returned import changed_of, is_returned, result_of
from autopar.trace.state import Pairs, Subtree, carried_state, same_type

Selector = int | str
Carry = Literal["auto"] | Sequence[tuple[Selector, Selector]] | None


@dataclass(frozen=True)
class Results:
    """The flat results: their tree, abstract values, and paths ("[0]['w1']"; "" where there is a single array)."""

    tree: Any
    avals: tuple[Any, ...]

    @property
    def paths(self) -> tuple[tuple[Any, ...], ...]:
        """The key path of each result."""
        placeholder = untyped_jax.tree_util.tree_unflatten(self.tree, range(len(self.avals)))
        found = untyped_jax.tree_util.tree_flatten_with_path(placeholder)[0]
        return tuple(path[1:] if is_returned(self.tree) else path for path, _ in found)

    @property
    def own(self) -> Subtree:
        """The function's own result, without what it changed of its arguments."""
        tree = result_of(self.tree)
        return Subtree("", tree, 0, self.avals[: tree.num_leaves])

    @property
    def names(self) -> tuple[str, ...]:
        """The path of each result as text."""
        return tuple(untyped_jax.tree_util.keystr(path) for path in self.paths)


def find_carry(
    carry: Carry, arguments: Arguments, results: Results, donated: Collection[int | str]
) -> Pairs:
    """Pairs (output position, input position), sorted by output.

    "auto" pairs what is state by its path, its name or donation (`carried_state`). Explicit pairs give (result,
    argument), each a top-level position or a path such as "[0]['w1']" and "state['w1']"; both sides must have the same
    leaves. None pairs nothing. `donated` are positions of arguments.

    Raises:
      TraceError: if an explicit pair names nothing, or two things that differ.
    """
    if carry is None:
        return ()

    changed = _changed(arguments, results)
    if carry == "auto":
        taken = {flat for _, flat in changed}
        own = [
            pair for pair in carried_state(arguments, results.own, donated) if pair[1] not in taken
        ]
        return (*own, *changed)

    if not _is_pairs(carry):
        raise TraceError(
            f"carry must be 'auto', None or pairs of (result, argument), not {carry!r}"
        )

    pairs = list(changed)
    for result, argument in carry:
        pairs += _explicit(result, argument, arguments, results)

    for side, what in ((0, "result"), (1, "argument")):
        if len({pair[side] for pair in pairs}) != len(pairs):
            raise TraceError(f"carry names a {what} twice: {tuple(carry)}")

    return tuple(sorted(pairs))


def _changed(arguments: Arguments, results: Results) -> Pairs:
    """What the function put into objects among its arguments, each in the place of what was there."""
    names = changed_of(results.tree)
    first = len(results.avals) - len(names)
    place = {name: n for n, name in enumerate(arguments.leaf_names)}
    pairs = [
        (first + k, place[name.removeprefix(".")])
        for k, name in enumerate(names)
        if name.removeprefix(".") in place
    ]
    return tuple(
        (out, flat) for out, flat in pairs if same_type(results.avals[out], arguments.avals[flat])
    )


def _is_pairs(carry: object) -> bool:
    pairs = cast("Sequence[object]", carry) if isinstance(carry, tuple | list) else ("no pair",)
    return all(
        isinstance(pair, tuple | list) and len(cast("Sequence[object]", pair)) == 2
        for pair in pairs
    )


def _explicit(
    result: Selector, argument: Selector, arguments: Arguments, results: Results
) -> list[tuple[int, int]]:
    outs = _select_results(result, results)
    ins = _select_inputs(argument, arguments)
    if [suffix for _, suffix in outs] != [suffix for _, suffix in ins]:
        raise TraceError(
            f"carry pairs result {result!r} with argument {argument!r}, but their trees differ: "
            f"{[suffix for _, suffix in outs]} and {[suffix for _, suffix in ins]}"
        )

    avals = arguments.avals
    for (out, suffix), (flat, _) in zip(outs, ins, strict=True):
        if not same_type(results.avals[out], avals[flat]):
            raise TraceError(
                f"carry pairs result {result!r} with argument {argument!r}, but leaf {suffix!r} is "
                f"{results.avals[out].str_short()} in the one and {avals[flat].str_short()} in the other"
            )

    return [(out, flat) for (out, _), (flat, _) in zip(outs, ins, strict=True)]


def _select_results(selector: Selector, results: Results) -> list[tuple[int, str]]:
    """The flat results under a top-level position or a path, each with the rest of its path."""
    keystr = untyped_jax.tree_util.keystr
    tree = results.own.tree
    if untyped_jax.tree_util.treedef_is_leaf(tree):
        if selector in (0, "", "output[0]"):
            return [(0, "")]
        raise TraceError(
            f"carry names result {selector!r}, but the function returns a single array: name it by 0"
        )

    if isinstance(selector, int):
        starts = [0]
        for child in tree.children():
            starts.append(starts[-1] + child.num_leaves)
        if not 0 <= selector < len(starts) - 1:
            raise TraceError(
                f"carry names result {selector}, but the function returns {len(starts) - 1} by position: "
                "name a result by its path"
            )
        chosen = range(starts[selector], starts[selector + 1])
        return [(i, keystr(results.paths[i][1:])) for i in chosen]

    own = selector.removeprefix("output")  # as reports and pins call results, or as they stand
    return _under(own, list(enumerate(_splits("", path) for path in results.paths)), "result")


def _select_inputs(selector: Selector, arguments: Arguments) -> list[tuple[int, str]]:
    """The flat inputs under an argument's position or a path, each with the rest of its path."""
    if isinstance(selector, int):
        argument = arguments.at(selector)
        cut = len(argument.name)
        return [
            (i, name[cut:]) for i, name in zip(argument.inputs, argument.leaf_names, strict=True)
        ]
    leaves: list[tuple[int, list[tuple[str, str]]]] = []
    for argument in arguments.traced:
        placeholder = untyped_jax.tree_util.tree_unflatten(argument.tree, argument.inputs)
        paths = untyped_jax.tree_util.tree_flatten_with_path(placeholder)[0]
        leaves += [(flat, _splits(argument.name, path)) for path, flat in paths]
    return _under(selector, leaves, "argument")


def _splits(name: str, path: tuple[Any, ...]) -> list[tuple[str, str]]:
    """Every way to cut a path in two, as text."""
    keystr = untyped_jax.tree_util.keystr
    return [(name + keystr(path[:cut]), keystr(path[cut:])) for cut in range(len(path) + 1)]


def _under(
    selector: str, leaves: list[tuple[int, list[tuple[str, str]]]], what: str
) -> list[tuple[int, str]]:
    found = [(flat, rest) for flat, splits in leaves for head, rest in splits if head == selector]
    if not found:
        known = ", ".join(splits[-1][0] for _, splits in leaves[:8])
        raise TraceError(
            f"carry names {what} {selector!r}, which does not exist; there are {known}, ..."
        )
    return found
