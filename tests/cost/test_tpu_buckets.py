"""Buckets on TPUs: what laying arrays end to end takes there, against what libtpu 0.0.42.1 said of such programs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.backends.known import XLA_TPU
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import StepKind
from cost_models import load_cluster
from tests.cost.test_turns import step_price

MADE = [
    ("tpu-v5p-2x2x2", 8, "all_gather", 7.86e6, 0.0),
    ("tpu-v5p-2x2x2", 8, "all_gather", 9.18e6, 264.0e-6),
    ("tpu-v5p-2x2x2", 8, "all_gather", 26.21e6, 724.3e-6),
    ("tpu-v5p-2x2x2", 8, "all_gather", 52.43e6, 1559.0e-6),
    ("tpu-v5p-2x2x2", 8, "reduce_scatter", 3.28e6, 15.5e-6),
    ("tpu-v5p-2x2x2", 8, "reduce_scatter", 26.21e6, 116.8e-6),
    ("tpu-v5e-4x4", 16, "all_gather", 13.11e6, 0.0),
    ("tpu-v5e-4x4", 16, "all_gather", 19.66e6, 1215.9e-6),
    ("tpu-v5e-4x4", 16, "reduce_scatter", 13.11e6, 125.5e-6),
]
"""Seconds beside a collective of each of two matrices of bfloat16, by the compiler's estimate."""


@pytest.mark.parametrize(("cluster", "count", "kind", "size", "taken"), MADE)
def test_it_takes_what_the_compiler_says(
    cluster: str, count: int, kind: StepKind, size: float, taken: float
) -> None:
    device = load_cluster(cluster).device
    pack = XLA_TPU.pack_price(device, DeviceMesh.of({"x": count}), step_price)
    half = int(size / 2)
    assert pack(kind, ("x",), (half, half)) == pytest.approx(taken, rel=0.15)


def test_a_share_counts_by_the_axes_that_are_gathered_along() -> None:
    """Of 9.2 MB one device of 8 reads more than 2^19 elements, of 16 less; all-reduces are joined without copies."""
    device = load_cluster("tpu-v5p-2x2x2").device
    pack = XLA_TPU.pack_price(device, DeviceMesh.of({"x": 8, "y": 2}), step_price)
    assert pack("all_gather", ("x",), (4_590_000, 4_590_000)) > 2e-4
    assert pack("all_gather", ("x", "y"), (4_590_000, 4_590_000)) == 0.0
    assert pack("all_reduce", ("x",), (4_590_000, 4_590_000)) == 0.0


def test_a_device_may_state_the_peak_of_float32_alone() -> None:
    device = load_cluster("tpu-v5p-2x2x2").device
    peak = device.peak_flops_per_s["float32"]
    bare = replace(device, peak_flops_per_s={"float32": peak})
    pack = XLA_TPU.pack_price(bare, DeviceMesh.of({"x": 8}), step_price)
    assert pack("reduce_scatter", ("x",), (2000,)) == pytest.approx(1000 * 4200 / peak)
