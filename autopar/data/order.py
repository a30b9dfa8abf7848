"""Order: which rows of an endless stream of epochs a batch has; the same on any number of processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AtEnd = Literal["wrap", "drop"]


@dataclass(frozen=True)
class Order:
    """Batches of `batch` rows out of a stream in which `rows` rows come again in every epoch.

    Row r of epoch e is at position e * rows + r of the stream. Where the end of an epoch cuts a batch, the batch goes
    on with the next epoch ("wrap"), or is left out ("drop"); the last of all `epochs` too goes on beyond them.

    Invariants: 1 <= batch <= rows; epochs >= 1, or None for no end.
    """

    rows: int
    batch: int
    epochs: int | None
    at_end: AtEnd

    def start(self, position: int, count: int) -> int:
        """Where the batch begins that comes `count` batches after the stream was at `position`."""
        if self.at_end == "wrap":
            return position + count * self.batch

        epoch, row = divmod(position, self.rows)
        left = (self.rows - row) // self.batch
        if count < left:
            return position + count * self.batch

        epochs, batches = divmod(count - left, self.rows // self.batch)
        return (epoch + 1 + epochs) * self.rows + batches * self.batch

    def batches(self, position: int) -> int | None:
        """How many batches there are from `position` on; None for no end."""
        if self.epochs is None:
            return None
        if self.at_end == "wrap":
            return max(0, -((position - self.epochs * self.rows) // self.batch))

        epoch, row = divmod(position, self.rows)
        left = (self.rows - row) // self.batch
        return max(0, left + (self.epochs - 1 - epoch) * (self.rows // self.batch))
