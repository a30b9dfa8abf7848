"""generate: a random well-typed program from a random number generator."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz import arithmetic, blocks, by_hand, edges, exotic, movement
from tests.fuzz.scope import NoFit, Scope
from tests.fuzz.source import Program

LEAST_LINES, MOST_LINES = 4, 24
_SIMPLE = arithmetic.MAKERS | movement.MAKERS | exotic.MAKERS | edges.MAKERS
_NESTING = blocks.MAKERS | by_hand.MAKERS
_MAKERS: list[Any] = [*_SIMPLE, *_NESTING]
_WEIGHTS = np.array([*_SIMPLE.values(), *_NESTING.values()], float)
_PROBABILITIES = _WEIGHTS / _WEIGHTS.sum()


def generate(rng: np.random.Generator) -> Program:
    """A program of 5 to some 40 operators (a line is one or several) on arguments with values."""
    scope = Scope(rng)
    for _ in range(2 + scope.below(3)):
        scope.param("a", _argument(scope))
    if scope.chance(0.25):
        scope.param("a", rng.integers(0, 2**32, 2, dtype=np.uint32))  # the data of a random key
    fill(scope, LEAST_LINES + scope.below(MOST_LINES - LEAST_LINES))
    results = [v for line in scope.lines for v in line.outs if v.name in scope.unread]
    if scope.chance(0.3):
        results.append(scope.choice(scope.pool))  # read already, given twice, or an argument
    names = [v.name for v in results]
    block = scope.block(f"({', '.join(names)},)", "program")
    return Program(block, {v.name: scope.values[v.name] for v in block.params}, scope.mesh)


def fill(scope: Scope, lines: int) -> None:
    """Adds `lines` lines of random makers, and the lines that these need."""
    target = len(scope.lines) + lines
    for _ in range(20 * lines):
        if len(scope.lines) >= target:
            return
        maker = _MAKERS[int(scope.rng.choice(len(_MAKERS), p=_PROBABILITIES))]
        try:
            if maker in _NESTING:
                maker(scope, fill)
            else:
                maker(scope)
        except NoFit:
            continue


def _argument(scope: Scope) -> np.ndarray:
    shape = scope.shape(scope.choice((0, 1, 1, 2, 2, 2, 3, 3)))
    match scope.below(10):
        case 0 | 1:
            return scope.rng.integers(-3, 12, shape[:2]).astype(np.int32)
        case 2:
            return scope.rng.random(shape) < 0.5
        case _:
            return scope.rng.uniform(-2, 2, shape)
