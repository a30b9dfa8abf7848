"""assemble: the Problem's objective and usages against sums made anew from the plan that a choice is.

What is held when is told by walking the program in the order in which it runs, loops round by round.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import count, islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autopar.backends.xla_cpu import predict
from autopar.core.dataflow import Dataflow, Use, dataflow
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.plan import Stage
from autopar.core.program import Convert, ShardedProgram
from autopar.core.space import Space
from autopar.cost.assemble import Builder, assemble, placement_choice
from autopar.cost.buckets import router_of, waiting
from autopar.cost.pricing import Pricing, Roofline, arrival_cost, cost_of
from autopar.memory.variables import Caches
from autopar.ops.fusion import materialised, recomputed
from autopar.ops.traits import is_fusible
from autopar.ops.workspace import workspace_bytes
from autopar.passes.pipeline import program_states
from autopar.redistribute.route import Router
from autopar.search.limited_solve import account_of
from autopar.search.space import build_space
from autopar.solve import Problem, Usage
from autopar.solve.problem.problem import objective, peak, usage_over_time
from autopar.trace import trace
from cost_models import load_cluster
from tests import small_models
from tests.api.test_host_memory import offloaded, structs
from tests.equivalence.draw import local_plan, uniform_plan
from tests.equivalence.loops import LOOPS, loop_case
from tests.passes.build import account
from tests.rounds import Event, Held, events, made_by, positions_held

MESH = DeviceMesh.of({"x": 2, "y": 4})


def train(w: Any, x: Any) -> Any:
    def loss(w: Any) -> Any:
        hidden = jnp.tanh(x @ w["a"])
        return ((hidden @ w["b"]) ** 2).mean() + (hidden * w["c"]).sum()

    value, gradient = jax.value_and_grad(loss)(w)
    return jax.tree.map(lambda a, b: a - 0.1 * b, w, gradient), value


ARGS = ({"a": np.ones((8, 16)), "b": np.ones((16, 8)), "c": np.ones(16)}, np.ones((8, 8)))


def shared(x: Any, y: Any) -> Any:
    z = x @ y
    return z, z + x, (z.T @ z), 2.0, x


def looping(x: Any, w: Any, parts: Any) -> Any:
    """A stack that is read long after, parts that are made before the loop, a loop in the loop, values read in both."""
    big, seen = parts @ w, x @ w

    def body(h: Any, part: Any) -> Any:
        wide = jnp.tanh(h @ w) + seen
        inner = jax.lax.fori_loop(0, 2, lambda _, c: jnp.tanh(c @ w) + wide, h)
        return inner + part, (wide @ part).T

    h, stack = jax.lax.scan(body, jnp.sin(seen), big)
    low = jnp.sort(h, axis=0) @ w
    return jnp.sort(stack, axis=1)[0] + low, low


def convolved(w: Any, x: Any) -> Any:
    """Split along its window dims, halos are sent; a convolution has workspace."""
    y = jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jnp.cumsum(jax.nn.relu(y), axis=1).sum(0), w * 2


CONVOLVED = (np.ones((3, 3, 4, 8)), np.ones((8, 16, 16, 4)))
STRAIGHT = [
    (train, ARGS, ()),
    (train, ARGS, (0,)),
    (shared, (np.ones((8, 8)), np.ones((8, 8))), (1,)),
]
CASES = [
    *STRAIGHT,
    (looping, (np.ones((8, 8)), np.ones((8, 8)), np.ones((4, 8, 8))), (0, 2)),
    *((loop_case(name, "float32").fn, loop_case(name, "float32").args, ()) for name in LOOPS),
]


def traced(case: Any) -> tuple[OpGraph, Dataflow]:
    fn, args, donated = case
    graph = trace(fn, args, donate_argnums=donated).graph
    return graph, dataflow(graph)


def price_of(
    graph: OpGraph, flow: Dataflow, stage: Stage, pricing: Pricing, router: Router
) -> float:
    """Operators, then for every copy and every use the way from what it is made from; each as often as it runs.

    What is local costs nothing where everyone who reads it computes element by element, in the region where it is done.
    """
    tree = graph.tree

    def way(
        tensor: Any, before: Any, after: Any, made_in: int | None, region: int | None, uses: Any
    ) -> float:
        site = tree.site(made_in, region)
        times = tree.weight(site)
        loops = [
            use.op is not None and use.region == site and is_fusible(graph.ops[use.op])
            for use in uses
        ]
        routes = router.fused if all(loops) else router
        routes = router.shared if times == 1 and tensor.id in waiting(graph) else routes
        return times * float(
            routes.cost_matrix(tensor.shape, tensor.itemsize, [before], [after])[0, 0]
        )

    made = {t.id: p for t, p in zip(graph.inputs, stage.inputs, strict=True)}
    for op, strategy in zip(graph.ops, stage.strategies, strict=True):
        made.update((t.id, p) for t, p in zip(op.outs, strategy.outs, strict=True))
    pairs = zip(graph.ops, stage.strategies, strict=True)
    total = sum(cost_of(pricing, op, s) * tree.weight(op.region) for op, s in pairs)
    anew = {*range(len(graph.inputs))} - {position for _, position in graph.carry}
    for position in anew:  # what is no state is brought with every call, and written
        tensor, placement = graph.inputs[position], stage.inputs[position]
        total += arrival_cost(
            pricing, placement.local_size(tensor.shape, stage.mesh) * tensor.itemsize
        )
    for copy in flow.copies:
        source = made[copy.tensor.id] if copy.source is None else stage.copies[copy.source]
        made_in = (
            graph.made_in(copy.tensor) if copy.source is None else flow.copies[copy.source].region
        )
        total += way(copy.tensor, source, stage.copies[copy.id], made_in, copy.region, copy.uses)
    for use, copy in flow.source.items():
        tensor = (
            graph.outputs[use.position] if use.op is None else graph.ops[use.op].ins[use.position]
        )
        wanted = (
            stage.outputs[use.position]
            if use.op is None
            else stage.strategies[use.op].ins[use.position]
        )
        source = made[tensor.id] if copy is None else stage.copies[copy]
        made_in = graph.made_in(tensor) if copy is None else flow.copies[copy].region
        total += way(tensor, source, wanted, made_in, use.region, [use])
    return total


def bytes_over_time(
    graph: OpGraph, flow: Dataflow, stage: Stage, fresh: dict[int, bool]
) -> list[float]:
    """At every operator and at the end, tensor by tensor, what is held: loops are walked round by round."""
    total = [0.0] * (len(graph.ops) + 1)
    written = materialised(graph)
    stored = {copy.tensor.id for copy in flow.copies if copy.stored}
    run = [*events(graph.tree, [(op.kind, op.region) for op in graph.ops]), Event(len(graph.ops))]

    def at(positions: Iterable[int]) -> set[Event]:
        return {event for event in run if event.position in positions}

    def read_by(uses: Iterable[Use]) -> set[Event]:
        return at({use.time for use in uses})

    def take(tensor: TensorInfo, p: Placement, positions: Iterable[int]) -> None:
        for now in positions:
            total[now] += p.local_size(tensor.shape, MESH) * tensor.itemsize

    for position, (tensor, p) in enumerate(zip(graph.inputs, stage.inputs, strict=True)):
        reads = read_by(flow.uses.get(tensor.id, ()))
        held = (
            positions_held(graph.tree, run, Held(0, None, reads))
            if position in graph.donated
            else range(len(total))
        )
        take(tensor, p, held)
    for op, strategy in zip(graph.ops, stage.strategies, strict=True):
        for tensor, p in zip(op.outs, strategy.outs, strict=True):
            reads = (
                at({ready_at(graph, op)})
                if tensor.id in stored
                else read_by(flow.uses.get(tensor.id, ()))
            )
            held = positions_held(
                graph.tree, run, made_by(graph.tree, op.id, op.kind, op.region, reads)
            )
            if tensor.id in written:
                take(tensor, p, held)
    for copy, p in zip(flow.copies, stage.copies, strict=True):
        made = ready_at(graph, graph.producers[copy.tensor.id]) if copy.stored else copy.start
        value = Held(
            made,
            copy.region,
            read_by(copy.uses),
            "last round" if copy.stored else "made",
            after=copy.stored,
        )
        if copy.tensor.id in written if copy.stored else fresh[copy.id]:
            take(copy.tensor, p, positions_held(graph.tree, run, value))
    return total


def ready_at(graph: OpGraph, op: OpNode) -> int:
    """When the result of `op` is there for its readers: what leaves a region, after all that is in there."""
    inside = [other.id for other in graph.ops if op.region in graph.tree.path(other.region)]
    return max(inside) if op.kind in ("carry_out", "scan_stack", "cond_result") else op.id


@pytest.mark.quick_share(8)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("limited", [False, True])
def test_random_choices_cost_what_their_plan_costs(case: Any, limited: bool) -> None:
    graph, flow = traced(case)
    pricing = Roofline(graph, MESH, load_cluster("cpu8"))
    router = router_of(graph, MESH, pricing)
    space = build_space(graph, flow, MESH, keep=pricing.keep)
    problem = assemble(
        graph, flow, space, pricing, router, 1e12 if limited else None, tensors_only=True
    )
    draw = random.Random(0)
    first_copy = len(space.inputs) + sum(map(bool, space.strategies))
    for _ in range(15):
        choice = [draw.randrange(count) for count in problem.counts]
        stage = space.stage(placement_choice(space, choice))
        for copy in flow.copies:  # fresh copies only: an alias is a constraint, tested below
            count, node = len(space.copies[copy.id]), first_copy + copy.id
            if copy.is_sliced:  # anything else is forbidden
                (reader,) = copy.uses
                assert reader.op is not None
                lies = stage.strategies[reader.op].ins[reader.position]
                choice[node] = space.copies[copy.id].index(lies)
        stage = space.stage(placement_choice(space, choice))
        for copy in flow.copies:
            count, node = len(space.copies[copy.id]), first_copy + copy.id
            if problem.counts[node] > count:
                maker = graph.producers.get(copy.tensor.id)
                made = (
                    None
                    if maker is None
                    else stage.strategies[maker.id].outs[maker.outs.index(copy.tensor)]
                )
                choice[node] = choice[node] % count + count * (
                    not copy.stored or made != stage.copies[copy.id]
                )
        assert objective(problem, tuple(choice)) == pytest.approx(
            price_of(graph, flow, stage, pricing, router)
        )
        if limited:
            expected = bytes_over_time(graph, flow, stage, {copy.id: True for copy in flow.copies})
            assert usage_over_time(problem, tuple(choice)).tolist() == expected
            assert peak(problem, tuple(choice)) == max(expected)
        else:
            assert problem.usages == ()


@dataclass(frozen=True, eq=False)
class Drawn:
    """A random plan of a graph: the choice of the Problem that it is, and its program as it becomes one.

    `conversions` is how many changes of placement the choice holds.
    """

    choice: tuple[int, ...]
    lowered: ShardedProgram
    routed: ShardedProgram
    program: ShardedProgram
    conversions: int

    @property
    def shares(self) -> bool:
        """Whether one change of placement serves several that want it."""
        return sum(isinstance(i, Convert) for i in self.lowered.instructions) < self.conversions


@dataclass(frozen=True, eq=False)
class Setting:
    """A graph on MESH with its candidates and prices."""

    graph: OpGraph
    flow: Dataflow
    pricing: Pricing
    router: Router
    space: Space

    def problem(self) -> Problem:
        return assemble(self.graph, self.flow, self.space, self.pricing, self.router, 1e12)

    def drawn(self, problem: Problem, seed: int) -> Drawn:
        """A plan whose neighbours mostly agree, or any."""
        graph, flow, space = self.graph, self.flow, self.space
        agreement = (0.0, 0.7, 0.95, 1.0)[seed % 4]
        stage = local_plan(self, space, seed, agreement) if agreement else uniform_plan(space, seed)
        made = {t.id: p for t, p in zip(graph.inputs, stage.inputs, strict=True)}
        made |= {
            t.id: p
            for op in graph.ops
            for t, p in zip(op.outs, stage.strategies[op.id].outs, strict=True)
        }
        choice = [c.index(p) for c, p in zip(space.inputs, stage.inputs, strict=True)]
        choice += [c.index(s) for c, s in zip(space.strategies, stage.strategies, strict=True) if c]
        for copy, candidates, placement in zip(
            flow.copies, space.copies, stage.copies, strict=True
        ):
            source = made[copy.tensor.id] if copy.source is None else stage.copies[copy.source]
            is_twice = problem.counts[len(choice)] > len(candidates)
            choice.append(
                candidates.index(placement) + len(candidates) * (is_twice and source != placement)
            )
        choice += [c.index(p) for c, p in zip(space.outputs, stage.outputs, strict=True) if c]
        states = dict(program_states(graph, flow, stage, self.router, self.pricing.step_cost))
        programs = states["lower"], states["price_exchanges"], states["fuse_collectives"]
        return Drawn(tuple(choice), *programs, self._conversions(stage, made))

    def _conversions(self, stage: Stage, made: dict[int, Placement]) -> int:
        graph, flow = self.graph, self.flow
        pairs = [
            (made[c.tensor.id] if c.source is None else stage.copies[c.source], stage.copies[c.id])
            for c in flow.copies
        ]
        for use, copy in flow.source.items():
            tensor = (
                graph.outputs[use.position]
                if use.op is None
                else graph.ops[use.op].ins[use.position]
            )
            wanted = (
                stage.outputs[use.position]
                if use.op is None
                else stage.strategies[use.op].ins[use.position]
            )
            pairs.append((made[tensor.id] if copy is None else stage.copies[copy], wanted))
        return sum(before != after for before, after in pairs)


@lru_cache
def setting(name: str, cluster: str = "cpu8") -> Setting:
    return setting_of(*{**COUNTED, **WRITTEN_OVER}[name](), cluster)


def setting_of(
    fn: Callable[..., Any], args: Any, donated: tuple[int, ...], cluster: str = "cpu8"
) -> Setting:
    graph = trace(fn, args, donate_argnums=donated).graph
    flow, pricing = dataflow(graph), Roofline(graph, MESH, load_cluster(cluster))
    space = build_space(graph, flow, MESH, keep=pricing.keep)
    return Setting(graph, flow, pricing, Router(MESH, pricing.step_cost), space)


def normed(w: Any, x: Any) -> Any:
    """What is computed anew late: a bias, masks, a residual and its norm."""

    def loss(w: Any) -> Any:
        h = x @ w["a"] + w["c"]
        kept = jnp.where(jnp.sin(h) > 0, h, 0.0)
        h = kept + jax.nn.gelu(h @ w["b"] @ w["b"].T)
        centred = h - h.mean(-1, keepdims=True)
        return (
            (centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)) @ w["b"]
        ).std()

    return jax.tree.map(lambda a, b: a - 0.1 * b, w, jax.grad(loss)(w))


def diamond(w: Any, x: Any) -> Any:
    """Values that one fused loop reads several times, near and far, and one that two loops do."""
    h = x @ w["a"]
    t = jnp.tanh(h * (jnp.sort(x, axis=1) @ w["a"]) + w["c"])
    u = jnp.sin(t) * t + jnp.cos(h * 2) * t
    v = u + 1
    return jnp.sort((v * jnp.exp(v)) @ w["b"], axis=0).sum() + jnp.cumsum(v, axis=0).std()


def diamonds(w: Any, x: Any) -> Any:
    """Its gradient too."""
    return jax.tree.map(lambda a, b: a - 0.1 * b, w, jax.grad(diamond)(w, x))


def cached(cache: Any, h: Any, *, looks_back: bool) -> Any:
    """A cache that is written into time and again, read between; another scatter onto what is read later."""
    before = cache
    for n in range(3):
        cache = jax.lax.dynamic_update_slice(cache, h[None], (n, 0, 0))
        h = jnp.sort(cache[n] @ h, axis=0)
    rows = jnp.sort(h, axis=1).at[0].add(h[1])
    return cache.at[0].add(rows), h + before[3] if looks_back else rows.at[1].set(h[0])


CACHED = (np.ones((4, 16, 16)), np.ones((16, 16)))
COUNTED: dict[str, Callable[[], Any]] = {
    "train": lambda: (train, ARGS, ()),
    "train, donated": lambda: (train, ARGS, (0,)),
    "shared": lambda: STRAIGHT[2],
    "convolved": lambda: (convolved, CONVOLVED, ()),
    "convolved, donated": lambda: (convolved, CONVOLVED, (0,)),
    "scaled, donated": lambda: (lambda w: w * 0.5, (np.ones((8, 8)),), (0,)),
    "normed": lambda: (normed, ARGS, (0,)),
    "diamond": lambda: (diamond, ARGS, ()),
    "diamonds": lambda: (diamonds, ARGS, (0,)),
    "mlp": lambda: (*small_models.mlp(optimiser="adam"), (0,)),
    "cnn": lambda: (*small_models.cnn(), (0,)),
    "gpt": lambda: (
        *small_models.gpt(layers=1, width=16, heads=8, vocab=16, sequence=8, batch=8),
        (0,),
    ),
}
WRITTEN_OVER: dict[str, Callable[[], Any]] = {
    "not donated": lambda: (partial(cached, looks_back=False), CACHED, ()),
    "donated": lambda: (partial(cached, looks_back=False), CACHED, (0,)),
    "donated, read later": lambda: (partial(cached, looks_back=True), CACHED, (0,)),
}


# Without loops: there, lowering may reuse a conversion that the Problem counts as a copy of its own.
@pytest.mark.quick_share(9)
@pytest.mark.parametrize(
    ("name", "cluster"),
    [
        *[
            pytest.param(n, "cpu8", marks=[pytest.mark.slow] * (n in ("gpt", "cnn")))
            for n in COUNTED
        ],
        *[(n, "8xh100-xla") for n in ("train, donated", "normed", "diamonds")],
    ],
)
def test_the_problem_counts_no_more_than_the_program_holds(
    name: str, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a bound for a limit on what it counts is one for a limit on the program; and it leaves little out.

    Little of what is held before collectives are packed in buckets, which may be half of a model as small as these, and
    without the room that is left for a compiler's other order.
    """
    monkeypatch.setattr(predict, "delays", lambda _: ())
    here = setting(name, cluster)
    problem = here.problem()
    shares: list[float] = []
    for seed in range(8):
        drawn = here.drawn(problem, seed)
        if np.isfinite(objective(problem, drawn.choice)):
            programs = drawn.program, drawn.routed
            spent, apart = (
                account_of(here.graph, p, here.pricing).peak_memory_bytes for p in programs
            )
            assert peak(problem, drawn.choice) <= spent
            shares.append(peak(problem, drawn.choice) / apart)
    assert max(shares) > 0.65


