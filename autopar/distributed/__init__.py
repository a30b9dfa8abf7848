"""Processes that run one script: how they start, find one another, and have the same to begin with.

Names are imported when they are first used: the launcher needs no JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autopar.distributed.launch import Job, launch
    from autopar.distributed.processes import group_size, init, rank
    from autopar.distributed.same import broadcast, check_same

__all__ = ["Job", "broadcast", "check_same", "group_size", "init", "launch", "rank"]

_HOMES = {
    "launch": "Job launch",
    "processes": "group_size init rank",
    "same": "broadcast check_same",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'autopar.distributed' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"autopar.distributed.{_HOME[name]}"), name)
    return found
