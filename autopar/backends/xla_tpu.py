"""What is known of XLA's compiler for TPUs (libtpu 0.0.42.1, ahead of time)."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.backends.backend import Backend
from cost_models.spans import Group
from cost_models.terms import CollectiveKind

_GATHERED_RINGS = 2
"""Of a torus: a gather along so many is one. On v5p:4x4x4 one of 67 MB from 4 or 16 chips is an all-gather, one from 64
an all-reduce, before which zeros are written for 426,230 cycles. On v5e:4x4, and on v5p:2x2x2, which has no rings, one
from all chips is an all-gather.
"""


@dataclass(frozen=True)
class XlaTpu(Backend):
    """XLA's compiler for TPUs.

    Laying arrays end to end takes copies there that are slower than the collective. It joins all-reduces itself, into
    one of several operands, but not gathers.
    """

    name: str = "xla_tpu"
    tiled: bool = True
    lanes: int = 128
    apart_bytes: int | None = 0
    repeats_random_bits: bool = True

    def is_summed(self, kind: CollectiveKind, group: Group) -> bool:
        """See `Backend.is_summed`."""
        rings = [span for span in group.tori if span.lanes > 1]
        return kind == "all_gather" and len(rings) > _GATHERED_RINGS
