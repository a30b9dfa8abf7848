"""How long does planning take, stage by stage, beside JAX's own trace of the same step?

    python -m benchmarks.planning [--json FILE] [--record] [--only PATTERN] [--all] [--timeout SECONDS] [--clock cpu]

Training steps in shape only (`benchmarks/shapes.py`): GPTs of 2 to 96 unrolled layers and scanned ones, on meshes of
one to three axes; Llama 3 of 8 to 405 B parameters and a mixture of experts of 671 B, on up to 8,192 devices; public
models at their real sizes (`benchmarks/public_models.py`) on 64 devices, whose mesh is searched too. Every row
runs in a process of its own: JAX's trace (jax.make_jaxpr, caches cleared; the lesser of two, since the first one fills
caches that outlive it), then `autopar.plan` with the state donated and the memory of an H100 as limit. Its seconds are
split into trace, rules (copies and candidates), price (the Problem), solve, program (lowering, passes, account) and the
rest. "after trace" is all but the first; the goal is that it takes no longer than JAX's trace, or
2 s where that is shorter. Memory is the process's peak, JAX and imports (in parentheses) included. Imports are not
timed, those that numba puts off to the first call of any compiled function included, and neither is the compilation of
the solver's loops, once for an installation: short rows that are thrown away come first. A run of all rows first
touches memory that the machine may not have been given yet (`benchmarks/backed_memory.py`). A row that is cut off
shows the stages that were done. Without --all, 48 and 96 unrolled layers run on one and two axes only, and all ends
within ten minutes; give the others a --timeout of 300.

On a machine that others use too, `--clock cpu` counts the seconds of the process's own computing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from math import inf, prod
from pathlib import Path
from time import perf_counter, process_time
from typing import Any
from unittest.mock import patch

import jax
from rich import box
from rich.table import Table

import autopar
from benchmarks import public_models, shapes
from benchmarks.backed_memory import back_memory
from benchmarks.end_to_end import describe_machine
from benchmarks.record import Screen, add_record_option, record
from benchmarks.shapes import Shapes

GOAL_S = 2.0
COMPILING = (
    ("gpt-2", (8, 8)),
    ("gpt-2", (8, 8, 8)),
    ("llama-70B", (64, 8)),
    ("llama-70B", (8, 8, 8)),
)
"""Rows whose solves take all ways together: they have the solver's loops compiled."""
CLOCKS: dict[str, Callable[[], float]] = {"wall": perf_counter, "cpu": process_time}
STAGES: dict[str, tuple[tuple[str, str], ...]] = {
    "trace": (("autopar.api.make", "alternatives"),),
    "rules": (
        ("autopar.search.search", "dataflow"),
        ("autopar.search.mesh_context", "build_space"),
    ),
    "price": (("autopar.search.mesh_context", "assemble"),),
    "solve": (
        ("autopar.search.limited_solve", "solve"),
        ("autopar.search.mesh_context", "standing"),
        ("autopar.solve.pipeline.incremental:Standing", "solve"),
        ("autopar.search.tried", "Focus"),
        ("autopar.search.tried", "least_peak"),
        ("autopar.solve.parametric.single_limit:Focus", "turn_to"),
        ("autopar.solve.parametric.single_limit:Focus", "mix"),
    ),
    "program": (
        ("autopar.search.limited_solve", "build_program"),
        ("autopar.search.limited_solve", "lives_of"),
        ("autopar.search.limited_solve", "accounted"),
    ),
}
"""The functions whose calls make up a stage of planning, by module and name."""


@dataclass(frozen=True)
class Case:
    """A model on a mesh, or on 64 devices, whose mesh is searched too, where that is empty.

    `devices_in_server` many of the mesh's devices are one server; long ones run on demand.
    """

    name: str
    model: Callable[[], Shapes]
    mesh: tuple[int, ...]
    long: bool = False
    devices_in_server: int = 8

    @property
    def cluster(self) -> str:
        """As many H100 as the mesh has devices."""
        return f"{prod(self.mesh or (64,)) // self.devices_in_server}x{self.devices_in_server}xh100"


