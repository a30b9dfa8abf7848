"""Training loops of other libraries with one line changed: the losses are those of their own jit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import jax
import numpy as np
import pytest

import autopar
from tests.models.check import ONE_AXIS, free_latency

pytestmark = pytest.mark.models


def jit_of(name: str) -> Callable[[Any], Any]:
    """The jit that the library's documentation takes."""
    if name == "nnx":
        from flax import nnx

        return nnx.jit
    if name == "equinox":
        import equinox as eqx

        return eqx.filter_jit
    return jax.jit


# Linen's example computes gradients in one function and applies them in another, of which each has a plan of its own.
@pytest.mark.filterwarnings("ignore::autopar.errors.MovedWarning")
@pytest.mark.parametrize("name", ["nnx", "equinox", "linen", "keras"])
def test_a_loop_has_the_losses_of_its_own_jit(name: str) -> None:
    loop = getattr(import_module("tests.models.loops"), f"{name}_loop")
    expected, behind = loop(jit_of(name))
    steps: list[autopar.Compiled] = []

    def compiled(fn: Any) -> Any:
        steps.append(autopar.compile(fn, cluster=free_latency(), mesh=ONE_AXIS))
        return steps[-1]

    found, found_behind = loop(compiled)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-6), found_behind, behind)
    for step in steps:
        (plan,) = step.plans
        assert any(placement.split_axes for placement in plan.placements.values())
