"""Under a mesh that is set, whatever the types of its axes, a function is traced to the graph that it has without."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core as jex
from jax.sharding import AxisType, Sharding

from autopar._payload import Payload
from autopar.core.graph import OpGraph
from autopar.errors import TraceError
from autopar.trace import fingerprint, trace
from tests.fuzz.generate import generate
from tests.ops.all_cases import CASES
from tests.ops.build import Case

EXPLICIT, MIXED, AUTO = (
    (AxisType.Explicit,) * 2,
    (AxisType.Auto, AxisType.Explicit),
    (AxisType.Auto,) * 2,
)
REFUSED = frozenset({"cholesky_update", "ragged_dot_general"})
"""What JAX takes on Explicit meshes only if it is told how the result lies, or not at all."""
PROGRAMS = 8
FIRST = {case.kind: case for case in reversed(CASES)}
ON_MESHES = [
    pytest.param(
        case,
        types,
        id=f"{case.name} {name}",
        marks=[pytest.mark.slow] * (types == MIXED or not is_first),
    )
    for case in CASES
    for is_first in [case is FIRST[case.kind]]
    for name, types in (("explicit", EXPLICIT), ("mixed", MIXED))
]
"""One case of every primitive is run each time, on Explicit axes; the others are slow."""


def mesh_of(types: Any) -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("a", "b"), axis_types=types)


def of_meshes(value: Any) -> Iterator[object]:
    """What in the parameters of an operator speaks of a mesh."""
    if isinstance(value, Sharding):
        yield value
    if isinstance(value, jex.Jaxpr | jex.ClosedJaxpr):
        for eqn in getattr(value, "jaxpr", value).eqns:
            if not eqn.ctx.cur_abstract_mesh.empty:
                yield eqn
            for inner in eqn.params.values():
                yield from of_meshes(inner)


def payloads(graph: OpGraph) -> Iterator[Any]:
    for op in graph.ops:
        if isinstance(op.payload, Payload):
            yield from op.payload.params.values()


def is_traced_alike(function: Any, args: tuple[Any, ...], types: Any) -> bool:
    """Whether the graph on a mesh is that without one; False if JAX refuses the function there, as the trace does."""
    alone = trace(function, args).graph
    with jax.set_mesh(mesh_of(types)):
        arrays = jax.tree.map(jnp.asarray, args)
        refused = refusal(function, arrays)
        if refused is not None:
            with pytest.raises(TraceError) as caught:
                trace(function, arrays)
            assert type(caught.value.__cause__) is type(refused)
            return False
        found = trace(function, arrays).graph
    assert fingerprint(found) == fingerprint(alone)
    assert not [speaks for value in payloads(found) for speaks in of_meshes(value)]
    return True


def refusal(function: Any, args: tuple[Any, ...]) -> Exception | None:
    try:
        jax.make_jaxpr(function)(*args)
    except Exception as refused:
        return refused
    return None


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(("case", "types"), ON_MESHES)
def test_every_operator(case: Case, types: Any) -> None:
    rng = np.random.default_rng(0)
    taken = is_traced_alike(case.function, tuple(arg.draw(rng) for arg in case.args), types)
    assert taken or case.kind in REFUSED


@pytest.mark.slow
@pytest.mark.parametrize(
    "types",
    [
        pytest.param(EXPLICIT, id="explicit"),
        pytest.param(MIXED, id="mixed", marks=pytest.mark.slow),
        pytest.param(AUTO, id="auto", marks=pytest.mark.slow),
    ],
)
def test_drawn_programs(types: Any) -> None:
    with jax.enable_x64(True):
        drawn = (generate(np.random.default_rng(seed)) for seed in count())
        # these name another mesh
        programs = [*islice((p for p in drawn if "shard_map" not in str(p)), PROGRAMS)]
        taken = [
            is_traced_alike(program.block.function(), program.args, types) for program in programs
        ]
    assert sum(taken) >= PROGRAMS - 2
