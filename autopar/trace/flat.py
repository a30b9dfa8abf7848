"""Flat functions: functions of arrays alone, whose inputs and results have names that the user knows.

JAX's transformations work on flat arrays. What they make of a function is planned like any other, and its constraints,
its report and its files go on speaking of "params['w1']".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autopar._compat import untyped_jax

TRACING = untyped_jax.make_user_context(False)
"""Whether autopar traces a function, so that a compiled function that it calls is part of it. Part of JAX's own tracing
context, as caches of jaxprs made with and without must not mix."""


@dataclass(frozen=True, eq=False)
class FlatFunction:
    """A function from arrays to a sequence of arrays.

    `inputs` and `outputs` are the names of its operands and results; `state` are the positions of operands that are no
    data (one row for each example). As a function its name is `name`. A `part` of another function is held to those of
    its constraints that are about something in it.
    """

    function: Callable[..., Sequence[Any]]
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    state: tuple[int, ...] = ()
    part: bool = False

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, *operands: Any) -> Sequence[Any]:
        """The results for these operands."""
        return self.function(*operands)
