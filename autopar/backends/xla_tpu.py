"""What is known of XLA's compiler for TPUs (libtpu 0.0.42.1, ahead of time)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from autopar.backends.backend import Backend
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import StepKind
from autopar.ops.fusion import Fusing
from autopar.redistribute.step import PackPrice, StepPrice, TurnPrice
from cost_models.compute import Device, moving_time_s, peak_flops_per_s
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
_ITEMSIZE = 2  # of what is packed or turned, as a rule
_TURNED_BYTES = 8
COUNTING = Fusing(
    moving=frozenset(("concatenate",)),
    moving_written=frozenset(("concatenate", "pad", "rev", "split", "strided slice")),
    moving_alone=frozenset(("spread pad",)),
)
"""What moves elements is computed in the loop that reads it (a concatenation as the largest of padded arrays), but what
it reads is written first: tanh before each of these is a loop of its own, before a plain slice it is not. Padding
between elements is neither.
"""
FUSING = replace(COUNTING, anew=True, borders=True, sinks=True, loop_bytes=4)
"""A loop over 2^26 elements takes as many cycles whatever it computes: on v5p, in bytes an element of 0.00088 cycles,
float32 read and written 8, three read 16; bfloat16 8 and 12, two results 10; bfloat16 to float32 6, back 10, to bool 9;
a reduction of products 12 of float32 and 8 of bfloat16. On v5e, v6e and v4 it is as much. Not priced: a loop of one
operator takes 5 to 8 bytes more, what lies in vector memory less.
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
    scatters_apart: bool = False
    repeats_random_bits: bool = True
    fusing: Fusing = FUSING
    counting: Fusing = COUNTING

    def is_summed(self, kind: CollectiveKind, group: Group) -> bool:
        """See `Backend.is_summed`. All scatters are: of 2^6 to 2^27 elements, on v5p:2x2x2, v5p:4x4x4 and v5e:4x4."""
        rings = [span for span in group.tori if span.lanes > 1]
        return kind == "reduce_scatter" or (kind == "all_gather" and len(rings) > _GATHERED_RINGS)

    def turn_price(self, device: Device) -> TurnPrice:
        """See `Backend.turn_price`."""
        return partial(_turning_time_s, device)

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


def _turning_time_s(device: Device, kind: StepKind, size_bytes: int) -> float:
    """An all_to_all is given, or leaves, its array in another order of dims: copies that take the time of 8 bytes an
    element, of bfloat16 and float32, where neither dim is the last one, else of 8 to 29.
    """
    if kind != "all_to_all":
        return 0.0
    return moving_time_s(_TURNED_BYTES * size_bytes / _ITEMSIZE, device) + device.launch_s
