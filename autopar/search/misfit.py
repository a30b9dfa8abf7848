"""Misfit: why there is no plan, in the user's words: which constraints clash, with the memory limit at which operators.

An error is raised as soon as it is known that a mesh has no plan; what clashes is looked for only if that is all there
is to tell the user, since it takes some further solving (`explained`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from autopar.core.dataflow import Dataflow
from autopar.core.graph import OpGraph, TensorInfo
from autopar.core.space import Space
from autopar.errors import AutoparError, NoFeasiblePlan
from autopar.solve import Clash, Problem

_SHOWN = 3


class Misfit(NoFeasiblePlan):
    """Proven: there is no plan. `clash` finds out what clashes, as a sentence; `advice` is what to do."""

    def __init__(self, what: str, clash: Callable[[], str], advice: str, min_peak_bytes: int | None = None) -> None:
        super().__init__(f"{what}. {advice}", min_peak_bytes)
        self.what, self.clash, self.advice = what, clash, advice


def explained(error: AutoparError) -> AutoparError:
    """`error`; a Misfit as the error that names what clashes."""
    if not isinstance(error, Misfit):
        return error
    return NoFeasiblePlan(f"{error.what}. {error.clash()} {error.advice}", error.min_peak_bytes)


@dataclass(frozen=True, eq=False)
class Moments:
    """What lies in memory when, under one choice of a Problem with a limit: times are the graph's operators."""

    graph: OpGraph
    flow: Dataflow
    space: Space
    problem: Problem
    choice: Sequence[int]

    def show(self, time: int) -> str:
        """The operator at `time`, and the largest of what lies in memory there."""
        sizes: dict[int, float] = {}
        for use in self.problem.usages:
            if use.start <= time < use.stop:
                sizes[use.node] = sizes.get(use.node, 0.0) + float(use.size_bytes[self.choice[use.node]])
        names = dict(self._names())
        largest = sorted((v for v in sizes if sizes[v] and v in names), key=lambda v: (-sizes[v], v))[:_SHOWN]
        listed = ", ".join(f"{names[v]} ({int(sizes[v]):,} bytes)" for v in largest)
        ops = self.graph.ops
        where = f"{ops[time].kind} ({ops[time].source})" if time < len(ops) else "the end of the step"
        total = int(sum(sizes.values()))
        return f"{where}, where the choice of least memory holds {total:,} bytes, most of all {listed}"

    def _names(self) -> Iterator[tuple[int, str]]:
        """What every variable of the space is, by its number."""
        graph, space = self.graph, self.space
        for n, tensor in enumerate(graph.inputs):
            yield n, self._shown(tensor)
        for op, variable in space.operator_variables.items():
            if graph.ops[op].outs:
                yield variable, self._shown(graph.ops[op].outs[0])
        first = len(space.inputs) + sum(1 for strategies in space.strategies if strategies)
        for copy in self.flow.copies:
            yield first + copy.id, f"a copy of {self._shown(copy.tensor)}"
        for position, variable in space.output_variables.items():
            if variable >= len(space.inputs):
                yield variable, f"output[{position}] {_form(graph.outputs[position])}"

    def _shown(self, tensor: TensorInfo) -> str:
        op = self.graph.producers.get(tensor.id)
        return f"{tensor.name or (f'result of {op.kind} ({op.source})' if op else 'a constant')} {_form(tensor)}"


def _form(tensor: TensorInfo) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}"


def blame(found: Clash | None, constraints: Sequence[str], moments: Moments | None) -> str:
    """What clashes, as sentences: `constraints` by the position of their groups, and the limit at some moments."""
    if found is None:
        return "What of it clashes was not found out within the limits on work."
    held = [constraints[n] for n in found.groups]
    limits = [f"the memory limit at {moments.show(time)}" for time in found.times[:_SHOWN]] if moments else []
    if len(found.times) > _SHOWN:
        limits.append(f"and at {len(found.times) - _SHOWN} more operators")
    if held:
        return f"These clash: {'; '.join([*held, *limits])}. {_claim(found)}"
    if limits:
        return f"No constraint is to blame, but {'; '.join(limits)}. {_claim(found)}"
    return "No constraint and no limit is to blame: the function itself leaves no plan."


def _claim(found: Clash) -> str:
    """What is proven of a clash."""
    if found.is_smallest:
        return "Nothing less clashes." if len(found.groups) + len(found.times) > 1 else "That alone is too much."
    if found.is_minimal:
        return "Without any one of these the others can be had."
    return "Possibly not all of these are needed."
