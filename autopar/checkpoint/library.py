"""Orbax, imported when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from autopar.errors import of_extra


def orbax() -> Any:
    """The module `orbax.checkpoint`, without its annotations.

    Raises:
      MissingExtra: if it is not installed.
    """
    with of_extra("train", "checkpoints need orbax"):
        return import_module("orbax.checkpoint")
