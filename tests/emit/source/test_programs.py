"""Every operator, split in several ways, as a module: it is traced to what the program itself is traced to."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from autopar._compat import open_jaxpr
from autopar.backends.known import XLA_CPU
from autopar.core.program import ShardedProgram
from autopar.emit.run import local_function
from autopar.emit.source.module import Function, module_of
from autopar.emit.wrap import NO_KEYS, full_inputs, global_function, partition_spec, placements
from tests.emit.source.flat import flat
from tests.emit.source.test_writer import NUMBERED, PRIVATE
from tests.emit.test_every_operator import (
    CASES,
    ELSEWHERE,
    case_of,
    program_with,
    space_of,
    subject,
)
from tests.ops.build import Case

OTHERWISE = frozenset({"platform_index", "reduce", "reduce_window"})
"""Written by other operators; functions of two elements, traced anew, vary as their operands do."""
LEFT_OUT = ELSEWHERE | PRIVATE | NUMBERED | OTHERWISE
SPLIT = [case for case in CASES if case.kind not in LEFT_OUT and case.name != "scatter apply"]
WAYS = 3


@pytest.mark.slow
@pytest.mark.parametrize("case", SPLIT, ids=lambda case: case.name)
def test_a_split_operator_is_written_as_itself(case: Case) -> None:
    count = len(space_of(case).strategies[subject(case).id])
    for strategy in np.random.default_rng(0).permutation(count)[:WAYS]:
        program = program_with(case, int(strategy))
        with case_of(case).precision():
            wanted, found, text = traced(program)
        assert found == wanted, text


def traced(program: ShardedProgram) -> tuple[Any, Any, str]:
    """What a device runs, by the program and by its module, as data; and the module's text."""
    tensors = [program.values[value].tensor for value in program.inputs]
    inputs = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in tensors]
    names = [f"a{n}" for n in range(len(inputs))]
    leaf = jax.tree.structure(0)
    function = Function(
        name="split",
        arguments=[(name, leaf) for name in names],
        keywords=(),
        input_names=names,
        inputs=inputs,
        out_tree=jax.tree.structure(tuple(range(len(program.outputs)))),
        constants=(),
        keys=NO_KEYS,
        weak=(),
        donated=(),
    )
    text = module_of(program, function, XLA_CPU, {}, ["A module."], "arrays.npz").text
    scope: dict[str, Any] = {}
    exec(text, scope)

    sizes = program.mesh.whole.sizes
    grid = AbstractMesh(sizes, program.mesh.whole.names, axis_types=(AxisType.Auto,) * len(sizes))
    own = global_function(program, grid, local_function(program, XLA_CPU))
    full = full_inputs(program)
    ins = placements(program, program.inputs)
    mapped = jax.shard_map(
        scope["local_split"],
        mesh=grid,
        in_specs=tuple(partition_spec(ins[n]) for n in full),
        out_specs=tuple(map(partition_spec, placements(program, program.outputs))),
        check_vma=program.proves_replication,
    )
    wanted = jax.make_jaxpr(own)(*inputs)
    return inside(wanted), inside(jax.make_jaxpr(mapped)(*(inputs[n] for n in full))), text


def inside(closed: Any) -> Any:
    """What the shard_map in a jaxpr computes, of its inputs in order and of constants."""
    jaxpr, constants = open_jaxpr(closed)
    known = dict(zip(jaxpr.constvars, constants, strict=True))
    (mapped,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "shard_map")
    numbers = iter(range(len(mapped.invars)))
    operands = [
        str(np.asarray(known[atom])) if atom in known else next(numbers) for atom in mapped.invars
    ]
    return flat(mapped.params["jaxpr"], operands)
