"""Tools: what every command needs of the command line: to read a target, and to say in a line what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol


class Target(Protocol):
    """What a user's file asks to plan: a function, example arguments and options."""

    @property
    def fn(self) -> Callable[..., Any]:
        """The function."""
        ...

    @property
    def args(self) -> tuple[Any, ...]:
        """Its example arguments."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of autopar.plan, and arguments by name."""
        ...


@dataclass(frozen=True)
class Tools:
    """What a command is given by the command line.

    `load` reads FILE.py:FUNCTION and runs the file; `mesh` reads axis sizes; `errors` ends the program with exit code 2
    and one line on stderr where the input is to blame; `warnings` makes one line of each; `status` shows how far a
    search is; `check_writable` refuses a file that cannot be written; `show` prints text.
    """

    load: Callable[[str], Target]
    mesh: Callable[[str], dict[str, int]]
    errors: Callable[[], AbstractContextManager[None]]
    warnings: Callable[[], AbstractContextManager[None]]
    status: Callable[[str, Mapping[str, Any]], AbstractContextManager[dict[str, Any]]]
    check_writable: Callable[[Path | None], None]
    show: Callable[[str], None]

    def options(self, task: Target, mesh: str | None, cluster: str | None) -> dict[str, Any]:
        """The options of a task, with what the command line gives instead."""
        given = {"mesh": None if mesh is None else self.mesh(mesh), "cluster": cluster}
        return {**task.options, **{name: one for name, one in given.items() if one is not None}}

    def use_devices(self, mesh: str | None, cluster: str | None, devices: int) -> None:
        """Has JAX make virtual CPU devices: as many as the mesh or the cluster has, else `devices`."""
        from autopar._compat import use_virtual_devices
        from cost_models import load_cluster

        count = devices
        if mesh is not None:
            count = prod(self.mesh(mesh).values())
        elif cluster is not None:
            count = load_cluster(cluster).topology.device_count
        use_virtual_devices(count)
