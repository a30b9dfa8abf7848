"""Strategy: a choice for one operator."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.core.placement import Placement


@dataclass(frozen=True)
class Strategy:
    """The placements of one operator's operands and results.

    `factors` says which mesh axes each factor of the rule was given, major to minor (factors without axes are left
    out). `split` is the number of parts the operator's work is cut into: the devices along factors that are dims,
    without those that only carry unreduced values through.
    """

    ins: tuple[Placement, ...]
    outs: tuple[Placement, ...]
    factors: tuple[tuple[str, tuple[str, ...]], ...] = ()
    split: int = 1

    def axes_of(self, factor: str) -> tuple[str, ...]:
        """The mesh axes given to `factor`, major to minor; () if it is whole."""
        return dict(self.factors).get(factor, ())
