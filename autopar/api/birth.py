"""Birth: states that are made where a plan has them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from autopar._compat import untyped_jax
from autopar.api.adapters.opening import adapter_of
from autopar.api.adapters.protocol import Adapter, Opened, Parts
from autopar.api.make import name_of
from autopar.api.placing import Selector, Slot, place, slot_of
from autopar.api.settings import Settings
from autopar.errors import SignatureMismatch
from autopar.search.constraints.records import Follow, Layout, Named, Pin
from autopar.trace.returned import Returned

if TYPE_CHECKING:
    from autopar.api.compiled import Compiled
    from autopar.api.plan import Plan


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

    @contextmanager
    def opened(self) -> Generator[Made]:
        """What it makes as arrays, to be closed within the context: objects of libraries are opened."""
        adapter = self._adapter()
        parts = Parts(self.fn, self.arrays, {})
        if adapter is None:
            yield Made(Opened(parts, None, _as_it_is, _as_it_is), name_of(self.fn))
            return
        with adapter.open(parts, _kept) as opened:
            yield Made(opened, name_of(self.fn))

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

    def run(self, settings: Settings) -> Any:
        """The state, planned under `settings`."""
        from autopar.api.compiled import Compiled

        parts = self._opened.parts
        return self._opened.close(Compiled(parts.fn, settings)(*parts.args), parts.args, {})


def init(plan: Plan, maker: Maker, argument: Selector, devices: Sequence[Any]) -> Any:
    """As `Plan.init`, on these devices."""
    slot = slot_of(plan, argument)
    with maker.opened() as made:
        slot.check(made.what, made.shapes)
        state = made.run(settings_of_state(plan, slot, devices))
    inputs = plan.bound.traced.graph.inputs
    return place(plan, state, argument, devices) if any(inputs[n].on_host for n in slot.positions) else state


def plan_for(compiled: Compiled, maker: Maker, argument: int, others: Sequence[Any] | None) -> Plan:
    """The plan of `compiled` that such a state is for: with the `others` as its other arguments, or the first made.

    Raises:
      SignatureMismatch: none was made that takes such a state.
    """
    with maker.opened() as made:
        if others is not None:
            return compiled.plan(*others[:argument], made.example(), *others[argument:])
        return _first_of(compiled.made, made, argument)


def _first_of(plans: Sequence[Plan], made: Made, argument: int) -> Plan:
    refusals: list[SignatureMismatch] = []
    for plan in plans:
        try:
            slot_of(plan, argument).check(made.what, made.shapes)
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


def _as_it_is(returned: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    return returned


def _kept(_name: str) -> bool:
    return True
