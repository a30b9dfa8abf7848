"""Columns: how a dim that is split is sorted by devices that each sort what they hold, and deal it out four times.

The shards are the columns of a matrix. Columnsort: sort the columns; deal out each column like cards, every element to
the next device; sort; give every device its share of each column, as it stands; sort; then only elements within half a
column of each other can be in the wrong order: sort the second half of each column with the first half of the next.

Reference: Leighton, Tight bounds on the complexity of parallel sorting, 1985. Differs: a column is filled up with
elements that come last until the devices divide it; what that moves is moved back in the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from autopar.core.graph import OpNode


@dataclass(frozen=True)
class DealtColumn:
    """A column has `rows` elements, filled up to `filled`, of which each device is dealt `dealt`.

    `half` elements at the end of each column are sorted with the rest of the next. Then the column that begins `late`
    elements for every device before it too late is moved back: as many as `moved` come from the device before.
    """

    rows: int
    filled: int
    dealt: int
    half: int
    late: int
    moved: int


@lru_cache(maxsize=4096)
def columns(size: int, parts: int) -> DealtColumn | None:
    """The columns of a dim of `size` elements in `parts` shards; None where they are too short to be sorted so.

    Columnsort is right where rows >= 2 (columns - 1)^2. Shorter ones are gathered: they are small.
    """
    rows = size // parts
    dealt = -(-rows // parts)
    filled = dealt * parts
    late = dealt * parts - rows
    if rows < 1 or filled < 2 * (parts - 1) ** 2:
        return None
    return DealtColumn(rows, filled, dealt, filled // 2, late, late * (parts - 1))


def is_numbered(op: OpNode) -> bool:
    """Whether equal elements of a sort can be told apart: by operands that are no keys, or as 0.0 from -0.0."""
    keys: int = op.params["num_keys"]
    return keys < len(op.ins) or any(
        tensor.dtype != "bool" and "int" not in tensor.dtype for tensor in op.ins
    )
