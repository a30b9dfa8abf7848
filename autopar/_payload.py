"""Payload: what `emit` needs to run a traced operator. It imports no JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OPERATOR = "autopar_operator"
"""The name of the primitive that stands for a function treated as one operator."""


@dataclass(frozen=True, eq=False)
class Payload:
    """A primitive and its parameters, as JAX gave them.

    The operator is run by `primitive.bind(*operands, **primitive.get_bind_params(params))`.
    """

    primitive: Any
    params: dict[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class Composite:
    """A function that is treated as one operator: the parameter `composite` of its primitive.

    `function` takes flat operands and gives flat results; it is run on whole tensors or on the shards of one device.
    `arguments` says which argument each operand is part of, `static` are those that are no tensors; `derivation` is
    what JAX's transformations made of the operator (see `ops.rules.derived`), `source` what it is a derivative of.
    """

    kind: str
    function: Callable[..., Sequence[Any]]
    arguments: tuple[str, ...]
    static: Mapping[str, Any]
    derivation: tuple[tuple[Any, ...], ...] = ()
    source: Composite | None = None

    def __repr__(self) -> str:
        return self.kind
