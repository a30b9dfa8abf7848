"""Rules of operators that repeat, cut into parts and see in another shape: no arithmetic, so all are linear."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import gcd, prod

from autopar.core.graph import OpNode
from autopar.ops.rules.factor_rule import Factor, FactorRule
from autopar.ops.rules.linearity import linear_sets
from autopar.ops.rules.registry import rule_for
from autopar.ops.traits import declare

Shape = tuple[int, ...]


@rule_for("broadcast_in_dim")
def broadcast_in_dim(op: OpNode) -> FactorRule:
    """x[d...] -> out[d..., n...]; dims of size 1 that are stretched, and new ones, are factors of the result only."""
    operand = op.ins[0]
    result = op.outs[0]
    out = [f"n{d}" for d in range(result.ndim)]
    dims: list[Factor] = []
    for d, e in enumerate(op.params["broadcast_dimensions"]):
        dims.append(f"d{d}")
        if operand.shape[d] == result.shape[e]:
            out[e] = f"d{d}"
    return FactorRule.of(op, ins=[dims], outs=[out], linear=linear_sets(op, (0,)))


@rule_for("reshape")
def reshape(op: OpNode) -> FactorRule:
    """x[(a b), c] -> out[a, (b c)]: the common refinement of both shapes; what does not refine is frozen.

    With `dimensions` (as vmap makes them) the dims of x are brought into that order first.
    """
    shape = op.ins[0].shape
    if 0 in shape:
        return _frozen_reshape(op)

    order: tuple[int, ...] = op.params.get("dimensions") or tuple(range(len(shape)))
    found = _refine(tuple(shape[d] for d in order), op.outs[0].shape)
    dims = dict(zip(order, found.ins, strict=True))
    return FactorRule.of(
        op,
        ins=[[dims[d] for d in range(len(shape))]],
        outs=[found.outs],
        sizes=found.sizes,
        frozen=found.frozen,
        linear=linear_sets(op, (0,)),
    )


def _frozen_reshape(op: OpNode) -> FactorRule:
    dims, out = (
        [f"{name}{d}" for d in range(t.ndim)] for name, t in (("i", op.ins[0]), ("o", op.outs[0]))
    )
    return FactorRule.of(
        op, ins=[dims], outs=[out], frozen=[*dims, *out], linear=linear_sets(op, (0,))
    )


@dataclass
class _Refinement:
    """The factors of each dim of two shapes, their sizes, and the frozen ones."""

    ins: list[list[Factor]]
    outs: list[list[Factor]]
    sizes: dict[Factor, int] = field(default_factory=dict[Factor, int])
    frozen: list[Factor] = field(default_factory=list[Factor])

    def add(self, size: int, *dims: list[Factor]) -> Factor:
        """A new factor, the next minor one of each of `dims`."""
        name = f"d{len(self.sizes)}"
        self.sizes[name] = size
        for factors in dims:
            factors.append(name)
        return name


def _refine(left: Shape, right: Shape) -> _Refinement:
    """The common refinement of two shapes of as many elements: [6, 4] -> [4, 6] gives [(a p), q], [(a r), s], a = 2.

    Dims fall into groups where the products of both sides, from the major end, meet. In a group the greatest common
    divisor of the major-most remainders is a shared factor. Where it is 1, nothing more can be divided alike, and
    the rest of the group is frozen.
    """
    found = _Refinement([[] for _ in left], [[] for _ in right])
    meets = {prod(left[:d]) for d in range(len(left) + 1)} & {
        prod(right[:d]) for d in range(len(right) + 1)
    }
    for group, other in zip(
        _groups(left, found.ins, meets), _groups(right, found.outs, meets), strict=True
    ):
        while group and other:
            (size, dim) = group[0]
            (other_size, other_dim) = other[0]
            common = gcd(size, other_size)
            if common == 1:
                break
            found.add(common, dim, other_dim)
            for side, rest in ((group, size // common), (other, other_size // common)):
                side[:1] = [(rest, side[0][1])] if rest > 1 else []
        found.frozen += [found.add(size, dim) for size, dim in [*group, *other]]

    return found


def _groups(
    shape: Shape, dims: list[list[Factor]], meets: Collection[int]
) -> Iterator[list[tuple[int, list[Factor]]]]:
    """The dims (size, factors) from one meeting point to the next; dims of size 1 have no factors."""
    group: list[tuple[int, list[Factor]]] = []
    product = 1
    for size, factors in zip(shape, dims, strict=True):
        if size == 1:
            continue
        group.append((size, factors))
        product *= size
        if product in meets:
            yield group
            group = []


@rule_for("transpose")
def transpose(op: OpNode) -> FactorRule:
    """out[d_p(0), d_p(1), ...] = x[d_0, d_1, ...]."""
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    permutation: tuple[int, ...] = op.params["permutation"]
    out = [dims[d] for d in permutation]
    return FactorRule.of(op, ins=[dims], outs=[out], linear=linear_sets(op, (0,)))


@rule_for("squeeze")
def squeeze(op: OpNode) -> FactorRule:
    """x[d..., 1] -> out[d...]."""
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    gone = {d % op.ins[0].ndim for d in op.params["dimensions"]}
    out = [f for d, f in enumerate(dims) if d not in gone]
    return FactorRule.of(op, ins=[dims], outs=[out], linear=linear_sets(op, (0,)))


@rule_for("split")
def split(op: OpNode) -> FactorRule:
    """x[d..., (k0 k1 ...)] -> x0[d..., k0], x1[d..., k1], ...; k is frozen."""
    axis = op.params["axis"]
    dims = ["k" if d == axis else f"d{d}" for d in range(op.ins[0].ndim)]
    outs = [
        [f"k{n}" if d == axis else f"d{d}" for d in range(t.ndim)] for n, t in enumerate(op.outs)
    ]
    frozen = ["k", *(f"k{n}" for n in range(len(op.outs)))]
    return FactorRule.of(op, ins=[dims], outs=outs, frozen=frozen, linear=linear_sets(op, (0,)))


@rule_for("stack")
def stack(op: OpNode) -> FactorRule:
    """out[d..., k] = xk[d...]; k is frozen; linear jointly in all operands."""
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    axis: int = op.params["axis"] % op.outs[0].ndim
    out = [*dims[:axis], "k", *dims[axis:]]
    every = tuple(range(len(op.ins)))
    return FactorRule.of(
        op, ins=[dims] * len(op.ins), outs=[out], frozen=["k"], linear=linear_sets(op, every)
    )


@rule_for("unstack")
def unstack(op: OpNode) -> FactorRule:
    """outs[k][d...] = x[d..., k]; k is frozen."""
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    axis: int = op.params["axis"] % op.ins[0].ndim
    out = [*dims[:axis], *dims[axis + 1 :]]
    return FactorRule.of(
        op, ins=[dims], outs=[out] * len(op.outs), frozen=[dims[axis]], linear=linear_sets(op, (0,))
    )


@rule_for("tile")
def tile(op: OpNode) -> FactorRule:
    """out[(r d)...] = x[d...]: each dim repeated r times."""
    reps = op.params["reps"]
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    out = [[f"r{d}", f"d{d}"] for d in range(op.ins[0].ndim)]
    sizes = {f"r{d}": count for d, count in enumerate(reps)}
    return FactorRule.of(op, ins=[dims], outs=[out], sizes=sizes, linear=linear_sets(op, (0,)))


@rule_for("iota")
def iota(op: OpNode) -> FactorRule:
    """out[d..., k] = k, counted from the shard's offset."""
    dims = [f"d{d}" for d in range(op.outs[0].ndim)]
    axis: int = op.params["dimension"]
    return FactorRule.of(op, ins=[], outs=[dims], offsets=[dims[axis]])


@rule_for("empty", "empty2")
def empty(op: OpNode) -> FactorRule:
    """out[d...], whatever it may hold."""
    return FactorRule.of(op, ins=[], outs=[[f"d{d}" for d in range(op.outs[0].ndim)]])


_VIEWS = ("broadcast_in_dim", "expand_dims", "iota", "reshape", "squeeze")

declare(*_VIEWS, is_view=True)
declare(*_VIEWS, "split", "tile", "transpose", is_recomputable=True)
declare("broadcast_in_dim", "iota", rearranges="repeats")
declare("expand_dims", "reshape", "squeeze", rearranges="reshapes")
declare("transpose", rearranges="moves")
