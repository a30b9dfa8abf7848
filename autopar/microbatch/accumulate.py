"""accumulate: a step whose batch is run in slices, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

import jax

from autopar._compat import untyped_jax
from autopar.core.graph import OpGraph
from autopar.errors import InvalidOption
from autopar.microbatch.cut import cut
from autopar.microbatch.leaves import given, returned
from autopar.microbatch.rounds import rounds_of
from autopar.microbatch.run import function_of
from autopar.trace import Traced, trace
from autopar.trace.arguments import Argument, Arguments, read_arguments

Marks = int | str | Sequence[int | str] | None
tree_util = untyped_jax.tree_util


def accumulate(
    step: Callable[..., Any],
    micro_batches: int,
    *,
    batch: Marks = None,
    static_argnums: int | Sequence[int] = (),
) -> Callable[..., Any]:
    """A function with the values of `step` that runs it on `micro_batches` slices of the batch, one after another.

    What depends on an example runs slice by slice, in one `lax.scan`, so that the activations of one slice are held at
    a time. Sums over the batch (a loss, gradients), maxima and minima are combined from slice to slice. What depends on
    them, such as the optimizer, runs once. Which is which follows from the rules by which autopar splits operators
    over devices; the step itself is an ordinary one, with its own `jax.grad`. Means come out right, and random bits are
    those of plain JAX. Sums of bfloat16 and float16 are kept in float32 until all slices are done.

    The result is for `jax.jit` and `autopar.compile`, and is traced whenever it is called by itself.

    Args:
      step: a function of pytrees that JAX can trace, without effects.
      micro_batches: into how many slices the batch is cut (>= 1); it divides the first dim of all batch arguments.
      batch: the arguments that hold one row for each example, by position or by name; None: those that autopar takes
        for data.
      static_argnums: positions of arguments that are no arrays, as for `jax.jit`.

    Raises:
      InvalidOption: `micro_batches` is no whole number >= 1.

    When the result is called it raises:
      InvalidOption: no argument is the batch, or the batch does not divide.
      BatchNotCut: an operator needs all examples at once, as batch norm does.
      TraceError: JAX cannot trace `step`.
    """
    if isinstance(micro_batches, bool) or not isinstance(micro_batches, int) or micro_batches < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(
            f"micro_batches is {micro_batches!r}: pass a whole number of slices, 1 or more"
        )
    if not callable(step):
        raise InvalidOption(
            f"{step!r} is a {type(step).__name__} and cannot be called: pass a step"
        )

    def accumulated(*args: Any, **kwargs: Any) -> Any:
        if micro_batches == 1:
            return step(*args, **kwargs)
        traced = trace(step, args, kwargs, static_argnums=static_argnums)
        arguments = read_arguments(step, args, kwargs, static_argnums)
        positions = _batch_positions(traced.graph, arguments, batch, micro_batches)
        stage, slices = cut(traced.graph, positions, micro_batches)
        run = function_of(rounds_of(traced.graph, stage, slices))
        return _called(run, traced, arguments.leaves(args, kwargs))

    update_wrapper(accumulated, step)
    return accumulated


def _batch_positions(
    graph: OpGraph, arguments: Arguments, batch: Marks, count: int
) -> tuple[int, ...]:
    """The flat inputs that are cut.

    Raises:
      InvalidOption: there are none, or one does not divide.
    """
    found = graph.batch_inputs if batch is None else _marked(arguments, batch)
    positions = tuple(n for n in found if graph.inputs[n].ndim)

    if not positions:
        raise InvalidOption(
            "no argument of the step is its batch: name the arguments that hold one row for each example, "
            "batch=(1, 2) or batch='images'"
        )

    for n in positions:
        tensor = graph.inputs[n]
        if tensor.shape[0] % count or not tensor.shape[0]:
            raise InvalidOption(
                f"argument {tensor.name} has {tensor.shape[0]} rows, which {count} micro-batches do not divide: pass "
                f"another number of micro-batches, or name the arguments that are the batch by batch=..."
            )

    return positions


def _marked(arguments: Arguments, batch: Marks) -> tuple[int, ...]:
    """The flat inputs of the arguments that are named, by position or name."""
    marks = [batch] if isinstance(batch, int | str) else list(batch or ())
    known: dict[int | str | None, Argument] = {a.name: a for a in arguments.traced}
    known |= {argument.position: argument for argument in arguments.traced}
    for mark in marks:
        if mark not in known:
            names = ", ".join(argument.name for argument in arguments.traced)
            raise InvalidOption(f"batch names {mark!r}, but the arguments are {names}")
    return tuple(n for mark in marks for n in known[mark].inputs)


def _called(
    run: Callable[..., tuple[jax.Array, ...]], traced: Traced, leaves: Sequence[Any]
) -> Any:
    """The results of `run` for these leaves, as the step gives them."""
    values = run(*given(traced, leaves), *traced.constants)
    return tree_util.tree_unflatten(traced.out_tree, returned(traced, values))
