"""find_rule: an operator without a rule in, the rule that trials show out, or None."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from time import monotonic
from typing import NamedTuple, cast

from autopar._payload import Payload
from autopar.core.graph import OpNode, TensorInfo
from autopar.core.placement import Kind
from autopar.discover.candidates import Shapes, splits, trial_shapes
from autopar.discover.runnable import Runnable, runnable
from autopar.discover.trial import Trials, TrialSplit
from autopar.ops.rules.factor_rule import Factor, FactorRule

LONGEST_S = 30.0
"""An operator whose trials take longer gets no rule."""


class Found(NamedTuple):
    """The splits that hold, and the kind by which each combines results that lack its dim; `ended`: how trials did."""

    splits: tuple[tuple[TrialSplit, Kind | None], ...] = ()
    ended: str = ""


class Finder:
    """What finds rules by trial, and says of an operator without one why there is none where it is known."""

    def __call__(self, op: OpNode) -> FactorRule | None:
        """The rule of `op` that small runs of its primitive show: dims that may be split, how results are combined.

        A dim of an operand is a factor if, for several shapes, kinds of data, seeds and numbers of parts, the results
        on slices make the result of the whole: put in a row where the results have the dim too, or summed (or their
        maximum or minimum taken) where they have not. Every other dim is frozen. Unreduced operands and compound dims
        are not looked for. Operators with effects, callbacks, random numbers or control flow are not run, the others
        in a process of their own.

        None if nothing may be split, or the operator cannot be tried. Remembered by primitive, parameters and ranks
        where the parameters do not fix the shapes, else by shape.
        """
        found = _found_of(op)
        return _rule(op, found.splits) if found.splits else None

    def note(self, op: OpNode) -> str:
        """Why trials of `op` came to no end, as a sentence; "" where they did."""
        ended = _found_of(op).ended
        return f"Tried on random operands, {ended}." if ended else ""


find_rule = Finder()
"""The one that there is."""


def _found_of(op: OpNode) -> Found:
    if not isinstance(op.payload, Payload):
        return Found()
    found = _of_any_size(_Key(op, free=True))
    return _of_this_size(_Key(op, free=False)) if found is None else found


class _Key:
    """An operator, equal to others of the same primitive, parameters, element types and ranks, or also shapes.

    Free of shapes, it keeps which dims are of equal size and which are 1.
    """

    def __init__(self, op: OpNode, *, free: bool) -> None:
        self.op = op
        tensors = (*op.ins, *op.outs)
        number: dict[int, int] = {1: 1}
        shapes = [
            tuple(number.setdefault(n, len(number) + 1) if free else n for n in t.shape)
            for t in tensors
        ]
        payload = cast("Payload", op.payload)
        params = repr(sorted(payload.params.items(), key=lambda item: item[0]))
        kinds = [(tensor.dtype, repr(tensor.literal)) for tensor in tensors]
        self._parts = (payload.primitive, params, tuple(shapes), tuple(kinds))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self._parts)


@lru_cache(maxsize=4096)
def _of_any_size(key: _Key) -> Found | None:
    """What holds of all operators of these ranks; None if it takes their own shapes to say."""
    return _found(key.op, free=True)


@lru_cache(maxsize=4096)
def _of_this_size(key: _Key) -> Found:
    return _found(key.op, free=False) or Found()


def _found(op: OpNode, *, free: bool) -> Found | None:
    run = runnable(op)
    if run is None:
        return Found()
    shapes, is_free = trial_shapes(op, run)
    if free and not is_free:
        return None
    return _held(op, run, shapes) if shapes else Found()


def _held(op: OpNode, run: Runnable, shapes: Sequence[Shapes]) -> Found:
    start = monotonic()
    trials = [Trials(run, op.ins, shape) for shape in shapes]
    held: list[tuple[TrialSplit, Kind | None]] = []
    for split in splits(op, run, shapes[0]):
        if monotonic() - start > LONGEST_S:
            return Found(ended=f"it took longer than {LONGEST_S:g} s")
        if any(_overlap(split, other) for other, _ in held):
            continue
        kinds = _all_kinds(split, trials)
        if run.ended:
            return Found(ended=run.ended)
        if kinds and None not in split.outs:
            held.append((split, None))
        elif len(kinds) == 1:
            held.append((split, next(iter(kinds))))

    return Found(tuple(held))


def _all_kinds(split: TrialSplit, trials: list[Trials]) -> frozenset[Kind]:
    """The kinds that hold on all shapes."""
    left: frozenset[Kind] | None = None
    for trial in trials:
        kinds = trial.kinds(split)
        left = kinds if left is None else left & kinds
        if not left:
            break
    return left or frozenset()


def _overlap(split: TrialSplit, other: TrialSplit) -> bool:
    """Whether both hold the same dim of an operand or of a result."""
    places = ((split.ins, other.ins), (split.outs, other.outs))
    return any(
        x == y is not None for mine, theirs in places for x, y in zip(mine, theirs, strict=True)
    )


def _rule(op: OpNode, found: tuple[tuple[TrialSplit, Kind | None], ...]) -> FactorRule:
    ins = [_names(f"i{n}", tensor) for n, tensor in enumerate(op.ins)]
    outs = [_names(f"o{n}", tensor) for n, tensor in enumerate(op.outs)]
    reduced: dict[Factor, Kind] = {}
    for number, (split, kind) in enumerate(found):
        for side, dims in ((ins, split.ins), (outs, split.outs)):
            for names, dim in zip(side, dims, strict=True):
                if dim is not None:
                    names[dim] = f"d{number}"
        if kind is not None:
            reduced[f"d{number}"] = kind

    frozen = {name for names in (*ins, *outs) for name in names if name[0] != "d"}
    return replace(
        FactorRule.of(op, ins=ins, outs=outs, reduced=reduced, frozen=frozen), found=True
    )


def _names(tensor: str, info: TensorInfo) -> list[Factor]:
    return [f"{tensor}.{dim}" for dim in range(info.ndim)]
