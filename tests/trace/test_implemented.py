"""Primitives of other libraries that are written in JAX: what they do is walked in their place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

import autopar
from autopar.trace import trace


def chosen(which: Any, one: Any, other: Any) -> Any:
    return jnp.where(which, jnp.sin(one), other)


def primitive(name: str = "select_if_vmap") -> Any:
    """One under the name of equinox's, with an implementation of its own."""
    made: Any = Primitive(name)
    made.def_impl(chosen)
    made.def_abstract_eval(lambda which, one, other: one)
    mlir.register_lowering(made, mlir.lower_fun(chosen, multiple_results=False))
    return made


def test_its_operators_stand_in_its_place() -> None:
    select = primitive()

    def choose(which: jax.Array, x: jax.Array) -> jax.Array:
        return select.bind(which, x, 2.0 * x)

    args = np.array(True), np.ones((16, 8), np.float32)
    kinds = [op.kind for op in trace(choose, args).graph.ops]
    assert "sin" in kinds
    assert "select_if_vmap" not in kinds
    plan = autopar.plan(choose, *args, cluster="cpu8", mesh={"x": 8}, strict=True)
    np.testing.assert_allclose(plan.compile()(*args), choose(*args), rtol=1e-6)


def test_so_do_those_of_what_has_no_derivative_backwards() -> None:
    bound = primitive("nondifferentiable_backward")
    graph = trace(lambda x: bound.bind(False, x, x), (np.zeros(8, np.float32),)).graph
    assert {"sin", "select_n"} <= {op.kind for op in graph.ops}


def test_it_is_walked_whatever_its_shapes() -> None:
    select = primitive()
    for shape in ((8,), (4, 4)):
        graph = trace(lambda x: select.bind(False, x, x + 1), (np.zeros(shape, np.float32),)).graph
        assert {op.outs[0].shape for op in graph.ops if op.kind == "sin"} == {shape}
