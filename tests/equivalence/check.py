"""Whether a program is right: compiled once, its values are the plain function's and its collectives are its own."""

from __future__ import annotations

from typing import Any

import jax

from autopar.core.program import ShardedProgram
from autopar.emit.run import local_function
from autopar.emit.wrap import device_mesh, partition_spec, placements, wrap
from autopar.inspect.compare import ProgramComparison, compare
from autopar.inspect.hlo import HloCollective, collectives_of, compile_unmerged
from benchmarks.flat_call import unflatten
from tests.equivalence.cases import Case, assert_equal, inputs_of, key_data
from tests.quick_compile import QUICK


def check(case: Case, program: ShardedProgram) -> ProgramComparison:
    """Whether `program` computes what `case` does and runs the collectives it lists; all that differ have a reason."""
    found, comparison = run(case, program)
    assert_equal(case.expected, found, case.dtype)
    assert comparison.explained, str(comparison)
    assert not comparison.merged, str(comparison)
    assert not comparison.widened, str(comparison)
    assert {vanished.reason for vanished in comparison.vanished} <= {"constant", "unused"}, str(
        comparison
    )
    return comparison


def run(case: Case, program: ShardedProgram) -> tuple[Any, ProgramComparison]:
    """The results of `program` on the arguments of `case`, and its collectives beside those of the compiled one."""
    with case.precision():
        compiled = compile_program(case, program)
        pairs = zip(inputs_of(case), compiled.input_shardings[0], strict=True)
        results = unflatten(
            case.traced, compiled(*(jax.device_put(value, sharding) for value, sharding in pairs))
        )
        return jax.tree.map(key_data, jax.device_get(results)), compare(
            program, collectives_of(compiled)
        )


def collectives(case: Case, program: ShardedProgram) -> tuple[HloCollective, ...]:
    """The collectives of the compiled `program`."""
    with case.precision():
        return collectives_of(compile_program(case, program))


def compile_program(case: Case, program: ShardedProgram) -> Any:
    jitted: Any = wrap(program, device_mesh(program.mesh, jax.devices()))
    return compile_unmerged(jitted.lower(*inputs_of(case)), QUICK)


def prove(case: Case, program: ShardedProgram) -> None:
    """Lets JAX prove that what `program` claims to be replicated is; it raises where it cannot. Only traces."""
    assert program.proves_replication
    with case.precision():
        mesh = device_mesh(program.mesh, jax.devices())
        inputs = inputs_of(case)
        ins, outs = (
            tuple(map(partition_spec, placements(program, v)))
            for v in (program.inputs, program.outputs)
        )
        body = jax.shard_map(
            local_function(program), mesh=mesh, in_specs=ins, out_specs=outs, check_vma=True
        )
        jax.eval_shape(body, *inputs)
