"""Placing: arrays where a plan has an argument, and states that are made there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from autopar._compat import untyped_jax
from autopar.api.call import leaf_type, type_of
from autopar.api.host_values import same_everywhere
from autopar.api.make import name_of
from autopar.api.settings import Settings
from autopar.emit.several import all_placed, spans_processes
from autopar.emit.wrap import of_keys, shardings
from autopar.errors import SignatureMismatch
from autopar.search.carried import keys_of
from autopar.search.constraints import Follow, Layout, Named, Pin

if TYPE_CHECKING:
    from autopar.api.compiled import Compiled
    from autopar.api.plan import Plan

Selector = int | str


@dataclass(frozen=True)
class Slot:
    """An argument of a plan: its name, structure, and for each leaf its path inside, shape and dtype, flat position."""

    name: str
    tree: Any
    paths: tuple[str, ...]
    types: tuple[tuple[tuple[int, ...], str], ...]
    positions: tuple[int, ...]

    def check(self, what: str, given: Any) -> None:
        """Whether `given`, a tree of arrays or of the shapes of such, is of this structure, shapes and dtypes.

        Raises:
          SignatureMismatch: if not; names the first leaf that differs. `what` is what `given` is called.
        """
        leaves = untyped_jax.tree_util.tree_leaves_with_path(given)
        found = {untyped_jax.tree_util.keystr(path): _type(leaf) for path, leaf in leaves}
        wanted = dict(zip(self.paths, self.types, strict=True))
        for path in (*wanted, *found):
            if wanted.get(path) != found.get(path):
                raise SignatureMismatch(
                    f"{what}: {self.name}{path} is {_show(found.get(path))}, the plan has {_show(wanted.get(path))} "
                    f"there. Pass what was planned, or plan again."
                )
        if untyped_jax.tree_util.tree_structure(given) != self.tree:
            raise SignatureMismatch(
                f"{what}: {self.name} is of structure {untyped_jax.tree_util.tree_structure(given)}, the plan has "
                f"{self.tree}. Pass what was planned, or plan again."
            )


def slot_of(plan: Plan, argument: Selector) -> Slot:
    """The argument of `plan` at a position of its call, or of a name.

    Raises:
      SignatureMismatch: if there is none.
    """
    traced = plan.bound.traced
    names = [name for name, _ in plan.argument_inputs]
    args, kwargs = untyped_jax.tree_util.tree_unflatten(traced.in_tree, range(len(names)))
    dynamic = [n for n in range(len(args) + len(traced.static_argnums)) if n not in traced.static_argnums]
    by_position: dict[Selector, Any] = dict(zip(dynamic, args, strict=True))
    called = {_head(tree, names): tree for tree in args} | kwargs
    tree = by_position.get(argument, called.get(argument))
    if argument not in by_position and argument not in called:
        known = ", ".join(f"{name!r}" for name in called if name)
        raise SignatureMismatch(f"{plan.function_name} has no argument {argument!r} that is planned; there are {known}")
    leaves, structure = untyped_jax.tree_util.tree_flatten_with_path(tree)
    positions = tuple(position for _, position in leaves)
    name = next((name for name, one in called.items() if one is tree), "")
    avals = [traced.input_avals[position] for position in positions]
    return Slot(
        name,
        structure,
        tuple(untyped_jax.tree_util.keystr(path) for path, _ in leaves),
        tuple(type_of(aval)[:2] for aval in avals),
        positions,
    )


def place(plan: Plan, tree: Any, argument: Selector, devices: Sequence[Any]) -> Any:
    """As `Plan.place`, on these devices."""
    slot = slot_of(plan, argument)
    slot.check("place", tree)
    leaves, structure = untyped_jax.tree_util.tree_flatten(tree)
    if spans_processes(devices):
        leaves = same_everywhere([f"{slot.name}{path}" for path in slot.paths], leaves, devices)
    return untyped_jax.tree_util.tree_unflatten(structure, all_placed(leaves, _shardings(plan, slot, devices)))


@dataclass(frozen=True)
class Maker:
    """What makes a state: a function of the arrays among its arguments; all others are fixed."""

    fn: Callable[..., Any]
    arrays: tuple[Any, ...]

    @classmethod
    def of(cls, make_state: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Maker:
        """`make_state` with these arguments."""
        leaves, tree = untyped_jax.tree_util.tree_flatten((args, kwargs))
        positions = [n for n, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray)]

        def made(*arrays: Any) -> Any:
            given = dict(zip(positions, arrays, strict=True))
            every = [given.get(n, leaf) for n, leaf in enumerate(leaves)]
            args, kwargs = untyped_jax.tree_util.tree_unflatten(tree, every)
            return make_state(*args, **kwargs)

        made.__name__ = name_of(make_state)
        return cls(made, tuple(leaves[n] for n in positions))

    @cached_property
    def state(self) -> Any:
        """The shapes of what it makes."""
        return untyped_jax.eval_shape(self.fn, *self.arrays)

    @property
    def what(self) -> str:
        """What errors call it."""
        return f"init: the result of {name_of(self.fn)}"


def init(plan: Plan, maker: Maker, argument: Selector, devices: Sequence[Any]) -> Any:
    """As `Plan.init`, on these devices."""
    slot = slot_of(plan, argument)
    slot.check(maker.what, maker.state)
    from autopar.api.compiled import Compiled

    return Compiled(maker.fn, settings_of_state(plan, slot, devices))(*maker.arrays)


def plan_for(compiled: Compiled, maker: Maker, argument: int, others: Sequence[Any] | None) -> Plan:
    """The plan of `compiled` that such a state is for: with the `others` as its other arguments, or the first made.

    Raises:
      SignatureMismatch: none was made that takes such a state.
    """
    if others is not None:
        return compiled.plan(*others[:argument], maker.state, *others[argument:])
    refusals: list[SignatureMismatch] = []
    for plan in compiled.made:
        try:
            slot_of(plan, argument).check(maker.what, maker.state)
        except SignatureMismatch as error:
            refusals.append(error)
        else:
            return plan
    if refusals:
        raise refusals[0]
    raise SignatureMismatch(
        "init: the function was not planned yet, so where its state lies is not known. Pass its other arguments, or "
        "their shapes, as others=(...), or call its plan() before"
    )


def settings_of_state(plan: Plan, slot: Slot, devices: Sequence[Any]) -> Settings:
    """How what makes an argument of `plan` is planned: the results lie as the argument does."""
    placements = [plan.record.stage.inputs[position] for position in slot.positions]
    names = [f"output{path or '[0]'}" for path in slot.paths]
    pins = tuple(  # numbers, which may be literals, have no choice
        Pin(Named(name), Layout(placed.dims)) for name, placed in zip(names, placements, strict=True) if placed.dims
    )
    own = plan.bound.settings
    return Settings(
        cluster=plan.bound.cluster,
        mesh=dict(plan.mesh.axes),
        memory_limit_bytes=own.memory_limit_bytes,
        carry=None,
        strict=own.strict,
        options=own.options,
        devices=tuple(devices),
        pricing=own.pricing,
        cache=own.cache,
        constraints=(Follow(f"{slot.name} of {plan.function_name}", pins),),
    )


def _shardings(plan: Plan, slot: Slot, devices: Sequence[Any]) -> tuple[NamedSharding, ...]:
    """Where the leaves of an argument lie, PRNG keys as keys."""
    keys = dict(plan.bound.traced.key_inputs)
    inputs = of_keys(plan.record.stage.inputs, keys)
    return shardings([inputs[position] for position in slot.positions], plan.jax_mesh(devices))


def _head(tree: Any, names: Sequence[str]) -> str:
    """What the argument is called whose leaves are these positions; "" if it has none."""
    leaves: list[int] = untyped_jax.tree_util.tree_leaves(tree)
    return keys_of(names[leaves[0]])[0] if leaves else ""


def _type(leaf: Any) -> tuple[tuple[int, ...], str] | str:
    """Shape and dtype; of what is no array its type."""
    found = leaf_type(leaf)
    return found if isinstance(found, str) else found[:2]


def _show(found: tuple[tuple[int, ...], str] | str | None) -> str:
    if found is None:
        return "nothing"
    return f"a {found}" if isinstance(found, str) else f"{found[1]}{list(found[0])}"
