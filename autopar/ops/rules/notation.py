"""Notation: rules written as text, "b m k, b k n -> b m n": text in, a parsed `Notation` out.

The notation is that of JAX's own sharding rules (`jax.experimental.custom_partitioning.SdyShardingRule`): a letter,
then letters, digits or underscores name a factor; spaces stand between dims, commas between tensors, `->` between
operands and results; nothing between commas is a scalar. `(a b)` is a dim of several factors, major to minor, the
sizes of which are given unless they stand alone elsewhere. A leading `...` stands for any number of dims; `...1`,
`...2` for others. Differs: here `...` may be sizes of 1 in one operand and not in another, as numpy broadcasts them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast, get_args

from autopar.core.placement import Kind
from autopar.errors import RuleError
from autopar.ops.rules.factor_rule import Dim, Factor, FactorRule

Reduced = Factor | Collection[Factor] | Mapping[Factor, Kind]
_TOKEN = re.compile(r"(?P<space>\s+)|(?P<batch>\.\.\.\d*)|(?P<name>[^\W\d]\w*)|(?P<mark>->|[(),])")
Token = tuple[str, str, int]
"""What it is, the word, and where in the text it stands."""


@dataclass(frozen=True)
class NotatedTensor:
    """One tensor of the notation: its dims, each of one or more factors, after `batch` ("..." or None)."""

    dims: tuple[Dim, ...] = ()
    batch: str | None = None


@dataclass(frozen=True)
class Notation:
    """A parsed rule: what `register_rule` was given, checked as far as it can be without an operator."""

    text: str
    ins: tuple[NotatedTensor, ...]
    outs: tuple[NotatedTensor, ...]
    reduced: Mapping[Factor, Kind] = field(default_factory=dict[Factor, Kind])
    frozen: frozenset[Factor] = frozenset()
    linear: tuple[tuple[int, ...], ...] = ()
    sizes: Mapping[Factor, int] = field(default_factory=dict[Factor, int])


def parse(
    text: str,
    *,
    reduced: Reduced = (),
    frozen: Factor | Collection[Factor] = (),
    linear: Iterable[int | Collection[int]] = (),
    sizes: Mapping[Factor, int] | None = None,
) -> Notation:
    """The parsed rule; `reduced`, `frozen` and `linear` as in `register_rule`.

    Raises:
      RuleError: if the text is not well formed, or the options do not fit it; quotes the text and points into it.
    """
    before, after = _sides(text)
    ins = _terms(text, before, 0)
    outs = _terms(text, after, len(before) + len("->"))
    kinds = _kinds(text, reduced)
    whole = frozenset(_names(frozen))
    sets = tuple((item,) if isinstance(item, int) else tuple(sorted(item)) for item in linear)
    notation = Notation(text, ins, outs, kinds, whole, sets, dict(sizes or {}))
    _check_options(notation)
    _check_factors(notation)
    return notation


def show(rule: FactorRule) -> str:
    """The arguments of `register_rule` that state `rule`: its text, what is reduced and what is frozen."""
    names: dict[Factor, str] = {}
    for dims in (*rule.ins, *rule.outs):
        for factor in (f for dim in dims for f in dim):
            names.setdefault(factor, f"d{len(names)}")

    def tensor(dims: tuple[Dim, ...]) -> str:
        parts = [" ".join(names[f] for f in dim) for dim in dims]
        return " ".join(
            f"({part})" if len(dim) > 1 else part for part, dim in zip(parts, dims, strict=True)
        )

    text = " -> ".join(", ".join(tensor(dims) for dims in side) for side in (rule.ins, rule.outs))
    options = [f'"{text}"']
    reduced = {names[f]: kind for f, kind in rule.reduced.items() if f in names}
    frozen = [names[f] for f in names if f in rule.frozen]
    options += [f"reduced={reduced}"] if reduced else []
    options += [f"frozen={frozen}"] if frozen else []
    return ", ".join(options)


# Parsing --------------------------------------------------------------------------------------------------------------


def _sides(text: str) -> tuple[str, str]:
    parts = text.split("->")
    if len(parts) == 1:
        raise RuleError(_point(text, len(text), "there is no '->' between operands and results"))
    if len(parts) > 2:
        raise RuleError(_point(text, text.rindex("->"), "there is more than one '->'"))
    return parts[0], parts[1]


def _terms(text: str, side: str, start: int) -> tuple[NotatedTensor, ...]:
    terms: list[NotatedTensor] = []
    for part in side.split(","):
        terms.append(_term(text, part, start))
        start += len(part) + 1
    return tuple(terms)


def _term(text: str, part: str, start: int) -> NotatedTensor:
    tokens = list(_tokens(text, part, start))
    batch = f"...{int(tokens.pop(0)[1][3:] or 0)}" if tokens and tokens[0][0] == "batch" else None
    dims = tuple(_dims(text, iter(tokens)))
    _check_once(text, dims, start)
    return NotatedTensor(dims, batch)


def _dims(text: str, tokens: Iterator[Token]) -> Iterator[Dim]:
    for kind, word, at in tokens:
        if kind == "batch":
            raise RuleError(
                _point(text, at, "'...' can only stand before the other dims of a tensor")
            )
        if word == ")":
            raise RuleError(_point(text, at, "a bracket is closed that was not opened"))
        yield (word,) if kind == "name" else _bracket(text, tokens, at)


def _bracket(text: str, tokens: Iterator[Token], opened: int) -> Dim:
    factors: list[Factor] = []
    for kind, word, at in tokens:
        if word == ")" and len(factors) > 1:
            return tuple(factors)
        if word == ")":
            raise RuleError(_point(text, opened, "a bracket holds two factors or more"))
        if kind != "name":
            raise RuleError(_point(text, at, f"{word!r} cannot stand in a bracket"))
        factors.append(word)
    raise RuleError(_point(text, opened, "this bracket is not closed"))


def _tokens(text: str, part: str, start: int) -> Iterator[Token]:
    position = 0
    while position < len(part):
        match = _TOKEN.match(part, position)
        if match is None:
            raise RuleError(
                _point(text, start + position, f"{part[position]!r} is no part of the notation")
            )
        if match.lastgroup != "space":
            yield str(match.lastgroup), match.group(), start + position
        position = match.end()


def _check_once(text: str, dims: Collection[Dim], start: int) -> None:
    seen: set[Factor] = set()
    for factor in (f for dim in dims for f in dim):
        if factor in seen:
            raise RuleError(
                _point(
                    text,
                    _find(text, factor, start, last=True),
                    f"{factor!r} stands twice in a tensor",
                )
            )
        seen.add(factor)


def _find(text: str, factor: Factor, start: int = 0, *, last: bool = False) -> int:
    """Where a factor stands in the text: the first place from `start` on, or the last one in that tensor."""
    end = text.find(",", start)
    found = [
        m.start()
        for m in re.finditer(rf"(?<!\w){re.escape(factor)}(?!\w)", text)
        if m.start() >= start
    ]
    inside = [at for at in found if end < 0 or at < end]
    return (inside[1] if last and len(inside) > 1 else found[0]) if found else len(text)


def _point(text: str, at: int, message: str) -> str:
    return f"{message}:\n  {text}\n  {' ' * at}^"


# Checking -------------------------------------------------------------------------------------------------------------


def _kinds(text: str, reduced: Reduced) -> dict[Factor, Kind]:
    kinds: dict[Factor, Kind] = {}
    if isinstance(reduced, Mapping):
        kinds.update(cast("Mapping[Factor, Kind]", reduced))
    else:
        kinds.update(dict.fromkeys(_names(reduced), "sum"))
    for factor, kind in kinds.items():
        if kind not in get_args(Kind):
            raise RuleError(
                f"{factor!r} is reduced by {kind!r} in the rule {text!r}; known are {', '.join(get_args(Kind))}"
            )
    return kinds


def _names(factors: Factor | Collection[Factor]) -> Collection[Factor]:
    return [factors] if isinstance(factors, str) else factors


def _check_options(notation: Notation) -> None:
    named = {f for term in (*notation.ins, *notation.outs) for dim in term.dims for f in dim}
    options = {"reduced": notation.reduced, "frozen": notation.frozen, "sizes": notation.sizes}
    for option, factors in options.items():
        for factor in factors:
            if factor not in named:
                raise RuleError(
                    f"{option} names {factor!r}, which is no factor of the rule {notation.text!r}"
                )

    for operand in (i for operands in notation.linear for i in operands):
        if not 0 <= operand < len(notation.ins):
            raise RuleError(
                f"linear names operand {operand}; the rule {notation.text!r} has operands 0 to {len(notation.ins) - 1}"
            )


def _check_factors(notation: Notation) -> None:
    """Every factor has a size; those of operands reach every result, or are reduced or frozen."""
    text = notation.text
    alone = {
        dim[0] for term in (*notation.ins, *notation.outs) for dim in term.dims if len(dim) == 1
    }
    results = [{f for dim in term.dims for f in dim} for term in notation.outs]

    for factor in dict.fromkeys(
        f for term in (*notation.ins, *notation.outs) for dim in term.dims for f in dim
    ):
        at = _find(text, factor)
        if factor not in alone and factor not in notation.sizes:
            raise RuleError(
                _point(text, at, f"{factor!r} stands in brackets only: give its size, {factor}=...")
            )
        if factor in alone and factor in notation.sizes:
            raise RuleError(
                _point(
                    text,
                    at,
                    f"{factor!r} is a dim of its own: its size is read off, do not give it",
                )
            )
        if (
            factor in notation.frozen
            or factor in notation.reduced
            or all(factor in held for held in results)
        ):
            continue
        raise RuleError(
            _point(
                text,
                at,
                f"{factor!r} is missing in a result: name it in reduced= or, if it is whole, in frozen=",
            )
        )
