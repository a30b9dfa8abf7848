"""The command `verify`: whether a plan computes what plain JAX does."""

from __future__ import annotations

from typing import Annotated

import typer

from autopar.commands.arguments import MeshSizes, Target, VirtualDevices
from autopar.commands.tools import Tools

FAILED = 1
"""The exit code if a plan fails; errors have 2."""


def add_verify(app: typer.Typer, tools: Tools) -> None:
    """Adds the command."""

    @app.command()
    def verify(  # pyright: ignore[reportUnusedFunction] - it is registered
        target: Target,
        mesh: MeshSizes = None,
        cluster: Annotated[
            str | None, typer.Option(help="that is planned for; default: CPU devices")
        ] = None,
        devices: VirtualDevices = 8,
        seed: Annotated[int, typer.Option(help="of random inputs", min=0)] = 0,
        json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    ) -> None:
        """Run a plan on virtual devices beside plain JAX. Exit code: 0 passed, 1 failed, 2 error."""
        with tools.errors():
            tools.use_devices(mesh, cluster, devices)
            task = tools.load(target)
            from autopar.api.verify import verify as run

            options = tools.options(task, mesh, cluster)
            with tools.status(target, options) as keywords, tools.warnings():
                found = run(task.fn, *task.args, seed=seed, **keywords)

            tools.show(found.to_json() if json else str(found))

        if not found.passed:
            raise typer.Exit(FAILED)
