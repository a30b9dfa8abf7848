"""Reading profile files: TOML, checked against the schema of `profile`; errors say what to write instead."""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cost_models.profile import (
    ClusterProfile,
    DeviceProfile,
    Figure,
    HalfSizesProfile,
    LevelProfile,
    OverlapProfile,
    PackingProfile,
    PointProfile,
    RatesProfile,
    ReachProfile,
    TermsProfile,
    WorkPointProfile,
    WorkProfile,
)

AnyFile = TypeVar("AnyFile", bound=BaseModel)
PARTS = (
    DeviceProfile,
    ClusterProfile,
    LevelProfile,
    OverlapProfile,
    TermsProfile,
    PointProfile,
    WorkProfile,
    WorkPointProfile,
    HalfSizesProfile,
    ReachProfile,
    RatesProfile,
    PackingProfile,
    Figure,
)
FIELDS = tuple(field for part in PARTS for field in part.model_fields)
FIGURE = '{ value = ..., source = "...", date = 2026-01-31, obtained = "measured" }'


class ProfileError(ValueError):
    """A profile file that cannot be read, or a field in it that is wrong: names file, field, value and remedy."""


def read_profile(path: Path, model: type[AnyFile]) -> AnyFile:
    """The file at `path`, checked against `model`.

    Raises:
      ProfileError: naming the file and each wrong field with its value, and what to write instead.
    """
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read as TOML: {error}") from error
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ProfileError("\n".join(_line(path, item) for item in error.errors())) from error


def _line(path: Path, item: ErrorDetails) -> str:
    """File, field, message, value, remedy."""
    where = ".".join(str(part) for part in item["loc"])
    got = "" if item["type"] in ("missing", "value_error") else f", got {item['input']!r}"
    return f"{path}: {where}{': ' if where else ''}{item['msg']}{got}{_remedy(item)}"


def _remedy(item: ErrorDetails) -> str:
    """What to write instead; nothing where the message says so."""
    field = str(item["loc"][-1]) if item["loc"] else ""
    if item["type"] == "extra_forbidden":
        close = get_close_matches(field, FIELDS, n=1)
        return f"; did you mean {close[0]!r}?" if close else "; take it out"

    if item["type"] == "missing":
        return f"; add it, as in {FIGURE}" if field in Figure.model_fields else f"; add {field!r}"
    if item["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return f"; a number is written {FIGURE}" if isinstance(item["input"], int | float) else ""

    if item["type"] in ("float_type", "int_type"):
        return (
            "; write a number in base units (seconds, bytes, bytes/s, operations/s), without quotes"
        )

    if item["type"] in ("greater_than", "greater_than_equal", "finite_number"):
        return "; it is in base units (seconds, bytes, bytes/s, operations/s)"

    return ""
