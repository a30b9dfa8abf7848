"""Constraints as users write them: PartitionSpecs and strings in, records (`search.constraints.records`) out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from jax.sharding import NamedSharding, PartitionSpec

from autopar.core.placement import Placement
from autopar.errors import InvalidConstraint
from autopar.search.constraints import modes
from autopar.search.constraints.records import (
    At,
    Constraint,
    Forbid,
    Layout,
    Named,
    Pin,
    Replicate,
    Target,
    Tie,
)

TargetLike = str | Target
LayoutLike = PartitionSpec | Placement | NamedSharding


def at(
    source: str = "",
    *,
    kind: str = "",
    scope: str = "",
    result: int | None = None,
    operand: int | None = None,
) -> At:
    """A result (the first, unless stated) or an operand of all operators that are as stated.

    A sharding constraint in the function's own code is an operator too: at("model.py:41", kind="sharding_constraint").

    Args:
      source: a source line ("model.py:41") or file ("model.py"); `*` stands for any characters, as in all that follow.
      kind: the operator's kind, JAX's name of the primitive ("dot_general").
      scope: its name stack ("*attention*").
      result: which result.
      operand: which operand, instead of a result.

    Raises:
      InvalidConstraint: if nothing is stated, or both a result and an operand.
    """
    if not (source or kind or scope):
        raise InvalidConstraint("at() names every operator: state a source line, a kind or a scope")
    if result is not None and operand is not None:
        raise InvalidConstraint(
            f"at({source!r}, ...) names result {result} and operand {operand}: state one of them"
        )
    if operand is not None:
        return At(source, kind, scope, "operand", operand)
    return At(source, kind, scope, "result", result or 0)


def pin(target: TargetLike, placement: LayoutLike) -> Pin:
    """What `target` names lies so.

    Args:
      target: the path of an input or output as the plan's report shows it (`"params['w1']"`, `"output[0]"`), the
        beginning of paths (`"params['layers']"`), one with `*` for any characters (`"params['layers'][*]['w1']"`), a
        name given by `jax.ad_checkpoint.checkpoint_name`, or operators (`at`): then their result, as they leave it.
      placement: a PartitionSpec; dims that it leaves out are whole, PartitionSpec.UNCONSTRAINED ones are searched. A
        Placement says which axes are unreduced, too.
    """
    return Pin(_target("pin", target), _layout("pin", target, placement))


def replicate(target: TargetLike) -> Replicate:
    """What `target` (see `pin`) names is whole on every device."""
    return Replicate(_target("replicate", target))


def forbid(target: TargetLike, what: str | LayoutLike) -> Forbid:
    """What `target` (see `pin`) names is never split over the mesh axis `what`, or never lies as the placement `what`.

    An operator that is forbidden an axis does not use it at all: in no operand, result or index that it sums over.
    """
    if isinstance(what, str):
        return Forbid(_target("forbid", target), axis=what)
    return Forbid(_target("forbid", target), _layout("forbid", target, what))


def tie(*targets: TargetLike) -> Tie:
    """What the targets (see `pin`) name has one placement, the same for all.

    Several targets that have `*` tie what they name with the same text in its place: tie("params*", "opt['m']*") ties
    every parameter to its own moment. One target ties all that it names.

    Raises:
      InvalidConstraint: if there is no target.
    """
    if not targets:
        raise InvalidConstraint("tie() ties nothing: name what is to have one placement")
    return Tie(tuple(_target("tie", target) for target in targets))


def data_parallel() -> tuple[Constraint, ...]:
    """The constraints of mode "data_parallel": data split along its first dim over all axes, other inputs whole."""
    return modes.data_parallel()


def semi_auto(pins: Mapping[str, LayoutLike]) -> tuple[Constraint, ...]:
    """Pins from placements by path (see `pin`); the rest is searched."""
    return modes.semi_auto(_pins(pins))


def manual(pins: Mapping[str, LayoutLike]) -> tuple[Constraint, ...]:
    """Pins from placements by path (see `pin`), which must leave every input and output one placement.

    What lies between inputs and outputs is searched, priced and checked.
    """
    return modes.manual(_pins(pins))


def checked(constraints: object) -> tuple[Constraint, ...]:
    """`constraints` as a tuple.

    Raises:
      InvalidConstraint: if one is no constraint.
    """
    given: object = constraints
    if isinstance(given, get_args(Constraint)):
        given = (given,)
    found = tuple(cast("Sequence[object]", given)) if isinstance(given, list | tuple) else (given,)
    for constraint in found:
        if not isinstance(constraint, get_args(Constraint)):
            raise InvalidConstraint(
                f"{constraint!r} is no constraint: pass constraints=(autopar.pin(...), autopar.replicate(...), ...)"
            )
    return cast("tuple[Constraint, ...]", found)


def _pins(pins: Mapping[str, LayoutLike]) -> tuple[Constraint, ...]:
    return tuple(pin(target, placement) for target, placement in pins.items())


def _target(what: str, target: object) -> Target:
    if isinstance(target, get_args(Target)):
        return cast("Target", target)
    if isinstance(target, str) and target:
        return Named(target)
    raise InvalidConstraint(
        f"{what}({target!r}, ...): pass the path of an input or output, such as \"params['w1']\" or 'opt_state*', or "
        f"autopar.at(...) for operators"
    )


def _layout(what: str, target: object, placement: object) -> Layout:
    spec: Any = placement.spec if isinstance(placement, NamedSharding) else placement
    if isinstance(spec, Placement):
        return Layout(spec.dims, spec.unreduced, spec.kind)
    if not isinstance(spec, PartitionSpec):
        raise InvalidConstraint(
            f"{what}({target!r}, {placement!r}): pass a jax.sharding.PartitionSpec, such as P(None, 'model'), or an "
            f"autopar.Placement"
        )
    entries: tuple[Any, ...] = tuple(cast("Any", spec))
    return Layout(tuple(map(_axes, entries)), tuple(sorted(getattr(spec, "unreduced", ()))))


def _axes(entry: Any) -> tuple[str, ...] | None:
    if entry is PartitionSpec.UNCONSTRAINED:
        return None
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(map(str, entry))
