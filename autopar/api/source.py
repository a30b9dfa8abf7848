"""Source: a plan as a Python module that imports JAX alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from autopar._compat import jax_version, untyped_jax, without_mesh
from autopar.api.bound import Bound
from autopar.backends.known import backend_of
from autopar.core.program import Compute, Move, ShardedProgram
from autopar.emit.source.module import Function, Module, is_taken, module_of
from autopar.emit.source.writer import FROM
from autopar.emit.wrap import Keys
from autopar.errors import SourceError, writing
from autopar.report.units import format_quantity
from autopar.trace.arguments import positional_names
from autopar.trace.flat import FlatFunction

_ONE_LINE = 200


def source_of(bound: Bound, path: Path | None, headline: str) -> str:
    """The text of the module, written to `path` if that is given, with what is too large for it in an .npz beside it.

    Raises:
      SourceError: something of the program has no text that stands alone, or needs a file and `path` is None.
      AutoparError: it cannot be written.
    """
    with without_mesh():
        made = _module(bound, path, headline)
    if path is None:
        if made.arrays:
            size = sum(array.nbytes for array in made.arrays.values())
            raise SourceError(
                f"the program has constants of {format_quantity(size, 'bytes')}, too large for text: pass a path, "
                f"plan.to_source('step.py'), beside which they are written"
            )
        return made.text

    with writing("module", path):
        path.write_text(made.text, encoding="utf-8")
        if made.arrays:
            np.savez(path.with_suffix(".npz"), allow_pickle=False, **made.arrays)
    return made.text


def _module(bound: Bound, path: Path | None, headline: str) -> Module:
    program = bound.emitted.program
    name = _identifier(bound.name)

    about = [
        f"{name} on mesh {bound.mesh}, one program for each of {bound.mesh.size} devices.",
        "",
        f"Planned by autopar for cluster {bound.cluster.name}, with JAX {jax_version()}: {headline}.",
        f"`{name}` is called as the function was. What a device runs stands in `local_{name}`.",
    ]

    return module_of(
        program,
        _function(bound, name),
        backend_of(bound.cluster.device.compiler),
        _notes(program),
        about,
        path.with_suffix(".npz").name if path else "",
    )


def _function(bound: Bound, name: str) -> Function:
    traced = bound.traced
    args, kwargs = untyped_jax.tree.unflatten(traced.in_tree, range(traced.in_tree.num_leaves))
    names = _argument_names(bound, len(args))
    arguments = [
        (name, untyped_jax.tree.structure(arg)) for name, arg in zip(names, args, strict=True)
    ]
    arguments += [(key, untyped_jax.tree.structure(kwargs[key])) for key in sorted(kwargs)]
    tensors = traced.graph.inputs
    constants = [
        jax.ShapeDtypeStruct(tensor.shape, tensor.dtype)
        for tensor in tensors[traced.in_tree.num_leaves :]
    ]

    return Function(
        name=name,
        arguments=arguments,
        keywords=sorted(kwargs),
        input_names=[tensor.name for tensor in tensors],
        inputs=[*traced.input_avals, *constants],
        out_tree=traced.out_tree,
        constants=traced.constants,
        keys=Keys(dict(traced.key_inputs), dict(traced.key_outputs)),
        weak=[n for n, aval in enumerate(traced.output_avals) if aval.weak_type],
        donated=traced.graph.donated,
    )


def _argument_names(bound: Bound, count: int) -> list[str]:
    """Names of the positional arguments that are no static ones."""
    static = bound.traced.static_argnums
    total = count + len(static)
    fn = bound.fn
    names = fn.inputs if isinstance(fn, FlatFunction) else positional_names(fn, total)
    return [_identifier(name) for n, name in enumerate(names) if n not in static]


def _identifier(name: str) -> str:
    plain = "".join(c if c.isalnum() else "_" for c in name).strip("_")
    return plain if plain.isidentifier() and not is_taken(plain) else f"x_{plain}"


def _notes(program: ShardedProgram) -> dict[int, list[str]]:
    """The comments on each instruction: of a collective what it moves, what that costs, and why."""
    found: dict[int, list[str]] = {}
    for position, instruction in enumerate(program.instructions):
        if isinstance(instruction, Move):
            found[position] = [*_of_move(program, instruction), *_from(instruction.source)]
        elif isinstance(instruction, Compute):
            moves = [_of_move(program, move) for move in instruction.exchanges]
            found[position] = [*_from(instruction.op.source), *(line for m in moves for line in m)]
    return found


def _of_move(program: ShardedProgram, move: Move) -> list[str]:
    times = program.tree.weight(move.region)
    often = f", {times:g} times" if times != 1 else ""
    shown = _tensors(program, move)
    if not move.is_collective:
        return [f"{move.kind} of {shown} over {', '.join(move.axes)}: {move.reason}"]
    size = format_quantity(move.size_bytes, "bytes")
    price = format_quantity(move.time_s, "time")
    first = f"{move.kind} of {shown} over {', '.join(move.axes)}: {size}, {price}{often}"
    return [first, f"{move.role}: {move.reason}"[:_ONE_LINE]]


def _tensors(program: ShardedProgram, move: Move) -> str:
    """The tensors that a move is of: by name, if they are inputs, else by type."""
    tensors = [program.values[value].tensor for value in move.ins]
    names = [t.name or f"{t.dtype}{list(t.shape)}" for t in tensors]
    return names[0] if len(names) == 1 else f"{len(names)} tensors ({names[0]}, ...)"


def _from(source: str) -> Sequence[str]:
    return (f"{FROM}{source}",) if source else ()