def test_what_is_on_the_host_is_not_counted() -> None:
    here = setting_of(offloaded, structs(host=True), (0, 1))
    names = {
        tensor.name for n, tensor in enumerate(here.graph.inputs) if _bytes_of(here.problem(), n)
    }
    assert names == {"params['a']", "params['b']", "x"}


def _bytes_of(problem: Problem, node: int) -> float:
    return max(
        (float(usage.size_bytes.max()) for usage in problem.usages if usage.node == node),
        default=0.0,
    )


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("name", WRITTEN_OVER)
def test_of_what_may_be_written_over_the_problem_counts_no_more(name: str) -> None:
    """It leaves out all that is, though a redistribution on the way makes it lie elsewhere."""
    here = setting(name)
    problem = here.problem()
    for seed in range(12):
        drawn = here.drawn(problem, seed)
        if np.isfinite(objective(problem, drawn.choice)):
            spent = account_of(here.graph, drawn.program, here.pricing).peak_memory_bytes
            assert peak(problem, drawn.choice) <= spent


MARK = 1 << 50


def held_at_operators(here: Setting, program: ShardedProgram) -> dict[int, int]:
    """What the account counts at every operator: that at which it takes so much more is where the peak is."""
    found: dict[int, int] = {}
    rest = materialised(here.graph), here.graph.donated
    for marked in here.graph.ops:

        def workspace(
            op: OpNode, in_bytes: Sequence[int], _shapes: object, at: int = marked.id
        ) -> int:
            return workspace_bytes(op, in_bytes) + MARK * (op.id == at)

        spent = account(
            program, lambda *_: 0.0, *rest, recomputed=recomputed(here.graph), workspace=workspace
        )
        found[marked.id] = spent.peak_memory_bytes - MARK
    return found


