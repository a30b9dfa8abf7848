"""verify: the invariants of a ShardedProgram, checked between passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter

from autopar.core.graph import TensorInfo
from autopar.core.manual import COLLECTIVES
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Dims, Placement
from autopar.core.program import (
    FUSED_KINDS,
    Compute,
    Convert,
    Instruction,
    Move,
    ShardedProgram,
    Value,
    changed_dim,
)
from autopar.errors import ProgramError


def verify(program: ShardedProgram, before: ShardedProgram | None = None) -> None:
    """Raises ProgramError unless `program` is valid.

    Of a program that came of a valid one, `before`, only the instructions and values are looked at singly that were
    not there: records do not change. Their order is looked at in full.

    Every value is made once, before it is read, and divides evenly; an operator reads and makes its own tensors, in the
    placements of its strategy, and exchanges what that says; a move does to its placements what its kind says; the
    instructions of a region are contiguous; a loop's carries keep their placements, and nothing is sent inside of it
    between devices that leave it by themselves; outputs are fully reduced.
    """
    old_values, old_instructions = _verified(program, before)
    _verify_values(
        [value for value in program.values.values() if id(value) not in old_values], program.mesh
    )
    known = _verify_order(program)
    plain = [
        i
        for i in program.instructions
        if isinstance(i, Compute) and not (i.exchanges or i.strategy.exchanges)
    ]
    are_right = _are_right(program, plain)
    for position, instruction in enumerate(program.instructions):
        if old_instructions and id(instruction) in old_instructions:
            continue
        if isinstance(instruction, Compute):
            if not are_right or instruction.exchanges or instruction.strategy.exchanges:
                _verify_compute(program, position, instruction)
        else:
            _verify_change(program, f"instruction {position}", instruction)

    for value in program.outputs:
        if value not in known and program.values[value].tensor.literal is None:
            raise ProgramError(f"output value {value} is never made")
        if program.values[value].placement.unreduced:
            raise ProgramError(f"output value {value} is left unreduced")

    _verify_regions(program)
    _verify_left_apart(program)


def _verify_values(values: Iterable[Value], mesh: DeviceMesh) -> None:
    fitting: set[tuple[int, tuple[int, ...]]] = set()
    for value in values:
        key = (id(value.placement), value.tensor.shape)
        if key not in fitting:
            if not value.placement.fits(value.tensor.shape, mesh):
                raise ProgramError(
                    f"value {value.id} of shape {value.tensor.shape} does not divide as {value.placement}"
                )
            fitting.add(key)


def _verify_order(program: ShardedProgram) -> set[int]:
    """That every value is made once and before it is read; the values that are made, inputs included."""
    known = set(program.inputs)
    for position, instruction in enumerate(program.instructions):
        if not known.issuperset(instruction.ins):
            for value in instruction.ins:
                if value not in known and program.values[value].tensor.literal is None:
                    raise ProgramError(
                        f"instruction {position} reads value {value} before it is made"
                    )
        if not known.isdisjoint(instruction.outs):
            again = known.intersection(instruction.outs)
            raise ProgramError(
                f"instruction {position} makes value {sorted(again)[0]} a second time"
            )
        known.update(instruction.outs)

    return known


def _verified(program: ShardedProgram, before: ShardedProgram | None) -> tuple[set[int], set[int]]:
    """The ids of the values and instructions of `before`; none if `program` has other values in their place."""
    if before is None or any(
        program.values.get(number) is not value for number, value in before.values.items()
    ):
        return set(), set()
    return set(map(id, before.values.values())), set(map(id, before.instructions))


def moved(placement: Placement, move: Move) -> Placement | None:
    """Where `move` takes a tensor from `placement`; None for a permute, whose target is free. Raises if it cannot."""
    return _MOVED[move.kind](placement, move)


def _are_right(program: ShardedProgram, computes: Sequence[Compute]) -> bool:
    """Whether all operators read and make their own tensors, placed as their strategies say: looked at all at once.

    If not, they are looked at singly, to say which is wrong.
    """
    values = program.values
    tensor_of = {number: value.tensor for number, value in values.items()}.__getitem__
    placement_of = {number: value.placement for number, value in values.items()}.__getitem__
    for side in ("ins", "outs"):
        held, own, wanted = (
            [*map(attrgetter(name), computes)] for name in (side, f"op.{side}", f"strategy.{side}")
        )
        if not [*map(len, held)] == [*map(len, own)] == [*map(len, wanted)]:
            return False
        every = [*chain.from_iterable(held)]
        if [*map(tensor_of, every)] != [*chain.from_iterable(own)]:
            return False
        if [*map(placement_of, every)] != [*chain.from_iterable(wanted)]:
            return False

    return True


def _verify_compute(program: ShardedProgram, position: int, compute: Compute) -> None:
    op = compute.op
    strategy = compute.strategy
    values = program.values
    read = [values[v] for v in compute.ins]
    made = [values[v] for v in compute.outs]
    if (*[v.placement for v in read],) != strategy.ins or (
        *[v.placement for v in made],
    ) != strategy.outs:
        raise ProgramError(f"instruction {position} ({op.kind}) is not placed as its strategy says")

    if not (_are(read, op.ins) and _are(made, op.outs)):
        raise ProgramError(
            f"instruction {position} ({op.kind}) reads or makes other tensors than its operator"
        )

    if compute.exchanges or strategy.exchanges:
        _verify_exchanges(program, f"instruction {position}", compute)


def _are(values: Sequence[Value], tensors: tuple[TensorInfo, ...]) -> bool:
    """Whether the values are of these tensors: the same records at best, else of the same numbers."""
    held = (*[value.tensor for value in values],)
    return held == tensors or [tensor.id for tensor in held] == [tensor.id for tensor in tensors]


def _verify_change(program: ShardedProgram, where: str, instruction: Convert | Move) -> None:
    read, made = ([program.values[v] for v in side] for side in (instruction.ins, instruction.outs))
    ins, outs = ([value.placement for value in side] for side in (read, made))
    tensors = [value.tensor for value in (*read, *made)]
    if len(ins) != len(outs) or tensors[: len(ins)] != tensors[len(ins) :]:
        raise ProgramError(f"{where} changes more than the placement of its tensors")
    if isinstance(instruction, Convert):
        return

    if len(ins) > 1 and instruction.kind not in FUSED_KINDS:
        raise ProgramError(
            f"{where}: {instruction.kind} of several tensors at once: only {FUSED_KINDS} are fused"
        )

    for before, after, tensor in zip(ins, outs, tensors, strict=False):
        move = instruction._replace(dim=changed_dim(before, after)) if len(ins) > 1 else instruction
        _verify_move(program, where, move, before, after, tensor.shape)


def _verify_exchanges(program: ShardedProgram, where: str, compute: Compute) -> None:
    values = (*compute.ins, *compute.outs)
    for exchange in compute.strategy.exchanges:
        if exchange.tensor >= len(values):
            raise ProgramError(
                f"{where} ({compute.op.kind}) exchanges tensor {exchange.tensor}, which it has not"
            )
        if program.mesh.sort(exchange.axes) != exchange.axes:
            raise ProgramError(
                f"{where} ({compute.op.kind}) exchanges over {exchange.axes}, not in mesh order"
            )
        if compute.op.kind in COLLECTIVES:
            if not set(exchange.axes) <= set(compute.op.params["axes"]):
                raise ProgramError(
                    f"{where} ({compute.op.kind}) exchanges over {exchange.axes}, not its own"
                )
            continue
        placed = [axes for p in (*compute.strategy.ins, *compute.strategy.outs) for axes in p.dims]
        if exchange.axes not in placed:
            raise ProgramError(
                f"{where} ({compute.op.kind}) exchanges over {exchange.axes}, which split no dim of it"
            )

    expected = [
        (e.kind, e.axes, (values[e.tensor],), e.size_bytes, e.hop, e.rounds)
        for e in compute.strategy.exchanges
    ]
    listed = [
        (move.kind, move.axes, move.ins, move.size_bytes, move.hop, move.rounds)
        for move in compute.exchanges
    ]
    if compute.exchanges and listed != expected:
        raise ProgramError(
            f"{where} ({compute.op.kind}) lists other exchanges than its strategy has"
        )


def _verify_move(
    program: ShardedProgram,
    where: str,
    move: Move,
    before: Placement,
    after: Placement,
    shape: tuple[int, ...],
) -> None:
    try:
        expected = moved(before, move)
    except (ValueError, IndexError) as error:
        raise ProgramError(
            f"{where}: {move.kind} over {move.axes} is impossible from {before}"
        ) from error

    if expected is None:
        same = before.local_shape(shape, program.mesh) == after.local_shape(shape, program.mesh)
        if not same or (before.unreduced, before.kind) != (after.unreduced, after.kind):
            raise ProgramError(f"{where}: a permute cannot take {before} to {after}")
    elif expected not in (after, _as_sum(move, before, after)):
        raise ProgramError(
            f"{where}: {move.kind} over {move.axes} takes {before} to {expected}, and the program has {after}"
        )


def _as_sum(move: Move, before: Placement, after: Placement) -> Placement:
    """`after` with its kind left open where a mask may choose it: where nothing was unreduced before."""
    return replace(after, kind="sum") if move.kind == "mask" and not before.unreduced else after


def _verify_regions(program: ShardedProgram) -> None:
    if not program.regions:
        return

    closed: set[int] = set()
    around: tuple[int, ...] = ()
    entering: dict[tuple[int | None, int], Placement] = {}
    for instruction in program.instructions:
        before = around
        around = program.tree.path(instruction.region)
        closed.update(r for r in before if r not in around)
        if reopened := closed.intersection(around):
            raise ProgramError(f"the instructions of region {min(reopened)} are not contiguous")
        if not isinstance(instruction, Compute):
            continue
        if instruction.op.kind == "carry_in":
            key = instruction.region, instruction.op.params["position"]
            entering[key] = program.values[instruction.outs[0]].placement
        if instruction.op.kind == "carry_out":
            key = instruction.region, instruction.op.params["position"]
            if {program.values[v].placement for v in (*instruction.ins, *instruction.outs)} != {
                entering[key]
            }:
                raise ProgramError(
                    f"carry {key[1]} of region {key[0]} changes its placement from round to round"
                )


def _verify_left_apart(program: ShardedProgram) -> None:
    """Devices with decisions of their own would wait for one another for ever."""
    tests = [
        i for i in program.instructions if isinstance(i, Compute) and i.op.kind == "while_test"
    ]
    axes = {
        program.tree.parent(i.region): program.values[i.ins[0]].placement.unreduced
        for i in tests
        if i.ins
    }
    axes = {loop: own for loop, own in axes.items() if own}
    if not axes:
        return

    for instruction in program.instructions:
        for sent in _sent_over(instruction):
            for loop in axes.keys() & set(program.tree.path(instruction.region)):
                if not set(sent).isdisjoint(axes[loop]):
                    raise ProgramError(
                        f"in loop {loop} something is sent over {', '.join(sent)}, along which devices leave it by "
                        f"themselves: {instruction}"
                    )


def _sent_over(instruction: Instruction) -> Sequence[tuple[str, ...]]:
    """The axes of every collective of an instruction."""
    if isinstance(instruction, Compute):
        return [exchange.axes for exchange in instruction.strategy.exchanges]
    return [instruction.axes] if isinstance(instruction, Move) and instruction.is_collective else []


def _cut(dims: Dims, dim: int, axes: tuple[str, ...]) -> Dims:
    """`dims` without `axes`, which must be the minor-most of `dim`."""
    if dims[dim][-len(axes) :] != axes:
        raise ValueError(f"{axes} are not the minor-most axes of dim {dim}")
    return (*dims[:dim], dims[dim][: -len(axes)], *dims[dim + 1 :])


def _add(dims: Dims, dim: int, axes: tuple[str, ...]) -> Dims:
    return (*dims[:dim], dims[dim] + axes, *dims[dim + 1 :])


def _without(unreduced: tuple[str, ...], axes: tuple[str, ...]) -> tuple[str, ...]:
    if not set(axes) <= set(unreduced):
        raise ValueError(f"not unreduced over {axes}")
    return tuple(axis for axis in unreduced if axis not in axes)


def _all_gather(p: Placement, move: Move) -> Placement:
    return Placement(_cut(p.dims, _dim(move.dim), move.axes), p.unreduced, p.kind)


def _slice(p: Placement, move: Move) -> Placement:
    return Placement(_add(p.dims, _dim(move.dim), move.axes), p.unreduced, p.kind)


def _all_to_all(p: Placement, move: Move) -> Placement:
    dims = _cut(p.dims, _dim(move.dim), move.axes)
    return Placement(_add(dims, _dim(move.to_dim), move.axes), p.unreduced, p.kind)


def _reduce_scatter(p: Placement, move: Move) -> Placement:
    if p.kind != "sum":
        raise ValueError("only sums are scattered")
    return Placement(
        _add(p.dims, _dim(move.dim), move.axes), _without(p.unreduced, move.axes), p.kind
    )


def _all_reduce(p: Placement, move: Move) -> Placement:
    return Placement(p.dims, _without(p.unreduced, move.axes), p.kind)


def _mask(p: Placement, move: Move) -> Placement:
    return Placement(p.dims, (*p.unreduced, *move.axes), p.kind)


def _permute(p: Placement, move: Move) -> None:
    del p, move


def _dim(dim: int | None) -> int:
    if dim is None:
        raise ValueError("the move names no dim")
    return dim


_MOVED: dict[str, Callable[[Placement, Move], Placement | None]] = {
    "all_gather": _all_gather,
    "slice": _slice,
    "all_to_all": _all_to_all,
    "reduce_scatter": _reduce_scatter,
    "all_reduce": _all_reduce,
    "mask": _mask,
    "permute": _permute,
}