@dataclass(frozen=True)
class Row:
    """What one case gave. `stages` are seconds by name; memory in bytes, `imported_bytes` of it before planning.

    Of a case that was cut off there are the stages that were done, and `plan_s` is inf.
    """

    name: str
    mesh: tuple[int, ...]
    jax_trace_s: float
    plan_s: float
    stages: dict[str, float]
    parameters: int = 0
    operators: int = 0
    gap: float = inf
    step_time_s: float = 0.0
    peak_memory_bytes: int = 0
    imported_bytes: int = 0

    @property
    def after_trace_s(self) -> float:
        """Planning without the trace."""
        return self.plan_s - self.stages["trace"]

    @property
    def reaches_goal(self) -> bool:
        """Whether what comes after the trace takes no longer than JAX's trace, or 2 s."""
        return self.after_trace_s <= max(GOAL_S, self.jax_trace_s)


def _cases() -> tuple[Case, ...]:
    meshes = ((64,), (8, 8), (8, 8, 8), (8, 8, 64))
    found = [
        Case(f"gpt-{layers}", partial(shapes.gpt, layers), mesh, layers >= 48 and len(mesh) == 3)
        for layers in (2, 12, 48, 96)
        for mesh in meshes
    ]
    found += [
        Case("gpt-96-scanned", partial(shapes.gpt, 96, scanned=True), mesh) for mesh in meshes
    ]
    found += [
        Case("llama-8B", partial(shapes.llama, 32, 4096, 14336, 32), (8, 8)),
        Case(
            "llama-8B-unrolled", partial(shapes.llama, 32, 4096, 14336, 32, scanned=False), (8, 8)
        ),
        Case("llama-70B", partial(shapes.llama, 80, 8192, 28672, 64, batch=256), (64, 8)),
        Case("llama-70B", partial(shapes.llama, 80, 8192, 28672, 64, batch=256), (8, 8, 8)),
        Case("llama-405B", partial(shapes.llama, 126, 16384, 53248, 128, batch=1024), (16, 8, 64)),
        Case("moe-671B", shapes.mixture, (64, 8)),
        Case("moe-671B", partial(shapes.mixture, batch=1024), (16, 8, 64)),
        Case("gpt2-xl", public_models.gpt2_xl, ()),
        Case("bloom-176B", public_models.bloom, ()),
        Case("mixtral-8x7B", public_models.mixtral, ()),
    ]
    return tuple(found)


CASES = _cases()


def _holder(place: str) -> Any:
    """The module, or the class after a colon, that has a function."""
    module, _, name = place.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found


@dataclass
class Stopwatch:
    """Seconds by stage, summed over all calls, told to `report` after each; a call within another is not counted."""

    clock: Callable[[], float]
    report: Callable[[dict[str, float]], None]
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    _running: bool = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Times the functions of STAGES while the block runs."""
        patches = [
            patch.object(_holder(place), name, self._timed(place, name, stage))
            for stage, functions in STAGES.items()
            for place, name in functions
        ]
        for one in patches:
            one.start()
        try:
            yield
        finally:
            for one in patches:
                one.stop()

    def _timed(self, place: str, name: str, stage: str) -> Callable[..., Any]:
        function = getattr(_holder(place), name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._running:
                return function(*args, **kwargs)
            self._running, start = True, self.clock()
            try:
                return function(*args, **kwargs)
            finally:
                self._running = False
                self.seconds[stage] += self.clock() - start
                self.report(self.seconds)

        return timed


def measure(case: Case, clock: Callable[[], float]) -> Row:
    """The row of `case`, in this process; what is known of it is printed stage by stage."""
    _import_late()
    imported = _peak_memory_bytes()
    model = case.model()
    mesh = {f"axis{n}": size for n, size in enumerate(case.mesh)} or None
    jax_trace_s = min(_trace_s(model, clock), _trace_s(model, clock))
    jax.clear_caches()

    def report(seconds: dict[str, float]) -> None:
        print(json.dumps(asdict(Row(case.name, case.mesh, jax_trace_s, inf, seconds))), flush=True)

    watch = Stopwatch(clock, report)
    with watch.watching():
        start = clock()
        plan = autopar.plan(
            model.step, *model.args, cluster=case.cluster, mesh=mesh, donate_argnums=0
        )
        plan_s = clock() - start
    stages = {**watch.seconds, "rest": plan_s - sum(watch.seconds.values())}
    return Row(
        case.name,
        case.mesh,
        jax_trace_s,
        plan_s,
        stages,
        model.parameters,
        len(plan.strategies),
        plan.gap,
        plan.step_time_s,
        _peak_memory_bytes(),
        imported,
    )


def _import_late() -> None:
    """Has numba import what it imports at the first call of any compiled function; none of the solver's is called."""
    importlib.import_module("numba").njit(lambda: None)()


