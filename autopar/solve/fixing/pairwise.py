"""Which strategies a window leaves beside one another: fewer than those that are within it beside all.

Messages prove what a choice with a strategy costs at least, where its neighbours take whatever is best for it. Of
those that are too dear, none is taken: so what is best for it is looked for again among those that are left, and again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autopar.solve.problem.reduction import Bools
from autopar.solve.trws.arrays import receivers
from autopar.solve.trws.dual import Certificate, rounding_error
from autopar.solve.trws.kernels import reparametrise

_PASSES = 3
_WORTH = 0.95  # of the strategies are left: no other pass if more are
_LARGE = 500_000  # pairs: fewer are looked at one by one as soon


def narrowed(certificate: Certificate, window: float) -> Iterator[list[Bools]]:
    """The strategies within a window of the bound, up to rounding; then those within it beside these, and so on.

    Once where memory has rows, or few pairs are left.
    """
    keep = certificate.keep(window)
    yield keep
    laid, most = certificate.laid, window + rounding_error(certificate)
    if laid is None or certificate.rows.count or not certificate.problem.edges:
        return
    flat, order, to = laid.flat, list[int](laid.order.tolist()), receivers(laid.flat)
    left: Bools = np.concatenate([keep[v] for v in order])
    for _ in range(_PASSES):
        counts = {v: int(np.count_nonzero(mask)) for v, mask in enumerate(keep)}
        pairs = sum(counts[edge.u] * counts[edge.v] for edge in certificate.problem.edges)
        if pairs < _LARGE or not all(counts.values()):
            return
        nodes, excess = np.where(left, laid.nodes, np.inf), np.zeros(len(left))
        with np.errstate(invalid="ignore"):  # inf - inf: where no pair is left, nor is a strategy
            reparametrise(flat, nodes, np.where(left[to], laid.messages, -np.inf), excess)
            closer = left & (excess <= most)
        is_less, left = np.count_nonzero(closer) < _WORTH * np.count_nonzero(left), closer
        keep = list(keep)
        for v, mask in zip(order, np.split(left, flat.start[1:-1]), strict=True):
            keep[v] = mask
        yield keep
        if not is_less:
            return
