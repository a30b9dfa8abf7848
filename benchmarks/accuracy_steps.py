"""Steps of plans, compiled and measured side by side: the plans take turns, so that all meet the same machine."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import mean
from time import perf_counter
from typing import Any

import jax

import autopar
from autopar.inspect.hlo import peak_memory_bytes
from benchmarks.flat_call import flatten
from benchmarks.models import Model

WARM_STEPS = 2
TIMED_STEPS = 3


@dataclass(frozen=True)
class Ready:
    """A plan's step as XLA compiled it, with its inputs where it wants them."""

    compiled: Any
    inputs: tuple[Any, ...]
    peak_memory_bytes: int
    compile_s: float

    def run(self) -> float:
        """Seconds of one step."""
        start = perf_counter()
        jax.block_until_ready(self.compiled(*self.inputs))
        return perf_counter() - start


def all_ready(plans: Sequence[autopar.Plan], model: Model) -> list[Ready]:
    """The steps of `plans`, compiled on the devices that are present, as many at once as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda plan: ready(plan, model), plans))


def ready(plan: autopar.Plan, model: Model) -> Ready:
    """The step of `plan`, compiled on the devices that are present."""
    args, traced = (model.state, *model.batch), plan.bound.traced
    start = perf_counter()
    compiled = plan.compile().lower(*args).compile()
    took = perf_counter() - start
    leaves = (*flatten(traced, args, {}), *traced.constants)
    (shardings, _) = compiled.input_shardings
    inputs = tuple(
        jax.device_put(leaf, sharding) for leaf, sharding in zip(leaves, shardings, strict=True)
    )
    return Ready(compiled, inputs, peak_memory_bytes(compiled), took)


def interleaved(steps: Sequence[Ready], rounds: int) -> list[list[float]]:
    """Seconds of every step in every round: in each, all take one turn, in an order of its own.

    A turn is one step that fills the caches, and the mean of the `TIMED_STEPS` after it.
    """
    for step in steps:
        for _ in range(WARM_STEPS):
            step.run()
    times: list[list[float]] = [[] for _ in steps]
    draw = random.Random(0)
    for _ in range(rounds):
        for number in draw.sample(range(len(steps)), len(steps)):
            steps[number].run()
            times[number].append(mean(steps[number].run() for _ in range(TIMED_STEPS)))
    return times
