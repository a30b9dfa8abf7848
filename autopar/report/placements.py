"""Placements of a report's rows, which are text, as data."""

from __future__ import annotations

import re

ON_HOST = " on the host"
"""What stands behind the placement of a tensor that lies in the host's memory."""


def parse_placement(placement: str) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """The axes of every dim, and the unreduced ones, of a placement's text: "[data*model, -] sum(x,y)"."""
    placement = placement.removesuffix(ON_HOST)
    inner, _, tail = placement.removeprefix("[").partition("]")
    dims = (
        tuple(() if part == "-" else tuple(part.split("*")) for part in inner.split(", "))
        if inner
        else ()
    )
    found = re.fullmatch(r" (?:sum|max|min)\((.*)\)", tail)
    return dims, tuple(found[1].split(",")) if found else ()
