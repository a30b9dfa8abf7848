"""Placing: arguments of a plan that are put, or made, where the plan has them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from autopar._compat import untyped_jax
from autopar._mesh import aval_of
from autopar.api.adapters.opening import adapter_of
from autopar.api.adapters.protocol import Adapter, CallParts, Opened
from autopar.api.bound import Bound
from autopar.api.options import Function, Settings
from autopar.api.processes import same_everywhere
from autopar.emit.several import all_placed, spans_processes, with_copies
from autopar.emit.wrap import of_keys, shardings
from autopar.errors import SignatureMismatch
from autopar.search.constraints.carried import keys_of
from autopar.search.constraints.records import Follow, Layout, Named, Pin
from autopar.trace.arguments import function_name
from autopar.trace.returned import Returned

Selector = int | str
Compiles = Callable[[Function, Settings], Function]


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


def slot_of(bound: Bound, argument: Selector) -> Slot:
    """The argument of a plan at a position of its call, or of a name.

    Raises:
      SignatureMismatch: if there is none.
    """
    traced = bound.traced
    names = [tensor.name for tensor in traced.graph.inputs[: traced.in_tree.num_leaves]]
    args, kwargs = untyped_jax.tree_util.tree_unflatten(traced.in_tree, range(len(names)))
    dynamic = [
        n for n in range(len(args) + len(traced.static_argnums)) if n not in traced.static_argnums
    ]
    by_position: dict[Selector, Any] = dict(zip(dynamic, args, strict=True))
    called = {_head(tree, names): tree for tree in args} | kwargs
    tree = by_position.get(argument, called.get(argument))
    if argument not in by_position and argument not in called:
        known = ", ".join(f"{name!r}" for name in called if name)
        raise SignatureMismatch(
            f"{bound.name} has no argument {argument!r} that is planned; there are {known}"
        )

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


def place(bound: Bound, tree: Any, argument: Selector, devices: Sequence[Any]) -> Any:
    """As `Plan.place`, on these devices."""
    slot = slot_of(bound, argument)
    with opened_tree(tree) as (arrays, put_back):
        return put_back(_placed(bound, slot, arrays, devices))


@contextmanager
def opened_tree(tree: Any) -> Generator[tuple[Any, Callable[[Any], Any]]]:
    """`tree` with arrays for objects of libraries, and what makes it of such arrays, within the context.

    Objects that can change are changed.
    """
    adapter = adapter_of((tree,), {})
    if adapter is None:
        yield tree, _same
        return

    with adapter.open(CallParts(_same, (tree,), {}), _kept) as opened:

        def put_back(arrays: Any) -> Any:
            return opened.close(opened.parts.fn(arrays), (arrays,), {})

        yield opened.parts.args[0], put_back


def abstract(bound: Bound, argument: Selector, devices: Sequence[Any]) -> Any:
    """As `Plan.abstract`, on these devices."""
    slot = slot_of(bound, argument)
    avals = [bound.traced.input_avals[position] for position in slot.positions]
    leaves = [
        untyped_jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
        for aval, sharding in zip(avals, _shardings(bound, slot, devices), strict=True)
    ]
    return untyped_jax.tree_util.tree_unflatten(slot.tree, leaves)


def _placed(bound: Bound, slot: Slot, tree: Any, devices: Sequence[Any]) -> Any:
    slot.check("place", tree)
    flat, structure = untyped_jax.tree_util.tree_flatten(tree)
    leaves: list[Any] = flat
    first = {id(leaf): n for n, leaf in reversed(list(enumerate(leaves)))}
    again = [n for n, leaf in enumerate(leaves) if first[id(leaf)] != n]
    if spans_processes(devices):
        leaves = same_everywhere([f"{slot.name}{path}" for path in slot.paths], leaves, devices)
    arrays = all_placed(leaves, _shardings(bound, slot, devices))
    return untyped_jax.tree_util.tree_unflatten(structure, with_copies(arrays, again))


def _same(tree: Any) -> Any:
    return tree


def _kept(_name: str) -> bool:
    return True


def _shardings(bound: Bound, slot: Slot, devices: Sequence[Any]) -> tuple[NamedSharding, ...]:
    """Where the leaves of an argument lie, PRNG keys as keys."""
    keys = dict(bound.traced.key_inputs)
    inputs = of_keys(bound.planned.plan.stage.inputs, keys)
    tensors = [bound.traced.graph.inputs[position] for position in slot.positions]
    return shardings(
        [inputs[position] for position in slot.positions], bound.jax_mesh(devices), tensors
    )


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


# States that are made there -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Maker:
    """What makes a state: a function of the arrays among its arguments; all others are fixed."""

    fn: Callable[..., Any]
    arrays: tuple[Any, ...]

    @classmethod
    def of(
        cls, make_state: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Maker:
        """`make_state` with these arguments."""
        leaves, tree = untyped_jax.tree_util.tree_flatten((args, kwargs))
        positions = [n for n, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray)]

        def made(*arrays: Any) -> Any:
            given = dict(zip(positions, arrays, strict=True))
            every = [given.get(n, leaf) for n, leaf in enumerate(leaves)]
            args, kwargs = untyped_jax.tree_util.tree_unflatten(tree, every)
            return make_state(*args, **kwargs)

        made.__name__ = function_name(make_state)
        return cls(made, tuple(leaves[n] for n in positions))

    @contextmanager
    def opened(self) -> Generator[Made]:
        """What it makes as arrays, to be closed within the context: objects of libraries are opened."""
        adapter = self._adapter()
        parts = CallParts(self.fn, self.arrays, {})
        if adapter is None:
            yield Made(Opened(parts, None, _as_it_is, _as_it_is), function_name(self.fn))
            return
        with adapter.open(parts, _kept) as opened:
            yield Made(opened, function_name(self.fn))

    def _adapter(self) -> Adapter | None:
        """The adapter for what it makes, which is made in shape only."""
        found: list[Adapter | None] = []

        def probe(*arrays: Any) -> None:
            found.append(adapter_of((self.fn(*arrays),), {}))

        untyped_jax.eval_shape(probe, *self.arrays)
        return found[0]


class Made:
    """What a maker makes, of `opened`, its call as one of arrays; `name` is the maker's."""

    def __init__(self, opened: Opened, name: str) -> None:
        self._opened = opened
        self.what = f"init: the result of {name}"
        self._shapes = untyped_jax.eval_shape(opened.parts.fn, *opened.parts.args)

    @property
    def shapes(self) -> Any:
        """The shapes of its arrays."""
        return self._shapes.result if isinstance(self._shapes, Returned) else self._shapes

    def example(self) -> Any:
        """The state with shapes for arrays."""
        return self._opened.shapes(self._shapes, self._opened.parts.args, {})

    def run(self, settings: Settings, compiled: Compiles) -> Any:
        """The state, planned under `settings`."""
        parts = self._opened.parts
        return self._opened.close(compiled(parts.fn, settings)(*parts.args), parts.args, {})


