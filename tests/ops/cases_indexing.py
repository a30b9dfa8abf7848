"""Cases of gather and scatter in the forms that indexing, take, segment_sum, one-hot and vmap produce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.ops.build import Case
from tests.ops.cases import case, floats, ints

_X, _I, _U = floats((8, 4)), ints((4,), 8), floats((4, 4))
_BATCH, _STARTS = floats((4, 8, 4)), ints((4,), 8)


def _rows(width: int) -> Callable[..., Any]:
    return lambda x, i: lax.dynamic_slice(x, (i, 0), (width, 4))


def _fixed(width: int, mode: str) -> Callable[..., Any]:
    """Runs of rows, and always the first two columns."""
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(0, 1), collapsed_slice_dims=(), start_index_map=(0,)
    )
    return lambda x, i: lax.gather(x, i[None], numbers, (width, 2), mode=mode)


def _added(kind: str, mode: str) -> Callable[..., Any]:
    """Runs of three rows, in two of four columns, that may lie over one another."""
    numbers = lax.ScatterDimensionNumbers((1, 2), (), (0, 1))
    return lambda x, i, u: getattr(lax, kind)(x, i, u, numbers, mode=mode)


def _write(x: Any, update: Any, i: Any) -> Any:
    return lax.dynamic_update_slice(x, update, (i, 0))


def _sum_squares(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda x, *rest: (function(x, *rest) ** 2).sum())


def _segments(kind: str, **options: Any) -> Callable[..., Any]:
    return lambda x, i: getattr(jax.ops, f"segment_{kind}")(x, i, 4, **options)


def whole_dim(mode: str) -> Callable[..., Any]:
    """Rows by an index with a component for the columns too, of which a slice takes all."""
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(1, 0)
    )
    return lambda x, i: lax.gather(x, i, numbers, (1, 4), mode=mode)


def whole_dim_added(mode: str) -> Callable[..., Any]:
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (1, 0))
    return lambda x, i, u: lax.scatter_add(x, i, u, numbers, mode=mode)


_WILD = ints((4, 2), 10, -2)
READ = [
    case(
        "gather",
        lambda x, i, j: x[i, j],
        floats((4, 8)),
        ints((4,), 4),
        ints((4,), 8),
        name="x[i, j]",
    ),
    case(
        "gather",
        lambda x, i, j: x[i[:, None], j],
        _X,
        ints((2,), 8),
        ints((4,), 4),
        name="x[i[:, None], j]",
    ),
    case("gather", lambda x, i: x[i, 1:3], _X, _I, name="x[i, 1:3]"),
    case("gather", lambda x, i: x[i, ::2], _X, _I, name="x[i, ::2]"),
    case(
        "gather",
        lambda x, i: x[..., i],
        floats((2, 4, 8)),
        ints((4, 2), 8, -8),
        name="x[..., i] from the end",
    ),
    case(
        "gather", lambda x, i: jnp.take(x, i, axis=1), floats((4, 8)), ints((2, 4), 9), name="take"
    ),
    case(
        "gather",
        lambda x, i: jnp.take(x, i, mode="wrap"),
        floats((8,)),
        ints((4,), 99),
        name="take wrap",
    ),
    case(
        "gather",
        lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1),
        floats((4, 8)),
        name="argsort",
    ),
    case(
        "gather",
        lambda x, i: x.at[i].get(indices_are_sorted=True),
        _X,
        ints((4,), 2, 1),
        name="sorted",
    ),
    case("gather", lambda x: x[jnp.triu_indices(4)], floats((4, 4)), name="triangle"),
    case("gather", jax.vmap(lambda x, i: x[i]), _BATCH, _STARTS, name="mapped x[i]"),
    case(
        "gather", jax.vmap(lambda x, i: x[i], (None, 0)), _X, ints((4, 2), 8), name="mapped over i"
    ),
    case(
        "gather",
        jax.vmap(lambda x, i: x[i], (1, 1)),
        floats((8, 4, 2)),
        ints((2, 4), 8),
        name="mapped over dim 1",
    ),
    case("gather", jax.vmap(_rows(1)), _BATCH, _STARTS, name="mapped slice of one row"),
    case("gather", jax.vmap(_rows(2)), _BATCH, _STARTS, name="mapped slice of two rows"),
    case("gather", jax.vmap(_rows(1), (None, 0)), _X, _STARTS, name="mapped starts"),
    case("gather", lambda x: x.at[jnp.array([0, 3]), 1:3].get(), _X, name="columns of some rows"),
    *(
        case(
            "gather",
            jax.vmap(_fixed(3, mode), (None, 0)),
            _X,
            ints((4,), 12, -5),
            name=f"runs of three {mode}",
        )
        for mode in ("clip", "fill")
    ),
    *(case("gather", whole_dim(m), _X, _WILD, name=f"whole dim {m}") for m in ("clip", "fill")),
    case(
        "gather",
        whole_dim("promise_in_bounds"),
        _X,
        ints((4, 2), 1),
        name="whole dim promise_in_bounds",
    ),
    case(
        "gather",
        jax.vmap(jax.vmap(lambda x, i: x[i])),
        floats((2, 4, 8)),
        ints((2, 4), 8),
        name="mapped twice",
    ),
]
WRITTEN = [
    case(
        "scatter",
        lambda x, i, j: x.at[i, j].set(2.0),
        _X,
        ints((4,), 8),
        ints((4,), 4),
        name="x[i, j] set",
    ),
    case(
        "scatter",
        lambda x, i: x.at[:, i].set(2.0),
        floats((4, 8)),
        ints((1,), 8),
        name="column set",
    ),
    case("scatter", lambda x: x.at[2:6].set(1.0), _X, name="run of rows set"),
    *(
        case(
            f"scatter-{kind}",
            _added(f"scatter_{kind}", mode),
            *(floats((8, 4)), ints((4, 2), 12, -5), floats((4, 3, 2))),
            name=f"runs {mode}",
        )
        for kind, mode in (("add", "clip"), ("add", "drop"), ("max", "drop"), ("mul", "clip"))
    ),
    case(
        "scatter",
        lambda x, i, u: _added("scatter", "clip")(x, i, u),
        _X,
        ints((1, 2), 12, -5),
        floats((1, 3, 2)),
        name="run",
    ),
    case("scatter", lambda x, i: x.at[i].apply(jnp.sin), _X, ints((1,), 8), name="apply"),
    case(
        "scatter",
        jax.vmap(_write),
        _BATCH,
        floats((4, 1, 4)),
        _STARTS,
        name="mapped write of one row",
    ),
    case(
        "scatter",
        jax.vmap(_write),
        _BATCH,
        floats((4, 2, 4)),
        _STARTS,
        name="mapped write of two rows",
    ),
    case("scatter", jax.vmap(lambda x, i: x.at[i].set(1.0)), _BATCH, _STARTS, name="mapped set"),
    case(
        "scatter-add",
        lambda x, i, u: x.at[:, i].add(u),
        floats((4, 8)),
        ints((4,), 8),
        _U,
        name="columns",
    ),
    case("scatter-sub", lambda x, i, u: x.at[i].subtract(u), _X, _I, _U, name="rows"),
    case("scatter-add", _segments("sum"), floats((8, 4)), ints((8,), 6, -1), name="segment_sum"),
    case(
        "scatter-add",
        lambda x, i: _segments("sum", indices_are_sorted=True)(x, jnp.sort(i)),
        *(floats((8, 4)), ints((8,), 4)),
        name="segment_sum sorted",
    ),
    case(
        "scatter-add",
        _segments("sum", unique_indices=True),
        *(floats((1, 4)), ints((1,), 4)),
        name="segment_sum unique",
    ),
    case(
        "scatter-add",
        jax.vmap(_segments("sum")),
        floats((2, 4, 4)),
        ints((2, 4), 4),
        name="mapped segment_sum",
    ),
    case("scatter-add", lambda i: jnp.bincount(i, length=8), ints((4,), 8), name="bincount"),
    case("scatter-add", _sum_squares(lambda x, i: x[i]), _X, _I, name="gradient of x[i]"),
    case(
        "scatter-add",
        _sum_squares(jax.vmap(_rows(1))),
        _BATCH,
        _STARTS,
        name="gradient of a mapped slice",
    ),
    *(
        case("scatter-add", whole_dim_added(m), _X, _WILD, _U, name=f"whole dim {m}")
        for m in ("clip", "fill")
    ),
    case("scatter-max", _segments("max"), floats((8, 4)), ints((8,), 4), name="segment_max"),
    case(
        "scatter-min",
        _segments("min"),
        ints((8, 4), 99),
        ints((8,), 4),
        name="segment_min of integers",
    ),
    case("scatter-mul", _segments("prod"), floats((8, 4)), ints((8,), 4), name="segment_prod"),
    case(
        "scatter-mul",
        lambda x, i, j: x.at[i, j].multiply(2.0),
        _X,
        _I,
        ints((4,), 4),
        name="x[i, j] multiply",
    ),
]
FORMS: list[Case] = [*READ, *WRITTEN]
