"""What is compared: tiny models in two kinds of precision, meshes of eight devices, and how a plan becomes a program.

Step (float64): the whole training step, values and updated parameters to 1e-10.
Gradients (float32): the loss to 1e-5, every gradient to 1e-4 of the leaf's largest value.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import jax
import numpy as np

from autopar.core.dataflow import Dataflow, dataflow
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.plan import Stage
from autopar.core.program import ShardedProgram
from autopar.core.space import Space
from autopar.passes.pipeline import program_states
from autopar.redistribute.route import Router
from autopar.redistribute.step import StepKind
from autopar.search.space import build_space
from autopar.trace import Traced, trace
from benchmarks.flat_call import flatten
from tests import small_models as models
from tests.quick_compile import QUICK

GPT: dict[str, Any] = {"layers": 1, "width": 16, "heads": 8, "vocab": 16, "sequence": 8, "batch": 8}
SIZES: dict[str, dict[str, Any]] = {
    "mlp": {"widths": (16, 16, 16, 8), "batch": 16},
    "gpt": GPT,
    "cnn": {"channels": (8, 8, 8), "classes": 8, "image": 8, "batch": 8},
    "tied": GPT,
}
STEPS = {"mlp": models.mlp, "gpt": models.gpt, "cnn": models.cnn, "tied": models.tied}
OPTIMISERS = {"mlp": "adam", "gpt": "adam", "cnn": "momentum", "tied": "sgd"}
MESHES = {
    "8": DeviceMesh.of({"x": 8}),
    "2x4": DeviceMesh.of({"x": 2, "y": 4}),
    "2x2x2": DeviceMesh.of({"x": 2, "y": 2, "z": 2}),
}


@dataclass(frozen=True, eq=False)
class Case:
    """A function with example arguments. All of tracing, lowering and running happens inside `precision()`."""

    fn: Any
    args: tuple[Any, ...]
    dtype: str

    def precision(self) -> AbstractContextManager[Any]:
        return jax.enable_x64(self.dtype == "float64")

    @cached_property
    def traced(self) -> Traced:
        with self.precision():
            return trace(self.fn, self.args)

    @property
    def graph(self) -> OpGraph:
        return self.traced.graph

    @cached_property
    def flow(self) -> Dataflow:
        return dataflow(self.graph)

    @cached_property
    def expected(self) -> Any:
        """What the plain function gives, typed keys as their data."""
        with self.precision():
            return jax.tree.map(key_data, jax.jit(self.fn, compiler_options=QUICK)(*self.args))

    def space(self, mesh: DeviceMesh) -> Space:
        return build_space(self.graph, self.flow, mesh, keep=lambda _, strategies: strategies)

    def states(self, stage: Stage, permutes: bool = True) -> dict[str, ShardedProgram]:
        """The program of `stage` after every pass, by the pass's name; without `permutes` none is on a route."""
        price = with_permutes if permutes else without_permutes
        return dict(program_states(self.graph, self.flow, stage, Router(stage.mesh, price), price))

    def program(self, stage: Stage) -> ShardedProgram:
        return list(self.states(stage).values())[-1]


def inputs_of(case: Case) -> list[Any]:
    """The flat inputs of a program of `case`: its arguments, then its constants."""
    return [*flatten(case.traced, case.args, {}), *case.traced.constants]


def key_data(leaf: Any) -> Any:
    return (
        jax.random.key_data(leaf)
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else leaf
    )


def with_permutes(kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
    """Seconds of a step on some network: 1 us and 1 GB/s."""
    return size_bytes / 1e11 if kind in ("slice", "mask") else 1e-6 * len(axes) + size_bytes / 1e9


def without_permutes(kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
    """The same, with permutes dearer than any way around them."""
    return with_permutes(kind, axes, size_bytes) + (kind == "permute")


@lru_cache
def step_case(name: str, optimiser: str = "", **changes: Any) -> Case:
    """The training step of the model `name`, in float64."""
    fn, args = STEPS[name]("float64", optimiser or OPTIMISERS[name], **(SIZES[name] | changes))
    return Case(fn, args, "float64")


@lru_cache
def gradients_case(name: str, **changes: Any) -> Case:
    """The loss of the model `name` and its gradients, in float32."""
    fn, args = models.loss_and_grads(name, "float32", **(SIZES[name] | changes))
    return Case(fn, args, "float32")


@lru_cache
def space_of(case: Case, mesh: str) -> Space:
    """The space of `case` on a mesh of MESHES."""
    return case.space(MESHES[mesh])


def assert_equal(expected: Any, found: Any, dtype: str) -> None:
    """Whether two trees of results are the same up to the order of summation; integers and bits exactly."""
    wanted, given = jax.tree.leaves(expected), jax.tree.leaves(found)
    assert [(w.shape, w.dtype) for w in wanted] == [(g.shape, g.dtype) for g in given]
    pairs = [(np.asarray(w), np.asarray(g)) for w, g in zip(wanted, given, strict=True)]
    rounded = np.dtype(dtype), np.result_type(dtype, np.complex64)
    overall = max((_largest(w) for w, _ in pairs if w.dtype in rounded), default=0.0)
    for position, (w, g) in enumerate(pairs):
        if w.dtype in rounded:
            error, allowed = _largest(w - g), _allowed(w, overall, dtype)
            assert error <= allowed, (
                f"result {position} of shape {w.shape}: error {error:.3g} > {allowed:.3g}"
            )
        else:
            np.testing.assert_array_equal(w, g)


def _allowed(wanted: np.ndarray, overall: float, dtype: str) -> float:
    """The error allowed. A leaf whose true value is zero holds rounding errors of larger ones: 1e-6 of the largest."""
    if dtype == "float64":
        return 1e-10 * max(1.0, _largest(wanted))
    relative = 1e-4 if wanted.ndim else 1e-5
    return max(relative * _largest(wanted), 1e-6 * overall if wanted.ndim else 0.0)


def _largest(values: np.ndarray) -> float:
    """The largest absolute value; NaN if there is one, and NaN is not <= anything."""
    return float(np.max(np.abs(values), initial=0.0))
