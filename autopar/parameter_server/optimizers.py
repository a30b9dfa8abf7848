"""What an optax optimizer lets servers do: keep leaves apart, cut them by rows, leave alone rows that nobody touched.

An optimizer is tried on small arrays, not looked up by name, so that chains and optimizers of one's own are told too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from autopar._compat import untyped_jax
from autopar.errors import UnsuitableOptimizer, of_extra

with of_extra("ps", "parameter servers take optimizers of optax"):
    import optax

Optimizer = optax.GradientTransformation
SCALES = (1e-3, 1.0, 1e4, 1e8)
"""Of the gradients of one step after another: what clips by a norm shows it at some of them."""
SHAPES = {"matrix": (7, 3), "vector": (5,), "cube": (4, 2, 3)}
TOLERANCE = 1e-4
"""Relative: sums in another order differ by less, what depends on other rows by more."""


@dataclass(frozen=True)
class Traits:
    """What holds of an optimizer.

    by_leaf: the update of a leaf depends on that leaf alone.
    by_row: the update of a row depends on that row alone.
    keeps_untouched: a row whose gradient is zero keeps its value and its state.
    """

    by_leaf: bool
    by_row: bool
    keeps_untouched: bool


def traits_of(optimizer: Optimizer) -> Traits:
    """What holds of the optimizer, found by trial.

    Raises:
      UnsuitableOptimizer: it cannot be tried: it looks at names or values of the parameters, or is no optimizer.
    """
    try:
        return Traits(_is_by_leaf(optimizer), _is_by_row(optimizer), _keeps_untouched(optimizer))
    except Exception as error:
        raise UnsuitableOptimizer(
            f"the optimizer fails on arrays by name, which is how servers keep parameters: {type(error).__name__}: "
            f"{error}. What looks at the tree of the parameters, as masks by path do, cannot run on servers"
        ) from error


def check_dense(optimizer: Optimizer) -> bool:
    """Whether leaves may be cut by rows under this optimizer.

    Raises:
      UnsuitableOptimizer: the update of one leaf depends on others, which other servers may hold.
    """
    traits = traits_of(optimizer)
    if not traits.by_leaf:
        raise UnsuitableOptimizer(
            "under this optimizer the update of one parameter depends on others, as clipping by a global norm does: "
            "other servers hold these. Clip in the loss's gradients by leaf (optax.clip, "
            "optax.clip_by_block_rms), or leave it out"
        )
    return traits.by_row


def check_sparse(optimizer: Optimizer) -> None:
    """Refuses an optimizer that is another one when rows that no batch touched are left alone.

    Raises:
      UnsuitableOptimizer: says what does not hold of it.
    """
    traits = traits_of(optimizer)
    if not traits.by_leaf or not traits.by_row:
        raise UnsuitableOptimizer(
            "a table of which only touched rows travel needs an optimizer that updates each row by itself; under this "
            "one an update depends on other rows or parameters. Take optax.sgd without momentum or optax.adagrad as "
            "table_optimizer"
        )

    if not traits.keeps_untouched:
        raise UnsuitableOptimizer(
            "a table of which only touched rows travel needs an optimizer under which a zero gradient changes neither "
            "a row nor its state; this one has moments that decay, momentum or weight decay. Take optax.sgd without "
            "momentum or optax.adagrad as table_optimizer, or do not name the parameter in tables"
        )


def held_bytes(optimizer: Optimizer, shape: Sequence[int], dtype: Any) -> int:
    """Bytes of a parameter of this shape with its state under the optimizer."""
    value = jax.ShapeDtypeStruct(tuple(shape), dtype)
    arrays = untyped_jax.tree_util.tree_leaves(
        (value, untyped_jax.eval_shape(optimizer.init, value))
    )
    return sum(array.size * array.dtype.itemsize for array in arrays)


def is_by_row(optimizer: Optimizer, shape: Sequence[int], dtype: Any) -> tuple[bool, ...]:
    """For each array of the state of a table of this shape: whether its first dim is that of the table's rows."""
    rows, *rest = shape
    short, long = (
        untyped_jax.tree_util.tree_leaves(
            untyped_jax.eval_shape(optimizer.init, jax.ShapeDtypeStruct((n, *rest), dtype))
        )
        for n in (rows, rows + 1)
    )
    return tuple(one.shape != other.shape for one, other in zip(short, long, strict=True))


def updated(optimizer: Optimizer, gradient: Any, state: Any, value: Any) -> tuple[Any, Any]:
    """New values and new state."""
    updates, state = optimizer.update(gradient, state, value)
    return optax.apply_updates(value, updates), state


# Trials ---------------------------------------------------------------------------------------------------------------


def _is_by_leaf(optimizer: Optimizer) -> bool:
    params, gradients = _drawn()
    together = _updates(optimizer, params, gradients)
    for name in params:
        alone = _updates(
            optimizer, {name: params[name]}, [{name: step[name]} for step in gradients]
        )
        if not all(
            _close(one[name], other[name]) for one, other in zip(together, alone, strict=True)
        ):
            return False
    return True


def _is_by_row(optimizer: Optimizer) -> bool:
    params, gradients = _drawn()
    whole = _updates(optimizer, params, gradients)
    for part in (slice(0, 2), slice(2, None)):
        cut = {name: value[part] for name, value in params.items()}
        cut_gradients = [{name: value[part] for name, value in step.items()} for step in gradients]
        for one, other in zip(whole, _updates(optimizer, cut, cut_gradients), strict=True):
            if not all(_close(one[name][part], other[name]) for name in params):
                return False
    return True


def _keeps_untouched(optimizer: Optimizer) -> bool:
    """Whether, after some steps, a zero gradient changes nothing; whatever of the state is not by row depends on no
    gradient.
    """
    params, gradients = _drawn()
    table = params["matrix"]
    state: Any = optimizer.init(table)
    for step in gradients:
        updates, state = optimizer.update(step["matrix"], state, table)
        table = np.asarray(optax.apply_updates(table, updates))

    still = np.zeros_like(table)
    updates, after = optimizer.update(still, state, table)
    _, other = optimizer.update(gradients[1]["matrix"], state, table)
    by_row = is_by_row(optimizer, table.shape, table.dtype)
    leaves = untyped_jax.tree_util.tree_leaves
    states = zip(by_row, leaves(state), leaves(after), leaves(other), strict=True)
    return not np.any(np.asarray(updates)) and all(
        np.array_equal(kept, before) if per_row else np.array_equal(kept, moved)
        for per_row, before, kept, moved in states
    )


def _drawn() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Small parameters, and gradients of several steps."""
    draw = np.random.default_rng(0)

    def some(scale: float) -> dict[str, Any]:
        return {n: (scale * draw.normal(size=s)).astype(np.float32) for n, s in SHAPES.items()}

    return some(1.0), [some(scale) for scale in SCALES]


def _updates(optimizer: Optimizer, params: Any, gradients: Sequence[Any]) -> list[Any]:
    """The update of each step; the parameters stay, so that an error does not grow with them."""
    state: Any = optimizer.init(params)
    found: list[Any] = []
    for step in gradients:
        updates, state = optimizer.update(step, state, params)
        found.append(updates)
    return found


def _close(one: Any, other: Any) -> bool:
    scale = float(np.max(np.abs(one), initial=0.0))
    return np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE * scale)
