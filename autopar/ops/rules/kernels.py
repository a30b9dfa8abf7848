"""Operators that nobody but their author can look into: kernels and calls, as far as he says what they cost."""

from __future__ import annotations

from collections.abc import Mapping

from autopar.core.graph import OpNode
from autopar.ops.traits import declare


def _stated_flops(op: OpNode) -> float:
    """Those that the author of a kernel states; none if nothing is stated."""
    stated = _stated(op)
    return 0.0 if stated is None else float(stated["flops"] + stated["transcendentals"])


def stated_bytes(op: OpNode) -> float | None:
    """What the author of a kernel says that it reads and writes; None if nothing is stated."""
    stated = _stated(op)
    return None if stated is None else float(stated["bytes_accessed"])


def has_no_price(op: OpNode) -> bool:
    """Whether nobody but its author can look into `op`, or what it consists of, and what it costs is not stated."""
    if op.body is not None:
        return any(map(has_no_price, op.body.ops))
    return op.kind == "shard_map" or (op.kind == "pallas_call" and _stated(op) is None)


def _stated(op: OpNode) -> Mapping[str, int] | None:
    return op.params.get("cost_estimate") if op.kind == "pallas_call" else None


declare("call_exported", "core_map", "custom_call", "ffi_call", "pallas_call", is_fusible=False)
declare("pallas_call", flops=_stated_flops)
