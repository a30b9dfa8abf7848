"""Cases of what is made from nothing or from bits, of reductions over a named axis, and of what stays whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core.primitives as primitives
import jax.numpy as jnp
import numpy as np
from jax import lax

from autopar._compat import key_implementation
from tests.ops.build import Arg
from tests.ops.cases import case, floats, ints

_POLYNOMIAL: Any = getattr(primitives, "polynomial_p", None)
ABSENT = frozenset({"polynomial"} if _POLYNOMIAL is None else ())
"""Primitives with a rule that the oldest supported JAX does not have."""


def named(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of x[...] that may name the axis k, of x[..., k]."""
    return jax.vmap(function, in_axes=-1, out_axes=None, axis_name="k")


def bits(implementation: str) -> Callable[..., Any]:
    """Random bits from the words of a key."""
    draw = key_implementation(jax.random.key(0, impl=implementation).dtype).random_bits
    return lambda words: draw(words, 32, (4, 8))


def words(count: int) -> Arg:
    return ints((count,), 2**31 - 1, dtype="uint32")


def by_platform(x: Any) -> Any:
    return lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)


MADE = [
    case("empty", lambda: lax.empty((4, 8), "float32")),
    case("empty", lambda: lax.empty((), "int32"), name="scalar"),
    case(
        "empty2",
        lambda: primitives.empty2_p.bind(
            dtype=np.dtype("float32"), memory_space=jax.memory.Space.Device
        ),
    ),
    *(
        case(k, bits(k), words(n))
        for k, n in {"philox2x32": 1, "philox4x32": 2, "threefry4x32": 4}.items()
    ),
    case("rng_bit_generator", bits("rbg"), words(4), name="of a key"),
    case("platform_index", by_platform, floats((4,))),
    case("psum", named(lambda x: lax.psum(x, "k")), floats((8, 4))),
    case("psum", jax.vmap(named(lambda x: lax.psum(x, "k"))), floats((4, 4, 2)), name="mapped"),
    case("psum", named(lambda x: lax.pmean(x, "k")), ints((4, 8), 9), name="mean"),
    case("pmax", named(lambda x: lax.pmax(x, "k")), floats((8, 4))),
    case("pmin", named(lambda x: lax.pmin(x, "k")), floats((2, 2, 8))),
    case(
        "random_gamma",
        lambda seed, a: jax.random.gamma(jax.random.key(seed), a),
        ints((), 9),
        floats((4,), low=1),
    ),
    case("rng_uniform", lambda: lax.rng_uniform(0.0, 0.0, (4, 8))),
]
if _POLYNOMIAL is not None:
    MADE += [
        case("polynomial", _POLYNOMIAL.bind, *[floats((4, 8))] * 3),
        case(
            "polynomial", lambda x: _POLYNOMIAL.bind(x, 1.0, 0.5), floats((4,)), name="of literals"
        ),
    ]
