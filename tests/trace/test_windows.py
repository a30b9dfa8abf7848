"""Reads and writes at indices that are known while tracing become slices and selections: of the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autopar.trace import trace
from tests.trace.evaluate import as_function, assert_same

X = jnp.asarray(np.random.default_rng(0).integers(-9, 9, (12, 8)), jnp.float32)
INDEXED = {
    "dynamic_slice",
    "dynamic_update_slice",
    "gather",
    "scatter",
    "scatter-add",
    "scatter-mul",
    "scatter-min",
}
WRITES = ("set", "add", "multiply", "min", "max", "subtract")
Function = Callable[..., Any]


def indexed(function: Function, *args: Any) -> set[str]:
    """The kinds of operators with indices that are left; the graph computes what the function does."""
    traced = trace(function, args)
    assert_same(jax.jit(function)(*args), jax.jit(as_function(traced))(*args))
    return {op.kind for op in traced.graph.ops} & INDEXED


STATED: dict[str, Function] = {
    "inside": lambda x: x.at[1:-1, 1:-1].set(x[2:, 2:]),
    "all but one": lambda x: x.at[:-1].set(x[1:]),
    "every second": lambda x: x.at[::2].set(x[1::2]),
    "every third column": lambda x: x.at[:, 1::3].multiply(x[:, :3]),
    "a column of every second row": lambda x: x.at[1::2, 3:7].add(x[:6, :4]),
    "all": lambda x: x.at[:].set(x * 2),
    "gradient of a write": lambda x: jax.grad(lambda v: (x.at[1:-1].set(v) ** 2).sum())(x[2:]),
    "gradient of a strided write": lambda x: jax.grad(lambda v: (x.at[:, ::2].set(v) ** 2).sum())(
        x[:, :4]
    ),
    "a list that counts": lambda x: x[jnp.array([1, 4, 7])],
    "columns that are counted": lambda x: x[:, jnp.arange(3) * 2 + 1],
    "a row and columns": lambda x: x[3, jnp.arange(4)],
    "the last row, as a list": lambda x: x[jnp.array([-1])],
    "a slice moved inside": lambda x: lax.dynamic_slice(x, (20, -3), (4, 5)),
    "an update moved inside": lambda x: lax.dynamic_update_slice(x, x[:8] * 2, (9, 0)),
    "dropped dims": lambda x: x.reshape(4, 3, 8).at[:, 2, ::2].set(x[:4, :4]).at[1::2].add(1.0),
}
KEPT: dict[str, tuple[Function, set[str]]] = {
    "one row": (lambda x: x.at[2].set(0.0), {"dynamic_update_slice"}),
    "some rows and columns": (lambda x: x.at[2:5, 3:6].set(x[:3, :3]), {"dynamic_update_slice"}),
    "a column of one matrix of several": (
        lambda x: x.reshape(4, 3, 8).at[2, :, 5].set(x[3:6, 0]),
        {"dynamic_update_slice"},
    ),
    "one row more": (lambda x: x.at[2].add(1.0), {"scatter-add"}),
    "a list that does not count": (lambda x: x[jnp.array([0, 1, 5])], {"gather"}),
    "backwards": (lambda x: x[jnp.array([5, 3, 1])], {"gather"}),
    "a diagonal": (lambda x: x[jnp.arange(8), jnp.arange(8)], {"gather"}),
    "out of range": (lambda x: x.at[jnp.array([10, 12, 14])].get(mode="fill"), {"gather"}),
    "twice the same": (lambda x: x.at[jnp.array([1, 1, 1, 1, 1, 1, 1])].add(1.0), {"scatter-add"}),
    "traced": (lambda x: x[x[0, 0].astype(int)], {"dynamic_slice"}),
    "a function of what is there": (lambda x: x.at[::2].apply(jnp.sin), {"gather", "scatter"}),
}


@pytest.mark.parametrize("name", STATED)
def test_known_places_are_windows(name: str) -> None:
    assert indexed(STATED[name], X) == set()


@pytest.mark.parametrize("name", KEPT)
def test_other_places_stay_indexed(name: str) -> None:
    function, kinds = KEPT[name]
    assert indexed(function, X) - {"gather"} == kinds - {"gather"}
    assert indexed(function, X) >= kinds - {"gather"}


def place(rng: np.random.Generator, size: int) -> Any:
    """A slice with any ends and stride, or a number, from beyond both ends of a dim."""
    if rng.random() < 0.3:
        return int(rng.integers(-2 * size, 2 * size))
    begin, end = (
        None if rng.random() < 0.3 else int(rng.integers(-size - 3, size + 3)) for _ in range(2)
    )
    return slice(begin, end, None if rng.random() < 0.5 else int(rng.integers(1, 5)))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))]
)
def test_any_place_is_read_and_written_as_jax_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = [
        (tuple(place(rng, size) for size in X.shape), str(rng.choice(WRITES))) for _ in range(20)
    ]

    def every(x: Any) -> Any:
        read = [x.at[at].get(mode="fill" if n % 2 else "clip") for n, (at, _) in enumerate(drawn)]
        write = [
            getattr(x.at[at], how)(y * 3 + 1, mode="clip")
            for (at, how), y in zip(drawn, read, strict=True)
        ]
        return (
            read,
            write,
            [getattr(x.at[at], how)(y * 3 + 1) for (at, how), y in zip(drawn, read, strict=True)],
        )

    assert_same(jax.jit(every)(X), jax.jit(as_function(trace(every, (X,))))(X))
