"""Runner: a plan on its devices; and the dispatch of calls to runners, at little more than the time of JAX's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from autopar._compat import is_tracer, without_mesh
from autopar.api.bound import Bound
from autopar.api.call import ReadCall, is_sharded, leaf_type, put_back, read_call, type_of
from autopar.api.options import Settings
from autopar.api.processes import same_everywhere
from autopar.core.sizes import exact_bytes
from autopar.emit.several import all_placed, spans_processes, with_copies
from autopar.emit.wrap import Keys, of_keys, placements, shardings, tensors, wrap
from autopar.errors import MovedWarning, TraceError, users_level

_LYING = attrgetter("aval", "sharding")
"""How an array lies, and its type."""


class Runner:
    """A bound plan on its devices: the jitted program, its shardings, and the constants where they belong.

    It remembers, for each argument, the type and sharding of the last array that lay in place. JAX shares these objects
    between arrays, so that a call whose arrays lie in place is known at a glance.
    """

    def __init__(
        self, bound: Bound, devices: Sequence[Any], types: Sequence[object] | None = None
    ) -> None:
        """For arguments of these types, as `leaf_type` has them; None: those that were planned for."""
        program = bound.emitted.program
        traced = bound.traced
        jax_mesh = bound.jax_mesh(devices)
        keys = Keys(dict(traced.key_inputs), dict(traced.key_outputs))
        weak = [n for n, aval in enumerate(traced.output_avals) if aval.weak_type]
        self._traced = traced
        ins = of_keys(placements(program, program.inputs), keys.inputs)
        self._shardings = shardings(ins, jax_mesh, tensors(program, program.inputs))
        self._types = tuple(types or map(type_of, traced.input_avals))
        self._kinds: list[Any] = [None] * len(self._types)
        self._lying: list[Any] = [None] * len(self._types)
        self._names = tuple(tensor.name for tensor in traced.graph.inputs)
        self._devices = tuple(devices)
        self._is_local = not spans_processes(devices)

        self._run = wrap(program, jax_mesh, traced.graph.donated, weak, keys)

    @property
    def shardings(self) -> tuple[NamedSharding, ...]:
        """Where the arguments lie, then the constants."""
        return self._shardings

    @cached_property
    def _constants(self) -> list[Any]:
        """The constants on their devices, which must be there: lowering needs none of both."""
        constants: Sequence[Any] = self._traced.constants
        if not self._is_local:
            constants = same_everywhere(self._names[len(self._types) :], constants, self._devices)
        return all_placed(constants, self._shardings[len(self._types) :])

    def misplaced(self, leaves: Sequence[Any]) -> list[int] | None:
        """The positions of `leaves` that do not lie in place; None if one is not of its argument's type.

        `leaves` are those of arguments of the planned structure.
        """
        # Whole lists are compared, as that runs no Python for each leaf; what is the same object is equal.
        kinds: list[Any] = list(map(type, leaves))
        if kinds == self._kinds and list(map(_LYING, leaves)) == self._lying:
            return []
        return self._looked_at(leaves)

    def _looked_at(self, leaves: Sequence[Any]) -> list[int] | None:
        """As `misplaced`, leaf by leaf; those in place are remembered."""
        found: list[int] = []
        for n, (leaf, kind, lying) in enumerate(zip(leaves, self._kinds, self._lying, strict=True)):
            if type(leaf) is kind and _LYING(leaf) == lying:
                continue
            if not _is_of_type(leaf, self._types[n]):
                return None
            if _lies(leaf, self._shardings[n]):
                self._kinds[n] = type(leaf)
                self._lying[n] = _LYING(leaf)
            else:
                found.append(n)
        return found

    def run(self, leaves: Sequence[Any], misplaced: Sequence[int] = ()) -> Any:
        """The results for these flat arguments; donated ones are deleted. Those `misplaced` are put in place first."""
        inputs = self.in_place(leaves, misplaced) if misplaced else leaves
        donated = self._traced.graph.donated
        again, kept = self._met_again(leaves) if donated else ((), frozenset[int]())
        if again:
            inputs = with_copies(inputs, again)

        with without_mesh():
            outputs = self._run(*inputs, *self._constants)

        for position in donated:
            if position not in kept:
                _delete(leaves[position])
        return self._traced.out_tree.unflatten(outputs)

    def _met_again(self, leaves: Sequence[Any]) -> tuple[list[int], frozenset[int]]:
        """The donated arrays that the program is given in another place too, and those that it reads there.

        No memory can be given up twice, or be read beside that: JAX ends the process where a program of several devices
        is asked to.
        """
        others = [*leaves, *self._traced.constants]
        if len(set(map(id, others))) == len(others):  # as in almost every call
            return [], frozenset()

        donated = [n for n in self._traced.graph.donated if isinstance(leaves[n], jax.Array)]
        taken = set(self._traced.graph.donated)
        read = {id(one) for n, one in enumerate(others) if n not in taken}
        kept = frozenset(n for n in donated if id(leaves[n]) in read)
        first = {id(leaves[n]): n for n in reversed(donated)}
        return [n for n in donated if n in kept or first[id(leaves[n])] != n], kept

    def moved(self, leaves: Sequence[Any], misplaced: Sequence[int]) -> list[int]:
        """Those of `misplaced` that are sharded, but not whole everywhere, and lie otherwise than planned."""

        def is_moved(leaf: Any, sharding: NamedSharding) -> bool:
            if (
                not isinstance(leaf, jax.Array)
                or not is_sharded(leaf)
                or leaf.sharding.is_fully_replicated
            ):
                return False
            return not leaf.sharding.is_equivalent_to(sharding, leaf.ndim)

        return [n for n in misplaced if is_moved(leaves[n], self._shardings[n])]

    def show_move(self, position: int, leaf: Any) -> str:
        """Which argument `leaf` is, where it lies, and where it is put."""
        own: Any = leaf.sharding
        given = own.spec if isinstance(own, NamedSharding) else own
        return f"{self._traced.graph.inputs[position].name} from {given} to {self._shardings[position].spec}"

    def inlined(self, leaves: Sequence[Any]) -> Any:
        """The results for placeholders of an outer trace, in which the program is called; nothing is donated."""
        with without_mesh():
            outputs = self._run(*leaves, *self._traced.constants)
        return self._traced.out_tree.unflatten(outputs)

    def lower(self) -> Any:
        """JAX's Lowered of the program, from shapes alone; the devices need not be there."""
        tensors = self._traced.graph.inputs[len(self._types) :]
        specs = [
            jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding)
            for one, sharding in zip(
                (*self._traced.input_avals, *tensors), self._shardings, strict=True
            )
        ]
        jitted: Any = self._run
        with without_mesh():
            return jitted.lower(*specs)

    def in_place(self, leaves: Sequence[Any], misplaced: Sequence[int]) -> list[Any]:
        """`leaves`, those at the positions `misplaced` in place.

        Where the devices are all this process's own, arrays are put there at once, and what is on the host is left to
        the jitted program. Else what is on the host has to be the same in all processes.
        """
        inputs = list(leaves)
        if not self._is_local:
            leaves = same_everywhere(self._names[: len(leaves)], leaves, self._devices)
        moved = [n for n in misplaced if not self._is_local or isinstance(leaves[n], jax.Array)]
        there = all_placed([leaves[n] for n in moved], [self._shardings[n] for n in moved])
        for n, array in zip(moved, there, strict=True):
            inputs[n] = array
        return inputs


