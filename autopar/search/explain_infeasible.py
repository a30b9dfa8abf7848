"""NoPlan: why there is no plan, in the user's words: which constraints clash, with the memory limit at which operators.

An error is raised as soon as it is known that a mesh has no plan; what clashes is looked for only if that is all there
is to tell the user, since it takes some further solving (`explained`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from autopar.core.dataflow import Dataflow
from autopar.core.graph import OpGraph, TensorInfo
from autopar.core.sizes import exact_bytes, rounded_bytes
from autopar.core.space import Space
from autopar.errors import AutoparError, NoFeasiblePlan, Unsolved
from autopar.search.task import Planned
from autopar.solve import Clash, Problem

_SHOWN = 3


class NoPlan(NoFeasiblePlan):
    """Proven: there is no plan. `clash` finds out what clashes, as a sentence; `advice` is what to do."""

    def __init__(
        self, what: str, clash: Callable[[], str], advice: str, min_peak_bytes: int | None = None
    ) -> None:
        super().__init__(f"{what}. {advice}", min_peak_bytes)
        self.what = what
        self.clash = clash
        self.advice = advice

    def explained(self) -> NoFeasiblePlan:
        """The error that names what clashes."""
        return NoFeasiblePlan(f"{self.what}. {self.clash()} {self.advice}", self.min_peak_bytes)


class NothingFits(NoPlan):
    """Proven: no plan keeps within a memory limit.

    `planned` has the smallest peak that is known; `look` finds a smaller one, if there is, and what any plan needs.
    """

    def __init__(
        self,
        where: str,
        limit: int,
        planned: Planned,
        least_bytes: float | None,
        look: Callable[[], tuple[Planned, float]],
        clash: Callable[[], str],
    ) -> None:
        smallest = planned.account.peak_memory_bytes
        proven = (
            "" if least_bytes is None else f", and any plan needs {exact_bytes(int(least_bytes))}"
        )
        what = (
            f"no plan on mesh {where} fits in the memory limit of {exact_bytes(limit)} a device: the smallest peak "
            f"found is {exact_bytes(smallest)}{proven}"
        )

        super().__init__(what, clash, f"{raise_to(smallest)}, {use_less(planned.graph)}.", smallest)
        self.where = where
        self.limit = limit
        self.planned = planned
        self.least_bytes = least_bytes
        self.look = look

    def explained(self) -> NoFeasiblePlan:
        """The error that names what clashes, and the smallest peak that can be found."""
        found, least = self.look()
        proven = max(self.least_bytes or 0.0, least if isfinite(least) else 0.0)
        told = NothingFits(self.where, self.limit, found, proven or None, self.look, self.clash)
        return NoPlan.explained(told)


def explained(error: AutoparError) -> AutoparError:
    """`error`; a NoPlan as the error that names what clashes."""
    return error.explained() if isinstance(error, NoPlan) else error


def refusal(misfits: Sequence[AutoparError]) -> AutoparError:
    """Why there is no plan at all: where the least memory is needed; of what proves nothing, if any.

    Of equals the last, which may recompute. Where it is not known of one mesh whether it has a plan, it is not known
    of all of them.
    """
    unknown = [misfit for misfit in misfits if isinstance(misfit, Unsolved)]
    told = unknown or misfits
    peaks = [
        m for m in told if isinstance(m, NoFeasiblePlan | Unsolved) and m.min_peak_bytes is not None
    ]
    return min(reversed(peaks), key=_needs) if peaks else told[0]


def _needs(misfit: NoFeasiblePlan | Unsolved) -> tuple[float, float]:
    """What any plan needs as far as proven, and the smallest peak found."""
    least = misfit.least_bytes if isinstance(misfit, NothingFits) else None
    return least or 0.0, misfit.min_peak_bytes or 0


def unsolved(planned: Planned, limit_bytes: int, where: str) -> Unsolved:
    """That nothing was found that fits in the limit, but may be there; `planned` has the smallest peak found.

    `where` is the mesh.
    """
    program = planned.program
    smallest = planned.account.peak_memory_bytes
    stop = planned.task.stop
    ended = f", until the search was ended by {stop}" if stop.reason else ""
    largest = [program.values[v] for v in planned.account.peak_values[:_SHOWN]]
    names = ", ".join(
        f"{shown(planned.graph, v.tensor)} {v.placement} ({rounded_bytes(program.local_bytes(v.id))})"
        for v in largest
    )

    return Unsolved(
        f"no plan was found on mesh {where} that fits in the memory limit of {exact_bytes(limit_bytes)} a device, and "
        f"none was proven impossible{ended}: the smallest peak found is {exact_bytes(smallest)}. "
        f"Largest at the peak: {names}. "
        f"{raise_to(smallest)} or the limits on work (options=autopar.SearchOptions(...)), {use_less(planned.graph)}.",
        smallest,
    )


def raise_to(least_bytes: int) -> str:
    """What to do about a memory limit."""
    return f"Raise memory_limit_bytes (to {least_bytes:,} or more)"


def use_less(graph: OpGraph) -> str:
    """What else to do: donating is no advice where something is donated."""
    return "or use more devices" if graph.donated else "use more devices, or donate the state"


@dataclass(frozen=True, eq=False)
class Moments:
    """What lies in memory when, under one choice of a Problem with a limit: times are the graph's operators.

    Without a choice, as none was met, it is known which operators these are, and no more.
    """

    graph: OpGraph
    flow: Dataflow
    space: Space
    problem: Problem
    choice: Sequence[int] | None

    def show(self, time: int) -> str:
        """The operator at `time`, and the largest of what lies in memory there."""
        ops = self.graph.ops
        where = (
            f"{ops[time].kind} ({ops[time].source})" if time < len(ops) else "the end of the step"
        )
        return where if self.choice is None else f"{where}, {self._held(time, self.choice)}"

    def _held(self, time: int, choice: Sequence[int]) -> str:
        """What `choice` holds at `time`."""
        sizes: dict[int, float] = {}
        for use in self.problem.usages:
            if use.start <= time < use.stop:
                sizes[use.node] = sizes.get(use.node, 0.0) + float(use.size_bytes[choice[use.node]])

        names = dict(self._names())
        running = self.space.operator_variables.get(time)
        if running in names:  # counted with it are arguments and what nobody reads later
            names[running] = f"what {self.graph.ops[time].kind} reads and makes"

        largest = sorted(
            (v for v in sizes if sizes[v] and v in names), key=lambda v: (-sizes[v], v)
        )[:_SHOWN]
        listed = ", ".join(f"{names[v]} ({rounded_bytes(int(sizes[v]))})" for v in largest)
        total = int(sum(sizes.values()))
        return f"where the choice of least memory holds {exact_bytes(total)}, most of all {listed}"

    def _names(self) -> Iterator[tuple[int, str]]:
        """What every variable of the space is, by its number."""
        graph = self.graph
        space = self.space
        for n, tensor in enumerate(graph.inputs):
            yield n, shown(self.graph, tensor)

        for op, variable in space.operator_variables.items():
            if graph.ops[op].outs:
                yield variable, shown(self.graph, graph.ops[op].outs[0])

        first = len(space.inputs) + sum(1 for strategies in space.strategies if strategies)
        for copy in self.flow.copies:
            yield first + copy.id, f"a copy of {shown(self.graph, copy.tensor)}"

        for position, variable in space.output_variables.items():
            if variable >= len(space.inputs):
                yield variable, f"{graph.output_name(position)} {_form(graph.outputs[position])}"


def shown(graph: OpGraph, tensor: TensorInfo) -> str:
    """A tensor's name, or what made it, with its type."""
    op = graph.producers.get(tensor.id)
    return f"{tensor.name or (f'result of {op.kind} ({op.source})' if op else 'a constant')} {_form(tensor)}"


def _form(tensor: TensorInfo) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}"


def blame(found: Clash | None, constraints: Sequence[str], moments: Moments | None) -> str:
    """What clashes, as sentences: `constraints` by the position of their groups, and the limit at some moments."""
    if found is None:
        return "What of it clashes was not found out within the limits on work."

    held = [constraints[n] for n in found.groups]
    limits = (
        [f"the memory limit at {moments.show(time)}" for time in found.times[:_SHOWN]]
        if moments
        else []
    )
    if len(found.times) > _SHOWN:
        limits.append(f"and at {len(found.times) - _SHOWN} more operators")
    if held:
        return f"These clash: {'; '.join([*held, *limits])}. {_claim(found)}"
    if limits:
        return f"No constraint is to blame, but {'; '.join(limits)}. {_claim(found)}"

    return "No constraint and no limit is to blame: the function itself leaves no plan."


def _claim(found: Clash) -> str:
    """What is proven of a clash."""
    if len(found.groups) + len(found.times) == 1:
        return "That alone is too much."
    if found.is_smallest:
        return "Nothing less clashes."
    if found.is_minimal:
        return "Without any one of these the others can be had."
    return "Possibly not all of these are needed."
