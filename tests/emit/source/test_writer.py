"""Every operator as text: the function that the text defines is traced to the operators that it was written from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import Primitive, primitives

from autopar._compat import open_jaxpr
from autopar.emit.source.module import ROW_NUMBERS
from autopar.emit.source.writer import Constants, Writer
from autopar.errors import SourceError
from tests.emit.source.flat import flat
from tests.ops.all_cases import CASES
from tests.ops.build import Case

NAMES = {
    "jax": jax, "math": math, "jnp": jnp, "np": np, "lax": lax, "primitives": primitives, "Layout": Layout,
    "with_layout_constraint": with_layout_constraint, "set_xla_metadata": set_xla_metadata,
}  # fmt: skip


def written(function: Callable[..., Any], *args: Any) -> tuple[Any, Any, str]:
    """The jaxpr of a function, that of the text written of it, and the text."""
    closed = jax.make_jaxpr(function)(*args)
    names = [f"x{n}" for n in range(len(open_jaxpr(closed)[0].invars))]
    lines = Writer({}, Constants()).function("again", names, closed, "Doc.")
    text = "\n".join(lines)
    scope: dict[str, Any] = dict(NAMES)
    exec(ROW_NUMBERS, scope)
    exec(text, scope)
    leaves = jax.tree.leaves(args)
    return closed, jax.make_jaxpr(scope["again"])(*leaves), text


PRIVATE = frozenset({
    "device_put", "dot_product_attention_bwd", "dot_product_attention_fwd", "geqp3", "geqrf", "pallas_kernel",
    "philox2x32", "philox4x32", "random_gamma", "scaled_dot", "threefry4x32",
})  # fmt: skip
"""Operators that JAX keeps to itself, or puts into no program that is split."""
NUMBERED = frozenset({"iota_2x32_shape", "threefry2x32"})
"""Operators beside which elements are numbered, which the text does by other operators."""
PUBLIC = [case for case in CASES if case.kind not in PRIVATE and case.name != "scatter apply"]


@pytest.mark.parametrize("case", PUBLIC, ids=lambda case: case.name)
def test_an_operator_is_written_as_itself(case: Case) -> None:
    rng = np.random.default_rng(0)
    args = [arg.draw(rng) for arg in case.args]
    closed, again, text = written(case.function, *args)
    if case.kind in NUMBERED:
        for one, other in zip(ran(closed, args), ran(again, args), strict=True):
            np.testing.assert_array_equal(one, other)
    else:
        assert flat(again) == flat(closed), text


@pytest.mark.parametrize("kind", sorted(PRIVATE))
def test_what_jax_keeps_to_itself_is_named(kind: str) -> None:
    case = next(case for case in CASES if case.kind == kind)
    rng = np.random.default_rng(0)
    with pytest.raises(SourceError, match=r"cannot be written"):
        written(case.function, *(arg.draw(rng) for arg in case.args))


def ran(closed: Any, args: Any) -> list[Any]:
    return jax.core.eval_jaxpr(*open_jaxpr(closed), *jax.tree.leaves(args))


def scanned(x: jax.Array, y: jax.Array) -> Any:
    def body(carry: Any, row: jax.Array) -> Any:
        total, count = carry
        return (total + jnp.sin(row) * y, count + 1), total

    return lax.scan(body, (jnp.zeros_like(y), 0), x, reverse=True, unroll=2)


def looped(x: jax.Array) -> Any:
    limit = x.sum()
    return lax.while_loop(lambda c: c[0] < limit, lambda c: (c[0] * 2 + 1, c[1] + x), (0.5, x))


def chosen(x: jax.Array) -> Any:
    large = lax.cond(x.sum() > 0, lambda: x * 2, lambda: jnp.where(x > 0, x, -x))
    return lax.switch(x.argmax(), [jnp.sin, jnp.cos, lambda v: v], large)


def recomputed(x: jax.Array) -> Any:
    return jax.grad(lambda v: jax.checkpoint(lambda u: jnp.sin(jnp.sin(u)).sum())(v * 2))(x)


def marked(x: jax.Array) -> Any:
    with set_xla_metadata(inlineable="false"):
        return jax.jit(lambda v: v * 2)(x) + 1


def by_platform(x: jax.Array) -> Any:
    return lax.platform_dependent(x, cpu=lambda v: v + 1, default=lambda v: v + 2)


def extremes(x: jax.Array) -> Any:
    half = x.astype(jnp.bfloat16) * 0.1
    return jnp.where(x > jnp.inf, -jnp.inf, jnp.nan_to_num(x)), half, x.astype(jnp.int8) // 3


def named_alike(mul_1: jax.Array) -> Any:
    return mul_1 * 2 * mul_1


@pytest.mark.parametrize(
    "function", [looped, chosen, recomputed, marked, by_platform, extremes, named_alike]
)
def test_control_computes_the_same(function: Callable[..., Any]) -> None:
    x = np.linspace(-1.0, 2.0, 6, dtype=np.float32)
    closed, again, text = written(function, x)
    for one, other in zip(ran(closed, [x]), ran(again, [x]), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other, text)


def test_a_scan_computes_the_same() -> None:
    x = np.linspace(-1.0, 2.0, 12, dtype=np.float32).reshape(3, 4)
    closed, again, text = written(scanned, x, x[0])
    for one, other in zip(ran(closed, [x, x[0]]), ran(again, [x, x[0]]), strict=True):
        np.testing.assert_array_equal(one, other, text)


def test_a_recomputation_stays_behind_its_barrier() -> None:
    _, again, _ = written(recomputed, np.ones(4, np.float32))
    assert "optimization_barrier" in str(again)


def test_a_callback_is_refused_by_its_line() -> None:
    def told(x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x)
        return x * 2

    with pytest.raises(SourceError, match=r"test_writer\.py:\d+ \(told\) calls a function"):
        written(told, np.ones(4, np.float32))


def test_a_users_own_primitive_is_refused_by_its_name() -> None:
    own = Primitive("tripled")
    own.def_impl(lambda x: 3 * x)
    own.def_abstract_eval(lambda x: x)

    with pytest.raises(SourceError, match=r"tripled at test_writer\.py:\d+"):
        written(lambda x: own.bind(x), np.ones(4, np.float32))


def test_a_large_constant_is_read_from_its_file() -> None:
    table = np.arange(100, dtype=np.float32)
    closed = jax.make_jaxpr(lambda x: x + table)(table)
    constants = Constants()
    text = "\n".join(Writer({}, constants).function("again", ["x"], closed, "Doc."))
    scope: dict[str, Any] = {**NAMES, "ARRAYS": constants.arrays}
    exec(text, scope)
    assert constants.arrays
    np.testing.assert_array_equal(scope["again"](table)[0], 2 * table)


def test_the_number_of_a_platform_is_found_where_the_program_runs() -> None:
    def numbered(x: jax.Array) -> Any:
        def chosen(number: jax.Array) -> Any:
            return lax.switch(number, [jnp.sin, jnp.cos], x)

        index = lax.platform_dependent(cpu=lambda: np.int32(1), default=lambda: np.int32(0))
        return chosen(index)

    x = np.ones(4, np.float32)
    closed, again, text = written(numbered, x)
    for one, other in zip(ran(closed, [x]), ran(again, [x]), strict=True):
        np.testing.assert_array_equal(one, other, text)
