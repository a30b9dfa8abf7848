"""Reading: how batches are made on the host, ahead of the step."""

from __future__ import annotations

from dataclasses import dataclass, fields

from autopar.errors import InvalidOption


@dataclass(frozen=True)
class Reading:
    """Who makes batches, each whole: `workers` processes, or none; in each of these `threads`, or none.

    Up to `buffer` batches are kept ready on the host, in every worker. With no workers and no threads a batch is made
    when it is asked for.

    Invariants: all >= 0; with threads or workers the buffer is >= 1.
    """

    workers: int = 0
    threads: int = 1
    buffer: int = 2

    def __post_init__(self) -> None:
        for field in fields(self):
            value: object = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidOption(f"Reading: {field.name} is {value!r}: pass a whole number >= 0")
        if self.buffer == 0 and self.lanes:
            raise InvalidOption(
                "Reading: buffer is 0 although there are threads or workers, which put what they make there: pass one "
                ">= 1, or no threads and no workers"
            )

    @property
    def lanes(self) -> int:
        """How many batches are made at a time, beside the step."""
        return max(self.workers, 1) * max(self.threads, 1) if self.workers or self.threads else 0
