"""A case: a program, a mesh, a form and a plan, of one integer; whether the plan computes what the program does."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import jax
import numpy as np

import autopar
from autopar.core.manual import KINDS as MANUAL
from autopar.core.mesh import DeviceMesh
from autopar.core.plan import Stage
from autopar.core.program import Compute, ShardedProgram
from autopar.core.space import Space
from autopar.errors import AutoparError, ProgramError, RuleError, UnsupportedPrimitiveWarning
from autopar.passes.pipeline import build_program
from autopar.redistribute.route import Router
from autopar.trace import Traced, trace
from benchmarks.flat_call import unflatten
from cost_models import Cluster, load_cluster
from cost_models.cluster import replace_link
from tests.equivalence.cases import Case, inputs_of, with_permutes
from tests.equivalence.check import run as run_compiled
from tests.equivalence.draw import local_plan, uniform_plan
from tests.fuzz.generate import generate
from tests.fuzz.source import Program
from tests.reference.jaxprs import evaluate
from tests.reference.run import Reference

FORMS = ("plain", "plain", "padded", "parts")
"""How the program is traced: as it is; some dims longer than they are; loops over samples in a part for each device."""
PLANS = ("uniform", "uniform", "local", "local", "local", "solver")
BUGS = (ProgramError, RuleError)
TOLERANCE, SINGLE_TOLERANCE = 1e-9, 2e-4
NOISE, SINGLE_NOISE = 1e-13, 1e-6

Verdict = Literal["passed", "refused", "failed", "unstable"]


@dataclass(frozen=True, eq=False)
class FuzzCase:
    """A program with its arguments, a mesh, a form, and its plan: any, one whose neighbours agree, or a solver's.

    A solver chooses the form itself.
    """

    program: Program
    mesh: DeviceMesh
    plan: str
    plan_seed: int
    form: str = "plain"

    @property
    def case(self) -> Case:
        return case_of(self.program, self.form)

    def __str__(self) -> str:
        return f"# mesh {self.mesh}, {self.form}, {self.plan} plan {self.plan_seed}\n{self.program}"


@dataclass(frozen=True, eq=False)
class Formed(Case):
    """A case that is traced another way."""

    way: Callable[[], Traced]

    @cached_property
    def traced(self) -> Traced:
        with self.precision():
            return self.way()

    @cached_property
    def expected(self) -> Any:
        """As the plain function gives it; where that has a shard_map, equation by equation in numpy.

        XLA splits what lies around a shard_map as it likes, and ends the process on pads and gathers of some kinds.
        """
        with self.precision():
            closed, shape = jax.make_jaxpr(self.fn, return_shape=True)(*self.args)
            if "shard_map" not in str(closed):
                return super().expected
            results = evaluate(closed, jax.tree.leaves(self.args))
            return jax.tree.unflatten(jax.tree.structure(shape), results)


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    passed: with a note where XLA left a collective out that it would have had to run by `inspect.compare`.
    refused: an AutoparError that speaks to the user. unstable: the results differ, but so do the plain function's when
    every value is off by a rounding error (a comparison of two sums that are equal, say).
    """

    verdict: Verdict
    message: str = ""


@lru_cache(maxsize=4)
def case_of(program: Program, form: str) -> Case:
    """The program, to be traced and run once however many plans are tried."""
    fn, args, devices = program.block.function(), program.args, program.mesh.size

    def traced() -> Traced:
        if form == "parts":
            return trace(fn, args, loop_parts=devices)
        plain = trace(fn, args)
        return (
            trace(fn, args, padding=padding_of(plain, devices))
            if form == "padded" and not plain.mesh
            else plain
        )

    return Formed(fn, args, "float64", traced)


