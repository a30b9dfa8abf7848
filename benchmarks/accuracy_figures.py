"""How well predictions order and meet what was measured: numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Figures:
    """Of some plans: errors relative to what was measured, rank correlations, and what the predicted best loses.

    error = |predicted / measured - 1|        regret = measured time of the predicted best / measured best - 1
    """

    plans: int
    mean_error: float
    max_error: float
    kendall_tau: float
    spearman: float
    regret: float


def figures(predicted: Sequence[float], measured: Sequence[float]) -> Figures:
    """The figures of plans with these predicted and measured times, by position; at least two plans.

    Raises:
      ValueError: if there are fewer than two plans, or not as many predictions as measurements.
    """
    if len(predicted) != len(measured) or len(measured) < 2:
        raise ValueError(
            f"{len(predicted)} predictions and {len(measured)} measurements; at least two of each"
        )
    from scipy import stats

    guess, truth = np.array(predicted, dtype=float), np.array(measured, dtype=float)
    errors = np.abs(guess / truth - 1)
    return Figures(
        plans=len(truth),
        mean_error=float(errors.mean()),
        max_error=float(errors.max()),
        kendall_tau=float(stats.kendalltau(guess, truth).statistic),
        spearman=float(stats.spearmanr(guess, truth).statistic),
        regret=float(truth[guess.argmin()] / truth.min() - 1),
    )


def overall(parts: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Figures:
    """The figures of several models together: errors of all plans, the means of what is within a model.

    Times of different models differ by their sizes, so ranks across models say nothing of plans.
    """
    each = [figures(predicted, measured) for predicted, measured in parts]
    count = sum(f.plans for f in each)
    return Figures(
        plans=count,
        mean_error=sum(f.plans * f.mean_error for f in each) / count,
        max_error=max(f.max_error for f in each),
        kendall_tau=float(np.mean([f.kendall_tau for f in each])),
        spearman=float(np.mean([f.spearman for f in each])),
        regret=float(np.mean([f.regret for f in each])),
    )


def agreement(rounds: Sequence[Sequence[float]]) -> float:
    """Kendall's tau between the medians of even and of odd rounds of a measurement: no prediction can do better.

    `rounds[plan]` are the times of one plan; at least two.
    """
    from scipy import stats

    return float(stats.kendalltau(*_halves(rounds)).statistic)


def clear_tau(predicted: Sequence[float], rounds: Sequence[Sequence[float]]) -> float:
    """Kendall's tau over those pairs of plans alone that even and odd rounds order alike; nan if there are none.

    What one half of a measurement contradicts in the other says nothing of a prediction. `rounds` as for `agreement`.
    """
    even, odd = _halves(rounds)
    first, second = np.triu_indices(len(rounds), 1)
    signs = [
        np.sign(values[first] - values[second])
        for values in (even, odd, np.array(predicted, dtype=float))
    ]
    clear = signs[0] * signs[1] > 0
    return float((signs[0] * signs[2])[clear].mean()) if clear.any() else float("nan")


def _halves(rounds: Sequence[Sequence[float]]) -> tuple[Floats, Floats]:
    """The medians of every plan's even and of its odd rounds."""
    even, odd = (np.array([np.median(times[half::2]) for times in rounds]) for half in (0, 1))
    return even, odd


def round_factors(times: Sequence[Sequence[float]]) -> list[float]:
    """By how much each round was slower than usual, in which every plan has a time: the host's speed drifts.

        median over plans of  time in the round / median over rounds of the plan's times

    `times[plan][round]`. A plan that is slow in one round, as each is now and then, does not move the median.
    """
    shares = np.array(times) / np.median(times, axis=1, keepdims=True)
    return [float(factor) for factor in np.median(shares, axis=0)]


@dataclass(frozen=True)
class PeakFigures:
    """Of predicted peaks of memory: the mean of |predicted / XLA's - 1|, and the most that one is under (>= 0)."""

    mean_error: float
    worst_under: float


def peak_figures(predicted: Sequence[int], measured: Sequence[int]) -> PeakFigures:
    """The figures of plans whose peaks are predicted, and said by XLA, so; at least one plan."""
    ratios = np.array(predicted, dtype=float) / np.array(measured, dtype=float)
    return PeakFigures(float(np.abs(ratios - 1).mean()), float(max(0.0, 1 - ratios.min())))
