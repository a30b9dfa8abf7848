"""Arguments: what several commands are asked alike."""

from __future__ import annotations

from typing import Annotated

import typer

Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="FILE.py:FUNCTION, which returns (fn, example_args)")
]
TargetOrPlan = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="FILE.py:FUNCTION, which returns (fn, example_args), or a saved PLAN.json",
    ),
]
ClusterName = Annotated[
    str | None, typer.Option(help="cluster profile or its file; default: the devices present")
]
MeshSizes = Annotated[
    str | None, typer.Option(help="axis sizes, data=2,model=4; default: the best is searched")
]
MemoryLimit = Annotated[
    str | None, typer.Option(help="of a device, 16GiB; default: all that it has")
]
VirtualDevices = Annotated[
    int, typer.Option(help="virtual ones, if neither mesh nor cluster tells", min=1)
]
