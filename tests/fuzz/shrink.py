"""shrink: a failing case in, one with fewer lines that fails the same way out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from tests.fuzz.case import PLANS, FuzzCase, Outcome, check
from tests.fuzz.source import NAME, Block, Line, Program, Var
from tests.reference.jaxprs import evaluate

PLAN_SEEDS = 6
Check = Callable[[FuzzCase], Outcome]


def shrink(case: FuzzCase, check: Check = check, checks: int = 2000) -> FuzzCase:
    """A smaller case that fails as `case` does, on the same mesh; `case` itself if none is found.

    Programs get smaller by giving fewer results, by turning a variable into an argument with the same value, and by
    reading another variable of the same type. As plans are drawn for a program, several are tried for each; `checks`:
    how many cases are tried in all.
    """
    left = iter(range(checks))
    reason = kind_of(check(case))
    smaller: FuzzCase | None = case
    while smaller is not None:
        case = smaller
        smaller = next((found for found in _failing(case, check, reason, left)), None)
    return case


def kind_of(outcome: Outcome) -> str:
    """What two failures of the same kind have in common."""
    if outcome.verdict != "failed":
        return outcome.verdict
    first = outcome.message.split(":")[0]
    return "difference" if first.startswith("result") else first


def _failing(case: FuzzCase, check: Check, reason: str, left: Iterator[int]) -> Iterator[FuzzCase]:
    for program in candidates(case.program):
        for plan, seed in [
            (case.plan, case.plan_seed),
            *((p, n) for n in range(PLAN_SEEDS) for p in PLANS[1:3]),
        ]:
            if next(left, None) is None:
                return
            smaller = replace(case, program=program, plan=plan, plan_seed=seed)
            if kind_of(check(smaller)) == reason:
                yield smaller


def candidates(program: Program) -> Iterator[Program]:
    """Smaller programs, the much smaller ones first; those that JAX cannot trace are left out."""
    known = values_of(program)
    for block in _smaller(program.block, known):
        block = block.without_dead_lines()
        params = tuple(v for v in block.params if v.name in _reads(block))
        found = Program(
            replace(block, params=params), {v.name: known[v.name] for v in params}, program.mesh
        )
        if (found.size, len(block.result)) < (program.size, len(program.block.result)) and _traces(
            found
        ):
            yield found


def values_of(program: Program) -> dict[str, np.ndarray]:
    """The values of all variables of the outermost block."""
    outs = [v.name for line in program.block.lines for v in line.outs]
    every = replace(program.block, result=f"({', '.join(outs)},)") if outs else program.block
    with jax.enable_x64(True):
        closed = jax.make_jaxpr(every.function())(*program.args)
        return dict(program.values) | dict(zip(outs, evaluate(closed, program.args), strict=False))


def _traces(program: Program) -> bool:
    with jax.enable_x64(True):
        try:
            jax.eval_shape(program.block.function(), *program.args)
        except Exception:  # a change may leave what is no program; then it is no candidate
            return False
    return True


def _reads(block: Block) -> set[str]:
    return set(NAME.findall(block.result)).union(*(line.reads for line in block.lines))


def _smaller(block: Block, known: dict[str, Any]) -> Iterator[Block]:
    results = NAME.findall(block.result)
    if len(block.lines) > 1:
        for n, line in enumerate(block.lines):  # a line alone
            alone = f"({', '.join(v.name for v in line.outs)},)"
            yield replace(_cut(block, range(n), known), lines=(line,), result=alone)
    if len(results) > 1:
        yield from (replace(block, result=f"({name},)") for name in results)
    for n in reversed(range(len(block.lines))):  # everything before a line becomes arguments
        yield _cut(block, range(n), known)
    for n in range(len(block.lines)):
        yield _cut(block, range(n, n + 1), known)
    yield from _simpler(block)


def _cut(block: Block, numbers: range, known: dict[str, Any]) -> Block:
    """The results of some lines become parameters."""
    made = [v for n in numbers for v in block.lines[n].outs if v.name in known]
    lines = tuple(line for n, line in enumerate(block.lines) if n not in numbers)
    return replace(block, params=(*block.params, *made), lines=lines)


def _simpler(block: Block) -> Iterator[Block]:
    """Lines bypassed: another variable of the same type is read instead, here or in an inner function."""
    for n, line in enumerate(block.lines):
        before: list[Var] = [*block.params, *(v for other in block.lines[:n] for v in other.outs)]
        for out in line.outs:
            for other in (v for v in before if v.type == out.type):
                yield _bypassed(block, n, out, other)
        for m, body in enumerate(line.bodies):
            for simpler in _simpler(body):
                bodies = (*line.bodies[:m], simpler.without_dead_lines(), *line.bodies[m + 1 :])
                yield _with_line(block, n, replace(line, bodies=bodies))


def _bypassed(block: Block, n: int, out: Var, other: Var) -> Block:
    lines = (*block.lines[:n], *(line.renamed(out.name, other.name) for line in block.lines[n:]))
    result = NAME.sub(lambda m: other.name if m[0] == out.name else m[0], block.result)
    return replace(block, lines=lines, result=result).without_dead_lines()


def _with_line(block: Block, n: int, line: Line) -> Block:
    return replace(block, lines=(*block.lines[:n], line, *block.lines[n + 1 :]))
