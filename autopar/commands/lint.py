"""The command `lint`: what a program sharded by hand could do better, for people and for CI."""

from __future__ import annotations

from typing import Annotated

import typer

from autopar.commands.arguments import Target, VirtualDevices
from autopar.commands.tools import Tools

FOUND = 1
"""The exit code if anything was found; errors have 2."""


def add_lint(app: typer.Typer, tools: Tools) -> None:
    """Adds the command."""

    @app.command()
    def lint(  # pyright: ignore[reportUnusedFunction] - it is registered
        target: Target,
        mesh: Annotated[
            str | None, typer.Option(help="axis sizes, data=2,model=4; default: the function's own")
        ] = None,
        cluster: Annotated[
            str | None, typer.Option(help="cluster whose prices count; default: CPU devices")
        ] = None,
        devices: VirtualDevices = 8,
        json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
        github: Annotated[
            bool, typer.Option("--github", help="print GitHub's annotations")
        ] = False,
    ) -> None:
        """Compare a program sharded by hand with the plan for its mesh. Exit code: 0 clean, 1 findings, 2 error."""
        with tools.errors():
            tools.use_devices(mesh, cluster, devices)
            task = tools.load(target)
            from autopar.api.lint import lint as find

            options = tools.options(task, mesh, cluster)
            with tools.status(target, options) as keywords, tools.warnings():
                found = find(task.fn, *task.args, **keywords)

            shown = found.to_json() if json else found.annotations() if github else str(found)
            tools.show(shown)

        if not found.is_clean:
            raise typer.Exit(FOUND)
