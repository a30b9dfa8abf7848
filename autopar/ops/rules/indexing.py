"""Rules of operators that read or write at positions given by other operands."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from autopar.core.graph import OpNode, TensorInfo
from autopar.core.placement import Kind
from autopar.ops.rules.factor_rule import Factor, FactorRule
from autopar.ops.rules.linearity import kind_of_sum, linear_sets
from autopar.ops.rules.registry import rule_for
from autopar.ops.traits import declare

_SCATTER_KINDS: dict[str, Kind] = {
    "scatter-add": "sum",
    "scatter-sub": "sum",
    "scatter-max": "max",
    "scatter-min": "min",
}


def _cut(tensor: TensorInfo, part: TensorInfo) -> tuple[list[Factor], list[Factor]]:
    """The factors of a tensor and of a part of it: d where the part is whole, v and (frozen) p elsewhere."""
    whole = [size == kept for size, kept in zip(tensor.shape, part.shape, strict=True)]
    dims = [f"d{d}" if free else f"v{d}" for d, free in enumerate(whole)]
    return dims, [f"d{d}" if free else f"p{d}" for d, free in enumerate(whole)]


@rule_for("dynamic_slice")
def dynamic_slice(op: OpNode) -> FactorRule:
    """out[d..., p] = x[d..., start + p]; dims taken whole pass (their start is clamped to 0).

    With a split v a device puts zeros for the elements of other shards: out comes unreduced.
    """
    dims, out = _cut(op.ins[0], op.outs[0])
    starts: list[list[Factor]] = [[] for _ in op.ins[1:]]
    cut = [f for f in dims if f[0] == "v"]
    is_key = op.ins[0].dtype.startswith("key<")
    kind: Kind = kind_of_sum(op.ins[0].dtype)

    return FactorRule.of(
        op,
        ins=[dims, *starts],
        outs=[out],
        reduced={} if is_key else dict.fromkeys(cut, kind),
        frozen=[*(f for f in out if f[0] == "p"), *(cut if is_key else ())],
        offsets=cut,
        linear=linear_sets(op, (0,)),
    )


@rule_for("dynamic_update_slice")
def dynamic_update_slice(op: OpNode) -> FactorRule:
    """x[d..., v] -> out, with update[d..., p] written at start; linear jointly in x and update.

    With a split v a device writes what of the update lies in its shard.
    """
    dims, part = _cut(op.ins[0], op.ins[1])
    starts: list[list[Factor]] = [[] for _ in op.ins[2:]]
    cut = [f for f in dims if f[0] == "v"]
    frozen = [f for f in part if f[0] == "p"]
    if op.ins[0].dtype.startswith("key<"):
        frozen += cut

    return FactorRule.of(
        op,
        ins=[dims, part, *starts],
        outs=[dims],
        frozen=frozen,
        offsets=cut,
        linear=linear_sets(op, (0, 1)),
    )


@dataclass
class _Indexed:
    """The factors of an indexed tensor x, of the indices, and of the slices read from x or written to it.

    b: batch dims of x and indices; i: other dims of indices, one slice each; v: dims of x of which a slice holds one
    place or a run of them; w: dims of x that a slice holds whole (if they are indexed, 0 is the only index in range);
    all others, and runs in slices, are frozen.
    """

    operand: list[Factor]
    indices: list[Factor]
    slices: list[Factor]
    frozen: list[Factor] = field(default_factory=list[Factor])

    def of_kind(self, letter: str, factors: Collection[Factor]) -> list[Factor]:
        """Those of `factors` that are of this kind and may be split."""
        return [f for f in factors if f[0] == letter and f not in self.frozen]


def _indexed(
    operand: TensorInfo,
    indices: TensorInfo,
    slices: TensorInfo,
    *,
    window_dims: Collection[int],
    dropped: Collection[int],
    indexed: Collection[int],
    batching: Mapping[int, int],
) -> _Indexed:
    """The factors of a gather or scatter.

    Args:
      operand: the indexed tensor x.
      indices: the indices; the last dim holds the components of one index.
      slices: a gather's result, a scatter's updates.
      window_dims: dims of `slices` that are dims of x; the others are dims of `indices`, in order.
      dropped: dims of x that are not in `slices`, where slices have size 1.
      indexed: dims of x that the components of an index refer to.
      batching: dims of x that are dims of `indices`, and which.
    """
    last = indices.ndim - 1
    names = [f"i{d}" for d in range(last)] + ["index"]
    found = _Indexed([f"x{d}" for d in range(operand.ndim)], names, [""] * slices.ndim, ["index"])
    for d, e in batching.items():
        found.operand[d] = names[e] = f"b{d}"

    rest = iter(names[:last])
    for e in range(slices.ndim):
        if e not in window_dims:
            found.slices[e] = next(rest)

    windows = iter(sorted(window_dims))
    for d, size in enumerate(operand.shape):
        if d in batching:
            continue
        e = None if d in dropped else next(windows)
        width = 1 if e is None else slices.shape[e]
        is_whole = width == size and not (d in indexed and width == 1)
        name = found.operand[d] = f"w{d}" if is_whole else f"v{d}"
        if e is not None:
            found.slices[e] = name if is_whole else f"part{d}"
        if not is_whole and width != 1:
            found.frozen += [f"part{d}"] if width else [name, f"part{d}"]

    return found


@rule_for("gather")
def gather(op: OpNode) -> FactorRule:
    """out[b..., i..., w...] = x[b..., indices[b..., i...], w...]; a split index range v leaves out unreduced.

    With a split v a device reads the rows of its shard and puts zeros for the others: one device has each row.
    Linear in x, unless indices out of range are filled with a value that is no sum of itself.
    """
    numbers: Mapping[str, Any] = op.params["dimension_numbers"]
    factors = _indexed(
        op.ins[0],
        op.ins[1],
        op.outs[0],
        window_dims=numbers["offset_dims"],
        dropped=(*numbers["collapsed_slice_dims"], *numbers["operand_batching_dims"]),
        indexed=numbers["start_index_map"],
        batching=dict(
            zip(
                numbers["operand_batching_dims"],
                numbers["start_indices_batching_dims"],
                strict=True,
            )
        ),
    )
    rows = factors.of_kind("v", factors.operand)
    if op.ins[0].dtype.startswith("key<"):
        factors.frozen += rows

    kind: Kind = kind_of_sum(op.ins[0].dtype)
    return FactorRule.of(
        op,
        ins=[factors.operand, factors.indices],
        outs=[factors.slices],
        reduced=dict.fromkeys(rows, kind),
        frozen=factors.frozen,
        offsets=rows,
        linear=linear_sets(op, (0,)) if _fills_linearly(op) else (),
    )


def _fills_linearly(op: OpNode) -> bool:
    """Whether a gather's fill value is a sum of itself: 0, or NaN as by default for floats."""
    if op.params["mode"] != "FILL_OR_DROP":
        return True
    fill = op.params.get("fill_value", "not plain")
    if fill is None:
        return not op.ins[0].dtype.startswith(("int", "uint"))
    return fill == 0 or fill != fill  # NaN


