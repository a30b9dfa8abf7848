"""Parameters of operators drawn at random, valid by construction; every strategy against the operator run whole."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jax import lax

from autopar.core.mesh import DeviceMesh
from autopar.ops.rules import rule_of
from autopar.ops.rules.enumerate import enumerate_strategies
from tests.ops.build import Arg, Case, build
from tests.ops.cases import case, floats
from tests.ops.cases_linear_algebra import Numbers, lower, positive, ragged
from tests.ops.drawn_indexing import gathers, scatters, slices
from tests.ops.far import INTEGERS, Places
from tests.ops.property import check_strategy

MESH = DeviceMesh.of({"x": 2, "y": 2})
SIZES = st.sampled_from([1, 2, 4])
ANY_SIZES = st.sampled_from([1, 1, 2, 2, 4, 4, 0])
DRAW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


def check(found: Case) -> None:
    """Some of the strategies on two axes, those that use both among them."""
    with jax.enable_x64(True):
        built = build(found)
        assert built.op.kind == found.kind
        strategies = list(enumerate_strategies(rule_of(built.op), MESH))
        np.random.default_rng(0).shuffle(strategies)
        strategies.sort(
            key=lambda strategy: -len({axis for _, axes in strategy.factors for axis in axes})
        )
        for strategy in strategies[:3] + strategies[-2:]:
            check_strategy(built, strategy, MESH)


# --- products ------------------------------------------------------------------------------------------------------


@st.composite
def dots(draw: st.DrawFn) -> Case:
    """Batch, summed and free dims of either side, in any order."""
    batch, summed, left, right = (draw(st.lists(ANY_SIZES, max_size=2)) for _ in range(4))
    sides = [
        [*(("b", n) for n in range(len(batch))), *(("k", n) for n in range(len(summed)))]
        for _ in range(2)
    ]
    sides = [
        draw(st.permutations([*s, *(("f", n) for n in range(len(f)))]))
        for s, f in zip(sides, (left, right), strict=True)
    ]
    sizes = [{"b": batch, "k": summed, "f": free} for free in (left, right)]
    shapes = [
        tuple(size[kind][n] for kind, n in side) for side, size in zip(sides, sizes, strict=True)
    ]
    contract, shared = (
        tuple(tuple(side.index((kind, n)) for n in range(len(dims))) for side in sides)
        for kind, dims in (("k", summed), ("b", batch))
    )
    return case(
        "dot_general", lambda x, y: lax.dot_general(x, y, (contract, shared)), *map(floats, shapes)
    )


@st.composite
def groups(draw: st.DrawFn) -> Case:
    """Rows kept, and rows summed up; sizes that leave rows over and groups empty, or are no sizes of groups."""
    rows, count, k, n = (draw(st.sampled_from([2, 4, 8])) for _ in range(4))
    sizes = Places((count,), draw(INTEGERS), size=rows)
    if draw(st.booleans()):
        numbers, y = Numbers((((1,), (1,)), ((), ())), (0,), (0,)), (count, k, n)
    else:
        numbers, y = Numbers((((0,), (0,)), ((), ())), (0,), ()), (rows, n)
    anything = lambda x, y, sizes: lax.ragged_dot_general(x, y, sizes, numbers)  # noqa: E731
    product = draw(st.sampled_from([ragged(numbers, rows), anything]))
    return case("ragged_dot_general", product, floats((rows, k)), floats(y), sizes)


# --- matrices and transforms ---------------------------------------------------------------------------------------


@st.composite
def matrices(draw: st.DrawFn) -> Case:
    batch = tuple(draw(st.lists(ANY_SIZES, max_size=2)))
    rows, columns = draw(SIZES), draw(SIZES)
    square, plain, known = (
        floats((*batch, rows, rows)),
        floats((*batch, rows, columns)),
        floats((*batch, rows, 4)),
    )
    solve = partial(lax.linalg.triangular_solve, left_side=True, lower=True)
    return draw(
        st.sampled_from(
            [
                case("cholesky", positive(lax.linalg.cholesky), square),
                case("eigh", lax.linalg.eigh, square),
                case("lu", lax.linalg.lu, plain),
                case("qr", lax.linalg.qr, plain),
                case("svd", lax.linalg.svd, plain),
                case("triangular_solve", lower(solve), square, known),
                case("fft", jnp.fft.fft, Arg(plain.shape, "complex64")),
                case("fft", lambda x: jnp.fft.rfftn(x, axes=(-2, -1)), plain),
            ]
        )
    )


# --- moving and reducing -------------------------------------------------------------------------------------------
SHAPES = st.lists(ANY_SIZES, min_size=1, max_size=4).map(tuple)
REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")


@st.composite
def moves(draw: st.DrawFn) -> Case:
    shape = draw(SHAPES)
    order = tuple(draw(st.permutations(range(len(shape)))))
    axes = tuple(draw(st.sets(st.sampled_from(range(len(shape))), min_size=1)))
    kind = draw(st.sampled_from(REDUCTIONS))
    stretched = tuple(4 if size == 1 else size for size in shape)
    into = tuple(
        sorted(draw(st.sets(st.sampled_from(range(6)), min_size=len(shape), max_size=len(shape))))
    )
    larger = tuple(stretched[into.index(d)] if d in into else 2 for d in range(6))
    found = [
        case(kind, lambda x: getattr(lax, kind)(x, axes), floats(shape)),
        case("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, larger, into), floats(shape)),
    ]
    if list(order) != sorted(order):
        found.append(case("transpose", lambda x: lax.transpose(x, order), floats(shape)))
    return draw(st.sampled_from(found))


@st.composite
def reshapes(draw: st.DrawFn) -> Case:
    shapes: list[tuple[int, ...]] = []
    for sizes in (draw(st.permutations([2, 2, 3, 2])), draw(st.permutations([2, 3, 2, 2]))):
        cuts = sorted(draw(st.sets(st.sampled_from([1, 2, 3]))))
        parts = [sizes[i:j] for i, j in zip([0, *cuts], [*cuts, len(sizes)], strict=True)]
        shapes.append(tuple(math.prod(part) for part in parts))
    assume(shapes[0] != shapes[1])
    return case("reshape", lambda x: lax.reshape(x, shapes[1]), floats(shapes[0]))


DRAWN: dict[str, tuple[st.SearchStrategy[Case], int]] = {
    "products": (dots(), 12),
    "ragged products": (groups(), 12),
    "gathers": (gathers(), 20),
    "scatters": (scatters(), 28),
    "dynamic slices": (slices(), 20),
    "matrices": (matrices(), 12),
    "moves and reductions": (moves(), 30),
    "reshapes": (reshapes(), 30),
}
"""How operators are drawn, and how many."""


@pytest.mark.parametrize(
    "share", [pytest.param(6, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", DRAWN)
def test_a_drawn_operator_computes_the_same_on_slices(name: str, share: int) -> None:
    cases, examples = DRAWN[name]
    settings(DRAW, max_examples=examples // share)(given(cases)(check))()
