"""Other people's models: a training step through autopar.compile is jax.jit's, and nearly all of its work is split.

Needs the extra `models`: run by `make test-models`. A library that is missing fails its models' tests.
"""

from __future__ import annotations

import pytest

from tests.models.check import ONE_AXIS, TWO_AXES, check_program, compare_with_jit, share_of
from tests.models.table import ENTRIES, Entry

pytestmark = pytest.mark.models


def rows(*, two_axes: bool = False) -> list[object]:
    """The models as parameters, each with leave to replicate the operators that it names and no others."""
    return [
        pytest.param(
            entry,
            id=entry.name,
            marks=[
                pytest.mark.filterwarnings(f"ignore:no sharding rule for '{kind}'")
                for kind in entry.without_rule
            ],
        )
        for entry in ENTRIES
        if entry.on_two_axes or not two_axes
    ]


@pytest.mark.parametrize("entry", rows())
def test_a_step_is_the_one_of_jax_and_is_split(entry: Entry) -> None:
    plan = compare_with_jit(entry, ONE_AXIS)
    found = share_of(plan)
    if entry.unsplit:
        assert found.share < entry.goal, (
            f"{found.share:.1%} is split: take the reason out of the table"
        )
    else:
        assert found.share >= entry.goal, f"{found.share:.1%} is split; not split: {found.rest[:5]}"


@pytest.mark.parametrize("entry", rows(two_axes=True))
def test_on_two_axes_too_and_the_collectives_are_the_plans(entry: Entry) -> None:
    check_program(entry, TWO_AXES)


def test_at_least_twenty_models_of_every_kind() -> None:
    assert len(ENTRIES) >= 20
    assert {entry.name for entry in ENTRIES if entry.on_two_axes}
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)
