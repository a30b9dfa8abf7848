"""Candidates: shapes on which an operator can be tried, and splits that its shapes alone do not rule out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice, product
from math import prod

from autopar.core.graph import OpNode
from autopar.discover.runnable import Runnable, Shape
from autopar.discover.trial import TrialSplit

LARGEST = 1 << 16
"""Elements of all operands together: more are not tried."""
SMALL = 1 << 12
"""An operator with fewer elements is tried at its own shape too."""
_MOST_CANDIDATES = 512

Shapes = tuple[Shape, ...]


def trial_shapes(op: OpNode, runnable: Runnable) -> tuple[tuple[Shapes, ...], bool]:
    """Shapes of the operands on which to try `op`, and whether they are free of its own.

    Dims of equal size stay equal. Two sets of small sizes, in the order of the own ones; a size that the primitive's
    parameters fix stays as it is. Its own shapes too, if they are small.
    """
    own = tuple(tensor.shape for tensor in op.ins)
    sizes = sorted({size for shape in own for size in shape if size > 1})
    found: dict[Shapes, None] = {}
    free = True
    for first in (4, 6):
        wanted = dict(zip(sizes, count(first, 2), strict=False))
        shapes = _scaled(own, wanted)
        if not _suits(op, runnable, shapes):
            shapes = _partly_scaled(op, own, wanted, runnable)
            free = False
        found[shapes] = None

    if _elements(own) <= SMALL:
        found[own] = None

    return tuple(s for s in found if _elements(s) <= LARGEST and _suits(op, runnable, s)), free


def splits(op: OpNode, runnable: Runnable, shapes: Shapes) -> Iterator[TrialSplit]:
    """Splits of dims of equal size in some operands, with the results' dims that become smaller by as much.

    Few operands come before many: who can be split alone need not be split with another.
    """
    whole = runnable.shapes(shapes)
    if whole is None:
        return

    for ins in islice(_choices(op, shapes), _MOST_CANDIDATES):
        operand = next(n for n, dim in enumerate(ins) if dim is not None)
        size = shapes[operand][ins[operand] or 0]
        local = runnable.shapes(
            tuple(_cut(shape, dim, size) for shape, dim in zip(shapes, ins, strict=True))
        )
        if local is None or len(local) != len(whole):
            continue
        pairs = [_changed(before, after) for before, after in zip(whole, local, strict=True)]
        if all(
            _fits(op, n, dims, op.ins[operand].shape[ins[operand] or 0])
            for n, dims in enumerate(pairs)
        ):
            yield TrialSplit(ins, tuple(dims[0] if dims else None for dims in pairs))


def _scaled(own: Shapes, sizes: Mapping[int, int]) -> Shapes:
    return tuple(tuple(sizes.get(size, size) for size in shape) for shape in own)


def _suits(op: OpNode, runnable: Runnable, shapes: Shapes) -> bool:
    """Whether the primitive takes these shapes, and gives as many results of the same ranks as for its own."""
    results = runnable.shapes(shapes)
    return results is not None and [*map(len, results)] == [tensor.ndim for tensor in op.outs]


def _partly_scaled(
    op: OpNode, own: Shapes, wanted: Mapping[int, int], runnable: Runnable
) -> Shapes:
    """One size after the other, the largest first, as far as the primitive takes it."""
    taken: dict[int, int] = {}
    for size, small in sorted(wanted.items(), reverse=True):
        if _suits(op, runnable, _scaled(own, {**taken, size: small})):
            taken[size] = small
    return _scaled(own, taken)


def _choices(op: OpNode, shapes: Shapes) -> Iterator[tuple[int | None, ...]]:
    """For every size, at most one dim of it in each operand, by the number of operands that are split."""
    own = [tensor.shape for tensor in op.ins]
    for wanted in range(1, len(shapes) + 1):
        for size in sorted({n for shape in own for n in shape if n > 1}):
            dims = [[None, *(d for d, n in enumerate(shape) if n == size)] for shape in own]
            for choice in product(*dims):
                if sum(dim is not None for dim in choice) == wanted:
                    yield choice


def _cut(shape: Shape, dim: int | None, size: int) -> Shape:
    """Half of an even size, a third of another, or one element."""
    if dim is None:
        return shape
    part = next((parts for parts in (2, 3) if size % parts == 0), size)
    return (*shape[:dim], size // part, *shape[dim + 1 :])


def _changed(before: Shape, after: Shape) -> tuple[int, ...]:
    """The dims of a result that are not what they were; another number of dims is none that can be paired."""
    if len(before) != len(after):
        return (-1, -1)
    return tuple(d for d, (x, y) in enumerate(zip(before, after, strict=True)) if x != y)


def _fits(op: OpNode, result: int, changed: Sequence[int], size: int) -> bool:
    """Whether at most one dim changed, and it is as large as the dim that was split."""
    return not changed or (len(changed) == 1 and op.outs[result].shape[changed[0]] == size)


def _elements(shapes: Shapes) -> int:
    return sum(prod(shape) for shape in shapes)
