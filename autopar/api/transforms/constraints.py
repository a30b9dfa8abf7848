"""What a derived function is held to: the constraints of the function that it was made from, where they apply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autopar.api.settings import Settings
from autopar.api.transforms.planned import Planned
from autopar.errors import InvalidConstraint
from autopar.search.constraints.matching import matches
from autopar.search.constraints.records import Constraint, Forbid, Layout, Named, Pin, Replicate


def settings_for(
    planned: Planned, what: str, *, carry: Any = None, constraints: Sequence[Constraint] | None = None
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
    planned: Planned, dims: Sequence[int | None], out_dims: Sequence[int | None]
) -> tuple[Constraint, ...]:
    """The constraints of `planned` where operands have a dim more, at `dims`, and results one at `out_dims`.

    That dim is left open, as jax.vmap leaves it in shardings.

    Raises:
      InvalidConstraint: for one on the placement of operators, of which it is not known where they have that dim.
    """
    flat = planned.flat
    added = dict(zip((*flat.inputs, *flat.outputs), (*dims, *out_dims), strict=True))
    return tuple(one for constraint in planned.settings.constraints for one in _mapped(constraint, added))


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
    return [replace(constraint, target=Named(name), layout=_widened(constraint.layout, added[name])) for name in names]


def _widened(layout: Layout, dim: int | None) -> Layout:
    """`layout` with an open dim inserted at `dim`."""
    if dim is None:
        return layout
    dims = [*layout.dims, *((),) * (dim - len(layout.dims))]
    dims.insert(dim, None)
    return replace(layout, dims=tuple(dims))