@rule_for("scatter-add", "scatter-sub", "scatter-mul", "scatter-max", "scatter-min", "scatter")
def scatter(op: OpNode) -> FactorRule:
    """x[b..., v..., w...] -> out, with updates[b..., i..., w...] added at v = indices[b..., i...].

    With a split v a device drops the updates outside its shard. With a split i (not for "scatter" and "scatter-mul")
    a device adds its updates only: x must be unreduced too and out comes unreduced. Adding and overwriting are
    linear jointly in x and updates.
    """
    numbers: Mapping[str, Any] = op.params["dimension_numbers"]
    factors = _indexed(
        op.ins[0],
        op.ins[1],
        op.ins[2],
        window_dims=numbers["update_window_dims"],
        dropped=(*numbers["inserted_window_dims"], *numbers["operand_batching_dims"]),
        indexed=numbers["scatter_dims_to_operand_dims"],
        batching=dict(
            zip(
                numbers["operand_batching_dims"],
                numbers["scatter_indices_batching_dims"],
                strict=True,
            )
        ),
    )
    written = factors.of_kind("i", factors.indices[:-1])
    kind = _SCATTER_KINDS.get(op.kind)
    frozen = factors.frozen if kind else [*factors.frozen, *written]

    return FactorRule.of(
        op,
        ins=[factors.operand, factors.indices, factors.slices],
        outs=[factors.operand],
        reduced=dict.fromkeys(written, kind) if kind else {},
        carried=dict.fromkeys(written, (0,)) if kind == "sum" else {},
        frozen=frozen,
        offsets=factors.of_kind("v", factors.operand),
        linear=linear_sets(op, (0, 2)) if kind == "sum" or _overwrites(op) else (),
    )


def _overwrites(op: OpNode) -> bool:
    """Whether a scatter puts the updates in place of the elements, rather than a function of the elements there."""
    return op.kind == "scatter" and op.params.get("update_jaxpr", "a function") is None


def sliced_flops(op: OpNode) -> float:
    """One for every element of the result."""
    return float(prod(op.outs[0].shape))


def _updated_flops(op: OpNode) -> float:
    """One for every element of the update."""
    return float(prod(op.ins[1].shape))


declare("dynamic_slice", "gather", is_recomputable=True, touches="slice", flops=sliced_flops)
declare("gather", is_fusible=False)
declare("dynamic_update_slice", is_fusible=False, is_recomputable=True, flops=_updated_flops)
declare(
    *("scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub"),
    is_fusible=False,
    is_recomputable=True,
)
