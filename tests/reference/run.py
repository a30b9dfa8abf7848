"""run: a ShardedProgram on all devices of its mesh, one instruction and one device after another, in numpy.

In: the program and its whole inputs. Out: its whole outputs, put together as their placements say. After every
instruction replicas are compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from autopar._payload import Payload
from autopar.core.graph import OpNode, Region
from autopar.emit.localize import localize
from autopar.passes.program import Compute, Instruction, Move, ShardedProgram
from autopar.redistribute.step import Step
from tests.reference.devices import Device, Locals, assemble, check_replicas, devices, part_number, shard
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
        regions = {region.id: region for region in self.program.regions}
        for child, members in groupby(instructions, key=lambda i: _child(i, parent, regions)):
            if child is None:
                for instruction in members:
                    self._instruction(instruction)
            else:
                _RUN_REGION[regions[child].kind](self, regions[child], list(members))

    def _instruction(self, instruction: Instruction) -> None:
        if isinstance(instruction, Compute):
            results = self._compute(instruction)
        elif isinstance(instruction, Move):
            results = [self._move(instruction, *pair) for pair in zip(instruction.ins, instruction.outs, strict=True)]
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
            assert found == expected, f"value {value} placed {v.placement} on device {device}: {found}, not {expected}"
        check_replicas(local, v.placement, self.program.mesh)

    def _move(self, move: Move, before: int, after: int) -> Locals:
        """A bucket is as many all-reduces."""
        placements = [self.program.values[value].placement for value in (before, after)]
        step = Step(move.kind, move.axes, *placements, move.dim, move.to_dim)
        return apply_step(self._read(before), step, self.program.mesh)

    def _compute(self, compute: Compute) -> list[Locals]:
        """Devices at the same place along the strategy's axes with the same operands share one run."""
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

    def _on_device(self, op: OpNode, compute: Compute, device: Device, values: list[np.ndarray]) -> list[np.ndarray]:
        mesh = self.program.mesh
        run = localize(op, compute.strategy, mesh, lambda along: part_number(device, along, mesh))
        return [np.asarray(result) for result in run(*values)]


def _child(instruction: Instruction, parent: int | None, regions: dict[int, Region]) -> int | None:
    """The region directly under `parent` that holds the instruction, None for `parent` itself."""
    region = instruction.region
    while region is not None and region != parent and regions[region].parent != parent:
        region = regions[region].parent
    return None if region == parent else region


def _remat(reference: Reference, region: Region, members: list[Instruction]) -> None:
    """What is recomputed later is the same."""
    reference._block(members, region.id)


# How the members of a region are run, by its kind: each calls `Reference._block(members, region.id)` for every time
# that they run. A new kind of region (a loop, a branch) needs a row here and nothing else.
_RUN_REGION: dict[str, Callable[[Reference, Region, list[Instruction]], None]] = {"remat": _remat}


def _on_numpy(op: OpNode) -> OpNode:
    payload: Any = op.payload
    return replace(op, payload=Payload(Plain(payload.primitive), payload.params))
