"""Whatever is kept or recomputed, the values are the plain function's: of the graph, and of what is emitted for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import pytest

from autopar.core.dataflow import dataflow
from autopar.core.recompute import with_recomputed
from autopar.search.recomputable import recomputable
from autopar.search.space import build_space
from autopar.trace import Traced
from tests.equivalence.cases import MESHES, Case, assert_equal, inputs_of
from tests.equivalence.check import run
from tests.equivalence.draw import local_plan
from tests.recompute.steps import case, drawn
from tests.trace.evaluate import evaluate

SLOW = pytest.mark.slow
NAMES = ["scanned", "unrolled", "tiny", "messages", pytest.param("gpt", marks=SLOW)]


class Rewritten(Case):
    """A case whose graph recomputes."""

    def __init__(self, of: Case, seed: int, share: float) -> None:
        super().__init__(of.fn, of.args, of.dtype)
        self.__dict__["traced"] = _with_graph(of.traced, seed, share)


def _with_graph(traced: Traced, seed: int, share: float) -> Traced:
    return replace(
        traced, graph=with_recomputed(traced.graph, drawn(traced.graph, seed, share)).graph
    )


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=SLOW) for seed in range(2))])
def test_a_rewritten_graph_computes_the_same(name: str, seed: int) -> None:
    plain = case(name)
    graph = Rewritten(plain, seed, (0.5, 0.8, 1.0)[seed]).graph
    assert seed < 2 or any(op.recomputes is not None for op in graph.ops)
    with plain.precision():
        values = [jax.numpy.asarray(value) for value in inputs_of(plain)]
        wanted, found = (evaluate(g, values) for g in (plain.graph, graph))
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("scanned", "8"),
        ("scanned", "2x4"),
        ("unrolled", "2x4"),
        ("tiny", "2x2x2"),
        ("messages", "2x4"),
        pytest.param("gpt", "2x4", marks=SLOW),
    ],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=SLOW)])
def test_the_emitted_function_computes_the_same(name: str, mesh: str, seed: int) -> None:
    plain = case(name)
    rewritten = Rewritten(plain, seed, 0.7)
    flow = dataflow(rewritten.graph)
    space = build_space(rewritten.graph, flow, MESHES[mesh], keep=lambda _, strategies: strategies)
    found, comparison = run(rewritten, rewritten.program(local_plan(rewritten, space, seed)))
    assert_equal(plain.expected, found, plain.dtype)
    assert not comparison.unplanned, str(comparison)


def test_most_of_a_layer_may_be_recomputed() -> None:
    """But what the last layer ends in, which the loss and its derivative read in one fused loop."""
    graph = case("unrolled").graph
    kinds = [graph.ops[one.op].kind for one in recomputable(graph)]
    assert kinds.count("tanh") == 2
    assert kinds.count("dot_general") >= 2


def test_what_is_gathered_and_summed_by_segments_may_be_recomputed() -> None:
    """But the last layer's sums, which only its own end reads."""
    graph = case("messages").graph
    kinds = Counter(graph.ops[one.op].kind for one in recomputable(graph))
    assert (kinds["gather"], kinds["scatter-add"], kinds["reduce_window_sum"]) == (4, 1, 1)
