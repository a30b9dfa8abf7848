"""Packed plans: how a core Plan stands in a file.

Models have thousands of operators but few distinct strategies, so a stage is a table of placements, a table of
strategies, and numbers. What is left is text of many repetitions, which is compressed.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    model_validator,
)
from pydantic_core import core_schema

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement, StepKind
from autopar.core.plan import DoubleBuffered, Plan, Stage
from autopar.core.recompute import Recomputed
from autopar.core.strategy import MIRROR, NEXT, PREVIOUS, Exchange, Strategy

Item = TypeVar("Item", bound=Hashable)
Index = Annotated[int, Field(ge=0)]


_NAMED_HOPS = {str(hop): asdict(hop) for hop in (NEXT, PREVIOUS, MIRROR)}


def _with_hop(exchange: Any) -> Any:
    """An exchange as it is now; older files have its hop as a name. Lists are the tuples that they stand for."""
    if not isinstance(exchange, dict):
        return exchange
    fields = cast("dict[str, Any]", exchange)
    hop = fields.get("hop")
    named = _NAMED_HOPS.get(hop, hop) if isinstance(hop, str) else hop
    if isinstance(named, dict):
        named = {name: _as_tuple(value) for name, value in cast("dict[str, Any]", named).items()}
    return {name: _as_tuple(value) for name, value in fields.items()} | (
        {"hop": named} if "hop" in fields else {}
    )


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, cast("list[Any]", value))) if isinstance(value, list) else value


class FileRecord(BaseModel):
    """A frozen record that takes no unknown field, no value of another type and no number that is not finite."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, revalidate_instances="always"
    )


class PackedStrategy(FileRecord):
    """A strategy; its placements are numbers in the stage's table."""

    ins: tuple[Index, ...]
    outs: tuple[Index, ...]
    factors: tuple[tuple[str, tuple[str, ...]], ...]
    split: Annotated[int, Field(ge=1)]
    exchanges: tuple[Annotated[Exchange, BeforeValidator(_with_hop)], ...] = ()


class PackedStage(FileRecord):
    """A stage: tables of the distinct placements and strategies, and for every choice its number in a table.

    Invariants: placements name axes of the mesh only; every number is one of its table's.
    """

    mesh: tuple[tuple[str, int], ...]
    placements: tuple[Placement, ...]
    strategies: tuple[PackedStrategy, ...]
    inputs: tuple[Index, ...]
    operators: tuple[Index, ...]
    copies: tuple[Index, ...]
    outputs: tuple[Index, ...]

    @model_validator(mode="after")
    def _check(self) -> PackedStage:
        mesh = DeviceMesh(self.mesh)
        axes = set(mesh.searched.names)
        for number, placement in enumerate(self.placements):
            if not placement.varying_axes <= axes:
                raise ValueError(
                    f"placements[{number}] {placement} names an axis that mesh {mesh} lacks"
                )

        for number, strategy in enumerate(self.strategies):
            if not axes.issuperset(axis for _, given in strategy.factors for axis in given):
                raise ValueError(
                    f"strategies[{number}] gives a factor an axis that mesh {mesh} lacks"
                )
            if not axes.issuperset(
                axis for exchange in strategy.exchanges for axis in exchange.axes
            ):
                raise ValueError(
                    f"strategies[{number}] exchanges over an axis that mesh {mesh} lacks"
                )
            _check_numbers(
                f"strategies[{number}]",
                (*strategy.ins, *strategy.outs),
                len(self.placements),
                "placements",
            )

        for field in ("inputs", "copies", "outputs"):
            _check_numbers(field, getattr(self, field), len(self.placements), "placements")

        _check_numbers("operators", self.operators, len(self.strategies), "strategies")
        return self


class PackedPlan(FileRecord):
    """A core Plan as it stands in a file."""

    stages: tuple[PackedStage, ...]
    fingerprint: str
    objective_s: float
    lower_bound_s: float
    space: str
    step_kinds: tuple[StepKind, ...]
    recomputed: tuple[tuple[Index, Index], ...] = ()
    stopped: str = ""
    communication_weight: Annotated[float, Field(gt=0)] = 1.0
    hidden_weight: Annotated[float, Field(gt=0)] = 1.0
    double_buffered: tuple[tuple[Index, Index, Index], ...] | None = None
    in_flight_bytes: Index = 0
    step_bound_s: Annotated[float, Field(ge=0)] = 0.0

    @classmethod
    def of(cls, plan: Plan) -> PackedPlan:
        """`plan`, packed."""
        return cls(
            stages=tuple(_pack(stage) for stage in plan.stages),
            fingerprint=plan.fingerprint,
            objective_s=plan.objective_s,
            lower_bound_s=plan.lower_bound_s,
            space=plan.space,
            step_kinds=plan.step_kinds,
            recomputed=tuple((one.op, one.before) for one in plan.recomputed),
            stopped=plan.stopped,
            communication_weight=plan.communication_weight,
            hidden_weight=plan.hidden_weight,
            double_buffered=plan.double_buffered,
            in_flight_bytes=plan.in_flight_bytes,
            step_bound_s=plan.step_bound_s,
        )

    def plan(self) -> Plan:
        """The plan that was packed. Equal placements and strategies are one object each."""
        stages = tuple(_unpack(stage) for stage in self.stages)
        recomputed = tuple(Recomputed(op, before) for op, before in self.recomputed)
        buffered = self.double_buffered

        return Plan(
            stages,
            self.objective_s,
            self.lower_bound_s,
            self.space,
            self.step_kinds,
            recomputed,
            self.stopped,
            self.fingerprint,
            self.communication_weight,
            self.hidden_weight,
            None if buffered is None else tuple(DoubleBuffered(*one) for one in buffered),
            self.in_flight_bytes,
            self.step_bound_s,
        )


