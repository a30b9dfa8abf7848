"""Payload: what `emit` needs to run a traced operator. Known to `trace` and `emit` only; imports no JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Payload:
    """A primitive and its parameters, as JAX gave them.

    The operator is run by `primitive.bind(*operands, **primitive.get_bind_params(params))`.
    """

    primitive: Any
    params: dict[str, Any]
