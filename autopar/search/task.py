"""Task and Planned: what is to be planned, and a plan with what it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from autopar.core.dataflow import Dataflow
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.plan import Plan
from autopar.core.program import ShardedProgram
from autopar.core.regions import WHILE_TRIPS
from autopar.cost.pricing import MakePricing, Pricing
from autopar.errors import InvalidOption
from autopar.memory.account import Account
from autopar.search.constraints.modes import constraints_of
from autopar.search.constraints.records import Constraint, out_of_order
from autopar.search.mesh_context import MeshContext
from autopar.search.mesh_shapes import MAX_AXES
from autopar.search.progress import OnProgress, SearchProgress
from autopar.search.resolve import FindRule, no_rule
from autopar.solve import Problem, Solution, SolveOptions
from autopar.solve.problem.stop import StopToken, now

if TYPE_CHECKING:
    from autopar.search.limited_solve import LimitedSolve

GAP_TOLERANCE = 5e-3
"""Of the objective. Prices are 5 to 20 % off: half a percent is worth a second; to prove the rest may take minutes."""
FRONT_GAP = 1e-2
"""Of the objective: a point of a front is not worked on further once no better one can save more than this share."""
ROUGH_WORK = 1e9
"""Additions of an elimination that are spent where little work is to do."""
_FACTORS = {
    "while_trips": "how often while loops go round",
    "communication_weight": "what a second of communicating counts beside one of computing",
    "hidden_weight": "what a second of what may hide counts beside another of communicating",
}
"""Options that are factors, and what each says."""
_WORDS: dict[str, tuple[str, ...]] = {
    "recompute": ("auto", "never"),
    "loops": ("best", "whole", "parts"),
    "stages": ("best", "always", "never"),
    "overlap": ("never", "compared"),
}
"""The options of a search that are one of a few words."""


@dataclass(frozen=True)
class SearchOptions:
    """How to search.

    The search ends when the best plan is proven within `gap_tolerance` (0 to 1, a share of its objective) of any other,
    over all mesh shapes; 0 proves it the best, up to rounding, where that takes no more than `solve` allows.
    `max_mesh_axes` (1 to 4) bounds the mesh shapes searched where none is given: more axes hold better plans and take
    many times as long; `max_tightenings` (>= 1) how often a memory limit is tightened for what only the program counts,
    where each limit is solved fully (`gap_tolerance` 0); `while_trips` how often a while loop is held to go
    round. `operators` says what becomes of functions that were made operators
    (`autopar.operator`): "kept" whole, "expanded", or "best": both are planned and the better plan is kept. `loops`
    says how loops over samples (scans whose rounds need nothing of one another but sums) run: "whole", round by round,
    in "parts", one for each device where they divide evenly, or "best" in the same way. `stages` says whether layers
    under `autopar.scan_layers` are pipeline stages: "never", "always", or "best" in the same way. `recompute`
    says whether activations may be computed once more in the backward pass, rather than kept: "never", or "auto": it is
    looked into where nothing fits in the memory limit otherwise, or the limit costs more than 5 % of the objective, as
    that is a second search. What is minimised counts communicating at `communication_weight` (> 0) of the time that it
    takes, and what gathers parameters or reduces gradients at `hidden_weight` (> 0) of that, since what hides behind
    computing costs nothing, but no sum over operators knows what does. `overlap` says
    what is made of that: "never" anything, or "compared": plans found at lower weights on the mesh of the best, and
    that of data parallelism, are simulated too, and the plan is the one whose step takes the least time. A point of a
    front is worked on until its gap is `front_gap` (>= 0); on large ones it is not, unless that is 0, but says what its
    gap is.
    `solve` limits the work of the solver each time it is called; its `time_limit_s` is shared by all calls of one
    search, after which the best plan so far is taken: only then does the plan depend on the clock, and says so.
    `on_progress` is called with a `SearchProgress` whenever the solver finds a better choice or proves a higher bound:
    `print` will do.
    """

    max_mesh_axes: int = 2
    max_tightenings: int = 8
    while_trips: float = WHILE_TRIPS
    operators: Literal["best", "kept", "expanded"] = "best"
    loops: Literal["best", "whole", "parts"] = "best"
    stages: Literal["best", "always", "never"] = "best"
    recompute: Literal["auto", "never"] = "auto"
    overlap: Literal["never", "compared"] = "never"
    communication_weight: float = 1.0
    hidden_weight: float = 1.0
    front_gap: float = FRONT_GAP
    gap_tolerance: float = GAP_TOLERANCE
    solve: SolveOptions = field(default_factory=SolveOptions)
    on_progress: OnProgress | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        axes: object = self.max_mesh_axes
        if isinstance(axes, bool) or not isinstance(axes, Integral) or not 1 <= axes <= MAX_AXES:
            raise InvalidOption(
                f"max_mesh_axes is {axes!r}: pass how many axes a mesh may have, 1 to {MAX_AXES}"
            )

        for name, meaning in _FACTORS.items():
            factor: object = getattr(self, name)
            if (
                isinstance(factor, bool)
                or not isinstance(factor, Real)
                or not isfinite(factor)
                or factor <= 0
            ):
                raise InvalidOption(f"{name} is {factor!r}: pass {meaning}, a finite number > 0")

        tolerance: object = self.gap_tolerance
        if isinstance(tolerance, bool) or not isinstance(tolerance, Real) or not 0 <= tolerance < 1:
            raise InvalidOption(
                f"gap_tolerance is {tolerance!r}: pass the share of the objective that a plan may cost more than the "
                f"best, 0 <= gap_tolerance < 1"
            )

        if self.solve.gap_tolerance:
            raise InvalidOption(
                f"solve has gap_tolerance {self.solve.gap_tolerance!r}: pass it to SearchOptions, which tells the "
                f"solver"
            )

        gap: object = self.front_gap
        if isinstance(gap, bool) or not isinstance(gap, Real) or not isfinite(gap) or gap < 0:
            raise InvalidOption(
                f"front_gap is {gap!r}: pass the gap that a point of a front may have, a number >= 0"
            )

        for name, words in _WORDS.items():
            given = getattr(self, name)
            if given not in words:
                shown = ", ".join(map(repr, words[:-1]))
                raise InvalidOption(f"{name} is {given!r}: pass {shown} or {words[-1]!r}")

        if self.on_progress is not None and not callable(self.on_progress):
            raise InvalidOption(
                f"on_progress is {self.on_progress!r}: pass a function of one SearchProgress, or None"
            )

    @property
    def solver(self) -> SolveOptions:
        """Those of the solver, with the tolerance of the search."""
        return replace(self.solve, gap_tolerance=float(self.gap_tolerance))


@dataclass(frozen=True, eq=False)
class Planned:
    """A plan with what it was made from and what it became.

    `task` and `ground` are what it may be searched anew from; `unlimited` is the best plan without a memory limit,
    where it is known and is not this one; `is_unlimited` says that it is known to be this one. `counted_bytes` is the
    peak of what the Problem with a limit counts, at most that of the program; `solution` is what the solver gave for
    `problem`, where it did, and `attempt` what makes plans of other choices of it. `rewritten` is the graph that
    computes once more what the plan says, where that says so.
    """

    task: Task
    plan: Plan
    program: ShardedProgram
    account: Account
    pricing: Pricing
    ground: MeshContext
    unlimited: Planned | None = None
    is_unlimited: bool = False
    counted_bytes: float = 0.0
    solution: Solution | None = None
    problem: Problem | None = None
    rewritten: OpGraph | None = None
    attempt: LimitedSolve | None = field(default=None, repr=False)

    @property
    def graph(self) -> OpGraph:
        """The graph that the plan is of."""
        return self.task.graph if self.rewritten is None else self.rewritten


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be planned: a graph, how it is priced, under which constraints; `find` finds rules by trial.

    `constraints` stand beside those of `mode`. `prices_devices` says that prices depend on which devices compute and
    talk, whatever the mesh is called: then a plan costs the same on every mesh that can express it. `stop` is what may
    end the search early.
    """

    graph: OpGraph
    make_pricing: MakePricing
    mode: str = "auto"
    constraints: tuple[Constraint, ...] = ()
    memory_limit_bytes: int | None = None
    strict: bool = False
    options: SearchOptions = SearchOptions()
    dump: Path | None = None
    find: FindRule = no_rule
    prices_devices: bool = False
    stop: StopToken = field(default_factory=StopToken)
    began: float = field(default_factory=now)

    @cached_property
    def all_constraints(self) -> tuple[Constraint, ...]:
        """Those of the mode, then the others."""
        return constraints_of(self.mode, self.constraints)

    def ground(self, graph: OpGraph, flow: Dataflow, mesh: DeviceMesh) -> MeshContext:
        """What `graph`, which is that of the task or made of it, is searched on, on one mesh."""
        stated = out_of_order(self.all_constraints, mesh)
        return MeshContext(
            graph,
            flow,
            mesh,
            self.make_pricing,
            self.strict,
            self.find,
            stated,
            self.options.communication_weight,
            self.options.hidden_weight,
        )

    def at_weights(self, communication_weight: float, hidden_weight: float) -> Task:
        """The same, communicating at other weights in what is minimised."""
        options = replace(
            self.options, communication_weight=communication_weight, hidden_weight=hidden_weight
        )
        return replace(self, options=options)

    def tell(
        self, mesh: DeviceMesh, limit_bytes: float | None, objective_s: float, lower_bound_s: float
    ) -> None:
        """Tells whoever watches what is known of the plans on one mesh within one limit."""
        if self.options.on_progress is not None:
            progress = SearchProgress(
                now() - self.began, mesh, limit_bytes, objective_s, lower_bound_s
            )
            self.options.on_progress(progress)