def _plan_schema(
    _source: Any, handler: Callable[[Any], core_schema.CoreSchema]
) -> core_schema.CoreSchema:
    def packed(plan: Plan) -> dict[str, Any]:
        packed = PackedPlan.of(plan).model_dump(mode="json")
        return {name: value for name, value in packed.items() if value != _USUAL.get(name)}

    return core_schema.json_or_python_schema(
        json_schema=core_schema.no_info_after_validator_function(
            PackedPlan.plan, handler(PackedPlan)
        ),
        python_schema=core_schema.is_instance_schema(Plan),
        serialization=core_schema.plain_serializer_function_ser_schema(packed),
    )


_USUAL: dict[str, Any] = {
    "recomputed": [],
    "stopped": "",
    "communication_weight": 1.0,
    "hidden_weight": 1.0,
    "double_buffered": None,
    "in_flight_bytes": 0,
    "step_bound_s": 0.0,
}
"""What a file does not say of a plan."""
# A core Plan in Python, a PackedPlan in JSON.
PlanField = Annotated[Plan, GetPydanticSchema(_plan_schema)]


def _pack(stage: Stage) -> PackedStage:
    strategies = _numbered(stage.strategies)
    sides = [side for strategy in strategies for side in (strategy.ins, strategy.outs)]
    placements = _numbered(chain(stage.inputs, stage.copies, stage.outputs, *sides))

    def numbers(placed: Iterable[Placement]) -> tuple[int, ...]:
        return tuple(placements[placement] for placement in placed)

    return PackedStage(
        mesh=stage.mesh.whole.axes,
        placements=tuple(placements),
        strategies=tuple(
            PackedStrategy(
                ins=numbers(s.ins),
                outs=numbers(s.outs),
                factors=s.factors,
                split=s.split,
                exchanges=s.exchanges,
            )
            for s in strategies
        ),
        inputs=numbers(stage.inputs),
        operators=tuple(strategies[strategy] for strategy in stage.strategies),
        copies=numbers(stage.copies),
        outputs=numbers(stage.outputs),
    )


def _unpack(stage: PackedStage) -> Stage:
    def placed(numbers: Iterable[int]) -> tuple[Placement, ...]:
        return tuple(stage.placements[number] for number in numbers)

    strategies = [
        Strategy(placed(s.ins), placed(s.outs), s.factors, s.split, s.exchanges)
        for s in stage.strategies
    ]
    return Stage(
        DeviceMesh(stage.mesh).searched,
        placed(stage.inputs),
        tuple(strategies[number] for number in stage.operators),
        placed(stage.copies),
        placed(stage.outputs),
    )


def _numbered(items: Iterable[Item]) -> dict[Item, int]:
    """The distinct items, numbered in the order in which they first appear."""
    numbers: dict[Item, int] = {}
    for item in items:
        numbers.setdefault(item, len(numbers))
    return numbers


def _check_numbers(field: str, numbers: Sequence[int], count: int, table: str) -> None:
    for position, number in enumerate(numbers):
        if number >= count:
            raise ValueError(f"{field}[{position}] is {number}, but there are {count} {table}")


# Text -----------------------------------------------------------------------------------------------------------------

MOST_BYTES = 1 << 28
"""Of an unpacked text: ten times that of the largest models. A damaged file must not fill the memory."""


def packed_text(text: str) -> str:
    """`text`, compressed (zlib) and in characters that JSON holds as they are (base64)."""
    return b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked_text(packed: str) -> str:
    """The text that `packed_text` packed.

    Raises:
      ValueError: it packed no such: says why.
    """
    try:
        data = b64decode(packed, validate=True)
        inflating = zlib.decompressobj()
        text = inflating.decompress(data, MOST_BYTES)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"its contents cannot be unpacked ({error})") from error

    if not inflating.eof:
        what = (
            f"are more than {MOST_BYTES:,} bytes" if inflating.unconsumed_tail else "end too early"
        )
        raise ValueError(f"its contents {what}")

    if inflating.unused_data:
        raise ValueError("its contents go on after their end")

    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"its contents are no text ({error})") from error