def padding_of(traced: Traced, devices: int) -> dict[int, int]:
    """What most uneven sizes become: a multiple of what divides the number of devices, however much that adds."""
    tensors = [*traced.graph.inputs, *(t for op in traced.graph.ops for t in op.outs)]
    sizes = sorted({n for t in tensors for n in t.shape if n > 1})
    rng = random.Random(str(sizes))
    parts = [n for n in range(2, devices + 1) if devices % n == 0]
    longer = {n: -(-n // m) * m for n in sizes for m in [rng.choice(parts)] if rng.random() < 0.8}
    return {n: more for n, more in longer.items() if more > n}


def draw_case(seed: int) -> FuzzCase:
    """The case of an integer, always the same."""
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        program = generate(rng)
    plan = PLANS[int(rng.integers(len(PLANS)))]
    return FuzzCase(
        program, program.mesh, plan, int(rng.integers(2**31)), FORMS[int(rng.integers(len(FORMS)))]
    )


Run = Callable[[Case, ShardedProgram], tuple[Any, str]]


def interpreted(case: Case, program: ShardedProgram) -> tuple[Any, str]:
    """The results of `program` on the slow reference; nothing to note."""
    return unflatten(case.traced, Reference(program).run(inputs_of(case))), ""


def compiled(case: Case, program: ShardedProgram) -> tuple[Any, str]:
    """The results of `program` compiled for virtual devices, and which planned collectives XLA saw no need for.

    Such are right where the values are: XLA sees that a window that covers a dim has one place, and that both cases
    of a `where` are the same.

    Raises:
      AssertionError: if there are collectives that were not planned.
    """
    results, comparison = run_compiled(case, program)
    assert not comparison.unplanned, f"collectives: {comparison}"
    return results, "" if comparison.explained else str(comparison)


def check(fuzz: FuzzCase, run: Run = interpreted) -> Outcome:
    """Whether the planned program, run by `run`, gives what the plain function gives."""
    case = fuzz.case
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsupportedPrimitiveWarning)
        try:
            ran, program = plan_program(fuzz, case)
            found, note = run(ran, program)
        except BUGS as error:
            return Outcome("failed", _text(error))
        except AutoparError as error:
            return Outcome("refused", _text(error))
        except Exception as error:  # whatever is raised is what the fuzzer looks for
            return Outcome("failed", _text(error))
        difference = compare(case.expected, found, tolerance(fuzz.program))
        if not difference:
            return Outcome("passed", note)
        return Outcome("unstable" if is_unstable(fuzz) else "failed", difference)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:500]}"


def plan_program(fuzz: FuzzCase, case: Case) -> tuple[Case, ShardedProgram]:
    """The program of the plan that `fuzz` names, and the case as it was traced for that."""
    if fuzz.plan == "solver":
        mesh = dict(fuzz.mesh.axes)
        plan = autopar.plan(case.fn, *case.args, cluster=slow_devices(fuzz.mesh.size), mesh=mesh)
        return Formed(case.fn, case.args, case.dtype, lambda: plan.bound.traced), plan.program()
    return case, build_program(
        case.graph, case.flow, stage_of(fuzz, case), router(fuzz.mesh), with_permutes
    )


def stage_of(fuzz: FuzzCase, case: Case) -> Stage:
    space: Space = case.space(fuzz.mesh)
    if fuzz.plan == "uniform":
        return uniform_plan(space, fuzz.plan_seed)
    return local_plan(
        case, space, fuzz.plan_seed, agreement=random.Random(fuzz.plan_seed).choice((0.5, 0.7, 0.9))
    )


@lru_cache
def router(mesh: DeviceMesh) -> Router:
    return Router(mesh, with_permutes)


@lru_cache
def slow_devices(count: int) -> Cluster:
    """Devices far slower than the links between them, and no latency: splitting pays for the smallest arrays."""
    cluster = replace_link(load_cluster(f"{count}xh100"), "device", latency_s=0.0)
    device = replace(cluster.device, memory_bandwidth_bytes_per_s=1e9, launch_s=0.0)
    return replace(cluster, name="slow devices", device=device)


def tolerance(program: Program) -> float:
    """Relative to the largest value of a result: single precision anywhere makes all less precise."""
    return SINGLE_TOLERANCE if "float32" in str(program) else TOLERANCE


