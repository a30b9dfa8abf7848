"""Near: arrays come from the host right before they are read, and leave for it right behind what made them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from autopar.trace.draft import DraftOp


def near(ops: Sequence[DraftOp]) -> list[DraftOp]:
    """`ops` in an order in which device memory holds what is also on the host no longer than it has to.

    A program that fetches all its moments first, as one tree, would hold them all at once. None is moved into or out
    of a region, or past one.
    """
    if not any(map(_crosses, ops)):
        return list(ops)
    late = _moved(ops, _fetches, lambda op: [t.id for t in op.ins])
    return _moved(late[::-1], _stores, lambda op: [t.id for t in op.outs], back=True)[::-1]


def _fetches(op: DraftOp) -> bool:
    return _crosses(op) and op.ins[0].on_host


def _stores(op: DraftOp) -> bool:
    return _crosses(op) and op.outs[0].on_host


def _crosses(op: DraftOp) -> bool:
    return op.kind == "device_put" and op.effect is None and op.ins[0].on_host != op.outs[0].on_host


def _moved(
    ops: Iterable[DraftOp],
    waits: Callable[[DraftOp], bool],
    met: Callable[[DraftOp], list[int]],
    back: bool = False,
) -> list[DraftOp]:
    """Each operator that `waits` right before the first one that has `met` its result (`back`: its operand)."""
    found: list[DraftOp] = []
    waiting: dict[int, DraftOp] = {}
    for op in ops:
        if any(other.region != op.region for other in waiting.values()):
            found += waiting.values()
            waiting = {}
        found += [waiting.pop(tensor) for tensor in dict.fromkeys(met(op)) if tensor in waiting]
        key = (op.ins if back else op.outs)[0].id if waits(op) else None
        if key is None or key in waiting:
            found.append(op)
        else:
            waiting[key] = op

    return [*found, *waiting.values()]