def begun(tasks: Sequence[Task]) -> list[Task]:
    """`tasks`, which are one search, at its beginning: the time limit runs from now."""
    options = tasks[0].options
    began = now()
    stop = StopToken.after(options.solve.time_limit_s)
    return [replace(task, stop=stop, began=began) for task in tasks]


def roughly(options: SolveOptions) -> SolveOptions:
    """Little work: what is spent on a shape before it is known whether it can be the best."""
    work = min(options.max_elimination_work, ROUGH_WORK)
    fixing = replace(options.fixing, fixed_point=False)
    primal = replace(options.primal, annealing=False)
    little = replace(options, max_elimination_work=work, max_rounds=0)
    return replace(little, fixing=fixing, primal=primal)


def bounding(options: SolveOptions) -> SolveOptions:
    """Little work, for a bound first: what repeats lies alike in what wins."""
    little = roughly(options)
    return replace(little, periodic=replace(little.periodic, quotient=False))


def quickly(options: SolveOptions) -> SolveOptions:
    """Work of a second or so on a small problem: what is spent within a limit on which a gap may be left."""
    little = replace(options, max_rounds=min(options.max_rounds, 1))
    few = replace(
        little,
        anneal_passes=min(options.anneal_passes, 100),
        region_steps=min(options.region_steps, 1000),
    )
    return replace(
        few, cp_sat_work=min(options.cp_sat_work, 0.5), cp_sat_workers=1, branch_entries=0
    )
