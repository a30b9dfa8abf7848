"""run: a ShardedProgram on all devices of its mesh, one instruction and one device after another, in numpy.

In: the program and its whole inputs. Out: its whole outputs, put together as their placements say. After every
instruction replicas are compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import jax.numpy as jnp
import numpy as np

from autopar._payload import Payload
from autopar.core.graph import OpNode
from autopar.core.manual import BORDERS, COLLECTIVES, INDEX
from autopar.core.program import Compute, Instruction, Move, ShardedProgram, changed_dim
from autopar.core.regions import Region
from autopar.emit.local.localize import localize
from autopar.redistribute.step import Step
from tests.ops.simulate import Place, run_devices
from tests.reference.by_hand import collective
from tests.reference.devices import (
    Device,
    Locals,
    assemble,
    check_replicas,
    devices,
    groups,
    part_number,
    shard,
)
from tests.reference.jaxprs import TABLE
from tests.reference.moves import apply_step
from tests.reference.primitives import Plain

assert "scan" in TABLE  # `jaxprs` adds the loops to what `Plain` can run


def run_reference(program: ShardedProgram, inputs: Sequence[Any]) -> list[np.ndarray]:
    """The outputs of `program` on whole `inputs`, whole.

    Raises:
      ReplicasDiffer: if devices that should hold the same do not.
      AssertionError: if a shard has another shape or type than its placement and tensor say.
    """
    return Reference(program).run(inputs)


@dataclass(eq=False)
class Reference:
    """One run of `program`: what every device holds of every value so far."""

    program: ShardedProgram
    env: dict[int, Locals] = field(default_factory=dict[int, Locals])

    def run(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        """The whole outputs; every value stays in `env`."""
        program = self.program
        for value, whole in zip(program.inputs, inputs, strict=True):
            self._put(value, np.asarray(whole))
        self._block(list(program.instructions), None)
        return [self.whole(value) for value in program.outputs]

    def whole(self, value: int) -> np.ndarray:
        """The tensor that the devices hold of `value`, put together."""
        v = self.program.values[value]
        return assemble(self._read(value), v.placement, v.tensor.shape, self.program.mesh)

    def _put(self, value: int, whole: np.ndarray) -> None:
        """Distributes `whole` as `value` is placed; nothing is unreduced. Replicas share one array."""
        mesh, placement = self.program.mesh, self.program.values[value].placement
        parts: dict[tuple[int, ...], np.ndarray] = {}
        for device in devices(mesh):
            number = tuple(part_number(device, axes, mesh) for axes in placement.dims)
            if number not in parts:
                parts[number] = shard(whole, device, placement, mesh)
            self.env.setdefault(value, {})[device] = parts[number]

    def _read(self, value: int) -> Locals:
        if value not in self.env:
            tensor = self.program.values[value].tensor
            self._put(value, np.asarray(tensor.literal).astype(tensor.dtype))
        return self.env[value]

    def _block(self, instructions: Sequence[Instruction], parent: int | None) -> None:
        """Runs the instructions of one region (None: of the program), those of a region in it as its kind says."""
        tree = self.program.tree
        for child, members in groupby(
            instructions, key=lambda i: tree.child_towards(parent, i.region)
        ):
            if child is None:
                for instruction in members:
                    self._instruction(instruction)
            else:
                _RUN_REGION[tree[child].kind](self, tree[child], list(members))

    def _instruction(self, instruction: Instruction) -> None:
        if isinstance(instruction, Compute) and instruction.op.kind == "while_test":
            return
        if isinstance(instruction, Compute):
            results = self._compute(instruction)
        elif isinstance(instruction, Move):
            results = [
                self._move(instruction, *pair)
                for pair in zip(instruction.ins, instruction.outs, strict=True)
            ]
        else:
            raise TypeError(f"{instruction} was never routed")
        for value, local in zip(instruction.outs, results, strict=True):
            self._check(value, local)
            self.env[value] = local

    def _check(self, value: int, local: Locals) -> None:
        v = self.program.values[value]
        expected = (v.placement.local_shape(v.tensor.shape, self.program.mesh), v.tensor.dtype)
        for device, array in local.items():
            found = (array.shape, str(array.dtype))
            assert found == expected, (
                f"value {value} placed {v.placement} on device {device}: {found}, not {expected}"
            )
        check_replicas(local, v.placement, self.program.mesh, v.tensor.manual)

    def _move(self, move: Move, before: int, after: int) -> Locals:
        """A bucket is as many moves of one value."""
        placements = [self.program.values[value].placement for value in (before, after)]
        dim = move.dim if len(move.ins) == 1 else changed_dim(*placements)
        step = Step(move.kind, move.axes, *placements, dim, move.to_dim)
        return apply_step(self._read(before), step, self.program.mesh)

    def _compute(self, compute: Compute) -> list[Locals]:
        """Devices at the same place along the strategy's axes with the same operands share one run."""
        if compute.op.kind in BORDERS:
            return [self._read(value) for value in compute.ins]
        if compute.op.kind in COLLECTIVES or compute.op.kind == INDEX:
            return [self._by_hand(compute)]
        if compute.strategy.exchanges:
            return self._exchange(compute)
        mesh, op = self.program.mesh, _on_numpy(compute.op)
        axes = tuple(axis for _, given in compute.strategy.factors for axis in given)
        operands = [self._read(value) for value in compute.ins]
        known: dict[object, list[np.ndarray]] = {}
        results: list[Locals] = [{} for _ in compute.outs]
        for device in devices(mesh):
            mine = [local[device] for local in operands]
            key = (part_number(device, axes, mesh), *(array.tobytes() for array in mine))
            if key not in known:
                known[key] = self._on_device(op, compute, device, mine)
            for local, array in zip(results, known[key], strict=True):
                local[device] = array
        return results

    def _by_hand(self, compute: Compute) -> Locals:
        """The user's own collective, or the number of a device."""
        mesh, payload = self.program.mesh, compute.op.payload
        assert isinstance(payload, Payload)
        axes = tuple(axis for axis in compute.op.params["axes"] if axis in mesh.names)
        if compute.op.kind == INDEX:
            return {
                d: np.asarray(part_number(d, axes, mesh), compute.op.outs[0].dtype)
                for d in devices(mesh)
            }
        (held,) = (self._read(value) for value in compute.ins)
        results: Locals = {}
        for group in groups(axes, mesh):
            sent = collective(
                payload.primitive.name, payload.params, [held[device] for device in group]
            )
            results.update(zip(group, sent, strict=True))
        return results

    def _exchange(self, compute: Compute) -> list[Locals]:
        """An operator inside of which devices send each other something: all run it, waiting for each other."""
        mesh = self.program.mesh
        operands = [self._read(value) for value in compute.ins]
        every = list(devices(mesh))
        places = [dict(zip(mesh.names, device, strict=True)) for device in every]

        def run(place: Place, exchanger: Any) -> Sequence[Any]:
            device = every[places.index(place)]
            local = localize(
                compute.op,
                compute.strategy,
                mesh,
                lambda along: part_number(device, along, mesh),
                exchanger,
            )
            return local(*(jnp.asarray(held[device]) for held in operands))

        results, _ = run_devices(places, mesh, run)
        rows = [[np.asarray(value) for value in result] for result in results]
        return [dict(zip(every, column, strict=True)) for column in zip(*rows, strict=True)]

    def _on_device(
        self, op: OpNode, compute: Compute, device: Device, values: list[np.ndarray]
    ) -> list[np.ndarray]:
        mesh = self.program.mesh
        run = localize(op, compute.strategy, mesh, lambda along: part_number(device, along, mesh))
        return [np.asarray(result) for result in run(*values)]


