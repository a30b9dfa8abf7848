"""Placing: arrays where a plan has an argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jax.sharding import NamedSharding

from autopar._compat import untyped_jax
from autopar._mesh import aval_of
from autopar.api.adapters.opening import adapter_of
from autopar.api.adapters.protocol import Parts
from autopar.api.host_values import same_everywhere
from autopar.emit.several import all_placed, spans_processes
from autopar.emit.wrap import of_keys, shardings
from autopar.errors import SignatureMismatch
from autopar.search.constraints.carried import keys_of

if TYPE_CHECKING:
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
        tuple((aval.shape, str(aval.dtype)) for aval in avals),
        positions,
    )


def place(plan: Plan, tree: Any, argument: Selector, devices: Sequence[Any]) -> Any:
    """As `Plan.place`, on these devices."""
    slot = slot_of(plan, argument)
    adapter = adapter_of((tree,), {})
    if adapter is None:
        return _placed(plan, slot, tree, devices)
    with adapter.open(Parts(_same, (tree,), {}), _kept) as opened:
        placed = (_placed(plan, slot, opened.parts.args[0], devices),)
        return opened.close(opened.parts.fn(*placed), placed, {})


def _placed(plan: Plan, slot: Slot, tree: Any, devices: Sequence[Any]) -> Any:
    slot.check("place", tree)
    leaves, structure = untyped_jax.tree_util.tree_flatten(tree)
    if spans_processes(devices):
        leaves = same_everywhere([f"{slot.name}{path}" for path in slot.paths], leaves, devices)
    return untyped_jax.tree_util.tree_unflatten(structure, all_placed(leaves, _shardings(plan, slot, devices)))


def _same(tree: Any) -> Any:
    return tree


def _kept(_name: str) -> bool:
    return True


def _shardings(plan: Plan, slot: Slot, devices: Sequence[Any]) -> tuple[NamedSharding, ...]:
    """Where the leaves of an argument lie, PRNG keys as keys."""
    keys = dict(plan.bound.traced.key_inputs)
    inputs = of_keys(plan.record.stage.inputs, keys)
    tensors = [plan.bound.traced.graph.inputs[position] for position in slot.positions]
    return shardings([inputs[position] for position in slot.positions], plan.jax_mesh(devices), tensors)


def _head(tree: Any, names: Sequence[str]) -> str:
    """What the argument is called whose leaves are these positions; "" if it has none."""
    leaves: list[int] = untyped_jax.tree_util.tree_leaves(tree)
    return keys_of(names[leaves[0]])[0] if leaves else ""


def _type(leaf: Any) -> tuple[tuple[int, ...], str] | str:
    """Shape and dtype, in whatever memory; of what is no array its type."""
    try:
        aval = aval_of(leaf)
    except (TypeError, ValueError, OverflowError):
        return type(leaf).__qualname__
    return aval.shape, str(aval.dtype)


def _show(found: tuple[tuple[int, ...], str] | str | None) -> str:
    if found is None:
        return "nothing"
    return f"a {found}" if isinstance(found, str) else f"{found[1]}{list(found[0])}"
