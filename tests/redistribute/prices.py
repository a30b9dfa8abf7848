"""Prices of steps for the tests: what a cluster, a counter of collectives, or another system would say."""

from __future__ import annotations

import math
import random

from autopar.core.mesh import DeviceMesh
from autopar.redistribute.step import LOCAL_KINDS, StepPrice


def alpha_beta(mesh: DeviceMesh) -> StepPrice:
    """Latency and bandwidth of a ring; the first axis has the slowest links."""

    def price(kind, axes, size_bytes):
        if kind in LOCAL_KINDS:
            return 0.0
        n = mesh.product(axes)
        slowness = 4.0 if mesh.names[0] in axes else 1.0
        if kind == "permute":
            return 3e-6 + slowness * size_bytes / 1e11
        hops = 2 * (n - 1) if kind == "all_reduce" else n - 1
        return hops * (3e-6 + slowness * size_bytes / n / 1e11)

    return price


def alpha(mesh: DeviceMesh) -> StepPrice:
    """The number of collectives."""
    return lambda kind, axes, size_bytes: float(kind not in LOCAL_KINDS)


def beta(mesh: DeviceMesh) -> StepPrice:
    """The bytes that a device sends."""

    def price(kind, axes, size_bytes):
        n = mesh.product(axes)
        passes = {"all_reduce": 2, "slice": 0, "mask": 0}.get(kind, 1)
        return size_bytes * (1.0 if kind == "permute" else passes * (n - 1) / n)

    return price


def elements(mesh: DeviceMesh, *, exchange: bool = True) -> StepPrice:
    """MindSpore's, of a source slice of x: a gather over n is 0.5 n x + 0.5 x, an exchange 4 x, a split nothing.

    It has no other steps, and no exchange where `exchange` is False.
    """

    def price(kind, axes, size_bytes):
        match kind:
            case "slice":
                return 0.0
            case "all_gather":
                return 0.5 * size_bytes + 0.5 * size_bytes / mesh.product(axes)
            case "all_to_all" if exchange:
                return 4.0 * size_bytes
        return math.inf

    return price


def elements_without_exchange(mesh: DeviceMesh) -> StepPrice:
    return elements(mesh, exchange=False)


def slice_bytes(mesh: DeviceMesh) -> StepPrice:
    """A gather costs what it makes, an exchange what it moves, a split nothing; no other steps."""

    def price(kind, axes, size_bytes):
        return {"slice": 0.0, "all_gather": float(size_bytes), "all_to_all": float(size_bytes)}.get(
            kind, math.inf
        )

    return price


def lottery(seed: int) -> StepPrice:
    """Prices without reason: drawn for every kind, axes (in their order) and size; some are 0, some infinite."""

    def price(kind, axes, size_bytes):
        return random.Random(f"{seed} {kind} {axes} {size_bytes}").choice(
            [0.0, 1.0, 2.0, 3.5, 7.0, 20.0, math.inf]
        )

    return price


ALL = {
    f.__name__: f
    for f in (alpha_beta, alpha, beta, elements, elements_without_exchange, slice_bytes)
}
