"""Indices and starts of every integer type, about a dim's ends and far beyond: clamped, wrapped, filled, dropped."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import pytest
from jax import lax

from autopar.core.mesh import DeviceMesh
from autopar.emit.local import dynamic
from autopar.ops.rules import rule_of
from autopar.ops.rules.enumerate import enumerate_strategies
from tests.ops.build import Case, build
from tests.ops.cases import case, floats
from tests.ops.drawn_indexing import MODES, SCATTERS
from tests.ops.far import WIDTHS, Places
from tests.ops.property import check_strategy

MESH = DeviceMesh.of({"x": 4})
ROWS, COUNT, DRAWS = 8, 64, 24
GATHERED = lax.GatherDimensionNumbers((1,), (0,), (0,))
SCATTERED = lax.ScatterDimensionNumbers((1,), (0,), (0,))


SOME = [
    pytest.param(dtype, marks=[pytest.mark.slow] * (n % 3 > 0)) for n, dtype in enumerate(WIDTHS)
]
"""Every third width, all in the slow tests."""


def check(found: Case) -> None:
    """Every strategy."""
    with jax.enable_x64(True):
        built = build(found)
        for strategy in enumerate_strategies(rule_of(built.op), MESH):
            check_strategy(built, strategy, MESH)


def places(dtype: str) -> Places:
    return Places((COUNT, 1), dtype, size=ROWS)


def gather(mode: str, dtype: str) -> Case:
    read = partial(lax.gather, dimension_numbers=GATHERED, slice_sizes=(1, 4), mode=mode)
    return case("gather", lambda x, i: read(x, i), floats((ROWS, 4)), places(dtype))


def scatter(kind: str, mode: str, dtype: str) -> Case:
    write = partial(SCATTERS[kind], dimension_numbers=SCATTERED, mode=mode)
    return case(
        kind, lambda x, i, u: write(x, i, u), floats((ROWS, 4)), places(dtype), floats((COUNT, 4))
    )


def slices(dtype: str, number: int) -> list[Case]:
    """A slice read and one written in two dims, at one of many pairs of starts."""
    starts = Places((2 * DRAWS,), dtype, size=ROWS)
    at = slice(2 * number, 2 * number + 2)
    x, part = floats((ROWS, ROWS)), floats((3, 5))
    return [
        case(
            "dynamic_slice", lambda x, i: lax.dynamic_slice(x, list(i[at]), part.shape), x, starts
        ),
        case(
            "dynamic_update_slice",
            lambda x, u, i: lax.dynamic_update_slice(x, u, list(i[at])),
            x,
            part,
            starts,
        ),
    ]


@pytest.mark.parametrize("dtype", SOME)
@pytest.mark.parametrize("mode", MODES)
def test_gather(mode: str, dtype: str) -> None:
    check(gather(mode, dtype))


@pytest.mark.parametrize("dtype", SOME)
@pytest.mark.parametrize("kind", ["scatter", "scatter-add", "scatter-max"])
def test_scatter(kind: str, dtype: str) -> None:
    for mode in MODES:
        check(scatter(kind, mode, dtype))


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("dtype", SOME)
def test_dynamic_slices(dtype: str) -> None:
    for number in range(DRAWS):
        for found in slices(dtype, number):
            check(found)


def test_a_start_that_is_counted_from_the_end_once_more_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = dynamic.lax.dynamic_slice

    def counted_from_the_end(x: Any, starts: Any, sizes: Any, **_: Any) -> Any:
        return plain(x, starts, sizes)

    monkeypatch.setattr(dynamic._compat, "ADDS_STARTS", False)  # clamped starts are not negative
    monkeypatch.setattr(dynamic.lax, "dynamic_slice", counted_from_the_end)
    with pytest.raises(AssertionError):
        test_dynamic_slices("int32")
