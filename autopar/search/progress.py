"""SearchProgress: what is known while a search runs, for whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from autopar.core.mesh import DeviceMesh
from autopar.core.sizes import exact_bytes


@dataclass(frozen=True)
class SearchProgress:
    """A moment of a search: what is known of the plans on one mesh within one limit.

    `time_s` is in seconds since the search began. `objective_s` is the step time of the best plan so far, as the
    solver counts (inf: none yet); no plan there takes less than `lower_bound_s` (-inf: nothing known yet).
    `memory_limit_bytes` is what a device may use; None while the best plan without a limit is looked for.
    """

    time_s: float
    mesh: DeviceMesh
    memory_limit_bytes: float | None
    objective_s: float
    lower_bound_s: float

    def __str__(self) -> str:
        """One line: where, and how far."""
        limit = self.memory_limit_bytes
        within = "" if limit is None else f" within {exact_bytes(limit)}"
        best = (
            f"best {self.objective_s:.6g} s" if isfinite(self.objective_s) else "nothing found yet"
        )
        least = f", at least {self.lower_bound_s:.6g} s" if isfinite(self.lower_bound_s) else ""
        return f"{self.time_s:.1f} s: mesh {self.mesh}{within}: {best}{least}"


OnProgress = Callable[[SearchProgress], None]