def init(
    bound: Bound, maker: Maker, argument: Selector, devices: Sequence[Any], compiled: Compiles
) -> Any:
    """As `Plan.init`, on these devices; `compiled` makes a function that is planned when it is called."""
    slot = slot_of(bound, argument)
    with maker.opened() as made:
        slot.check(made.what, made.shapes)
        state = made.run(settings_of_state(bound, slot, devices), compiled)
    inputs = bound.traced.graph.inputs
    return (
        place(bound, state, argument, devices)
        if any(inputs[n].on_host for n in slot.positions)
        else state
    )


def settings_of_state(bound: Bound, slot: Slot, devices: Sequence[Any]) -> Settings:
    """How what makes an argument of a plan is planned: the results lie as the argument does."""
    placements = [bound.planned.plan.stage.inputs[position] for position in slot.positions]
    names = [f"output{path or '[0]'}" for path in slot.paths]
    pins = tuple(  # numbers, which may be literals, have no choice
        Pin(Named(name), Layout(placed.dims))
        for name, placed in zip(names, placements, strict=True)
        if placed.dims
    )
    own = bound.settings

    return Settings(
        cluster=bound.cluster,
        mesh=dict(bound.mesh.axes),
        memory_limit_bytes=own.memory_limit_bytes,
        carry=None,
        strict=own.strict,
        options=own.options,
        devices=tuple(devices),
        pricing=own.pricing,
        cache=own.cache,
        constraints=(Follow(f"{slot.name} of {bound.name}", pins),),
    )


def _as_it_is(returned: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    return returned
