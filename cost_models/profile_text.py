"""Writing profiles: a cluster as the TOML that `profile_file` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, cast

from pydantic import BaseModel

from cost_models.profile import Amount, ClusterProfile, Count, Figure


def profile_text(profile: ClusterProfile, comments: tuple[str, ...] = ()) -> str:
    """The cluster file of `profile`, with `comments` at its head, a line each.

    Reading it gives the same profile: numbers are written so that they are read back exactly.
    """
    head = "".join(f"# {line}\n" for line in comments)
    return head + "\n".join(_table(_data(profile), "")) + "\n"


def _data(value: Any) -> Any:
    """Records as mappings, without what is left at its default."""
    if isinstance(value, Figure | Amount | Count):
        return value

    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        given: dict[str, Any] = {name: getattr(value, name) for name in fields}
        return {
            name: _data(v)
            for name, v in given.items()
            if v != fields[name].get_default(call_default_factory=True)
        }

    if isinstance(value, dict):
        return {key: _data(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_data(item) for item in cast("list[Any]", value)]

    return value


def _table(data: Mapping[str, Any], path: str) -> Iterator[str]:
    """The lines of one table: its own values first, then the tables in it."""
    inner = {key: value for key, value in data.items() if _is_table(value)}
    for key, value in data.items():
        if key not in inner:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in inner.items():
        name = f"{path}.{_key(key)}" if path else _key(key)
        tables = cast("list[Any]", value if isinstance(value, list) else [value])
        for item in tables:
            yield ""
            yield f"[[{name}]]" if isinstance(value, list) else f"[{name}]"
            yield from _table(item, name)


def _is_table(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, dict) for item in cast("list[Any]", value))
    return isinstance(value, dict)


def _key(key: str) -> str:
    return (
        key
        if key.replace("_", "").replace("-", "").isalnum() and key.isascii()
        else json.dumps(key)
    )


def _value(value: Any) -> str:
    match value:
        case Figure() | Amount() | Count():
            fields = type(value).model_fields
            parts = {name: part for name in fields if (part := getattr(value, name)) is not None}
            return (
                "{ " + ", ".join(f"{name} = {_value(part)}" for name, part in parts.items()) + " }"
            )
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case float():
            text = repr(value)
            return text if "." in text or "e" in text else f"{text}.0"
        case date():
            return value.isoformat()
        case list():
            return "[" + ", ".join(_value(item) for item in cast("list[Any]", value)) + "]"
        case _:
            return repr(value)
