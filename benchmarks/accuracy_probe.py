"""Probe: how fast the host is at a time, by a small step that is no plan of the benchmark.

Between two calibrations an hour apart all predictions moved by a tenth, and the steps by a fifth the other way: a
virtual machine shares its caches, its memory and the clock of its cores with others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

import jax

import autopar
from benchmarks import models
from benchmarks.accuracy_steps import Ready, ready
from cost_models import Cluster

EVERY = 8
"""Cases of a calibration from one run of the probe to the next."""
STEPS = 4
"""Of a run of the probe, after one that fills the caches."""


@dataclass(frozen=True)
class Probe:
    """A step, and how long a run of it took during a calibration, seconds."""

    step: Ready
    usual_s: float = 1.0

    def run(self) -> float:
        """Seconds of a step now."""
        self.step.run()
        return mean(self.step.run() for _ in range(STEPS))

    def slowness(self, runs_s: Sequence[float]) -> float:
        """How much longer such runs took than those during the calibration: their median over the usual time."""
        return median(runs_s) / self.usual_s


def calibrated(time_limit_s: float) -> tuple[Probe, Cluster]:
    """The devices present, calibrated, and a probe that ran all through it."""
    model = models.mlp((256, 512, 256))
    step = autopar.plan(
        model.step(), model.state, *model.batch, cluster=f"cpu{jax.device_count()}", mode="data_parallel"
    )
    probe, runs_s = Probe(ready(step, model)), list[float]()
    cluster = autopar.calibrate(
        name="here", time_limit_s=time_limit_s, on_case=every(EVERY, lambda: runs_s.append(probe.run()))
    ).cluster
    return Probe(probe.step, median(runs_s)), cluster


def every(count: int, act: Callable[[], None]) -> Callable[[str], None]:
    """What acts the first time it is told of something, and every `count` times after that."""
    told = 0

    def hear(_what: str) -> None:
        nonlocal told
        if told % count == 0:
            act()
        told += 1

    return hear
