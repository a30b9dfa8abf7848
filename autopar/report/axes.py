"""Axes to draw on, of matplotlib: an extra, imported only when something is drawn."""

from __future__ import annotations

from typing import Any

from autopar.errors import of_extra


def axes_or_new(axes: Any, **figure: Any) -> Any:
    """`axes`, or where these are None the axes of a new figure made with pyplot's keywords `figure`.

    Raises:
      MissingExtra: matplotlib is not installed.
    """
    with of_extra("notebooks", "plots are drawn by matplotlib"):
        import matplotlib.pyplot as plt  # pyright: ignore[reportMissingModuleSource, reportMissingImports]
    if axes is not None:
        return axes
    _, drawn = plt.subplots(**figure)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return drawn  # pyright: ignore[reportUnknownVariableType]