def overcounted(here: Setting, problem: Problem, plans: int) -> list[tuple[int, int]]:
    """The operators, by seed, at which the Problem counts more than the program holds there, in so many drawn plans.

    Before passes change the order. Plans in which readers share what one of them redistributed are left out: the
    Problem counts each, in time and bytes, and to store it as they want it costs less of both.
    """
    found: list[tuple[int, int]] = []
    unshared = (
        (seed, drawn) for seed in count() if not (drawn := here.drawn(problem, seed)).shares
    )
    for seed, drawn in islice(unshared, plans):
        used = usage_over_time(problem, drawn.choice)
        held = held_at_operators(here, drawn.routed)
        found += [(seed, op) for op, size in held.items() if used[op] > size]
    return found


SMALL = [
    "train, donated",
    "shared",
    "convolved, donated",
    "scaled, donated",
    "normed",
    "diamond",
    "diamonds",
    "mlp",
]


@pytest.mark.quick_share(8)
@pytest.mark.parametrize("name", SMALL)
def test_nor_does_it_at_any_operator(name: str) -> None:
    here = setting(name)
    assert overcounted(here, here.problem(), 4) == []


def with_usages(problem: Problem, change: Callable[[Usage], Usage]) -> Problem:
    return Problem(
        problem.node_costs, problem.edges, tuple(map(change, problem.usages)), problem.usage_limit
    )


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda u: replace(u, stop=u.stop + 1), id="a moment longer"),
        pytest.param(lambda u: replace(u, start=max(0, u.start - 1)), id="a moment earlier"),
        pytest.param(
            lambda u: replace(u, size_bytes=u.size_bytes.max() + 0 * u.size_bytes), id="the largest"
        ),
    ],
)
def test_what_counts_too_much_is_noticed(change: Callable[[Usage], Usage]) -> None:
    here = setting("normed")
    assert overcounted(here, with_usages(here.problem(), change), 2)


