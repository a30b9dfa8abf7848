"""One case or more for every primitive with a rule: (primitive, name, function, arguments)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.extend.core.primitives as primitives
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.random import threefry_prng_impl

from tests.ops.build import Arg, Case

floats = Arg


def bools(shape: tuple[int, ...]) -> Arg:
    return Arg(shape, "bool")


def ints(shape: tuple[int, ...], high: int, low: int = 0, dtype: str = "int32") -> Arg:
    return Arg(shape, dtype, low, high)


def case(kind: str, function: Callable[..., Any], *args: Arg, name: str = "") -> Case:
    return Case(kind, f"{kind} {name}".strip(), function, args)


def bound(name: str) -> Callable[..., Any]:
    return getattr(primitives, f"{name}_p").bind


# --- elementwise ---------------------------------------------------------------------------------------------------
_UNARY = {
    **dict.fromkeys(
        ["abs", "asinh", "atan", "bessel_i0e", "bessel_i1e", "cbrt", "ceil", "cos", "cosh"], (-2, 2)
    ),
    **dict.fromkeys(
        ["erf", "erfc", "exp", "exp2", "expm1", "floor", "is_finite", "logistic", "neg"], (-2, 2)
    ),
    **dict.fromkeys(
        ["round", "sign", "sin", "sinh", "square", "stop_gradient", "tan", "tanh"], (-1.4, 1.4)
    ),
    **dict.fromkeys(["acos", "asin", "atanh", "erf_inv"], (-0.9, 0.9)),
    **dict.fromkeys(["acosh", "digamma", "lgamma", "log", "log1p", "rsqrt", "sqrt"], (1.1, 3)),
}
_BINARY = {
    **dict.fromkeys(
        ["add", "atan2", "div", "eq", "ge", "gt", "le", "lt", "max", "min", "mul", "ne"], (0.5, 2)
    ),
    **dict.fromkeys(
        ["igamma", "igamma_grad_a", "igammac", "nextafter", "pow", "rem", "sub"], (0.5, 2)
    ),
    "zeta": (1.5, 3),
}
_INTEGER = ["and", "or", "shift_left", "shift_right_arithmetic", "shift_right_logical", "xor"]
_LAX_NAME = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}

_NEWER: dict[str, dict[str, Any]] = {"log2": {"accuracy": None}, "one_minus_square": {}}
ABSENT = frozenset(kind for kind in _NEWER if not hasattr(primitives, f"{kind}_p"))
"""Primitives that the oldest supported JAX does not have."""

ELEMENTWISE = [
    *(
        case(kind, partial(bound(kind), **params), floats((4,), low=0.5, high=2))
        for kind, params in _NEWER.items()
        if kind not in ABSENT
    ),
    *(
        case(kind, getattr(lax, kind), floats((4,), low=low, high=high))
        for kind, (low, high) in _UNARY.items()
    ),
    *(
        case(kind, getattr(lax, kind), *[floats((4,), low=low, high=high)] * 2)
        for kind, (low, high) in _BINARY.items()
    ),
    *(
        case(kind, getattr(lax, _LAX_NAME.get(kind, kind)), ints((4,), 9), ints((4,), 5))
        for kind in _INTEGER
    ),
    *(
        case(kind, getattr(lax, _LAX_NAME[kind]), bools((4,)), bools((4,)), name="bool")
        for kind in ("and", "or")
    ),
    *(case(kind, bound(kind), floats((4,)), floats((4,))) for kind in ("eq_to", "le_to", "lt_to")),
    case("add_any", jax.grad(lambda x: (lax.sin(x) * x).sum()), floats((4,))),
    case("not", lax.bitwise_not, bools((4,))),
    case("population_count", lax.population_count, ints((4,), 99)),
    case("clz", lax.clz, ints((4,), 99)),
    case("mulhi", lax.mulhi, ints((4,), 2**31 - 1), ints((4,), 2**31 - 1)),
    case("integer_pow", lambda x: lax.integer_pow(x, 3), floats((4,))),
    case("reduce_precision", lambda x: lax.reduce_precision(x, 5, 3), floats((4,))),
    case("polygamma", lambda x: lax.polygamma(jnp.full((4,), 2.0), x), floats((4,), low=1, high=3)),
    case("regularized_incomplete_beta", lax.betainc, *[floats((4,), low=0.1, high=0.9)] * 3),
    case("clamp", lax.clamp, floats(()), floats((4, 8)), floats(()), name="scalars"),
    case("clamp", lax.clamp, *[floats((4,))] * 3),
    case("copy", bound("copy"), floats((4,))),
    case("name", lambda x: checkpoint_name(x, "kept"), floats((4,))),
    case("conj", lax.conj, floats((4,), "complex64")),
    case("real", lax.real, floats((4,), "complex64")),
    case("imag", lax.imag, floats((4,), "complex64")),
    case("complex", lax.complex, floats((4,)), floats((4,))),
    case("add", lax.add, floats((4, 8)), floats((4, 8)), name="two dims"),
    case("add", lambda x: x + 1.0, floats((4, 8)), name="literal"),
    case("add", lambda x: x + 0.0, floats((4, 8)), name="literal zero"),
    case("add", lambda x: x + x, floats((4,)), name="twice the same"),
    case("add", lax.add, ints((4,), 9), ints((4,), 9), name="integers"),
    case("mul", lambda x: x * 2.0, floats((4, 8)), name="literal"),
    case("mul", lambda x: x * x, floats((4,)), name="twice the same"),
    case("max", lambda x: lax.max(x, 0.0), floats((4, 8)), name="literal"),
    case("div", lax.div, ints((4,), 99), ints((4,), 9, 1), name="integers"),
    case("select_n", lax.select_n, bools((4, 8)), floats((4, 8)), floats((4, 8))),
    case(
        "select_n", lax.select_n, bools(()), floats((4, 8)), floats((4, 8)), name="scalar predicate"
    ),
    case("select_n", lax.select_n, ints((4,), 3), *[floats((4,))] * 3, name="three cases"),
    case("convert_element_type", lambda x: x.astype(jnp.bfloat16), floats((4,)), name="narrower"),
    case(
        "convert_element_type",
        lambda x: x.astype(jnp.float32),
        floats((4,), "bfloat16"),
        name="wider",
    ),
    case("convert_element_type", lambda x: x.astype(jnp.float32), bools((4,)), name="bool"),
    case(
        "convert_element_type",
        lambda x: x.astype(jnp.int32),
        floats((4,), low=-9, high=9),
        name="to integer",
    ),
    case("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, jnp.int32), floats((4,))),
    case(
        "bitcast_convert_type",
        lambda x: lax.bitcast_convert_type(x, jnp.uint8),
        floats((4,)),
        name="narrower",
    ),
    case(
        "bitcast_convert_type",
        lambda x: lax.bitcast_convert_type(x, jnp.uint32),
        ints((4, 4), 9, dtype="uint8"),
        name="wider",
    ),
    case("optimization_barrier", lax.optimization_barrier, floats((4, 8))),
    case(
        "optimization_barrier",
        lambda *xs: lax.optimization_barrier(xs),
        floats((4, 8)),
        floats((4, 2)),
        name="of two",
    ),
    case("device_put", jax.device_put, floats((4, 8))),
]

# --- products ------------------------------------------------------------------------------------------------------
_NHWC = ("NHWC", "HWIO", "NHWC")


def dot(contract: Any, batch: Any = ((), ()), **options: Any) -> Callable[..., Any]:
    return lambda x, y: lax.dot_general(x, y, (contract, batch), **options)


def conv(
    padding: Any = "SAME", strides: Any = (1, 1), numbers: Any = _NHWC, **options: Any
) -> Callable[..., Any]:
    return lambda x, w: lax.conv_general_dilated(
        x, w, strides, padding, dimension_numbers=numbers, **options
    )


PRODUCTS = [
    case("dot_general", dot(((1,), (0,))), floats((4, 4)), floats((4, 4)), name="square"),
    case(
        "dot_general",
        dot(((2,), (1,)), ((0,), (0,))),
        floats((2, 4, 8)),
        floats((2, 8, 4)),
        name="batch",
    ),
    case(
        "dot_general",
        dot(((0, 2), (2, 0))),
        floats((2, 4, 8)),
        floats((8, 4, 2)),
        name="two contracted",
    ),
    case(
        "dot_general",
        dot(((1,), (1,)), ((2, 0), (0, 2))),
        floats((4, 2, 8)),
        floats((8, 2, 4)),
        name="crossed batch",
    ),
    case("dot_general", dot(((0,), (0,))), floats((4,)), floats((4,)), name="vectors"),
    case(
        "dot_general",
        dot(((1,), (0,)), preferred_element_type=jnp.float32),
        *[floats((4, 4), "bfloat16")] * 2,
        name="accumulated in a wider type",
    ),
    case("dot_general", dot(((1,), (0,))), bools((4, 8)), bools((8, 4)), name="booleans"),
    case("conv_general_dilated", conv(), bools((2, 4, 4, 4)), bools((3, 3, 4, 4)), name="booleans"),
    case("conv_general_dilated", conv(), floats((4, 4, 4, 4)), floats((3, 3, 4, 4))),
    case(
        "conv_general_dilated",
        conv("VALID", (2, 2)),
        floats((2, 6, 6, 4)),
        floats((3, 3, 4, 8)),
        name="strided",
    ),
    case(
        "conv_general_dilated",
        conv(),
        floats((2, 4, 4, 4)),
        floats((1, 1, 4, 8)),
        name="window of one element",
    ),
    case(
        "conv_general_dilated",
        conv("VALID", (2, 2)),
        floats((2, 4, 4, 4)),
        floats((1, 1, 4, 2)),
        name="one element strided",
    ),
    case(
        "conv_general_dilated",
        conv("VALID"),
        floats((2, 4, 4, 4)),
        floats((4, 4, 4, 2)),
        name="window is the whole dim",
    ),
    case(
        "conv_general_dilated",
        conv(feature_group_count=4),
        floats((2, 4, 4, 8)),
        floats((3, 3, 2, 8)),
        name="groups",
    ),
    case(
        "conv_general_dilated",
        conv(feature_group_count=2),
        floats((2, 4, 4, 8)),
        floats((3, 3, 4, 8)),
        name="two groups",
    ),
    case(
        "conv_general_dilated",
        conv(feature_group_count=8),
        floats((2, 4, 4, 8)),
        floats((3, 3, 1, 8)),
        name="depthwise",
    ),
    case(
        "conv_general_dilated",
        conv(batch_group_count=4),
        floats((8, 4, 4, 4)),
        floats((3, 3, 4, 8)),
        name="batch groups",
    ),
    case(
        "conv_general_dilated",
        conv(batch_group_count=2),
        floats((8, 4, 4, 4)),
        floats((3, 3, 4, 8)),
        name="two batch groups",
    ),
    case(
        "conv_general_dilated",
        conv(((1, 1), (1, 1)), lhs_dilation=(2, 2), rhs_dilation=(2, 2)),
        floats((2, 4, 4, 4)),
        floats((2, 2, 4, 4)),
        name="dilated",
    ),
    case(
        "conv_general_dilated",
        conv("VALID", (1,), ("NCH", "OIH", "NCH")),
        floats((2, 4, 8)),
        floats((4, 4, 3)),
        name="1d",
    ),
]

# --- reductions ----------------------------------------------------------------------------------------------------
REDUCTIONS = [
    case("reduce_sum", lambda x: x.sum(1), floats((4, 8))),
    case("reduce_sum", lambda x: x.sum(), floats((4, 4)), name="all"),
    case("reduce_sum", lambda x: x.sum((0, 2)), ints((4, 2, 4), 9), name="integers"),
    case("reduce_max", lambda x: x.max(1), floats((4, 8))),
    case("reduce_min", lambda x: x.min(0), floats((4, 8))),
    case("reduce_or", lambda x: x.any(1), bools((4, 8))),
    case("reduce_and", lambda x: x.all(1), bools((4, 2))),
    case("reduce_or", lambda x: lax.reduce_or(x, (1,)), ints((4, 8), 99), name="bits"),
    case("reduce_and", lambda x: lax.reduce_and(x, (1,)), ints((4, 2), 99), name="bits"),
    case("reduce_xor", lambda x: lax.reduce_xor(x, (1,)), ints((4, 8), 99)),
    case("reduce_prod", lambda x: x.prod(1), floats((4, 8))),
    case("argmax", lambda x: x.argmax(1), floats((4, 8))),
    case("argmin", lambda x: x.argmin(0), floats((4, 8))),
    case(
        "reduce",
        lambda x, i: lax.reduce(
            (x, i), (np.float32(-9), np.int32(0)), lambda a, b: (a[0] + b[0], a[1] * 2 + b[1]), (1,)
        ),
        floats((4, 8)),
        ints((4, 8), 9),
    ),
    *(
        case(kind, lambda x, kind=kind: getattr(lax, kind)(x, axis=1), floats((4, 8)))
        for kind in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
    ),
    case("sort", lambda x: lax.sort(x, dimension=0), floats((4, 8))),
    case("sort", lambda x: jnp.sort(x), floats((80,)), name="alone"),
    case("sort", lambda x: lax.sort(x), ints((2, 36), 5, dtype="int8"), name="few values"),
    case("sort", lambda x: jnp.argsort(x, 0), ints((48, 2), 9), name="of places"),
    case(
        "sort",
        lambda *xs: lax.sort(xs, num_keys=2),
        bools((38,)),
        *[ints((38,), 4)] * 2,
        name="two keys",
    ),
    case(
        "sort",
        lambda k, x: lax.sort((k, x), dimension=1, num_keys=1),
        floats((4, 8)),
        floats((4, 8)),
        name="with values",
    ),
    case("top_k", lambda x: lax.top_k(x, 2), floats((4, 8))),
]

# --- moving --------------------------------------------------------------------------------------------------------


def _edge(x: Any) -> Any:
    return jnp.pad(x, ((0, 0), (1, 1)), mode="edge")[:, 2:]


SHAPES = [
    case("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (4, 8, 4), (1, 2)), floats((8, 4))),
    case(
        "broadcast_in_dim",
        lambda x: lax.broadcast_in_dim(x, (4, 8), (0, 1)),
        floats((4, 1)),
        name="stretched",
    ),
    case(
        "broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (4, 8), ()), floats(()), name="scalar"
    ),
    case("broadcast_in_dim", lambda: jnp.zeros((4, 8)), name="literal zero"),
    case("broadcast_in_dim", lambda: jnp.ones((4, 8)), name="literal one"),
    case(
        "reshape",
        lambda x: lax.reshape(x, (4, 8), (1, 2, 0)),
        floats((4, 4, 2)),
        name="in another order",
    ),
    *(
        case(
            "reshape",
            lambda x, after=after: lax.reshape(x, after),
            floats(before),
            name=f"{before} {after}",
        )
        for before, after in [
            ((4, 8), (32,)),
            ((32,), (4, 8)),
            ((4, 2, 4), (8, 4)),
            ((2, 2, 2), (8,)),
            ((12, 4), (8, 6)),
            ((6, 4), (4, 6)),
            ((4, 1, 8), (1, 4, 2, 4)),
            ((4, 3, 4), (4, 2, 6)),
            ((4, 4), (2, 4, 2)),
            ((1, 1), ()),
        ]
    ),
    case("transpose", lambda x: x.transpose(1, 2, 0), floats((4, 4, 4))),
    case("transpose", lambda x: x.T, floats((4, 4)), name="square"),
    case("squeeze", lambda x: lax.squeeze(x, (1,)), floats((4, 1, 8))),
    case("rev", lambda x: lax.rev(x, (1,)), floats((4, 4))),
    case("slice", lambda x: lax.slice(x, (0, 2), (4, 6)), floats((4, 8))),
    case("slice", lambda x: lax.slice(x, (0, 0), (4, 8), (1, 2)), floats((4, 8)), name="strided"),
    case("slice", lambda x: lax.slice(x, (0, 9), (4, 11)), floats((4, 32)), name="few"),
    case(
        "slice", lambda x: lax.slice(x, (6, 3), (7, 10), (1, 3)), bools((8, 64)), name="few strided"
    ),
    case("slice", lambda x: lax.slice(x, (1, 0), (4, 7)), ints((4, 8), 9), name="shorter"),
    case("pad", lambda x, v: lax.pad(x, v, ((0, 0, 0), (2, 2, 0))), floats((4, 4)), floats(())),
    case("pad", lambda x: lax.pad(x, 0.0, ((0, 0, 0), (1, 0, 1))), floats((4, 4)), name="zero"),
    case("pad", lambda x: lax.pad(x, 1.0, ((0, 0, 0), (-1, 1, 0))), floats((4, 4)), name="one"),
    case("pad", lambda x: lax.pad(x, 2.0, ((3, 4, 0), (5, -5, 0))), floats((1, 8)), name="row"),
    case("pad", lambda x: lax.pad(x, 0.0, ((0, 0, 0), (-7, 7, 0))), floats((4, 8)), name="far"),
    case("concatenate", lambda x, y: lax.concatenate((x, y), 1), floats((4, 4)), floats((4, 8))),
    case(
        "concatenate",
        lambda *xs: lax.concatenate(xs, 1),
        *(floats((4, n)) for n in (2, 12, 2)),
        name="short ends",
    ),
    case("splice", _edge, floats((4, 8)), name="edge"),
    case(
        "splice",
        lambda x, y: lax.concatenate((x[:, 1:], y), 1),
        floats((4, 8)),
        floats((4, 1)),
        name="moved on",
    ),
    case(
        "splice",
        lambda x, y, z: lax.concatenate((x[:, 1:7], y[:, 3:], z), 1),
        *(floats((4, 8)), floats((4, 8)), ints((4, 1), 9, dtype="float32")),
        name="of two",
    ),
    case("splice", lambda x: jax.vjp(_edge, x)[1](x), floats((4, 8)), name="alone"),
    *(
        case("roll", lambda x, by=by: jnp.roll(x, by, 1), floats((4, 8)), name=f"by {by}")
        for by in (1, -1, 2, 3, 4, -3)
    ),
    *(
        case(
            "dynamic_roll",
            lambda x, i: jnp.roll(x, i, 1),
            floats((4, 8)),
            ints((), *span),
            name=f"{span}",
        )
        for span in ((1, 0), (2, 1), (6, 5), (-7, -8), (12, 11))
    ),
    case(
        "dynamic_roll",
        lambda x, i: lax.dynamic_slice_in_dim(jnp.concatenate([x, x]), i, 8),
        *(ints((8, 4), 9), ints((), 9, 8, dtype="uint8")),
        name="to the end",
    ),
    case("split", lambda x: lax.split(x, (4, 8), 1), floats((4, 12))),
    case("stack", lambda x, y: jnp.stack((x, y), 1), floats((4, 8)), floats((4, 8))),
    case("unstack", lambda x: jnp.unstack(x, axis=1), floats((4, 2, 8))),
    case("tile", lambda x: jnp.tile(x, (2, 1, 4)), floats((2, 4, 2))),
    case("iota", lambda: lax.iota(jnp.int32, 8)),
    case("iota", lambda: lax.broadcasted_iota(jnp.uint8, (512, 4), 0), name="wrapped"),
    case("iota", lambda: lax.broadcasted_iota(jnp.bfloat16, (4, 1024), 1), name="rounded"),
    case("iota", lambda: lax.broadcasted_iota(jnp.float32, (4, 8), 1), name="float"),
]

# --- indexing ------------------------------------------------------------------------------------------------------


def embed(mode: str | None = None, **options: Any) -> Callable[..., Any]:
    return lambda x, i: x.at[i].get(mode=mode, wrap_negative_indices=False, **options)


def store(method: str, mode: str | None = None) -> Callable[..., Any]:
    return lambda x, i, u: getattr(x.at[i], method)(u, mode=mode, wrap_negative_indices=False)


def along(mode: str | None = None) -> Callable[..., Any]:
    return lambda x, i: jnp.take_along_axis(x, i, axis=-1, mode=mode)


def windows_at(x: Any, i: Any, mode: str) -> Any:
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(1, 2), collapsed_slice_dims=(), start_index_map=(0,)
    )
    return lax.gather(x, i, numbers, (3, 4), mode=mode)


def _scatter_sub(x: Any, i: Any, u: Any) -> Any:
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    return lax.scatter_sub(x, i[:, None], u, numbers)


_WILD = {"high": 12, "low": -4}
INDEXING = [
    case(
        "dynamic_slice",
        lambda x, i: lax.dynamic_slice(x, (i, i), (2, 8)),
        floats((4, 8)),
        ints((), 3),
    ),
    case(
        "dynamic_update_slice",
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)),
        *(floats((4, 8)), floats((2, 8)), ints((), 3)),
    ),
    case("gather", embed(), floats((8, 4)), ints((4, 2), 8), name="rows"),
    *(
        case("gather", embed(mode), floats((8, 4)), ints((4, 2), **_WILD), name=f"rows {mode}")
        for mode in ("clip", "fill", "promise_in_bounds")
    ),
    case(
        "gather",
        embed("fill", fill_value=7.0),
        floats((8, 4)),
        ints((4,), **_WILD),
        name="rows filled",
    ),
    case(
        "gather",
        embed("fill", fill_value=0.0),
        floats((8, 4)),
        ints((4,), **_WILD),
        name="rows filled with zeros",
    ),
    case("gather", embed("fill"), ints((8, 4), 99), ints((4,), **_WILD), name="integers filled"),
    case(
        "gather",
        embed("fill"),
        ints((8, 4), 99, dtype="uint32"),
        ints((4,), **_WILD),
        name="unsigned filled",
    ),
    case("gather", embed("fill"), bools((8, 4)), ints((4,), **_WILD), name="booleans filled"),
    case(
        "gather", embed("clip"), floats((8, 4)), ints((4,), 12, dtype="uint8"), name="short indices"
    ),
    case("gather", lambda x, i: x[:, i], floats((4, 8)), ints((4,), 8), name="columns"),
    case(
        "gather",
        lambda x, i, j: x[i, :, j],
        floats((4, 2, 8)),
        ints((4,), 4),
        ints((4,), 8),
        name="two components",
    ),
    case(
        "gather",
        lambda x, i, j: x.at[i, j].get(mode="fill", wrap_negative_indices=False),
        *(floats((4, 8)), ints((4,), 6, -2), ints((4,), 10, -2)),
        name="two components filled",
    ),
    case("gather", along("clip"), floats((4, 8)), ints((4, 2), 8), name="along axis"),
    case(
        "gather",
        along("fill"),
        floats((2, 4, 8)),
        ints((2, 4, 4), **_WILD),
        name="along axis filled",
    ),
    *(
        case(
            "gather",
            lambda x, i, mode=mode: windows_at(x, i, mode),
            floats((8, 4)),
            ints((4, 1), 9, -2),
            name=f"runs {mode}",
        )
        for mode in ("clip", "fill")
    ),
    *(
        case(
            "scatter-add",
            store("add", mode),
            floats((8, 4)),
            ints((4, 2), **_WILD),
            floats((4, 2, 4)),
            name=f"rows {mode}",
        )
        for mode in (None, "clip", "drop", "promise_in_bounds")
    ),
    case(
        "scatter-add",
        store("add", "clip"),
        floats((8, 4)),
        ints((4,), 12, dtype="uint8"),
        floats((4, 4)),
        name="short indices",
    ),
    case(
        "scatter-add",
        jax.grad(lambda x, i: along()(x, i).sum()),
        floats((4, 8)),
        ints((4, 2), 8),
        name="along axis",
    ),
    case(
        "scatter-add",
        lambda x, i, j, u: x.at[i, j].add(u, mode="clip", wrap_negative_indices=False),
        *(floats((4, 8)), ints((4,), 6, -2), ints((4,), 10, -2), floats((4,))),
        name="two components",
    ),
    case("scatter-sub", _scatter_sub, floats((8, 4)), ints((4,), 8), floats((4, 4))),
    case("scatter-mul", store("multiply"), floats((8, 4)), ints((4,), 8), floats((4, 4))),
    case("scatter-max", store("max"), floats((8, 4)), ints((4,), 8), floats((4, 4))),
    case("scatter-min", store("min"), floats((8, 4)), ints((4,), 8), floats((4, 4))),
    case("scatter", store("set"), floats((8, 4)), ints((4,), 8), floats((4, 4))),
    case("scatter", lambda x: x.at[:, 1].set(0.0), floats((4, 8)), name="a column"),
]

# --- random numbers ------------------------------------------------------------------------------------------------
RANDOM = [
    case(
        "iota_2x32_shape",
        lambda k: threefry_prng_impl.random_bits(k, 32, (4, 8)),
        ints((2,), 9, dtype="uint32"),
    ),
    case(
        "threefry2x32",
        lambda k: threefry_prng_impl.random_bits(k, 32, (4, 8)),
        ints((2,), 9, dtype="uint32"),
    ),
    case("random_wrap", jax.random.wrap_key_data, ints((4, 2), 9, dtype="uint32")),
    case(
        "random_unwrap",
        lambda x: jax.random.key_data(jax.random.wrap_key_data(x)),
        ints((4, 2), 9, dtype="uint32"),
    ),
    *(
        case(
            "rng_bit_generator",
            lambda k, shape=shape, dtype=dtype: lax.rng_bit_generator(k, shape, dtype),
            ints((4,), high, high - 9, dtype="uint32"),
            name=f"{shape} {dtype}",
        )
        for shape, dtype, high in [
            ((4, 4), "uint32", 9),
            ((8,), "uint32", 9),
            ((1, 16, 2), "uint8", 2**32),
            ((32,), "uint16", 2**32),
            ((4, 3), "uint32", 9),
            ((1, 1), "uint32", 9),
        ]
    ),
    case(
        "rng_bit_generator",
        lambda k: lax.rng_bit_generator(k, (16,), algorithm=lax.RandomAlgorithm.RNG_THREE_FRY),
        ints((4,), 9, dtype="uint32"),
        name="of another kind",
    ),
]

# --- windows -------------------------------------------------------------------------------------------------------


def pool(
    operator: Any, initial: float, padding: str = "VALID", stride: int = 2
) -> Callable[..., Any]:
    return lambda x: lax.reduce_window(
        x, np.float32(initial), operator, (1, 2, 2, 1), (1, stride, stride, 1), padding
    )


_max_pool = pool(lax.max, -np.inf)
_IMAGE = floats((2, 8, 4, 4))
WINDOWS = [
    case("reduce_window_sum", pool(lax.add, 0.0), _IMAGE),
    case("reduce_window_sum", pool(lax.add, 0.0, "SAME", 1), _IMAGE, name="overlapping"),
    case("reduce_window_max", _max_pool, _IMAGE),
    case("reduce_window_max", pool(lax.max, -np.inf), floats((2, 9, 4, 4)), name="with a rest"),
    case("reduce_window_min", pool(lax.min, np.inf, "SAME"), floats((2, 7, 4, 4)), name="padded"),
    case("reduce_window", pool(lambda a, b: a * b, 1.0), _IMAGE),
    case("select_and_scatter_add", jax.grad(lambda x: (_max_pool(x) ** 2).sum()), _IMAGE),
    case("select_and_gather_add", lambda x, t: jax.jvp(_max_pool, (x,), (t,)), _IMAGE, _IMAGE),
]

CASES = [*ELEMENTWISE, *PRODUCTS, *REDUCTIONS, *SHAPES, *INDEXING, *RANDOM, *WINDOWS]
