"""Axes to draw on, of matplotlib: an extra, imported only when something is drawn."""

from __future__ import annotations

from typing import Any

from autopar.errors import AutoparError


def axes_or_new(axes: Any, **figure: Any) -> Any:
    """`axes`, or where these are None the axes of a new figure made with pyplot's keywords `figure`.

    Raises:
      AutoparError: matplotlib is not installed.
    """
    try:
        import matplotlib.pyplot as plt  # pyright: ignore[reportMissingModuleSource, reportMissingImports]
    except ImportError as error:
        raise AutoparError("plotting needs matplotlib: pip install 'autopar[notebooks]'") from error
    if axes is not None:
        return axes
    _, drawn = plt.subplots(**figure)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return drawn  # pyright: ignore[reportUnknownVariableType]
