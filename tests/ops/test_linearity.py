"""A square is no product of two unreduced halves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autopar
from autopar.core.graph import OpNode, TensorInfo
from autopar.ops.rules.elementwise import div
from autopar.ops.rules.linearity import linear_sets

X, Y, OUT = (TensorInfo(n, (8,), "float32", 4) for n in range(3))


def test_each_factor_of_a_product_may_be_unreduced() -> None:
    assert linear_sets(OpNode(0, "mul", (X, Y), (OUT,)), (0,), (1,)) == ((0,), (1,))


def test_a_square_of_parts_times_the_whole_may_come_out_negative() -> None:
    assert linear_sets(OpNode(0, "mul", (X, X), (OUT,)), (0,), (1,)) == ()


def test_a_tensor_added_to_itself_is_still_linear() -> None:
    assert linear_sets(OpNode(0, "add", (X, X), (OUT,)), (0, 1)) == ((0, 1),)


def test_multiples_of_one_tensor_are_that_tensor() -> None:
    """c * g times g is a square of g, whichever of the two is unreduced; so are two multiples of g."""
    doubled, tripled = (TensorInfo(n, (8,), "float32", 4, multiple_of=X.id) for n in (3, 4))
    for factors in ((doubled, X), (X, doubled), (doubled, tripled)):
        assert linear_sets(OpNode(0, "mul", factors, (OUT,)), (0,), (1,)) == ()
    assert linear_sets(OpNode(0, "mul", (doubled, Y), (OUT,)), (0,), (1,)) == ((0,), (1,))
    assert linear_sets(OpNode(0, "add", (doubled, X), (OUT,)), (0, 1)) == ((0, 1),)


@pytest.mark.parametrize(("by", "is_linear"), [(None, False), (2.0, True), (0.0, False)])
def test_parts_are_divided_by_numbers_alone(by: float | None, is_linear: bool) -> None:
    """What is divided by may be 0: inf and -inf have no sum."""
    number = TensorInfo(3, (), "float32", 4, literal=by)
    rule = div(OpNode(0, "div", (X, number if by is not None else Y), (OUT,)))
    assert bool(rule.reduced) == is_linear


def test_a_quotient_by_zero_is_infinite_however_it_is_split() -> None:
    """Two sums that share one reduction: the first was divided before that, in parts."""
    rng = np.random.default_rng(0)
    x, w, z, v = (rng.normal(size=s).astype("float32") for s in ((64, 256), (256, 128)) * 2)

    def clipped(x: jax.Array, w: jax.Array, z: jax.Array, v: jax.Array, t: jax.Array) -> jax.Array:
        return jnp.clip((x @ w) / t + z @ v, -5.0, 5.0)

    pins = tuple(autopar.pin(name, P("x", None)) for name in "wv")
    args = x, w, z, v, np.float32(0)
    found = autopar.compile(clipped, cluster="cpu8", mesh={"x": 8}, constraints=pins)(*args)
    np.testing.assert_array_equal(found, jax.jit(clipped)(*args))