def _trace_s(model: Shapes, clock: Callable[[], float]) -> float:
    jax.clear_caches()
    start = clock()
    jax.make_jaxpr(model.step)(*model.args)
    return clock() - start


def _peak_memory_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run_apart(case: Case, clock: str, timeout_s: float) -> Row | str:
    """The row of `case`, from a process of its own, as far as it came; or why there is none."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.planning",
        "--row",
        str(CASES.index(case)),
        f"--clock={clock}",
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        lines = (error.stdout or b"").decode().splitlines()
        return _read(lines[-1]) if lines else f"not traced within {timeout_s:.0f} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return _read(done.stdout.splitlines()[-1])


def _read(line: str) -> Row:
    read = json.loads(line)
    return Row(**{**read, "mesh": tuple(read["mesh"])})


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; the exit status is 1 if a row failed."""
    given = _parser().parse_args(arguments)
    if given.row is not None:
        print(json.dumps(asdict(measure(CASES[given.row], CLOCKS[given.clock]))))
        return 0
    console, machine = Screen(width=150), {**describe_machine(), "seconds": given.clock}
    console.print(", ".join(f"{name}: {value}" for name, value in machine.items()), highlight=False)
    if not given.only:
        back_memory()
    table, rows, failed = _table(), list[Row](), False
    for case in CASES:
        if (case.name, case.mesh) in COMPILING:
            run_apart(case, given.clock, given.timeout)
    for case in CASES:
        if not _is_chosen(case, given.only, given.all):
            continue
        found = run_apart(case, given.clock, given.timeout)
        if isinstance(found, str):
            console.print(f"{case.name} {_size(case.mesh)}: {found}")
            failed = True
            continue
        console.print(f"{case.name} {_size(case.mesh)}: {found.plan_s:.2f} s")
        rows.append(found)
        table.add_row(*_cells(found, given.timeout))
    console.print(table)
    if given.json is not None:
        content = {"machine": machine, "rows": [asdict(row) for row in rows]}
        given.json.write_text(json.dumps(content, indent=1) + "\n")
    record(__file__, given.record, console.tables)
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    add_record_option(parser)
    parser.add_argument(
        "--only",
        default="",
        help="rows whose `name mesh` holds this regular expression, long or not",
    )
    parser.add_argument("--all", action="store_true", help="the long rows too")
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds that a row may take, imports included"
    )
    parser.add_argument(
        "--clock",
        choices=tuple(CLOCKS),
        default="wall",
        help="seconds of the clock or of computing",
    )
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    return parser


def _is_chosen(case: Case, only: str, everything: bool) -> bool:
    name = f"{case.name} {_size(case.mesh)}"
    return bool(re.search(only, name)) if only else everything or not case.long


def _size(mesh: tuple[int, ...]) -> str:
    return "x".join(map(str, mesh)) or "any of 64"


def _table() -> Table:
    table = Table(box=box.MARKDOWN)
    heads = (
        "model",
        "mesh",
        "operators",
        "JAX's trace",
        *STAGES,
        "rest",
        "after trace",
        "goal",
        "gap",
        "MB (imports)",
    )
    for position, head in enumerate(heads):
        table.add_column(head, justify="left" if position < 2 else "right")
    return table


def _cells(row: Row, timeout_s: float) -> tuple[str, ...]:
    head = (
        row.name,
        _size(row.mesh),
        f"{row.operators:,}" if row.operators else "",
        f"{row.jax_trace_s:.2f}",
    )
    stages = tuple(
        f"{row.stages[name]:.2f}" if row.stages.get(name) else "" for name in (*STAGES, "rest")
    )
    if row.plan_s == inf:
        return (*head, *stages, f"not in {timeout_s:.0f} s", "missed", "", "")
    memory = f"{row.peak_memory_bytes / 1e6:,.0f} ({row.imported_bytes / 1e6:,.0f})"
    goal = "reached" if row.reaches_goal else "missed"
    return (*head, *stages, f"{row.after_trace_s:.2f}", goal, f"{100 * row.gap:.2g} %", memory)


if __name__ == "__main__":
    raise SystemExit(main())
