"""Values: what operators are told, as Python text that stands alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, cast

import numpy as np

from autopar._compat import is_type_of_lax, public_primitives
from autopar.emit.source.layout import Group, Named, Text, call, sequence
from autopar.errors import SourceError

_MOST_ELEMENTS = 64
"""A constant with more of them stands in a file beside the module."""
PRIMITIVES = public_primitives()
_BY_NAME = {primitive.name: name for name, primitive in PRIMITIVES.items()}


def public_name(primitive: Any) -> str | None:
    """What JAX calls `primitive` in `jax.extend.core.primitives`; None where it does not make it public."""
    name = _BY_NAME.get(primitive.name)
    return name if name is not None and PRIMITIVES[name] is primitive else None


def dtype_text(dtype: Any) -> str:
    """An element type, as functions of JAX take it."""
    name = np.dtype(dtype).name
    return "jnp.bool_" if name == "bool" else f"jnp.{name}"


def is_small(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array is written in the text."""
    return array.size <= _MOST_ELEMENTS


def scalar_text(value: Any, dtype: Any) -> Text:
    """A scalar of element type `dtype`."""
    kind = np.dtype(dtype)
    plain = plain_number(value, kind)
    if hasattr(np, kind.name) or kind.name == "bool":
        return call(f"np.{'bool_' if kind.name == 'bool' else kind.name}", plain)
    return call("np.array", plain, dtype_text(kind))


def plain_number(value: Any, dtype: Any) -> str:
    """A scalar as a number of Python, which becomes `value` again where it is cast to `dtype`."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return str(bool(value))
    if kind.kind in "iu" or "int" in kind.name:
        return str(int(value))
    if kind.kind == "c":
        number = complex(value)
        return f"complex({_real(number.real)}, {_real(number.imag)})"
    return _real(float(value))


def _real(number: float) -> str:
    if np.isnan(number):
        return "np.nan"
    if np.isinf(number):
        return "np.inf" if number > 0 else "-np.inf"
    return repr(number).replace("e+", "e")


def array_text(array: np.ndarray[Any, Any]) -> Text:
    """A small array."""
    if array.ndim == 0:
        return scalar_text(array[()], array.dtype)
    made = call("np.array", _nested(array), dtype_text(array.dtype))
    return (
        made if array.size else call("np.zeros", value_text(array.shape), dtype_text(array.dtype))
    )


def _nested(array: np.ndarray[Any, Any]) -> Text:
    if array.ndim == 0:
        return plain_number(array[()], array.dtype)
    return sequence([_nested(part) for part in array], "[]")


def value_text(value: Any) -> Text:
    """A parameter of an operator.

    Raises:
      SourceError: there is no text for it that stands alone.
    """
    if isinstance(value, Enum):
        return f"{_of_lax(type(value), value)}.{value.name}"
    if value is None or isinstance(value, bool | int | np.integer):
        return str(cast(object, value))
    if isinstance(value, float):
        return _real(value)
    if isinstance(value, str):
        return quoted(value)

    dtype: Any = getattr(value, "dtype", None)
    if isinstance(value, np.generic):
        return scalar_text(cast(Any, value), dtype)
    if isinstance(value, np.dtype):
        return call("np.dtype", dtype_text(cast(Any, value)))
    if isinstance(value, np.ndarray):
        return array_text(cast("np.ndarray[Any, Any]", value))
    return _structure_text(value)


def _structure_text(value: Any) -> Text:
    kind = cast(Any, type)(value)
    if hasattr(value, "_fields"):
        named = {name: value_text(getattr(value, name)) for name in value._fields}
        return call(_of_lax(kind, value), **named)
    if isinstance(value, tuple | list):
        items = [value_text(one) for one in cast("tuple[Any, ...]", value)]
        return sequence(items, "()" if isinstance(value, tuple) else "[]")

    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        keys = [(value_text(key), value_text(one)) for key, one in pairs]
        return Group("", tuple(Named(str(key), one, ": ") for key, one in keys), "{}")
    if hasattr(value, "bind") and public_name(value) is not None:
        return f"primitives.{public_name(value)}"
    if is_type_of_lax(kind) and is_dataclass(value):
        named = {one.name: value_text(getattr(value, one.name)) for one in fields(value)}
        return call(f"lax.{kind.__name__}", **named)
    raise SourceError(
        f"a {kind.__module__}.{kind.__name__} ({value!r:.80}) has no text that stands alone"
    )


def _of_lax(kind: Any, value: Any) -> str:
    if not is_type_of_lax(kind):
        raise SourceError(
            f"{value!r:.80} is of a type that jax.lax does not make public: a module that imports JAX alone cannot "
            f"name it"
        )
    return f"lax.{kind.__name__}"


def quoted(text: str) -> str:
    """A string, in double quotes unless it has some."""
    shown = repr(text)
    return f'"{shown[1:-1]}"' if shown[0] == "'" and '"' not in text else shown
