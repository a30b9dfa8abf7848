"""The dual ascent: sweeps and memory prices in turn, with choices decoded on the way.

Prices follow the use of an average of the decoded choices above the limit, with Polyak's step towards a target above
the bound; the step is halved when the bound stalls. Any prices >= 0 prove a bound, so the schedule is free.

V. Kolmogorov, "Convergent tree-reweighted message passing for energy minimization", PAMI 28 (2006); B. Polyak,
"Minimization of unsmooth functionals", USSR Computational Mathematics and Mathematical Physics 9 (1969), for the step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Event

import numpy as np

from autopar.solve.certificate.proof import Proof
from autopar.solve.primal.large_neighbourhood import Walk, search_regions
from autopar.solve.primal.single_moves import SingleMoves
from autopar.solve.primal.tree_moves import Cooling, anneal
from autopar.solve.problem.incumbent import Watch
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Floats, Problem, objective
from autopar.solve.problem.reduction import Choice, Ints
from autopar.solve.problem.rows import Rows, memory_rows
from autopar.solve.trws.acceleration import Momentum
from autopar.solve.trws.arrays import Pool
from autopar.solve.trws.dual import Certificate, Dual, Single, State, is_worth_it
from autopar.solve.trws.smoothed_ascent import ascend_smoothly

_SWEEPS_PER_CHECK = 5  # a check decodes a choice, which takes half a sweep
_EAGER_SWEEPS = 40  # at most: where these creep, ordinary ones do not
_LAST_SWEEPS = 1  # that are not eager: costs are where they rule out more then
_STALLED = 1e-4  # of the gap, per check
_MAX_STALLS = 3
_FEW_STALLS = 2  # checks, and where sweeps are rough
_LONGER_PRICED = 3  # times as many where prices move
_PATIENCE = 6  # price steps without a better bound before going back, with half the step
_LEAST_EXCESS = 0.05  # of the limit: smaller excesses do not lengthen the step
_FIRST_PRICE = 6  # sweeps before it
_CAUTIOUS_STEP = (
    0.03  # of a price step, where it takes many sweeps to come back from one that is too long
)
_SWEEPS_ALONE = 20  # before messages and prices move together: they need prices of the right size
_BESIDE = (0.9, 1.1)
_SWEEPS_BESIDE = 3  # of the last prices; sweeps at each
_AVERAGE = 0.3  # the last choice's share in the use that prices follow: choices shake
_TARGET = 0.05  # of the bound: what Polyak's step aims above it, where no cost is known
CLOSED = 1e-12
_LAST_HEAT = 1.0
_LAST_SHARE = 0.25  # of a last walk from the best of a try, and its share of the steps
_LONGER = 2  # times as many passes from one round to the next
_MOST_ROUNDS_LONGER = 4  # else rounds take minutes
_PASSES_A_NODE = 5  # small problems need less than the options allow
_NODES_A_STEP = 16  # passes have as many nodes as there are: walks are to take about as much work
_MOST_SEEDS = 1 << 20  # of one annealing after the other
_MOST_TIMES_SWEEPS = 4  # as above, of sweeps
_FEWER_SWEEPS = 64  # times, where they begin close to their end
_NEAR_ENOUGH = 1e-5  # of the cost: messages may prove it in double precision
_MOST_MET = 64  # choices decoded on the way, that are kept
_PATIENT = 0.1  # of what a bound has to rise by elsewhere
_SHORT_STEP = 0.25  # of a price step, from prices that were good for more choices


@dataclass(frozen=True)
class Answer:
    """The cheapest choice found (None: none), its cost, and a bound on the choices asked for, with its proof."""

    choice: Choice | None
    objective: float
    bound: float
    proof: Proof = ()


def better(a: Answer, b: Answer) -> Answer:
    """The cheaper of two; the first if they cost the same."""
    return b if b.objective < a.objective else a


def is_closed(bound: float, cost: float, enough: float = CLOSED) -> bool:
    """Whether nothing worth having lies between the bound and the cost: no more than a share `enough` of it."""
    return bound >= cost or (math.isfinite(cost) and cost - bound <= enough * abs(cost))


@dataclass(frozen=True)
class Try:
    """Annealings, and a walk from the best of them: how hot, in a node's share of the cost; `each` as in `Cooling`.

    Random numbers decide early which valley an annealing ends in, so several short ones beat a long one.
    """

    heat: float
    walk_heat: float
    each: bool = False
    runs: int = 1


# from the best choice, round by round
_NEAR = (
    Try(0.1, 0.1, runs=5),
    Try(0.01, 1.0),
    Try(0.1, 10.0),
    Try(1.0, 0.1),
)
_AFRESH = (Try(10.0, 30.0, each=True), Try(0.1, 0.1, runs=5))  # from the last one decoded


class Prices:
    """The schedule of prices: steps from the best so far, that shrink when the bound does not grow."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.average: Floats | None = None
        self.step = 1.0
        self.waited = 0

    def next(
        self,
        prices: Floats,
        used: Floats,
        bound: float,
        upper: float,
        best_bound: float,
        best_prices: Floats,
    ) -> Floats:
        """The prices after one step from `prices`, which gave `bound` and a choice that uses `used`."""
        self.waited = 0 if bound >= best_bound else self.waited + 1
        if self.waited >= _PATIENCE:
            self.step = self.step / 2
            self.waited = 0
            self.average = None
            return best_prices

        self.average = (
            used if self.average is None else (1 - _AVERAGE) * self.average + _AVERAGE * used
        )
        excess = self.average - self.rows.limit
        active = excess * ((excess > 0) | (prices > 0))
        norm = max(float(np.sum(active * active)), (_LEAST_EXCESS * self.rows.limit) ** 2)
        if norm == 0:
            return prices

        target = min(upper, best_bound + _TARGET * abs(best_bound))
        return np.maximum(0.0, prices + self.step * max(target - bound, 0.0) / norm * active)


