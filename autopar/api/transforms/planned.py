"""Planned: a call of a compiled function on flat arrays, as the primitive holds it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from autopar._compat import untyped_jax
from autopar.api.options import Settings
from autopar.errors import InvalidConstraint
from autopar.search.constraints.matching import matches
from autopar.search.constraints.records import Constraint, Forbid, Layout, Named, Pin, Replicate
from autopar.trace.flat import FlatFunction

ArgsKwargs = tuple[tuple[Any, ...], dict[str, Any]]
Late = Callable[[Settings], Settings]


class CompiledFunction(Protocol):
    """A compiled function, as far as a planned call needs it."""

    @property
    def settings(self) -> Settings:
        """How it is planned."""
        ...

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Its results for arrays."""
        ...

    def inlined(self, *args: Any, **kwargs: Any) -> Any:
        """Its results for placeholders of an outer trace: the planned program becomes a part of that."""
        ...

    def plan(self, *args: Any, **kwargs: Any) -> Any:
        """Its plan for arguments like these."""
        ...

    @property
    def made(self) -> Sequence[Any]:
        """The plans of this function that were made so far."""
        ...

    def devices(self) -> Sequence[Any]:
        """Those that it runs on."""
        ...

    def known_mesh(self) -> Any:
        """The JAX mesh of its plan, as far as that is known before it is planned; or None."""
        ...

    @property
    def late(self) -> Late | None:
        """What its settings depend on that is not known before it is planned."""
        ...

    def derive(self, fn: FlatFunction, settings: Settings, late: Late | None) -> CompiledFunction:
        """Another function, compiled for the same devices."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class PlannedFunction:
    """A function of flat arrays that is planned when it runs or is lowered.

    `results` are the abstract values of its results and `effects` what else it does. It is `narrow` if it computes with
    floats of a narrow range, such as float16, whose gradients have to be scaled before and not behind. If `loss`, a
    first result that is a scalar is taken for what will be differentiated.

    `compiled` plans it under `settings` and runs it, on the arguments that `unflatten` makes of the operands. `derived`
    are the functions that transformations made of it, by what made them: a second call finds the first one's plan.
    """

    flat: FlatFunction
    results: tuple[Any, ...]
    effects: frozenset[Any]
    narrow: bool
    settings: Settings
    compiled: CompiledFunction
    unflatten: Callable[[Sequence[Any]], ArgsKwargs]
    loss: bool = False
    derived: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])

    def __repr__(self) -> str:
        return self.flat.name

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """The flat results for arrays."""
        args, kwargs = self.unflatten(operands)
        return untyped_jax.tree.leaves(self.compiled.run(*args, **kwargs))

    def inline(self, operands: Sequence[Any]) -> list[Any]:
        """The flat results for placeholders of an outer trace."""
        args, kwargs = self.unflatten(operands)
        return untyped_jax.tree.leaves(self.compiled.inlined(*args, **kwargs))

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` gives, which is called once for each key."""
        if key not in self.derived:
            self.derived[key] = make()
        return self.derived[key]

    def derive(
        self,
        flat: FlatFunction,
        results: Sequence[Any],
        settings: Settings,
        effects: frozenset[Any] = frozenset(),
        late: Late | None = None,
    ) -> PlannedFunction:
        """A planned call of another function, compiled for the same devices."""
        compiled = self.compiled.derive(flat, settings, late)
        return PlannedFunction(
            flat, tuple(results), effects, self.narrow, settings, compiled, as_they_are
        )


def as_they_are(operands: Sequence[Any]) -> ArgsKwargs:
    """Operands as positional arguments."""
    return tuple(operands), {}


def merged(operands: Sequence[Any], positions: Sequence[int], values: Sequence[Any]) -> list[Any]:
    """`operands` with `values` in their place at `positions`."""
    full = list(operands)
    for position, value in zip(positions, values, strict=True):
        full[position] = value
    return full


def spread(
    count: int, positions: Sequence[int], values: Sequence[Any], others: Sequence[Any]
) -> list[Any]:
    """`count` values: `values` at `positions`, `others` in order elsewhere."""
    place = dict(zip(positions, values, strict=True))
    rest = iter(others)
    return [place[n] if n in place else next(rest) for n in range(count)]


def at(values: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    """The values at `positions`."""
    return [values[n] for n in positions]


# What a derived function is held to -----------------------------------------------------------------------------------


def settings_for(
    planned: PlannedFunction,
    what: str,
    *,
    carry: Any = None,
    constraints: Sequence[Constraint] | None = None,
) -> Settings:
    """How a function derived from `planned` is planned; its stages are dumped into a directory `what` of its own.

    `carry` is for gradients, which then lie as what they belong to. Other functions have inputs and outputs besides
    those of `planned`: in mode "manual" these are searched.
    """
    settings = planned.settings
    held = settings.constraints if constraints is None else tuple(constraints)
    mode = "auto" if settings.mode == "manual" and carry is None else settings.mode
    dump = None if settings.dump is None else Path(settings.dump) / what
    own = settings.counted_as((), ())
    return replace(own, mode=mode, donate_argnames=(), carry=carry, constraints=held, dump=dump)


def mapped_constraints(
    planned: PlannedFunction, dims: Sequence[int | None], out_dims: Sequence[int | None]
) -> tuple[Constraint, ...]:
    """The constraints of `planned` where operands have a dim more, at `dims`, and results one at `out_dims`.

    That dim is left open, as jax.vmap leaves it in shardings.

    Raises:
      InvalidConstraint: for one on the placement of operators, of which it is not known where they have that dim.
    """
    flat = planned.flat
    added = dict(zip((*flat.inputs, *flat.outputs), (*dims, *out_dims), strict=True))
    return tuple(
        one for constraint in planned.settings.constraints for one in _mapped(constraint, added)
    )


def _mapped(constraint: Constraint, added: dict[str, int | None]) -> list[Constraint]:
    if isinstance(constraint, Replicate):
        constraint = Pin(constraint.target, Layout(()))
    if not isinstance(constraint, Pin | Forbid) or constraint.layout is None:
        return [constraint]

    pattern = constraint.target.pattern if isinstance(constraint.target, Named) else ""
    names = [name for name, _ in matches(pattern, added)]
    if not names:
        raise InvalidConstraint(
            f"{constraint}: under jax.vmap there is a dim more, of which it is known for inputs and outputs only where "
            f"it lies. Map the function inside the one that you compile, or leave the constraint out."
        )

    return [
        replace(constraint, target=Named(name), layout=_widened(constraint.layout, added[name]))
        for name in names
    ]


def _widened(layout: Layout, dim: int | None) -> Layout:
    """`layout` with an open dim inserted at `dim`."""
    if dim is None:
        return layout
    dims = [*layout.dims, *((),) * (dim - len(layout.dims))]
    dims.insert(dim, None)
    return replace(layout, dims=tuple(dims))
