"""Known values: what tensors hold that depend on numbers alone, such as indices written out in the user's function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np

from autopar.trace.draft import Draft, DraftOp

Value = np.ndarray[Any, Any]
_MOST_ELEMENTS = 1 << 20
"""What is larger is not worked out: indices of a strided write are as many as the rows that it writes."""


@dataclass(eq=False)
class KnownValues:
    """Works out values of tensors of `draft` when asked. `makers` are the operators seen so far, by result."""

    draft: Draft
    makers: dict[int, DraftOp] = field(default_factory=dict[int, DraftOp])
    values: dict[int, Value | None] = field(default_factory=dict[int, Value | None])
    seen: int = 0

    def value(self, tensor: Any) -> Value | None:
        """What `tensor` holds; None where that is not known, or large."""
        self._see()
        return self._value(tensor)

    def parts(self, tensor: Any) -> list[Any]:
        """The tensors that `tensor` is, laid side by side along its last dim."""
        self._see()
        maker = self.makers.get(tensor.id)
        last = len(tensor.shape) - 1
        if maker is None or maker.kind != "concatenate" or maker.params["dimension"] != last:
            return [tensor]
        return list(maker.ins)

    def _see(self) -> None:
        for op in self.draft.ops[self.seen :]:
            self.makers.update((out.id, op) for out in op.outs)
        self.seen = len(self.draft.ops)

    def _value(self, tensor: Any) -> Value | None:
        if tensor.literal is not None:
            return np.asarray(tensor.literal).astype(tensor.dtype)
        if prod(tensor.shape) > _MOST_ELEMENTS or np.dtype(tensor.dtype).kind not in "biu":
            return None
        if tensor.id not in self.values:
            self.values[tensor.id] = self._made(tensor)
        return self.values[tensor.id]

    def _made(self, tensor: Any) -> Value | None:
        op = self.makers.get(tensor.id)
        if op is None:
            hoisted = (
                value
                for value, constant in self.draft.constants.values()
                if constant.id == tensor.id
            )
            value = next(hoisted, None)
            return None if value is None else np.asarray(value)

        if op.kind not in _WORKED_OUT:
            return None

        operands = [self._value(operand) for operand in op.ins]
        if any(operand is None for operand in operands):
            return None

        with np.errstate(all="ignore"):  # integers wrap, as in JAX
            found = np.asarray(_WORKED_OUT[op.kind](op.params, *operands))

        return found.astype(tensor.dtype).reshape(tensor.shape)


def _elementwise(function: Callable[..., Any], _: Any, *operands: Value) -> Any:
    return function(*operands)


def _iota(params: Any) -> Value:
    shape: tuple[int, ...] = params["shape"]
    dim: int = params["dimension"]
    along = np.arange(shape[dim]).reshape([-1 if d == dim else 1 for d in range(len(shape))])
    return np.broadcast_to(along, shape)


def _broadcast(params: Any, x: Value) -> Value:
    dims: tuple[int, ...] = params["broadcast_dimensions"]
    shape: tuple[int, ...] = params["shape"]
    sizes = dict(zip(dims, x.shape, strict=True))
    return np.broadcast_to(x.reshape([sizes.get(d, 1) for d in range(len(shape))]), shape)


def _same(_: Any, x: Value) -> Value:
    return x


def _reshape(params: Any, x: Value) -> Value:
    return x if params.get("dimensions") is None else x.transpose(params["dimensions"])


def _concatenate(params: Any, *xs: Value) -> Value:
    return np.concatenate(xs, params["dimension"])


def _select(_: Any, which: Value, *cases: Value) -> Value:
    return np.choose(which.astype(np.int64), cases)


_WORKED_OUT: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "convert_element_type": _same,
    "iota": _iota,
    "reshape": _reshape,
    "select_n": _select,
    "squeeze": _same,
    **{
        kind: partial(_elementwise, function)
        for kind, function in {
            "add": np.add,
            "and": np.bitwise_and,
            "eq": np.equal,
            "ge": np.greater_equal,
            "gt": np.greater,
            "le": np.less_equal,
            "lt": np.less,
            "max": np.maximum,
            "min": np.minimum,
            "mul": np.multiply,
            "ne": np.not_equal,
            "neg": np.negative,
            "or": np.bitwise_or,
            "sub": np.subtract,
        }.items()
    },
}
