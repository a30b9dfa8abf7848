"""Branch and bound: the choices in two, and again, until what is proven of each part is enough.

Prices make the limit a cost: where a few strategies, all of them large, compete for little room, every one of them is
taken in part by the best mixture of choices, and the bound stays far below what any single choice costs. So the most
weighty node by price * bytes takes either one of its small strategies or one of its large ones. In each half, what no
longer finds room goes, and the prices change. The half of the least bound is the next to be split. Where bytes decide
nothing more, the node is split whose dearer half is the dearest.

    bound = min over the parts of what is proven of each part

A. Land, A. Doig, "An automatic method of solving discrete programming problems", Econometrica 28 (1960).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush

import numpy as np

from autopar.solve.certificate.proof import (
    Cases,
    Eliminate,
    Exceed,
    Forbid,
    Kept,
    Pass,
    Price,
    Prices,
    Proof,
)
from autopar.solve.elimination.bucket_elimination import exactly
from autopar.solve.presolve.knapsack_filtering import drop_oversized
from autopar.solve.presolve.reduce import reduce_cheaply
from autopar.solve.presolve.variable_elimination import contract_chains
from autopar.solve.problem.incumbent import Apart, Inner, Watch
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Floats, Infeasible, derived, objective
from autopar.solve.problem.reduction import (
    Bools,
    Choice,
    Ints,
    Reduction,
    kept,
    restrict,
    unchanged,
)
from autopar.solve.problem.rows import Rows, drop_slack, memory_rows
from autopar.solve.trws.ascent import Answer, Ascent, better, is_closed
from autopar.solve.trws.ascent import Prices as Steps
from autopar.solve.trws.dual import Certificate

_SWEEPS = 60  # of a part: many parts bounded a little beat few bounded well
_ROUNDS = 2  # of sweeps, as long as they rule out strategies
_WORTH = 0.95  # of the strategies left: with more another round is not worth while
_PRICE_STEPS = 2  # bounds at fixed prices
_HEAVY = 0.02  # of the gap: smaller differences of the price of a node's bytes decide nothing
_MOST_DEPTH = 100  # of splits: Python's stack holds their proofs
_TOLD = 8  # splits from one proof to the next


@dataclass(frozen=True, eq=False)
class _Part:
    """Some of the choices: what is left of the problem, and what is proven of them.

    `proof`, of the bound, is about the part as it was split off, and so is `reduction`, whose problem is the one to
    split further: at `split`, a node and which of its strategies go one way; None: there is nothing to be gained.
    Bound and offset count as the whole problem does; choices are of the problem that the part was split off.
    """

    reduction: Reduction
    offset: float
    bound: float
    proof: Proof
    prices: Prices
    split: tuple[int, Bools] | None = None
    choices: tuple[Choice, ...] = ()


@dataclass(eq=False)
class _Branch:
    """A part in the tree, and what it was split into."""

    part: _Part
    parent: _Branch | None
    depth: int
    cases: tuple[tuple[Ints, _Branch], ...] = ()

    def bound(self) -> float:
        """Its own, or the least of the parts that it was split into, whichever is higher."""
        below = [branch.bound() for _, branch in self.cases]
        return max(self.part.bound, min(below)) if below else self.part.bound

    def proof(self) -> Proof:
        """Of the bound."""
        if self.part.split is None or self.bound() <= self.part.bound:
            return self.part.proof
        cases = tuple((ids, branch.proof()) for ids, branch in self.cases)
        return (*self.part.reduction.steps, Cases(self.part.split[0], cases))

    def lift(self, choice: Choice) -> Choice:
        """A choice of the whole problem from one of the problem that this part was split off."""
        branch = self.parent
        while branch is not None:
            choice = branch.part.reduction.lift(choice)
            branch = branch.parent
        return choice


class Branches:
    """The tree of a problem's parts; it grows from where it was. `start` has the prices to begin with."""

    def __init__(self, start: Certificate, options: SolveOptions) -> None:
        self.problem = start.problem
        self._options = replace(options, max_sweeps=_SWEEPS, anneal_passes=0)
        whole = _Part(unchanged(start.problem), 0.0, start.bound, start.proof(), start.parts()[0])
        self._root = _Branch(whole, None, 0)
        self._made = 0
        self._open: list[tuple[float, int, _Branch]] = []
        self._closed = start.bound
        self.best = Answer(None, math.inf, -math.inf)

    @property
    def bound(self) -> float:
        """Of all choices that cost less than what was to be undercut when it grew: the least of all parts' bounds."""
        return min(self._closed, self._open[0][0] if self._open else math.inf)

    def grow(self, splits: int, upper: float, watch: Watch) -> None:
        """Splits so many parts, those of the least bound first; better choices and the bound go to the watch."""
        if not self._made:
            self._closed = math.inf
            self._take(
                self._root, _assessed(self._root.part, upper, self._options, watch), -math.inf
            )

        with ThreadPoolExecutor(2) as pool:
            for number in range(splits):
                if number % _TOLD == 0:
                    self._tell(watch)
                cutoff = min(upper, watch.news(self.best.objective))
                if not self._open or is_closed(self.bound, cutoff) or watch.left_s() <= 0:
                    break
                if self._open[0][-1].depth >= _MOST_DEPTH:
                    break
                low, _, branch = heappop(self._open)
                assess = partial(_assessed, cutoff=cutoff, options=self._options, watch=watch)
                self._split(branch, low, list(pool.map(assess, _halves(branch.part))))

        self._tell(watch)

    def _tell(self, watch: Watch) -> None:
        if self.best.choice is not None:
            watch.offer(self.best.choice)
        watch.raise_bound(self.bound, self._root.proof())

    def _split(self, branch: _Branch, low: float, parts: Sequence[_Part]) -> None:
        assert branch.part.split is not None
        mask = branch.part.split[1]
        children = tuple(_Branch(part, branch, branch.depth + 1) for part in parts)
        branch.cases = tuple(
            zip((np.flatnonzero(mask), np.flatnonzero(~mask)), children, strict=True)
        )
        for child in children:
            self._take(child, child.part, low)

    def _take(self, branch: _Branch, part: _Part, low: float) -> None:
        """Puts a part into the tree: among those to be split, unless there is nothing to be gained."""
        branch.part = part
        self._made = self._made + 1
        for choice in map(branch.lift, part.choices):
            self.best = better(
                self.best, Answer(choice, objective(self.problem, choice), -math.inf)
            )
        if part.split is None:
            self._closed = min(self._closed, max(low, part.bound))
        else:
            heappush(self._open, (max(low, part.bound), self._made, branch))


