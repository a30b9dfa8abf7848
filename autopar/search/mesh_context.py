"""Ground: what a search stands on, on one mesh: built once, when first asked for, and solved as often as wanted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from autopar.core.dataflow import Dataflow
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.pins import Spec
from autopar.core.placement import StepKind
from autopar.core.space import Space
from autopar.cost.assemble import assemble
from autopar.cost.buckets import router_of
from autopar.cost.cached_pricing import Remembered
from autopar.cost.pricing import MakePricing, Pricing, restricted
from autopar.cost.weighted import Weighted
from autopar.memory.variables import Caches
from autopar.redistribute.route import Router
from autopar.search.resolve import FindRule, no_rule
from autopar.search.space import build_space
from autopar.solve import Problem, SolveOptions
from autopar.solve.pipeline.incremental import Standing, standing
from autopar.solve.problem.problem import derived
from autopar.solve.problem.stop import is_up

StepKinds = tuple[StepKind, ...]


@dataclass(frozen=True, eq=False)
class MeshContext:
    """A graph on a mesh, its candidates, and their prices: everything but constraints and the memory limit.

    Prices depend on the redistribution steps that are allowed; () allows all. `stated` are layouts that inputs and
    outputs may have beside those of all graphs. What is minimised counts communicating at `communication_weight`, and
    what may hide (`cost.hiding`) at `hidden_weight` of that.
    """

    graph: OpGraph
    flow: Dataflow
    mesh: DeviceMesh
    make_pricing: MakePricing
    strict: bool = False
    find: FindRule = no_rule
    stated: tuple[Spec, ...] = ()
    communication_weight: float = 1.0
    hidden_weight: float = 1.0
    _given: Space | None = None
    _routers: dict[StepKinds, Router] = field(default_factory=dict[StepKinds, Router])
    _caches: dict[StepKinds, Caches] = field(default_factory=dict[StepKinds, Caches])
    _standing: dict[StepKinds, Standing | None] = field(
        default_factory=dict[StepKinds, Standing | None]
    )
    _problems: dict[tuple[StepKinds, bool, bool], Problem] = field(
        default_factory=dict[tuple[StepKinds, bool, bool], Problem]
    )

    @cached_property
    def space(self) -> Space:
        """The candidates of every variable, without constraints."""
        if self._given is not None:
            return self._given
        keep = self._priced.keep
        return build_space(
            self.graph,
            self.flow,
            self.mesh,
            keep=keep,
            strict=self.strict,
            find=self.find,
            stated=self.stated,
        )

    @cached_property
    def _priced(self) -> Pricing:
        return Remembered(self.make_pricing(self.graph, self.mesh), self.graph)

    def pricing(self, step_kinds: StepKinds) -> Pricing:
        """The prices where these steps are allowed."""
        return restricted(self._priced, step_kinds)

    def router(self, step_kinds: StepKinds) -> Router:
        """The routes by these steps."""
        if step_kinds not in self._routers:
            pricing = self.pricing(step_kinds)
            self._routers[step_kinds] = router_of(self.graph, self.mesh, pricing)
        return self._routers[step_kinds]

    def minimised(self, step_kinds: StepKinds) -> tuple[Pricing, Router]:
        """The prices and routes that are minimised where these steps are allowed: communicating at its weights."""
        pricing = self.pricing(step_kinds)
        if self.communication_weight == self.hidden_weight == 1:
            return pricing, self.router(step_kinds)
        if self.communication_weight != 1:
            pricing = Weighted(pricing, self.communication_weight)
        return pricing, router_of(self.graph, self.mesh, pricing, self.hidden_weight)

    def problem(
        self, step_kinds: StepKinds, limit_bytes: float | None, *, tensors_only: bool = False
    ) -> Problem:
        """The Problem of choosing from the whole space; those that differ in their limit alone share their numbers."""
        key = (step_kinds, limit_bytes is not None, tensors_only)
        if key not in self._problems:
            pricing, router = self.minimised(step_kinds)
            most = None if limit_bytes is None else inf
            self._problems[key] = assemble(
                self.graph,
                self.flow,
                self.space,
                pricing,
                router,
                most,
                tensors_only=tensors_only,
                caches=self._caches.setdefault(step_kinds, Caches(self.mesh)),
            )

        problem = self._problems[key]
        if limit_bytes is None:
            return problem

        return derived(
            problem.node_costs, problem.edges, problem.usages, limit_bytes, problem.periods
        )

    def standing(self, step_kinds: StepKinds, options: SolveOptions) -> Standing | None:
        """The Problem without a limit, its nodes eliminated, to be solved anew at once; None if that takes too much.

        `options` say how large tables may be; those of the first call hold.
        """
        if step_kinds not in self._standing:
            found = standing(self.problem(step_kinds, None), options)
            if found is None and is_up():
                return None
            self._standing[step_kinds] = found
        return self._standing[step_kinds]

    def forget(self) -> None:
        """Lets go of what takes memory, and can be made again."""
        for made in (self._problems, self._caches, self._standing):
            made.clear()

    def holding(self, space: Space) -> MeshContext:
        """The same with these candidates."""
        return replace(self._anew(self.graph, self.make_pricing), _given=space)

    def of(self, graph: OpGraph, make_pricing: MakePricing) -> MeshContext:
        """The same mesh for `graph`, which is this one's but for what is carried."""
        return self._anew(graph, make_pricing)

    def repriced(self, make_pricing: MakePricing) -> MeshContext:
        """The same candidates under other prices, as after a change of the cluster's links.

        `make_pricing` makes pricings that know the same strategies (`Pricing.keep`).
        """
        return replace(self._anew(self.graph, make_pricing), _given=self.space)

    def at_weights(self, communication_weight: float, hidden_weight: float) -> MeshContext:
        """The same candidates and prices, communicating at other weights in what is minimised."""
        return replace(
            self._anew(self.graph, self.make_pricing),
            _given=self.space,
            communication_weight=communication_weight,
            hidden_weight=hidden_weight,
        )

    def _anew(self, graph: OpGraph, make_pricing: MakePricing) -> MeshContext:
        return MeshContext(
            graph,
            self.flow,
            self.mesh,
            make_pricing,
            self.strict,
            self.find,
            self.stated,
            self.communication_weight,
            self.hidden_weight,
        )