def _remat(reference: Reference, region: Region, members: list[Instruction]) -> None:
    """What is recomputed later is the same."""
    reference._block(members, region.id)


def _boundary(members: list[Instruction], kind: str, region: int) -> list[Compute]:
    """The boundary operators of `kind` that stand in `region`."""
    return [
        i for i in members if isinstance(i, Compute) and i.op.kind == kind and i.region == region
    ]


@dataclass(eq=False)
class _Control:
    """One loop or choice: what enters and leaves it, and how its inner regions run."""

    reference: Reference
    region: Region
    members: list[Instruction]

    def of(self, kind: str) -> list[Compute]:
        return _boundary(self.members, kind, self.region.id)

    def read(self, compute: Compute, operand: int = 0) -> Locals:
        return self.reference._read(compute.ins[operand])

    def write(self, computes: list[Compute], values: Sequence[Locals]) -> None:
        for compute, value in zip(computes, values, strict=True):
            self.reference._check(compute.outs[0], value)
            self.reference.env[compute.outs[0]] = value

    def go(self, kind: str, number: int = 0) -> None:
        """Runs an inner region. The values of the last time are made again."""
        tree = self.reference.program.tree
        inner = [child for child in tree.children(self.region.id) if child.kind == kind][number]
        inside = [i for i in self.members if inner.id in tree.path(i.region)]
        made = {value for i in inside for value in i.outs}
        self.reference.env = {
            value: held for value, held in self.reference.env.items() if value not in made
        }
        self.reference._block(inside, inner.id)

    def goes_on(self, decision: Any) -> bool:
        """Whether the loop goes round once more: for some device, where each may leave it by itself."""
        if decision.op.params.get("in_parts"):
            return any(array.item() for array in self.reference._read(decision.ins[0]).values())
        return bool(self.scalar(decision.ins[0]))

    def scalar(self, value: int) -> Any:
        """A value that decides which way all devices go: they must agree."""
        found = {array.item() for array in self.reference._read(value).values()}
        assert len(found) == 1, f"devices go different ways: {found}"
        return found.pop()