def test_what_may_be_computed_anew_counts_under_a_copy_that_is_left_as_it_is_made() -> None:
    """Where the copy is moved, nothing holds its operator's operands; where it is not, it may not say so."""
    here = setting("normed")
    build = Builder(here.graph, here.flow, here.space, here.router, True)
    (longer, *_) = [longer for longer in build.longer if longer.copy is not None]
    assert longer.copy is not None
    node, count = build.first_copy + longer.copy, len(here.space.copies[longer.copy])
    (edge,) = [edge for edge in build.edges().edges if edge.v == node]
    finite = np.isfinite(edge.cost)
    assert (finite[:, :count] != finite[:, count:]).all()
    usages = [
        u
        for u in build.usages(False)
        if u.node == node and u.start == longer.start and u.stop == longer.stop
    ]
    assert any(u.size_bytes[:count].any() and not u.size_bytes[count:].any() for u in usages)


def test_an_alias_takes_no_memory_and_only_its_sources_placement() -> None:
    """An input that the forward pass reads twice: its shared copy may be the input itself."""
    graph, flow = traced((lambda x: (x + 1, x * 2), (np.ones((8, 8)),), ()))
    (copy,) = flow.copies
    assert not copy.stored
    pricing = Roofline(graph, MESH, load_cluster("cpu8"))
    router = Router(MESH, pricing.step_cost)
    space = build_space(graph, flow, MESH, keep=pricing.keep)
    problem = assemble(graph, flow, space, pricing, router, 1e12)
    node = len(space.inputs) + len(space.strategies)
    count = len(space.copies[0])
    assert problem.counts[node] == 2 * count
    for source, made in enumerate(space.inputs[0]):
        for candidate, placement in enumerate(space.copies[0]):
            (edge,) = [e for e in problem.edges if (e.u, e.v) == (0, node)]
            assert edge.cost[source, candidate] == (0.0 if made == placement else np.inf)
            assert np.isfinite(edge.cost[source, count + candidate])
    (usage,) = [u for u in problem.usages if u.node == node]
    assert not usage.size_bytes[:count].any()
    assert (usage.size_bytes[count:] > 0).all()


