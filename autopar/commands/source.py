"""The command `source`: a plan as a Python module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopar.commands.arguments import ClusterName, MeshSizes, Target
from autopar.commands.tools import Tools


def add_source(app: typer.Typer, tools: Tools) -> None:
    """Adds the command."""

    @app.command()
    def source(  # pyright: ignore[reportUnusedFunction] - it is registered
        target: Target,
        cluster: ClusterName = None,
        mesh: MeshSizes = None,
        output: Annotated[
            Path | None, typer.Option("--output", "-o", help="default: standard output")
        ] = None,
    ) -> None:
        """Plan a function, and write its program as a Python module that imports JAX alone."""
        with tools.errors():
            tools.check_writable(output)
            task = tools.load(target)
            from autopar.api.compiled import plan

            options = {"cluster": None, "mesh": None, **tools.options(task, mesh, cluster)}
            with tools.status(target, options) as keywords, tools.warnings():
                made = plan(task.fn, *task.args, **keywords)

            text = made.to_source(output)
            if output is None:
                tools.show(text)
            else:
                tools.show(f"written: {output}, {len(text.splitlines())} lines\n")
