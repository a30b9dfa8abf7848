"""Operators that communicate inside, with drawn parameters, against the operator run whole."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from zlib import crc32

import numpy as np
import pytest

from autopar.core.halo import Window
from autopar.core.strategy import Strategy
from autopar.ops.rules import rule_of
from autopar.ops.rules.enumerate import enumerate_strategies
from tests.ops.build import Built, Case, build
from tests.ops.drawn import MOVED, RANKED, WINDOWED, Rng, convolution
from tests.ops.property import MESHES, check_strategy

LOCAL = {"dynamic_slice", "dynamic_update_slice"}  # a split dim needs no exchange
Draw = Callable[[Rng], Case]


def interesting(built: Built, rng: Rng, count: int) -> list[tuple[int, Strategy]]:
    """Some strategies on any mesh, those that exchange the most first."""
    found = [
        (n, s)
        for n, mesh in enumerate(MESHES)
        for s in enumerate_strategies(rule_of(built.op), mesh)
    ]
    wanted = [(n, s) for n, s in found if s.exchanges or (built.op.kind in LOCAL and s.factors)]
    order = sorted(rng.permutation(len(wanted)), key=lambda n: -len(wanted[n][1].exchanges))
    return [wanted[n] for n in order[:: max(1, len(order) // count)][:count]]


def check_drawn(draw: Draw, seed: int, count: int) -> int:
    """Draws an operator and checks up to `count` of its strategies; how many it were."""
    rng = np.random.default_rng([seed, crc32(draw.__name__.encode())])
    built = build(draw(rng))
    strategies = interesting(built, rng, count)
    for mesh, strategy in strategies:
        check_strategy(built, strategy, MESHES[mesh])
    return len(strategies)


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("draw", [*WINDOWED, *RANKED, *MOVED], ids=lambda draw: draw.__name__)
def test_a_drawn_operator_that_communicates(draw: Draw) -> None:
    """Two strategies, of as many draws as it takes: of some nothing can be split."""
    drawn = accumulate(check_drawn(draw, seed, 2) for seed in range(3))
    assert any(checked >= 2 for checked in drawn)


@pytest.mark.parametrize("shift", [(1, 1), (0, -1)])
def test_a_halo_that_begins_or_ends_at_the_wrong_element_is_found(
    shift: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Window._run

    def wrong(window: Window, local: int) -> tuple[int, int]:
        first, last = right(window, local)
        return first + shift[0], last + shift[1]

    monkeypatch.setattr(Window, "_run", wrong)
    with pytest.raises((AssertionError, TypeError)):
        check_drawn(convolution, 0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
@pytest.mark.parametrize("draw", [*WINDOWED, *RANKED, *MOVED], ids=lambda draw: draw.__name__)
def test_many(draw: Draw, seed: int) -> None:
    check_drawn(draw, seed, 4)
