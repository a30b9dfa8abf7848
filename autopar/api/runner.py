"""Runner: a plan bound to its function, on its devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax

from autopar._compat import without_mesh
from autopar.api.call import flatten, unflatten
from autopar.api.settings import Settings
from autopar.core.plan import Plan
from autopar.emit.several import placed
from autopar.emit.wrap import device_mesh, placements, shardings, wrap
from autopar.search.task import Planned
from autopar.trace import Traced, fingerprint
from cost_models import Cluster


@dataclass(frozen=True, eq=False)
class Bound:
    """A plan with the function that it is for, and the cluster whose prices it was made with."""

    fn: Callable[..., Any]
    settings: Settings
    traced: Traced
    planned: Planned
    cluster: Cluster

    @cached_property
    def record(self) -> Plan:
        """The plan as it stands in a file, with the fingerprint of its function."""
        return replace(self.planned.plan, fingerprint=fingerprint(self.traced.graph))


class Runner:
    """A bound plan on its devices: the jitted program, its shardings, and the constants where they belong."""

    def __init__(self, bound: Bound, devices: Sequence[Any]) -> None:
        program = bound.planned.program
        self._traced = bound.traced
        jax_mesh = device_mesh(program.mesh, devices)
        self._shardings = shardings(placements(program, program.inputs), jax_mesh)
        weak = [n for n, aval in enumerate(bound.traced.output_avals) if aval.weak_type]
        self._run = wrap(program, jax_mesh, bound.traced.graph.donated, weak)

    @cached_property
    def _constants(self) -> list[Any]:
        """The constants on their devices, which must be there: lowering needs none of both."""
        constants = self._traced.constants
        shardings = self._shardings[len(self._shardings) - len(constants) :]
        return [placed(value, sharding) for value, sharding in zip(constants, shardings, strict=True)]

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results for these arguments; donated ones are deleted."""
        leaves = flatten(self._traced, args, kwargs)
        shardings = self._shardings[: len(leaves)]
        inputs = [placed(leaf, sharding) for leaf, sharding in zip(leaves, shardings, strict=True)]
        with without_mesh():
            outputs = self._run(*inputs, *self._constants)
        for position in self._traced.graph.donated:
            _delete(leaves[position])
        return unflatten(self._traced, outputs)

    def lower(self) -> Any:
        """JAX's Lowered of the program, from shapes alone; the devices need not be there."""
        specs = [
            jax.ShapeDtypeStruct(tensor.shape, tensor.dtype, sharding=sharding)
            for tensor, sharding in zip(self._traced.graph.inputs, self._shardings, strict=True)
        ]
        jitted: Any = self._run
        with without_mesh():
            return jitted.lower(*specs)


def _delete(leaf: object) -> None:
    """Frees a donated array that was moved to its placement, and so not given to the program itself."""
    if isinstance(leaf, jax.Array) and not leaf.is_deleted():
        leaf.delete()
