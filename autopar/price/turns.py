"""Turns: copies in another order of dims that a compiler makes beside an operator or a step, where a profile says so.

Both were found on XLA's CPU backend by measuring (8 virtual devices, JAX 0.10.2), and hold there only: they are priced
for devices whose compiler that is and whose profile has a curve for "transpose".
"""

from __future__ import annotations

from functools import partial
from typing import overload

import numpy as np

from autopar.core.graph import OpNode
from autopar.core.placement import StepKind
from autopar.redistribute.step import TurnPrice, no_turn
from cost_models.compute import Device
from cost_models.curves import Curve, Floats

TURNED: dict[StepKind, float] = {"all_gather": 1.5, "reduce_scatter": 1.4, "all_to_all": 0.7}
"""How much of a step's bytes is transposed where it is along a dim other than the first, as a share of a transpose.

What is gathered is turned, and so is each part; a scatter does the reverse; an all_to_all turns what arrives. Measured
outside of loops, on matrices of 256x256, 512x512, 2048x128 and 128x1024 on each of 8 devices in groups of 2 and 8,
columns less rows, against transposes of as many elements: all_gather 1.1 to 2.2 (median 1.5), reduce_scatter 1.0 to 2.8
(1.4), all_to_all 0.4 to 0.9 (0.7).
"""


def copying(device: Device, kinds: tuple[str, ...], dtype: str) -> Curve | None:
    """Seconds by the elements that a kernel copies, for the first of `kinds` ("transpose", ...) that is known.

    None where the profile does not say, or for other compilers.
    """
    if device.efficiency is None or device.compiler != "xla_cpu":
        return None
    known = next((device.efficiency.work[kind] for kind in kinds if kind in device.efficiency.work), None)
    return None if known is None else known.get(dtype, known["float32"])


def step_turn_price(device: Device) -> TurnPrice:
    """`step_turn_time_s` on `device`; `no_turn` where that is nothing."""
    known = copying(device, ("transpose",), "float32")
    return no_turn if known is None else partial(step_turn_time_s, device=device)


def step_turn_time_s(kind: StepKind, size_bytes: int, device: Device) -> float:
    """Seconds of what a device copies beside a step of `size_bytes` along a dim other than the first."""
    curve = copying(device, ("transpose",), "float32")
    return 0.0 if curve is None else TURNED.get(kind, 0.0) * curve.time_s(size_bytes / 4)


def turns_left(op: OpNode) -> bool:
    """Whether a product of matrices reads its left operand across: what is contracted is not its last dim.

    A kernel packs such an operand in another order first, as if it were transposed: lhs[k, m] . rhs[k, n] takes longer
    than lhs[m, k] . rhs[k, n] by 1.2 ns for each element of the left one (512x512 by 512x64: 58 Gflop/s for 205).
    Priced as work of kind "pack" where the profile has it, else as a transpose.
    """
    if op.kind != "dot_general":
        return False
    contracted: tuple[int, ...] = op.params["dimension_numbers"][0][0]
    return bool(contracted) and max(contracted) < op.ins[0].ndim - 1


@overload
def left_turn_time_s(elements: float, dtype: str, device: Device) -> float: ...
@overload
def left_turn_time_s(elements: Floats, dtype: str, device: Device) -> Floats: ...
def left_turn_time_s(elements: float | Floats, dtype: str, device: Device) -> float | Floats:
    """Seconds in which the `elements` of a left operand are put in order; see `turns_left`."""
    curve = copying(device, ("pack", "transpose"), dtype)
    if curve is None:
        return elements * 0.0
    return curve.times_s(elements) if isinstance(elements, np.ndarray) else curve.time_s(elements)
