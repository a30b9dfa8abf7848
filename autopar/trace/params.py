"""Parameters of equations as plain data, which is all that a rule may look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, cast

import numpy as np

_ABSENT = object()
_SIMPLE = frozenset({bool, int, float, complex, str})


def plain_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """`params` as numbers, strings, None, tuples and dicts; a parameter that is none of these is left out.

    Named tuples and dataclasses (GatherDimensionNumbers, ...) become dicts of their fields, enums their names,
    dtypes their names, sets sorted tuples. Jaxprs, functions, shardings and arrays are left out.
    """
    return _plain_items(params.items())


def _plain_items(items: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    plain = {str(name): _plain(value) for name, value in items}
    return {name: value for name, value in plain.items() if value is not _ABSENT}


def _plain(value: Any) -> Any:
    if value is None or type(value) in _SIMPLE:
        return value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bool | int | float | complex | str):
        return value
    if isinstance(value, np.generic):
        return cast("np.generic[Any]", value).item()
    if isinstance(value, np.dtype):
        return str(cast("np.dtype[Any]", value))
    if _is_numbers(value):
        return value
    if isinstance(value, type):
        return _plain_type(cast("Any", value))

    return _ABSENT if callable(value) else _plain_container(value)


def _is_numbers(value: Any) -> bool:
    return type(value) is tuple and all(
        type(part) is int for part in cast("tuple[Any, ...]", value)
    )


def _plain_type(value: Any) -> Any:
    """np.float32 and jnp.float32 are both ways to write a dtype; no other type is data."""
    if issubclass(value, np.generic):
        return str(np.dtype(cast("Any", value)))
    dtype = getattr(value, "dtype", None)
    return str(cast("np.dtype[Any]", dtype)) if isinstance(dtype, np.dtype) else _ABSENT


def _plain_container(value: Any) -> Any:
    if hasattr(value, "_fields"):
        return _plain_items((name, getattr(value, name)) for name in value._fields)
    if is_dataclass(value):
        return _plain_items((field.name, getattr(value, field.name)) for field in fields(value))
    if isinstance(value, Mapping):
        return _plain_items(cast("Mapping[Any, Any]", value).items())
    if isinstance(value, set | frozenset):
        return _plain_sequence(sorted(cast("Iterable[Any]", value), key=repr))
    if type(value) in (tuple, list, range):
        return _plain_sequence(value)
    return _ABSENT


def _plain_sequence(values: Iterable[Any]) -> Any:
    plain = tuple(_plain(value) for value in values)
    return _ABSENT if any(value is _ABSENT for value in plain) else plain
