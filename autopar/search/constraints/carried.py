"""Carried: which results keep the placement of an input, after what the user pinned."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product

from autopar.core.graph import OpGraph
from autopar.core.pins import Spec
from autopar.search.constraints.matching import matches
from autopar.search.constraints.records import (
    Constraint,
    Follow,
    Layout,
    Named,
    Pin,
    Replicate,
    Role,
)

_WHOLE = Layout(())
_KEY = re.compile(r"\[[^\]]*\]|[.]?[^.\[]+")
"""A key of a path: a bracket, a field, or the name that it begins with."""


def released(graph: OpGraph, constraints: Sequence[Constraint]) -> OpGraph:
    """`graph` without those pairs of its carry whose input and output are pinned to lie differently.

    Where one of the two is pinned, the other follows.
    """
    if not graph.carry:
        return graph
    inputs, outputs = _stated(graph, constraints)

    def is_kept(out: int, source: int) -> bool:
        pairs = product(inputs.get(source, ()), outputs.get(out, ()))
        return all(_agree(a, b, len(graph.outputs[out].shape)) for a, b in pairs)

    kept = tuple((out, source) for out, source in graph.carry if is_kept(out, source))
    return graph if kept == graph.carry else replace(graph, carry=kept)


@dataclass(frozen=True)
class CarriedGroup:
    """Results that keep the placement of inputs: what both are called, up to where their paths are the same below."""

    output: str
    input: str
    count: int

    def __str__(self) -> str:
        return f"{self.output} -> {self.input}" + (
            f" ({self.count} arrays)" if self.count > 1 else ""
        )


def carried_groups(graph: OpGraph) -> tuple[CarriedGroup, ...]:
    """What is carried, in order of the results; arrays under the same two names are one group."""
    counts: dict[tuple[str, str], int] = {}
    for out, source in graph.carry:
        heads = _heads(graph.output_name(out), graph.inputs[source].name)
        counts[heads] = counts.get(heads, 0) + 1
    return tuple(CarriedGroup(output, source, count) for (output, source), count in counts.items())


def keys_of(path: str) -> list[str]:
    """The keys of a path as they are written: "state.params['w']" is state, .params and ['w']."""
    return _KEY.findall(path)


def _heads(output: str, source: str) -> tuple[str, str]:
    """Two paths without the keys at their ends that are the same in both."""
    a = keys_of(output)
    b = keys_of(source)
    same = 0
    while same < min(len(a), len(b)) - 1 and a[-1 - same] == b[-1 - same]:
        same += 1
    return "".join(a[: len(a) - same]), "".join(b[: len(b) - same])


def _stated(
    graph: OpGraph, constraints: Sequence[Constraint]
) -> tuple[dict[int, list[Layout]], dict[int, list[Layout]]]:
    """What is stated of each input and of each output, by position."""
    inputs: dict[int, list[Layout]] = {}
    outputs: dict[int, list[Layout]] = {}
    each = chain.from_iterable(
        one.pins if isinstance(one, Follow) else (one,) for one in constraints
    )
    for one in each:
        if not isinstance(one, Pin | Replicate):
            continue
        layout = one.layout if isinstance(one, Pin) else _WHOLE
        if isinstance(one.target, Role):
            for position in _in_role(graph, one.target):
                inputs.setdefault(position, []).append(layout)
        elif isinstance(one.target, Named):
            names = _names(graph, one.target)
            for position, tensor in enumerate(graph.inputs):
                if tensor.name in names:
                    inputs.setdefault(position, []).append(layout)
            for position in range(len(graph.outputs)):
                if graph.output_name(position) in names:
                    outputs.setdefault(position, []).append(layout)

    return inputs, outputs


def _in_role(graph: OpGraph, role: Role) -> Iterator[int]:
    data = set(graph.batch_inputs)
    return (n for n in range(len(graph.inputs)) if (n in data) == (role.role == "data"))


def _names(graph: OpGraph, target: Named) -> frozenset[str]:
    """The names that `target` is about."""
    known = [tensor.name for tensor in graph.inputs]
    known += [str(op.params["name"]) for op in graph.ops if op.kind == "name"]
    known += [graph.output_name(n) for n in range(len(graph.outputs))]
    return frozenset(name for name, _ in matches(target.pattern, known))


def _agree(a: Layout, b: Layout, ndim: int) -> bool:
    """Whether a placement of so many dims may be as both say."""

    def dims(layout: Layout) -> Spec:
        return (*layout.dims, *((),) * (ndim - len(layout.dims)))

    same = all(x is None or y is None or x == y for x, y in zip(dims(a), dims(b), strict=False))
    return same and (a.unreduced, a.kind) == (b.unreduced, b.kind)