def _lies(leaf: Any, sharding: NamedSharding) -> bool:
    """Whether `leaf` lies as `sharding` says, on its mesh."""
    if not isinstance(leaf, jax.Array):
        return False
    own = leaf.sharding
    if not isinstance(own, NamedSharding) or own.mesh != sharding.mesh:
        return False
    return own == sharding or own.is_equivalent_to(sharding, leaf.ndim)


def _is_of_type(leaf: Any, wanted: object) -> bool:
    """Whether `leaf` has this shape, dtype and weakness, and is no placeholder of a trace."""
    if type(leaf) is np.ndarray and (leaf.shape, leaf.dtype.name, False) == wanted:
        return True
    return not is_tracer(leaf) and leaf_type(leaf) == wanted


def _delete(leaf: object) -> None:
    """Frees a donated array that was moved to its placement, and so not given to the program itself."""
    if isinstance(leaf, jax.Array) and not leaf.is_deleted():
        leaf.delete()


# Dispatch -------------------------------------------------------------------------------------------------------------

Find = Callable[[tuple[Any, ...], dict[str, Any]], Runner]
UNKNOWN: Any = object()
"""In the place of results: no runner is known for such a call."""


class Dispatch:
    """Calls of one compiled function, which is called `name`.

    Arguments are flattened once. A runner of calls of the same kind is tried by the types of its arguments; `find`
    makes, or finds by the whole signature, one for calls that fit none. It `tells` the user of arrays that are moved.
    """

    def __init__(self, name: str, settings: Settings, find: Find, *, tells: bool) -> None:
        self._name = name
        self._static_argnums = settings.static_argnums
        self._keeps = settings.shardings == "keep"
        self._find = find
        self._runners: dict[object, list[Runner]] = {}
        self._has_told = not tells

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results of the function for these arguments."""
        result = self.attempt(args, kwargs)
        if result is not UNKNOWN:
            return result
        call = read_call(args, kwargs, self._static_argnums)
        return self._run(*self._fitting(call, args, kwargs), call.leaves)

    def attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same, if there was a call that they fit; else UNKNOWN."""
        call = read_call(args, kwargs, self._static_argnums)
        found = self._known(call)
        if found is None:
            return UNKNOWN
        runner, misplaced = found
        return self._run(runner, misplaced, call.leaves) if misplaced else runner.run(call.leaves)

    def in_place(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, those moved that do not lie in place."""
        call = read_call(args, kwargs, self._static_argnums)
        runner, misplaced = self._fitting(call, args, kwargs)
        return (
            put_back(call, runner.in_place(call.leaves, misplaced)) if misplaced else (args, kwargs)
        )

    def _fitting(
        self, call: ReadCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Runner, list[int]]:
        """The runner for a call, and which of its arguments do not lie in place."""
        found = self._known(call)
        if found is not None:
            return found
        for leaf in call.leaves:
            if isinstance(leaf, jax.ShapeDtypeStruct):
                raise TraceError(
                    f"{self._name} is called with {leaf}, which has no values: pass an array, or ask for the plan by "
                    f"{self._name}.plan(...)"
                )

        runner = self._find(args, kwargs)
        misplaced = runner.misplaced(call.leaves)
        assert misplaced is not None, "found for arguments of these types"
        self._runners.setdefault(call.kind, []).append(runner)
        return runner, misplaced

    def _known(self, call: ReadCall) -> tuple[Runner, list[int]] | None:
        for runner in self._runners.get(call.kind, ()):
            misplaced = runner.misplaced(call.leaves)
            if misplaced is not None and (not misplaced or self._may_move(call.leaves, misplaced)):
                return runner, misplaced
        return None

    def _run(self, runner: Runner, misplaced: Sequence[int], leaves: Sequence[Any]) -> Any:
        if misplaced and not self._has_told:
            self._tell(runner, leaves, runner.moved(leaves, misplaced))
        return runner.run(leaves, misplaced)

    def _may_move(self, leaves: Sequence[Any], misplaced: Sequence[int]) -> bool:
        return not (self._keeps and any(is_sharded(leaves[n]) for n in misplaced))

    def _tell(self, runner: Runner, leaves: Sequence[Any], moved: Sequence[int]) -> None:
        """Warns, the first time that there are any, of arrays that are moved."""
        if not moved:
            return

        self._has_told = True
        count = f"{len(moved)} arrays" if len(moved) > 1 else "an array"
        size = sum(leaves[n].nbytes for n in moved)
        warnings.warn(
            f"{self._name}: {count} of {exact_bytes(size)} came in sharded otherwise than planned and had to be moved "
            f"({runner.show_move(moved[0], leaves[moved[0]])}), as will those of later calls, of which nothing is "
            f"said. Put them there by plan.place, follow the plan whose results they are (follow=), or plan for where "
            f"they lie (shardings='keep').",
            MovedWarning,
            stacklevel=users_level(),
        )
