"""Every operator as text: the function that the text defines is traced to the operators that it was written from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import primitives

from autopar.emit.source.module import _ROW_NUMBERS
from autopar.emit.source.writer import Constants, Writer
from autopar.errors import SourceError
from tests.emit.source.flat import flat
from tests.ops.all_cases import CASES
from tests.ops.build import Case

NAMES = {
    "jax": jax, "jnp": jnp, "np": np, "lax": lax, "primitives": primitives, "Layout": Layout,
    "with_layout_constraint": with_layout_constraint, "set_xla_metadata": set_xla_metadata,
}  # fmt: skip


def written(function: Callable[..., Any], *args: Any) -> tuple[Any, Any, str]:
    """The jaxpr of a function, that of the text written of it, and the text."""
    closed = jax.make_jaxpr(function)(*args)
    names = [f"x{n}" for n in range(len(closed.jaxpr.invars))]
    lines = Writer({}, Constants()).function("again", names, closed, "Doc.")
    text = "\n".join(lines)
    scope: dict[str, Any] = dict(NAMES)
    exec(_ROW_NUMBERS, scope)
    exec(text, scope)
    leaves = jax.tree.leaves(args)
    return closed, jax.make_jaxpr(scope["again"])(*leaves), text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operator_is_written_as_itself(case: Case) -> None:
    rng = np.random.default_rng(0)
    closed, again, text = written(case.function, *(arg.draw(rng) for arg in case.args))
    assert flat(again) == flat(closed), text