def _halves(part: _Part) -> list[_Part]:
    """The two parts that a part is split into, of which no more is known yet than of the whole."""
    assert part.split is not None
    node, low = part.split
    problem = part.reduction.problem
    halves = list[_Part]()
    for mask in (low, ~low):
        keep = [
            mask if v == node else np.ones(count, dtype=bool)
            for v, count in enumerate(problem.counts)
        ]
        # `Cases` says which strategies are left
        half = replace(restrict(problem, keep, Forbid), steps=())
        halves.append(_Part(half, part.offset, -math.inf, (), part.prices))

    return halves


def _assessed(part: _Part, cutoff: float, options: SolveOptions, watch: Watch) -> _Part:
    """The part with what can be proven of it, and a split unless it is proven to cost as much as the cutoff.

    What is ruled out for costing as much as the cutoff bounds the part no higher.
    """
    try:
        after = _bounded(part, cutoff, options, watch)
    except Infeasible as error:
        bound = -math.inf if error.witness is None else math.inf
        after = replace(part, bound=bound, proof=error.witness or ())
    return replace(after, bound=min(after.bound, cutoff))


def _shrunk(reduction: Reduction, options: SolveOptions) -> Reduction:
    roomy = reduction.then(drop_slack)
    roomy = roomy.then(drop_oversized) if options.presolve.knapsack_filtering else roomy
    return roomy.then(partial(reduce_cheaply, options=options.presolve))