def _scan(control: _Control) -> None:
    carries, slices, stacks = (
        control.of("carry_in"),
        control.of("scan_slice"),
        control.of("scan_stack"),
    )
    leaving = control.of("carry_out")
    carry = [control.read(i) for i in carries]
    rows: list[list[Locals]] = []
    payload: Any = control.region.payload
    rounds = range(payload["length"])
    for n in reversed(rounds) if payload["reverse"] else rounds:
        control.write(carries, carry)
        control.write(slices, [{d: xs[n] for d, xs in control.read(i).items()} for i in slices])
        control.go("body")
        carry = [control.read(i) for i in leaving]
        rows.append([control.read(i) for i in stacks])
    rows = rows[::-1] if payload["reverse"] else rows
    control.write(leaving, carry)
    for position, stack in enumerate(stacks):
        v = control.reference.program.values[stack.outs[0]]
        empty = np.zeros(
            v.placement.local_shape(v.tensor.shape, control.reference.program.mesh), v.tensor.dtype
        )
        every = devices(control.reference.program.mesh)
        stacked = {
            d: np.stack([row[position][d] for row in rows]) if rows else empty for d in every
        }
        control.write([stack], [stacked])


def _while(control: _Control) -> None:
    carries, leaving = control.of("carry_in"), control.of("carry_out")
    tree = control.reference.program.tree
    (test,) = (child for child in tree.children(control.region.id) if child.kind == "test")
    (decision,) = _boundary(control.members, "while_test", test.id)
    carry = [control.read(i) for i in carries]
    while True:
        control.write(carries, carry)
        control.go("test")
        if not control.goes_on(decision):
            break
        control.go("body")
        carry = [control.read(i) for i in leaving]
    control.write(leaving, carry)


def _cond(control: _Control) -> None:
    (index,) = control.of("branch_index")
    count = len(control.reference.program.tree.children(control.region.id))
    number = min(max(int(control.scalar(index.ins[0])), 0), count - 1)
    control.go("branch", number)
    leaving = control.of("cond_result")
    control.write(leaving, [control.read(i, number) for i in leaving])


def _control(
    run: Callable[[_Control], None],
) -> Callable[[Reference, Region, list[Instruction]], None]:
    return lambda reference, region, members: run(_Control(reference, region, members))


# How the members of a region are run, by its kind: each calls `Reference._block` for every time that they run.
_RUN_REGION: dict[str, Callable[[Reference, Region, list[Instruction]], None]] = {
    "remat": _remat,
    "scan": _control(_scan),
    "while": _control(_while),
    "cond": _control(_cond),
}


def _on_numpy(op: OpNode) -> OpNode:
    payload: Any = op.payload
    return replace(op, payload=Payload(Plain(payload.primitive), payload.params))