class Ascent:
    """Rounds of bounds and choices for one problem; each goes on where the last stopped, the first at `messages`.

    If `eager`, so are the first sweeps (`Dual.eager`), until the bound stalls. They end where the gap is `enough`. If
    `rough`, a bound that creeps has stalled: for those who have something better to do then than more sweeps. If
    `is_accelerated`, so are sweeps where no memory has a price (`Dual.is_accelerated`); they settle sooner, at messages
    that rule out less. `pool` as in `Dual`. `met` has what was decoded on the way: the last of it.
    """

    def __init__(
        self,
        problem: Problem,
        options: SolveOptions,
        messages: Floats | None = None,
        *,
        eager: bool = False,
        enough: float = CLOSED,
        rough: bool = False,
        is_accelerated: bool = True,
        pool: Pool | None = None,
    ) -> None:
        self.problem = problem
        self.options = options
        self.enough = enough
        self.rough = rough
        self.rows = memory_rows(problem)
        self.dual = Dual(problem, self.rows, messages, pool)
        self._may_accelerate = is_accelerated and options.trws.acceleration and not self.rows.count
        self.dual.eager, self.dual.is_accelerated = eager, not eager and self._may_accelerate
        self.prices = Prices(self.rows)
        self.met: deque[Ints] = deque(maxlen=_MOST_MET)
        self.held = self._unproven() if messages is None else self.dual.state()

    def start_from(self, messages: Floats) -> None:
        """Begins at messages that sweeps of nearly the same problem settled at: a few eager sweeps settle these."""
        self.dual.start_from(messages)
        self.dual.eager = not self.rows.count
        self.dual.is_accelerated = False
        self.held = self._unproven()
        self.options = replace(
            self.options, max_sweeps=max(1, self.options.max_sweeps // _FEWER_SWEEPS)
        )

    def price(self, prices: Floats) -> None:
        """Begins at these prices of rows, which were good for more choices."""
        self.dual.set_prices(prices)
        self.held = self.dual.state()
        self.prices.step = _SHORT_STEP

    def _unproven(self) -> State:
        """Wherever the dual is; what that proves, which takes half a sweep to say, is left to the first sweeps."""
        return State(self.dual.messages, self.dual.prices, -np.inf)

    def round(
        self, number: int, upper: float, start: Choice | None, watch: Watch
    ) -> tuple[Certificate, Answer]:
        """The best bound found so far, and the best choice met; `start` is a good choice known already."""
        times = min(_LONGER ** (number + 1), _MOST_TIMES_SWEEPS)
        if self.options.trws.smoothed_ascent and self.held.prices.any():
            self.held = ascend_smoothly(
                self.dual, self.held, times * self.options.max_sweeps, upper, watch
            )
        best, last = self._sweeps(upper, watch, times)
        cutoff = min(upper, watch.news(best.objective))
        if not is_closed(self.held.bound, cutoff):
            best = better(best, self._annealed(number, cutoff, start or last, last, watch))
        return self.dual.certificate(self.held), best

    def sweeps(self, upper: float, watch: Watch) -> tuple[Answer, Certificate]:
        """The best choice that sweeps decode, and what they prove, computed from scratch.

        After sweeps in single precision there is one in double: what that leaves is for narrow windows to close.
        """
        is_single = self._begins_singly()
        if is_single:
            self._settle_singly(watch)
        best, _ = self._sweeps(upper, watch, most=1 if is_single else 0)
        return best, self.dual.certificate(self.held)

    def swept_once(self) -> State:
        """What one sweep proves: it is held."""
        self._sweep(may_be_eager=True)
        self.held = self.dual.swept()
        return self.held

    def swept(self, upper: float, watch: Watch) -> Answer:
        """As `sweeps`, for those who want no proof: the bound is what they prove up to rounding."""
        if self._begins_singly():
            self._settle_singly(watch)
            best, _ = self._sweeps(upper, watch, most=1)
            cutoff = min(upper, watch.news(best.objective))
            if is_closed(self.held.bound, cutoff) or not is_closed(
                self.held.bound, cutoff, _NEAR_ENOUGH
            ):
                return replace(best, bound=self.held.bound)
        best, _ = self._sweeps(upper, watch)
        return replace(best, bound=self.held.bound)

    def _settle_singly(self, watch: Watch) -> None:
        """Begins where sweeps in single precision settle."""
        settled = Single(self.dual).settled(
            self.options.max_sweeps, lambda: watch.left_s() > 0, self.met.append
        )
        self.dual.start_from(settled)

    def resumed(
        self, messages: Floats, most: int, upper: float, watch: Watch
    ) -> tuple[Answer, Certificate]:
        """As `sweeps`, up to `most` of them from these messages on, until the gap to a cost `upper` hardly shrinks.

        Where that is not known, until the bound rises by much less than elsewhere.
        """
        is_single = self._is_large()
        before = self.options
        self.dual.start_from(messages)
        if is_single:
            messages = Single(self.dual).settled(
                most, lambda: watch.left_s() > 0, upper=upper, share=_PATIENT
            )
            self.dual.start_from(messages)

        self.options = replace(self.options, max_sweeps=most)
        self.dual.eager, self.dual.is_accelerated, self.held = (
            False,
            self._may_accelerate,
            self._unproven(),
        )
        best, _ = self._sweeps(upper, watch, most=1 if is_single else 0)
        self.options = before
        return best, self.dual.certificate(self.held)

    def _begins_singly(self) -> bool:
        """Whether sweeps that are rough anyway read so much that they begin in single precision."""
        is_new = self.held.bound == -np.inf
        return self.rough and self.dual.is_accelerated and is_new and self._is_large()

    def _is_large(self) -> bool:
        """Whether sweeps read so much that single precision is worth its while."""
        return self.options.trws.float32 and is_worth_it(self.dual.flat)

    def settle(self, upper: float, watch: Watch) -> tuple[Answer, Certificate]:
        """As `sweeps`, where memory has prices and sweeps take long: messages and prices soon move together."""
        whole = self.dual
        self.prices.step = _CAUTIOUS_STEP
        self.dual = whole.in_single() if self._is_large() else whole
        best, _ = self._sweeps(upper, watch, most=min(_SWEEPS_ALONE, self.options.max_sweeps))
        cutoff = min(upper, watch.news(best.objective))
        if (
            self.options.trws.smoothed_ascent
            and not is_closed(self.held.bound, cutoff)
            and self.rows.count
        ):
            self.held = ascend_smoothly(
                self.dual, self.held, self.options.max_sweeps, cutoff, watch, self.met.append
            )
            best = better(best, self._answer(self.dual.decode()))
            self._meet_beside()

        if self.dual is not whole:
            self.dual = whole
            whole.restore(self.held)
            whole.sweep()
            self.held = whole.swept()

        return best, self.dual.certificate(self.held)

    def _meet_beside(self) -> None:
        """Meets what a few sweeps decode at prices somewhat below and above: good choices are made of that too."""
        for share in _BESIDE:
            self.dual.restore(self.held)
            self.dual.set_prices(share * self.held.prices)
            for _ in range(_SWEEPS_BESIDE):
                self.dual.sweep()
                self.met.append(self.dual.decode())

    @cached_property
    def search(self) -> SingleMoves:
        """Moves on choices."""
        return SingleMoves(self.problem, self.rows, self.options.primal)

    def chosen(self, watch: Watch) -> Answer:
        """The best choice that sweeps decode, or that annealing finds near it."""
        best, last = self._sweeps(np.inf, watch)
        if is_closed(self.held.bound, watch.news(best.objective)):
            return best
        return better(best, self._annealed(0, best.objective, best.choice or last, last, watch))

    def anneal(self, upper: float, start: Choice, watch: Watch) -> Answer:
        """The best choice that annealing finds near a good one."""
        return self._annealed(0, upper, start, start, watch)

    def _sweeps(
        self, upper: float, watch: Watch, times: int = 1, most: int = 0
    ) -> tuple[Answer, Choice]:
        """Sweeps until the bound stalls, or `most`: the best choice met and the last one decoded.

        If that is 0, as many as the options allow, or `times` that.
        """
        best = Answer(None, np.inf, -np.inf)
        stalls = 0
        last = self.held.bound
        patience = _FEW_STALLS if self.rough else _MAX_STALLS
        choice: Ints | None = None
        patience *= _LONGER_PRICED if self.rows.count else 1
        most = most or times * self.options.max_sweeps
        momentum = self._momentum()
        most_eager = min(_EAGER_SWEEPS, max(1, most - _LAST_SWEEPS))
        for sweep in range(1, most + 1):
            self._sweep(may_be_eager=sweep <= most_eager)
            check = sweep % _SWEEPS_PER_CHECK == 0 or sweep == most or watch.left_s() <= 0
            if not check and not self.rows.count:
                continue
            now = self.dual.swept()
            if now.bound > self.held.bound:
                self.held = now
            elif self.dual.is_accelerated:
                self.dual.restore(self.held)
            choice = self.dual.decode()
            self.met.append(choice)
            if check:
                best = better(best, self._answer(choice))
                cutoff = min(upper, watch.news(best.objective))
                is_open = self.rough or not np.isfinite(cutoff)
                gap = abs(self.held.bound) if is_open else cutoff - self.held.bound
                stalls = stalls + 1 if self.held.bound - last <= _STALLED * gap else 0
                last = self.held.bound
                if self.dual.eager and stalls:
                    self.dual.eager, self.dual.is_accelerated, stalls = (
                        False,
                        self._may_accelerate,
                        0,
                    )
                if (
                    is_closed(last, cutoff, self.enough)
                    or stalls >= patience
                    or watch.left_s() <= 0
                ):
                    break
            if not self.rows.count:
                continue
            momentum.rises(now.bound)
            momentum.go_on(self.dual, with_prices=False)
            if sweep >= _FIRST_PRICE:
                self._reprice(now, choice, min(upper, watch.news(best.objective)))

        return best, tuple((self.dual.decode() if choice is None else choice).tolist())

    def _momentum(self) -> Momentum:
        """What takes messages on where memory has rows."""
        return Momentum(self.dual, 1.0 if self.options.trws.acceleration else 0.0)

    def _sweep(self, *, may_be_eager: bool) -> None:
        """One sweep, and from here on no eager ones where there may not be."""
        if self.dual.eager and not may_be_eager:
            self.dual.eager, self.dual.is_accelerated = False, self._may_accelerate
        self.dual.sweep()

    def _answer(self, choice: Ints) -> Answer:
        """The choice with its cost, if it is within the limit."""
        fits = not self.rows.count or bool((self.dual.used(choice) <= self.rows.limit).all())
        found = tuple(choice.tolist())
        return (
            Answer(found, objective(self.problem, found), -np.inf)
            if fits
            else Answer(None, np.inf, -np.inf)
        )

    def _reprice(self, now: State, choice: Ints, upper: float) -> None:
        held = self.held
        used = self.dual.used(choice)
        following = self.prices.next(now.prices, used, now.bound, upper, held.bound, held.prices)
        self.dual.set_prices(following)

    def _annealed(
        self, number: int, upper: float, start: Choice, last: Choice, watch: Watch
    ) -> Answer:
        """The best choice of two tries side by side: one from a good choice, one from the last decoded."""
        if not self.options.primal.annealing:
            return Answer(None, np.inf, -np.inf)

        unit = max(abs(self.held.bound), abs(upper) if np.isfinite(upper) else 0.0) / len(start)
        near, afresh = (
            np.array(choice, dtype=np.intp)[self.dual.order] for choice in (start, last)
        )
        tries = (near, _NEAR[number % len(_NEAR)]), (afresh, _AFRESH[number % len(_AFRESH)])
        longer = _LONGER ** min(number, _MOST_ROUNDS_LONGER)
        most_passes = min(self.options.anneal_passes, _PASSES_A_NODE * len(start))
        most_steps = min(self.options.region_steps, most_passes * len(start) // _NODES_A_STEP)

        interrupted = Event()

        def wanted(cost: float) -> bool:
            open_ = not is_closed(self.held.bound, min(watch.news(cost), upper))
            return open_ and watch.left_s() > 0 and not interrupted.is_set()

        def run(seed: int, choice: Ints, plan: Try) -> Ints | None:
            passes = most_passes * longer // plan.runs
            steps = most_steps * longer
            schedules = [
                Cooling(choice, plan.heat * unit, passes, seed + n * _MOST_SEEDS, plan.each)
                for n in range(plan.runs)
            ]
            walks = (plan.walk_heat * unit, steps), (_LAST_HEAT * unit, int(_LAST_SHARE * steps))
            return self._tried(
                schedules, walks if self.options.primal.large_neighbourhood else (), wanted
            )

        with ThreadPoolExecutor(len(tries)) as pool:
            seed = self.options.seed + len(tries) * number
            try:
                found = list(
                    pool.map(run, range(seed, seed + len(tries)), *zip(*tries, strict=True))
                )
            except KeyboardInterrupt:
                interrupted.set()  # the pool waits for its threads before it lets this through
                raise

        best = Answer(None, np.inf, -np.inf)
        for choice in found:
            if choice is not None:
                best = better(
                    best,
                    Answer(*self.search.improve(choice[self.dual.rank].tolist()), bound=-np.inf),
                )

        if best.choice is not None:
            watch.offer(best.choice)

        return best

    def _tried(
        self,
        schedules: Sequence[Cooling],
        walks: Sequence[tuple[float, int]],
        wanted: Callable[[float], bool],
    ) -> Ints | None:
        """Annealings, a walk from the best they met, and one from the best of that to the bottom of its valley."""
        flat = self.dual.flat
        prices = self.held.prices
        choice = schedules[0].choice
        cost = np.inf
        for schedule in schedules:
            met, least = anneal(flat, prices, schedule, wanted)
            choice, cost = (met, least) if met is not None and least < cost else (choice, cost)
            if not wanted(cost):
                break

        for heat, steps in walks:
            if not wanted(cost):
                break
            walked, cost = search_regions(
                flat, prices, Walk(choice, heat, steps, schedules[0].seed), wanted
            )
            choice = choice if walked is None else walked

        return choice if np.isfinite(cost) else None