def _bounded(part: _Part, cutoff: float, options: SolveOptions, watch: Watch) -> _Part:
    """The part after sweeps, which rule out strategies, and with the bound at their last prices."""
    part = _reduced(part, partial(_shrunk, options=options))
    for _ in range(_ROUNDS):
        exact = _exact(part, options)
        if exact is not None:
            return exact
        certificate = _swept(part, cutoff, options, watch)
        part = replace(part, prices=certificate.parts()[0])
        if certificate.bound + part.offset > part.bound:
            proof = part.reduction.steps + certificate.proof()
            part = replace(part, bound=certificate.bound + part.offset, proof=proof)
        if is_closed(part.bound, cutoff):
            return part
        keep = certificate.keep(cutoff - part.offset - certificate.bound)
        exceed = partial(Exceed, prices=part.prices, messages=certificate.parts()[1])
        before = sum(part.reduction.problem.counts)
        part = _ruled_out(part, keep, exceed, cutoff, options)
        if is_closed(part.bound, cutoff) or sum(part.reduction.problem.counts) > _WORTH * before:
            break

    return part if is_closed(part.bound, cutoff) else _at_prices(part, cutoff, options, watch)


def _exact(part: _Part, options: SolveOptions) -> _Part | None:
    """The part with its optimum, where elimination finds it."""
    found = exactly(part.reduction.problem, options)
    if found is None:
        return None
    choices = (part.reduction.lift(found.choice),) if found.choice is not None else ()
    proof = part.reduction.steps + found.proof
    return replace(
        part, bound=found.bound + part.offset, proof=proof, choices=part.choices + choices
    )


def _reduced(part: _Part, step: Callable[[Reduction], Reduction]) -> _Part:
    after = step(part.reduction)
    return replace(part, reduction=after, offset=part.offset + after.offset - part.reduction.offset)


def _ruled_out(
    part: _Part,
    keep: Sequence[Bools],
    exceed: Callable[[Kept], Exceed],
    cutoff: float,
    options: SolveOptions,
) -> _Part:
    """The part without what is too dear; it is proven to cost as much as the cutoff where nothing is left."""
    if not all(mask.any() for mask in keep):
        return replace(part, bound=cutoff, proof=(*part.reduction.steps, exceed(kept(keep))))
    left = _reduced(
        part, lambda reduction: reduction.then(partial(restrict, keep=keep, because=exceed))
    )
    return _reduced(left, partial(_shrunk, options=options))


def _swept(part: _Part, cutoff: float, options: SolveOptions, watch: Watch) -> Certificate:
    """What sweeps prove that start at the part's prices."""
    ascent = Ascent(part.reduction.problem, options)
    if ascent.rows.count and len(part.prices.times):
        ascent.price(ascent.rows.by_row(part.prices))
    return ascent.sweeps(cutoff - part.offset, Inner(watch, part.reduction))[1]


@dataclass(frozen=True, eq=False)
class _PricedChoice:
    """What is proven at fixed prices: then nodes of few neighbours can be eliminated whatever bytes they take.

    The certificate is of what is left `without` these nodes; `choice` is of all nodes.
    """

    prices: Floats
    certificate: Certificate
    bound: float
    without: tuple[int, ...]
    choice: Choice

    def keep(self, counts: Sequence[int], window: float) -> list[Bools]:
        """The strategies that can be part of a choice within the window; all, of nodes that were eliminated."""
        gone = set(self.without)
        left = iter(self.certificate.keep(window))
        return [
            np.ones(count, dtype=bool) if v in gone else next(left)
            for v, count in enumerate(counts)
        ]


