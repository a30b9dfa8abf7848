"""Recomputable: where chains are cut, and the peak if all is computed anew, against the graph in which it is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autopar.core.recompute import with_recomputed
from autopar.search.recomputable import _Choosing, _largest_bytes, live_peak_bytes, recomputable
from autopar.trace import trace
from tests.recompute.steps import case

pytestmark = pytest.mark.usefixtures("fused_as_ever")


def wide_layers(w: Any, x: Any) -> Any:
    """Layers whose inner values are 16 times as wide as what goes from one to the next."""

    def loss(w: Any) -> Any:
        h = x
        for name in sorted(w):
            inner = jnp.tanh(h @ w[name]["up"])
            h = h + jnp.tanh(inner * jnp.tanh(2 * inner) @ w[name]["down"])
        return (h**2).sum()

    return jax.grad(loss)(w)


def test_stretches_begin_with_what_is_small() -> None:
    up, down = (
        jax.ShapeDtypeStruct((64, 1024), "float32"),
        jax.ShapeDtypeStruct((1024, 64), "float32"),
    )
    weights = {f"{n:02}": {"up": up, "down": down} for n in range(12)}
    graph = trace(wide_layers, (weights, jax.ShapeDtypeStruct((256, 64), "float32"))).graph

    least = live_peak_bytes(with_recomputed(graph, recomputable(graph)).graph)
    for span in (len(graph.ops) >> k for k in range(7)):
        anywhere = _Choosing(graph, span, _largest_bytes(graph)).chosen()
        assert least < live_peak_bytes(with_recomputed(graph, anywhere).graph)


@pytest.mark.parametrize("name", ["gpt", "scanned", "unrolled", "messages"])
@pytest.mark.parametrize("cut", [10**12, 10**4, 10**2])
def test_peaks_with_all_made_again_are_those_of_the_graph_that_does(name: str, cut: int) -> None:
    """Of loops about those: a slice that is read anew is there too."""
    graph = trace(case(name).fn, case(name).args).graph
    share = 1e-2 if name == "scanned" else 1e-3
    for span in (len(graph.ops), 40, 12, 3):
        choosing = _Choosing(graph, span, cut)
        rewritten = with_recomputed(graph, choosing.chosen())
        assert rewritten.twins
        assert choosing.peak_bytes() == pytest.approx(live_peak_bytes(rewritten.graph), share)
