"""Draft: the graph under construction. The walk adds to it; `finish` makes the OpGraph of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from autopar import _compat
from autopar._mesh import is_on_host
from autopar._payload import Payload
from autopar.core.graph import Effect, OpGraph, Scalar, TensorInfo
from autopar.core.regions import Region, RegionKind
from autopar.errors import TraceError
from autopar.trace.keys import data_dtype, data_shape


@dataclass(frozen=True)
class Surroundings:
    """Where a jaxpr stands: the name stack around it, its region, and the source line if it has none of its own.

    `alone` are the mesh axes, of one device each, of the shard_maps around it that are walked in place;
    `in_parts` which loop goes through its rounds in parts (`loop_parts`): none, the "next" one, or one "around" it.
    """

    stack: Any
    region: int | None = None
    source: str | None = None
    alone: frozenset[str] = frozenset()
    in_parts: Literal["none", "next", "around"] = "none"


@dataclass(frozen=True, eq=False)
class DraftOp:
    """An operator before dead code is removed and numbers are given."""

    kind: str
    ins: tuple[TensorInfo, ...]
    outs: tuple[TensorInfo, ...]
    params: dict[str, Any]
    source: str
    scope: str
    region: int | None
    payload: Payload | None
    effect: Effect | None = None
    body: OpGraph | None = None
    added: float = 0.0


@dataclass
class Draft:
    """Operators, regions and hoisted constants in the order in which they were met; the only mutable state here.

    `raw_keys` are the ids of tensors that are used as the data of a PRNG key. `dtypes` are the name and the item size
    of the types met so far. `manual` are the mesh axes of the shard_maps around what is being walked, `fixed`
    says that it is in a loop that every device leaves by itself.
    """

    ops: list[DraftOp] = field(default_factory=list[DraftOp])
    regions: list[Region] = field(default_factory=list[Region])
    constants: dict[int, tuple[Any, TensorInfo]] = field(
        default_factory=dict[int, tuple[Any, TensorInfo]]
    )
    literals: dict[tuple[Any, str], TensorInfo] = field(
        default_factory=dict[tuple[Any, str], TensorInfo]
    )
    raw_keys: set[int] = field(default_factory=set[int])
    dtypes: dict[Any, tuple[str, int]] = field(default_factory=dict[Any, tuple[str, int]])
    manual: tuple[str, ...] = ()
    fixed: bool = False
    count: int = 0

    def tensor(self, aval: Any, name: str = "", literal: Scalar | None = None) -> TensorInfo:
        """A new tensor of this abstract value."""
        self.count += 1
        if aval.dtype not in self.dtypes:
            dtype = data_dtype(aval)
            self.dtypes[aval.dtype] = str(dtype), dtype.itemsize
        same = data_shape(aval), *self.dtypes[aval.dtype], name, literal
        return TensorInfo(
            self.count - 1, *same, manual=self.manual, on_host=is_on_host(aval), fixed=self.fixed
        )

    def constant(self, value: Any, aval: Any) -> TensorInfo:
        """A scalar number as a literal, one for equal values; any other constant hoisted, one for each object.

        Raises:
          TraceError: if it is a placeholder of an enclosing trace.
        """
        if _compat.is_tracer(value):
            raise TraceError(
                f"the function closes over {value!r} of an enclosing jit or grad, which has no value yet: pass it as "
                f"an argument"
            )

        if not aval.shape and not _compat.is_key_dtype(aval.dtype) and _is_number(aval.dtype):
            scalar = np.asarray(value)[()].item()
            key = (aval.dtype, repr(scalar))
            if key not in self.literals:
                self.literals[key] = replace(
                    self.tensor(aval, literal=scalar), manual=(), fixed=False
                )
            return self.literals[key]

        if id(value) not in self.constants:
            self.constants[id(value)] = (value, replace(self.tensor(aval), manual=(), fixed=False))

        return self.constants[id(value)][1]

    def region(
        self,
        kind: RegionKind,
        parent: int | None,
        trips: float = 1.0,
        payload: dict[str, Any] | None = None,
    ) -> int:
        """A new region in `parent`; its number."""
        named = payload or {}
        unrolled = kind == "scan" and named["unroll"] >= named["length"] > 0
        self.regions.append(Region(len(self.regions), kind, parent, trips, unrolled, payload))
        return len(self.regions) - 1


def _is_number(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.number)) or dtype == np.dtype(bool)