def _priced(
    part: _Part, prices: Floats, cutoff: float, options: SolveOptions, watch: Watch
) -> _PricedChoice:
    """What sweeps prove at fixed prices of rows."""
    problem = part.reduction.problem
    rows = memory_rows(part.reduction.problem)
    constant = float(prices.sum()) * rows.limit if rows.count else 0.0
    after = contract_chains(
        derived(tuple(rows.priced(prices, problem.node_costs)), problem.edges), options
    )
    ascent = Ascent(after.problem, options)
    offset = part.offset + after.offset - constant
    # what it decodes costs what prices say
    _, certificate = ascent.sweeps(cutoff - offset, Apart(watch))
    without = tuple(v for step in after.steps if isinstance(step, Eliminate) for v in step.nodes)
    choice = after.lift(tuple(ascent.dual.decode().tolist()))

    return _PricedChoice(prices, certificate, certificate.bound + offset, without, choice)


def _at_prices(part: _Part, cutoff: float, options: SolveOptions, watch: Watch) -> _Part:
    """The part with the best bound at fixed prices, without what that rules out, split."""
    problem = part.reduction.problem
    rows = memory_rows(part.reduction.problem)
    steps = Steps(rows)
    prices = rows.by_row(part.prices)
    best = found = _priced(part, prices, cutoff, options, watch)
    choices = _fitting(part, rows, found.choice, cutoff)
    for _ in range(1, _PRICE_STEPS if rows.count else 1):
        if not math.isfinite(found.bound):
            break  # nothing is proven at these prices: no step leads on from them
        used = rows.used(found.choice)
        prices = steps.next(prices, used, found.bound, cutoff, best.bound, best.prices)
        found = _priced(part, prices, cutoff, options, watch)
        best = found if found.bound > best.bound else best
        choices += _fitting(part, rows, found.choice, cutoff)

    at = rows.at_times(best.prices)
    messages = best.certificate.parts()[1]
    part = replace(part, prices=at, choices=choices)
    if best.bound > part.bound:
        proof = (*part.reduction.steps, Price(at), Eliminate(best.without), Pass(messages))
        part = replace(part, bound=best.bound, proof=proof)

    keep = best.keep(problem.counts, cutoff - best.bound)
    part = _ruled_out(
        part,
        keep,
        partial(Exceed, prices=at, messages=messages, without=best.without),
        cutoff,
        options,
    )
    if is_closed(part.bound, cutoff):
        return part

    return _exact(part, options) or replace(part, split=_split_of(part, cutoff))


def _fitting(part: _Part, rows: Rows, choice: Choice, cutoff: float) -> tuple[Choice, ...]:
    """The choice, as the problem counts that the part was split off, if it keeps within the limit and costs less."""
    fits = not rows.count or bool((rows.used(choice) <= rows.limit).all())
    news = fits and objective(part.reduction.problem, choice) + part.offset < cutoff
    return (part.reduction.lift(choice),) if news else ()


def _split_of(part: _Part, cutoff: float) -> tuple[int, Bools] | None:
    """A node and its strategies of few bytes, by price; where bytes are cheap, half of them at a node of many edges."""
    problem = part.reduction.problem
    rows = memory_rows(part.reduction.problem)
    zeros = [np.zeros(count) for count in problem.counts]
    worth = rows.priced(rows.by_row(part.prices), zeros) if rows.count else zeros
    spans = np.array([np.ptp(cost) for cost in worth])
    node = int(spans.argmax())
    gap = cutoff - part.bound if math.isfinite(cutoff) else abs(part.bound)
    if spans[node] > _HEAVY * gap:
        return node, worth[node] <= (worth[node].max() + worth[node].min()) / 2

    edges = np.bincount(
        [v for edge in problem.edges for v in (edge.u, edge.v)], minlength=len(zeros)
    )
    node = int(((1 + edges) * np.log(problem.counts)).argmax())
    count = problem.counts[node]
    return (node, np.arange(count) < count // 2) if count > 1 else None
