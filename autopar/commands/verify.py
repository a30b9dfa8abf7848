"""The command `verify`: whether a plan computes what plain JAX does."""

from __future__ import annotations

from typing import Annotated

import typer

from autopar.commands.tools import Tools

FAILED = 1
"""The exit code if a plan fails; errors have 2."""


def add_verify(app: typer.Typer, tools: Tools) -> None:
    """Adds the command."""

    @app.command()
    def verify(  # pyright: ignore[reportUnusedFunction] - it is registered
        target: Annotated[
            str,
            typer.Argument(
                metavar="TARGET", help="FILE.py:FUNCTION, which returns (fn, example_args)"
            ),
        ],
        mesh: Annotated[
            str | None,
            typer.Option(help="axis sizes, data=2,model=4; default: the best is searched"),
        ] = None,
        cluster: Annotated[
            str | None, typer.Option(help="that is planned for; default: CPU devices")
        ] = None,
        devices: Annotated[
            int, typer.Option(help="virtual ones, if neither mesh nor cluster tells", min=1)
        ] = 8,
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