def compare(expected: Any, found: Any, relative: float) -> str:
    """What is different, or "": types and integers exactly, floats relative to the largest value, 1 at least."""
    wanted, given = jax.tree.leaves(expected), jax.tree.leaves(found)
    if len(wanted) != len(given):
        return f"{len(given)} results, not {len(wanted)}"
    for position, (w, g) in enumerate(
        zip(map(np.asarray, wanted), map(np.asarray, given), strict=True)
    ):
        if (w.shape, w.dtype) != (g.shape, g.dtype):
            return f"result {position} is {g.dtype}{list(g.shape)}, not {w.dtype}{list(w.shape)}"
        allowed = relative * max(1.0, _largest(w)) if w.dtype.kind in "fc" else 0.0
        wide = np.complex128 if w.dtype.kind == "c" else np.float64
        with np.errstate(over="ignore", invalid="ignore"):
            error = _largest(np.where(w == g, 0, w.astype(wide) - g.astype(wide)))
        if not error <= allowed:
            return f"result {position} {w.dtype}{list(w.shape)} is off by {error:.3g}, {allowed:.3g} is allowed"
    return ""


def _largest(values: np.ndarray) -> float:
    return float(np.max(np.abs(values), initial=0.0))


def is_unstable(fuzz: FuzzCase) -> bool:
    """Whether rounding errors alone may change the results by more than is allowed: four times, at random."""
    program = fuzz.program
    closed = jax.make_jaxpr(program.block.function())(*program.args)
    plain = evaluate(closed, program.args)
    noisy = (evaluate(closed, program.args, noise(seed)) for seed in range(4))
    return any(compare(plain, other, tolerance(program) / 10) for other in noisy)


def noise(seed: int) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
    """Changes floats by a few rounding errors."""
    rng = np.random.default_rng(seed)

    def observe(values: list[np.ndarray]) -> list[np.ndarray]:
        return [
            _noisy(value, rng) if getattr(value.dtype, "kind", "") == "f" else value
            for value in values
        ]

    return observe


def _noisy(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    size = NOISE if value.dtype == np.float64 else SINGLE_NOISE
    with np.errstate(over="ignore"):
        return (value * (1 + size * rng.uniform(-1, 1, value.shape))).astype(value.dtype)


def first_difference(fuzz: FuzzCase) -> str:
    """The first instruction that makes what is not its tensor, on the slow reference."""
    case = fuzz.case
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsupportedPrimitiveWarning)
        try:
            case, program = plan_program(fuzz, case)
        except Exception as error:  # what the fuzzer looks for, told
            return f"{_text(error)} in planning"
        whole = _tensors(case)
        reference = Reference(program)
        try:
            reference.run(inputs_of(case))
        except Exception as error:  # told beside what was run before it
            last = next(i for i in program.instructions if not set(i.outs) <= set(reference.env))
            return f"{_text(error)} in {_show(program, last)}"
        for instruction in program.instructions:
            for value in instruction.outs:
                tensor = program.values[value].tensor
                if tensor.id in whole:
                    difference = compare(
                        [whole[tensor.id]], [reference.whole(value)], tolerance(fuzz.program)
                    )
                    if difference:
                        return f"{difference} in {_show(program, instruction)}"
    return ""


def _show(program: ShardedProgram, instruction: Any) -> str:
    lines = str(program).splitlines()
    text = lines[program.instructions.index(instruction)]
    return f"{text}\n{instruction.op.params}" if isinstance(instruction, Compute) else text


def _tensors(case: Case) -> dict[int, np.ndarray]:
    """Every tensor of the graph, whole; none if some of the mesh's axes are the program's own."""
    graph = case.graph
    if any(op.kind in MANUAL for op in graph.ops):
        return {}
    mesh = DeviceMesh.of({"x": 1})
    stage = case.space(mesh).stage([0] * len(case.space(mesh).counts))
    reference = Reference(build_program(graph, case.flow, stage, router(mesh), with_permutes))
    reference.run(inputs_of(case))
    return {reference.program.values[v].tensor.id: reference.whole(v) for v in reference.env}
