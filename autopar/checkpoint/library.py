"""Orbax, imported when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from autopar.errors import MissingExtra


def orbax() -> Any:
    """The module `orbax.checkpoint`, without its annotations.

    Raises:
      MissingExtra: if it is not installed.
    """
    try:
        return import_module("orbax.checkpoint")
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"checkpoints need orbax, which cannot be imported ({error}): pip install 'autopar[train]'"
        ) from error
