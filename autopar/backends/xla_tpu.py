"""What is known of XLA's compiler for TPUs (libtpu 0.0.42.1, ahead of time)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.backends.backend import Backend
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import StepKind
from autopar.redistribute.step import PackPrice, StepPrice
from cost_models.compute import Device, peak_flops_per_s
from cost_models.spans import Group
from cost_models.terms import CollectiveKind

_GATHERED_RINGS = 2
"""Of a torus: a gather along so many is one. On v5p:4x4x4 one of 67 MB from 4 or 16 chips is an all-gather, one from 64
an all-reduce, before which zeros are written for 426,230 cycles. On v5e:4x4, and on v5p:2x2x2, which has no rings, one
from all chips is an all-gather.
"""
_SHARE = 2**19
_GATHERED_FLOPS = 25_500
_SCATTERED_FLOPS = 4_200
"""What laying arrays end to end takes for each element: as long as so many operations of the matrix units.

The rows of a packed gather are read in a loop and laid out anew if a device's share has more than 2^19 elements, and at
once otherwise. Beside a gather of each array, two of 9.2 to 52.4 MB together take 264 to 1,559 us more on v5p:2x2x2, 56
to 60 ps an element, two of up to 7.9 MB none; on v5e:4x4 from 19.7 MB on 124 to 130 ps, up to 13.1 none. A packed
scatter takes 9 to 11 ps an element more, on v5e 19, whatever the size. In float32 it is as much for each element.
"""
_ITEMSIZE = 2  # of what is packed, as a rule


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

    def pack_price(self, device: Device, mesh: DeviceMesh, price: StepPrice) -> PackPrice:
        """See `Backend.pack_price`: nothing for all-reduces, which it joins itself."""
        del price
        flops_per_s = peak_flops_per_s(device, "bfloat16")

        def pack(kind: StepKind, axes: tuple[str, ...], sizes: Sequence[int]) -> float:
            count = sum(sizes) / _ITEMSIZE
            if kind == "reduce_scatter":
                return count * _SCATTERED_FLOPS / flops_per_s
            is_read_in_loop = kind == "all_gather" and count > _SHARE * mesh.product(axes)
            return count * _GATHERED_FLOPS / flops_per_s if is_read_in_loop else 0.0

        return pack
