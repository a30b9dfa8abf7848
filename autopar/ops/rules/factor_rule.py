"""FactorRule: an operator as factors, in the manner of einsum and of Shardy's op_sharding_rule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from autopar.core.graph import OpNode
from autopar.core.placement import Kind, StepKind
from autopar.core.strategy import Hop
from autopar.errors import RuleError

Factor = str
Dim = tuple[Factor, ...]
TensorFactors = tuple[Dim, ...]


@dataclass(frozen=True)
class Traffic:
    """A collective that a split factor needs inside the operator.

    It moves `tensor` (an operand; results count on behind the operands) with `elements` of its dim `dim` in place of
    the dim's local size (None: on top of all its dims); no elements: nothing is sent. Afterwards the local operator
    sees `extent` elements of the dim (None: as many as before). A permute goes to `hop`. An element has `itemsize`
    bytes (None: as many as the tensor's). It is sent once, or in each of so many `rounds` of computing.
    """

    kind: StepKind
    tensor: int
    dim: int | None
    elements: int
    hop: Hop | None = None
    extent: int | None = None
    itemsize: int | None = None
    rounds: int = 0


TrafficOf = Callable[[int], tuple[Traffic, ...] | None]
"""What a factor sends when it is cut into so many parts; None where it cannot be."""


@dataclass(frozen=True)
class FactorRule:
    """Which dims of operands and results are the same index, and what may happen to that index.

    `ins` and `outs` give for each tensor and dim its factors, major to minor (more than one: a compound dim, as
    reshape makes). `sizes` is each factor's size. A mesh axis given to a factor splits every dim that holds it.

    `reduced` maps a factor to how the results are to be combined when it is split: results that do not hold the
    factor come out unreduced over its axes. `carried` maps a reduced factor to the operands that must themselves be
    unreduced over its axes. A factor that is in no dim, only reduced and carried, states linearity: unreduced
    operands may pass through. Its size is 0: any axis fits.

    `exchanged` maps a factor to what its devices send each other inside the operator when it is split. With that, a
    result that does not hold the factor may come out whole, without being reduced.

    `frozen` factors are never split (dims without elements never are); `split` ones always are, over one axis at least,
    where there is an axis that divides them. `offsets` are factors for which the local
    operator must know where its shard begins. The factor `everywhere` takes all mesh axes: what only one device does.
    `itemsizes` are the bytes of an element of each operand and result. `found` says that the rule was found by trial
    and not written. `ways` are other ways to split the operator, which no one set of factors states together with this
    one: rules of their own, whose strategies come behind this one's.

    Invariants: the product of a dim's factors is the dim's size; a tensor holds a factor at most once; every factor
    that is neither frozen nor of size 1 and is missing in a result is reduced or exchanged; carried factors are
    reduced, and the operands that carry them do not hold them.
    """

    ins: tuple[TensorFactors, ...]
    outs: tuple[TensorFactors, ...]
    sizes: Mapping[Factor, int]
    reduced: Mapping[Factor, Kind] = field(default_factory=dict[Factor, Kind])
    carried: Mapping[Factor, tuple[int, ...]] = field(default_factory=dict[Factor, tuple[int, ...]])
    frozen: frozenset[Factor] = frozenset()
    offsets: frozenset[Factor] = frozenset()
    everywhere: Factor | None = None
    exchanged: Mapping[Factor, TrafficOf] = field(default_factory=dict[Factor, TrafficOf])
    itemsizes: tuple[int, ...] = ()
    found: bool = False
    ways: tuple[FactorRule, ...] = ()
    split: frozenset[Factor] = frozenset()

    @classmethod
    def of(
        cls,
        op: OpNode,
        *,
        ins: Sequence[Sequence[Factor | Sequence[Factor]]],
        outs: Sequence[Sequence[Factor | Sequence[Factor]]],
        sizes: Mapping[Factor, int] | None = None,
        reduced: Mapping[Factor, Kind] | None = None,
        carried: Mapping[Factor, Sequence[int]] | None = None,
        linear: Iterable[Sequence[int]] = (),
        frozen: Collection[Factor] = (),
        offsets: Collection[Factor] = (),
        everywhere: Factor | None = None,
        exchanged: Mapping[Factor, TrafficOf] | None = None,
    ) -> FactorRule:
        """The rule of `op`, with the sizes read off its shapes.

        Args:
          op: the operator; its shapes give the size of every factor that is alone in some dim.
          ins: for each operand, for each dim, its factor or its factors (major to minor).
          outs: the same for the results.
          sizes: sizes of factors that are never alone in a dim.
          reduced: factor -> "sum" | "max" | "min".
          carried: reduced factor -> operands that are unreduced with it.
          linear: sets of operands in which the operator is jointly linear; each becomes a carried factor.
          frozen: factors never split.
          offsets: factors whose shard offset the local operator needs.
          everywhere: a reduced factor that all mesh axes are given to.
          exchanged: factor -> what is sent inside the operator for a number of parts.

        Raises:
          RuleError: if the factors contradict the shapes.
        """
        in_dims, out_dims = (_normal(side) for side in (ins, outs))
        all_reduced: dict[Factor, Kind] = dict(reduced or {})
        all_carried = {factor: tuple(operands) for factor, operands in (carried or {}).items()}
        for operands in linear:
            name = "+" + ",".join(map(str, operands))
            all_reduced[name] = "sum"
            all_carried[name] = tuple(operands)

        all_sizes = _read_sizes(op, in_dims, out_dims, dict(sizes or {}))
        whole = frozenset(frozen) | {factor for factor, size in all_sizes.items() if size == 0}
        for name in all_reduced:
            all_sizes.setdefault(name, 0)

        rule = cls(
            in_dims,
            out_dims,
            all_sizes,
            all_reduced,
            all_carried,
            whole,
            frozenset(offsets),
            everywhere,
            dict(exchanged or {}),
            tuple(tensor.itemsize for tensor in (*op.ins, *op.outs)),
        )
        _check(op, rule)
        return rule

    @property
    def factors(self) -> tuple[Factor, ...]:
        """Every factor that may be given a mesh axis, in order of appearance."""
        return tuple(f for f, size in self.sizes.items() if f not in self.frozen and size != 1)


def _normal(side: Sequence[Sequence[Factor | Sequence[Factor]]]) -> tuple[TensorFactors, ...]:
    return tuple(
        tuple((dim,) if isinstance(dim, str) else tuple(dim) for dim in tensor) for tensor in side
    )


def _read_sizes(
    op: OpNode,
    ins: tuple[TensorFactors, ...],
    outs: tuple[TensorFactors, ...],
    sizes: dict[Factor, int],
) -> dict[Factor, int]:
    """The size of every factor, in order of appearance: given, or that of a dim where the factor is alone."""
    alone: dict[Factor, int] = {}
    found: dict[Factor, int] = {}
    for tensor, dims in zip(op.ins + op.outs, ins + outs, strict=True):
        if len(dims) != tensor.ndim:
            raise RuleError(
                f"rule of {op.kind!r}: {dims} does not fit a tensor of shape {tensor.shape}"
            )
        for size, factors in zip(tensor.shape, dims, strict=True):
            found.update(dict.fromkeys(factors, 0))
            if len(factors) == 1:
                alone.setdefault(factors[0], size)

    for factor in found:
        if factor not in sizes and factor not in alone:
            raise RuleError(
                f"rule of {op.kind!r}: the size of factor {factor!r} is neither given nor in a shape"
            )

    return {factor: sizes.get(factor, alone.get(factor, 0)) for factor in found}


def _check(op: OpNode, rule: FactorRule) -> None:
    for tensor, dims in zip(op.ins + op.outs, rule.ins + rule.outs, strict=True):
        held = [f for factors in dims for f in factors]
        if len(set(held)) != len(held):
            raise RuleError(f"rule of {op.kind!r}: a factor stands twice in {dims}")
        for size, factors in zip(tensor.shape, dims, strict=True):
            if prod(rule.sizes[f] for f in factors) != size:
                raise RuleError(
                    f"rule of {op.kind!r}: factors {factors} do not make a dim of size {size}"
                )

    for dims in rule.outs:
        held = [f for factors in dims for f in factors]
        for factor in rule.factors:
            if factor not in held and factor not in rule.reduced and factor not in rule.exchanged:
                raise RuleError(
                    f"rule of {op.kind!r}: factor {factor!r} is missing in a result and not reduced"
                )

    _check_carried(op, rule)


def _check_carried(op: OpNode, rule: FactorRule) -> None:
    for factor, operands in rule.carried.items():
        if factor not in rule.reduced:
            raise RuleError(f"rule of {op.kind!r}: factor {factor!r} is carried but not reduced")
        for operand in operands:
            if any(factor in factors for factors in rule.ins[operand]):
                raise RuleError(
                    f"rule of {op.kind!r}: operand {operand} both holds and carries factor {factor!r}"
                )
