"""Modes: constraints by name. Each preset is a tuple of ordinary constraints, which may stand beside others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from autopar.errors import InvalidOption
from autopar.search.constraints.records import (
    ALL_AXES,
    Complete,
    Constraint,
    Layout,
    Pin,
    Replicate,
    Role,
    Steps,
)

Mode = Literal["auto", "data_parallel", "semi_auto", "manual"]


def data_parallel() -> tuple[Constraint, ...]:
    """Data is split along its first dim over the whole mesh where that divides evenly, every other input is whole.

    Values are reduced, never gathered or sent elsewhere (where that leaves any plan), so what is split along the batch
    stays so. The rest is searched.
    """
    batch = Layout(((ALL_AXES,),))
    return (
        Pin(Role("data"), batch, uneven="replicate"),
        Replicate(Role("others")),
        Steps(("all_reduce", "slice", "mask")),
    )


def semi_auto(pins: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """What is stated holds, the rest is searched.

    Raises:
      InvalidOption: if nothing is stated.
    """
    if not pins:
        raise InvalidOption(
            "mode 'semi_auto' is for plans of which you state a part: pass constraints=(autopar.pin(...), ...), or "
            "mode='auto' to have everything searched"
        )
    return tuple(pins)


def manual(pins: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """What is stated holds, and it must leave every input and output one placement: what lies between is searched."""
    return (*pins, Complete())


def constraints_of(mode: str, given: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """The constraints of `mode` and those that are `given`.

    auto: those given. data_parallel: its own and those given. semi_auto, manual: those given, of which there must be
    some, or one for everything.

    Raises:
      InvalidOption: for an unknown mode, or "semi_auto" without constraints.
    """
    match mode:
        case "auto":
            return tuple(given)
        case "data_parallel":
            return (*data_parallel(), *given)
        case "semi_auto":
            return semi_auto(given)
        case "manual":
            return manual(given)
        case _:
            raise InvalidOption(f"unknown mode {mode!r}; the modes are {', '.join(get_args(Mode))}")