def test_equal_matrices_are_one_object() -> None:
    graph, flow = traced((lambda a, b: ((a @ b) @ b) @ b, (np.ones((8, 8)), np.ones((8, 8))), ()))
    pricing = Roofline(graph, MESH, load_cluster("cpu8"))
    space = build_space(graph, flow, MESH, keep=pricing.keep)
    problem = assemble(graph, flow, space, pricing, Router(MESH, pricing.step_cost))
    assert len({id(edge.cost) for edge in problem.edges}) < len(problem.edges)


def test_assemblies_that_share_caches_are_those_that_do_not() -> None:
    """Without a limit, with one, and again; what both need is one object."""
    graph, flow = traced((train, ARGS, ()))
    pricing = Roofline(graph, MESH, load_cluster("cpu8"))
    router, space = (
        Router(MESH, pricing.step_cost),
        build_space(graph, flow, MESH, keep=pricing.keep),
    )
    caches, kinds = Caches(MESH), ((None, False), (1e12, False), (1e12, True), (None, False))

    def made(limit: float | None, tensors_only: bool, caches: Caches | None) -> Problem:
        return assemble(
            graph, flow, space, pricing, router, limit, tensors_only=tensors_only, caches=caches
        )

    problems = [made(*kind, caches) for kind in kinds]
    for problem, kind in zip(problems, kinds, strict=True):
        apart = made(*kind, None)
        assert all(
            np.array_equal(a, b) for a, b in zip(problem.node_costs, apart.node_costs, strict=True)
        )
        assert len(problem.edges) == len(apart.edges)
        assert len(problem.usages) == len(apart.usages)
        for one, other in zip(problem.edges, apart.edges, strict=True):
            assert (one.u, one.v) == (other.u, other.v)
            np.testing.assert_array_equal(one.cost, other.cost)
        for one, other in zip(problem.usages, apart.usages, strict=True):
            assert (one.node, one.start, one.stop) == (other.node, other.start, other.stop)
            np.testing.assert_array_equal(one.size_bytes, other.size_bytes)
    assert all(a.cost is b.cost for a, b in zip(problems[0].edges, problems[3].edges, strict=True))


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_what_is_held_is_made_once_for_equal_layers_and_the_same_as_if_made_for_each(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, flow = traced(COUNTED[name]())
    pricing = Roofline(graph, MESH, load_cluster("cpu8"))
    router, space = (
        Router(MESH, pricing.step_cost),
        build_space(graph, flow, MESH, keep=pricing.keep),
    )
    once = Builder(graph, flow, space, router, limited=True).usages(tensors_only=False)
    made: list[Any] = []  # kept, so that no two have one id

    def each(_self: Builder, _key: object, make: Callable[[], Any]) -> Any:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(Builder, "_once", each)
    apart = Builder(graph, flow, space, router, limited=True).usages(tensors_only=False)
    assert len({id(usage.size_bytes) for usage in once}) < 0.6 * len(once)
    for one, other in zip(once, apart, strict=True):
        assert (one.node, one.start, one.stop) == (other.node, other.start, other.stop)
        np.testing.assert_array_equal(one.size_bytes, other.size_bytes)


def test_a_chain_may_be_longer_than_calls_stand_in_one_another() -> None:
    """What waits in registers is made of what waits in registers, and so forth."""

    def chain(x: jax.Array) -> jax.Array:
        for _ in range(300):
            x = jnp.sin(x)[::-1]
        return x

    assert setting_of(chain, (jax.ShapeDtypeStruct((64, 8), jnp.float32),), ()).problem().usages
