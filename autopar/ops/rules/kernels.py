"""Rules of kernels of Pallas; and what they cost, and calls of foreign code, as far as their author says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from autopar.core.blocks import Blocks, Dims
from autopar.core.graph import OpNode
from autopar.ops.rules.factor_rule import Dim, Factor, FactorRule
from autopar.ops.rules.registry import rule_for
from autopar.ops.traits import declare

_CALLS = ("pallas_call", "pallas_kernel")


@rule_for("pallas_kernel")
def pallas_kernel(op: OpNode) -> FactorRule:
    """x[..., (a i), ...] -> out[..., (a j), ...]: a, an axis of the grid that only picks blocks, passes; i, j whole.

    Where s neighbours along the axis share a block, it is two factors, (a s), and arrays with such blocks have the
    first only; s is whole where a result has not got it.
    """
    blocks = cast("Blocks", op.params["blocks"])
    split = {
        picked.axis: picked.shared
        for dims in blocks.arrays
        for picked in dims
        if picked is not None and picked.shared > 1
    }
    sizes: dict[Factor, int] = {}
    sides: list[list[Dim]] = [
        [(f"{n}.{dim}",) for dim in range(tensor.ndim)]
        for n, tensor in enumerate(op.ins[: blocks.leading])
    ]
    for place, dims in enumerate(blocks.arrays, len(sides)):
        tensor = (*op.ins, *op.outs)[place]
        sides.append(_factors(dims, tensor.shape, place, blocks, split, sizes))

    outs = sides[len(op.ins) :]
    frozen = {f for side in sides for dim in side for f in dim if "." in f}
    frozen |= {f for f in sizes if any(all(f not in dim for dim in side) for side in outs)}
    return FactorRule.of(op, ins=sides[: len(op.ins)], outs=outs, sizes=sizes, frozen=frozen)


def _factors(
    dims: Dims,
    shape: tuple[int, ...],
    place: int,
    blocks: Blocks,
    split: Mapping[int, int],
    sizes: dict[Factor, int],
) -> list[Dim]:
    """The factors of an array's dims; their `sizes` are added."""
    found: list[Dim] = []
    for number, (picked, size) in enumerate(zip(dims, shape, strict=True)):
        inner = f"{place}.{number}"
        sizes[inner] = size if picked is None else picked.size
        if picked is None:
            found.append((inner,))
            continue

        shared = split.get(picked.axis, 1)
        factors = {f"a{picked.axis}": blocks.grid[picked.axis] // shared}
        if shared > 1 and picked.shared == 1:
            factors[f"s{picked.axis}"] = shared
        sizes.update(factors)
        found.append((*factors, inner) if picked.size > 1 else tuple(factors))

    return found


def _stated_flops(op: OpNode) -> float:
    """Those that the author of a kernel states, else those of its products; none if neither is known."""
    stated = _stated(op)
    if stated is None:
        return _counted(op) or 0.0
    return float(stated["flops"] + stated["transcendentals"])


def _counted(op: OpNode) -> float | None:
    """Those of its products, where they could be counted."""
    blocks = cast("Blocks | None", op.params.get("blocks"))
    return None if blocks is None else blocks.flops


def stated_bytes(op: OpNode) -> float | None:
    """What the author of a kernel says that it reads and writes; None if nothing is stated."""
    stated = _stated(op)
    return None if stated is None else float(stated["bytes_accessed"])


def has_no_price(op: OpNode) -> bool:
    """Whether nobody but its author can look into `op`, or what it consists of, and what it costs is not stated."""
    if op.body is not None:
        return any(map(has_no_price, op.body.ops))
    is_unknown = op.kind in _CALLS and _stated(op) is None and _counted(op) is None
    return op.kind == "shard_map" or is_unknown


def _stated(op: OpNode) -> Mapping[str, int] | None:
    return op.params.get("cost_estimate") if op.kind in _CALLS else None


declare("call_exported", "core_map", "custom_call", "ffi_call", *_CALLS, is_fusible=False)
declare(*_CALLS, flops=_stated_flops)
