"""Module: the text around a program: imports, placements, the mesh, and the user's function."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, AxisType

from autopar._compat import is_literal, open_jaxpr, untyped_jax
from autopar.backends.backend import Backend
from autopar.core.placement import Placement
from autopar.core.program import ShardedProgram
from autopar.emit.run import local_function
from autopar.emit.source import control as control
from autopar.emit.source.layout import Group, Named, Text, call, lines, sequence
from autopar.emit.source.trees import parts, result_text
from autopar.emit.source.values import quoted, value_text
from autopar.emit.source.writer import INSIDE, MARK, Constants, Writer
from autopar.emit.wrap import Keys, full_inputs, global_function, of_keys, placements, tensors

_IMPORTS = (
    ("import math", r"math\."),
    ("from functools import cache", "@cache"),
    ("from pathlib import Path", r"Path\("),
    ("", ""),
    ("import jax", r"jax\."),
    ("import jax.numpy as jnp", r"jnp\."),
    ("import numpy as np", r"np\."),
    ("from jax import lax", r"lax\."),
    (
        "from jax.experimental.layout import Layout, with_layout_constraint",
        r"with_layout_constraint\(",
    ),
    ("from jax.experimental.xla_metadata import set_xla_metadata", r"set_xla_metadata\("),
    ("from jax.extend.core import primitives", r"primitives\."),
    ("from jax.sharding import Mesh, NamedSharding", r"Mesh\("),
    ("from jax.sharding import PartitionSpec as P", r"P\("),
)
"""Each import, and the pattern by which it is seen that it is needed."""
_TAKEN = frozenset({
    "jax", "jnp", "np", "lax", "primitives", "math", "cache", "mesh", "program", "row_numbers", "mapped", "part_0",
    "part_1", "Mesh", "NamedSharding", "P", "Path", "Layout",
})  # fmt: skip
ROW_NUMBERS = '''\
def row_numbers(shape):
    """The row-major number of every element, as two words, the high one first."""
    low = lax.iota(np.uint32, math.prod(shape)).reshape(shape)
    return jnp.zeros(shape, np.uint32), low
'''
_MESH = '''\
def mesh(devices=None):
    """The mesh over `devices`, row-major; None: those that JAX finds."""
    given = jax.devices() if devices is None else devices
    return Mesh(np.array(given).reshape(tuple(AXES.values())), tuple(AXES))
'''


@dataclass(frozen=True)
class Function:
    """The user's function: what it is called, what its arguments are, and the structures of both ends.

    `arguments` are (name, structure) in the order of the flat inputs, those `keywords` passed by name;
    `input_names` are the paths of the flat inputs, constants included. `constants` are their values.
    """

    name: str
    arguments: Sequence[tuple[str, Any]]
    keywords: Sequence[str]
    input_names: Sequence[str]
    inputs: Sequence[Any]
    out_tree: Any
    constants: Sequence[Any]
    keys: Keys
    weak: Sequence[int]
    donated: Sequence[int]


@dataclass(frozen=True)
class Module:
    """The text of a module, and the arrays that are too large for it, by name."""

    text: str
    arrays: Mapping[str, np.ndarray[Any, Any]]


def module_of(
    program: ShardedProgram,
    function: Function,
    backend: Backend,
    notes: Mapping[int, Sequence[str]],
    about: Sequence[str],
    arrays_file: str,
) -> Module:
    """The module that runs `program`.

    Args:
      program: routed (no Convert left).
      function: what it is a program of.
      backend: what compiles it.
      notes: the comments on an instruction, by its position.
      about: the lines of the module's docstring.
      arrays_file: the file beside the module that arrays too large for the text are in.

    Raises:
      SourceError: something in it has no text that stands alone.
    """
    closed, mapped = _traced(program, function, backend)
    constants = Constants()
    names = _parameters(function.input_names)
    full = [names[n] for n in full_inputs(program)]
    local_name = f"local_{function.name}"
    body = Writer(notes, constants).function(
        local_name,
        full,
        mapped.params["jaxpr"],
        "What each device runs, on its shards.",
        _constants_of(closed, mapped),
    )
    sections = [
        _placed(program, function),
        body,
        _MESH.splitlines(),
        _program(program, closed, local_name, names),
        _users(function, constants),
    ]
    if any("row_numbers(" in line for line in body):
        sections.insert(1, ROW_NUMBERS.splitlines())
    if constants.arrays:
        there = f"ARRAYS = np.load(Path(__file__).with_name({quoted(arrays_file)}))"
        sections.insert(0, [there])

    text = "\n\n\n".join("\n".join(_stripped(section)) for section in sections)
    return Module("\n\n".join([_docstring(about), _imports(text), f"{text}\n"]), constants.arrays)


def _traced(program: ShardedProgram, function: Function, backend: Backend) -> tuple[Any, Any]:
    """The function of global arrays as JAX traces it, and the shard_map in it, with no device needed."""
    whole = program.mesh.whole
    grid = AbstractMesh(whole.sizes, whole.names, axis_types=(AxisType.Auto,) * len(whole.names))
    local = local_function(program, backend, MARK)
    run = global_function(program, grid, local, function.weak, function.keys)
    closed = untyped_jax.make_jaxpr(run)(*function.inputs)
    jaxpr, _ = open_jaxpr(closed)
    (mapped,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "shard_map")
    return closed, mapped


def _constants_of(closed: Any, mapped: Any) -> dict[Any, Any]:
    """The inputs of what a shard_map runs that are constants of the function around it, with their values."""
    jaxpr, constants = open_jaxpr(closed)
    known = dict(zip(jaxpr.constvars, constants, strict=True))
    inner, _ = open_jaxpr(mapped.params["jaxpr"])
    pairs = zip(inner.invars, mapped.invars, strict=True)
    return {var: known[atom] for var, atom in pairs if not is_literal(atom) and atom in known}


def is_taken(name: str) -> bool:
    """Whether a name means something in the module, or in Python, already."""
    return iskeyword(name) or name in _TAKEN


def _parameters(names: Sequence[str]) -> list[str]:
    """Names of parameters, made of the paths of inputs: "params['up']" is params_up."""
    found: list[str] = []
    for name in names:
        plain = re.sub(r"\W+", "_", name).strip("_") or "x"
        plain = f"x_{plain}" if plain[0].isdigit() or is_taken(plain) else plain
        count = sum(one == plain or one.startswith(f"{plain}__") for one in found)
        found.append(f"{plain}__{count}" if count else plain)
    return found


def _placed(program: ShardedProgram, function: Function) -> list[str]:
    """The axes and the placements of what comes in and goes out."""
    axes = [Named(quoted(name), str(size), ": ") for name, size in program.mesh.whole.axes]
    text = lines(Group("", tuple(axes), "{}"), 0, "AXES = ")
    text += lines(value_text(tuple(function.donated)), 0, "DONATED = ")
    for name, values, keys in (
        ("IN_SPECS", program.inputs, function.keys.inputs),
        ("OUT_SPECS", program.outputs, function.keys.outputs),
    ):
        placed = [_spec(p) for p in of_keys(placements(program, values), keys)]
        text += lines(sequence(placed), 0, f"{name} = ")
    return text


def _spec(placement: Placement) -> Text:
    dims = [axes[0] if len(axes) == 1 else axes or None for axes in placement.dims]
    return call("P", *map(value_text, dims))


def _program(
    program: ShardedProgram, closed: Any, local_name: str, names: Sequence[str]
) -> list[str]:
    full = full_inputs(program)
    ins = placements(program, program.inputs)
    body = sequence([_spec(ins[n]) for n in full])
    outs = sequence([_spec(p) for p in placements(program, program.outputs)])
    text = ["@cache", "def program(devices=None):"]
    text.append(
        f'    """`{local_name}` as a jitted function of flat global arrays, on `devices`, a tuple."""'
    )
    text.append("    grid = mesh(devices)")
    mapped = call(
        "jax.shard_map",
        local_name,
        mesh="grid",
        in_specs=body,
        out_specs=outs,
        check_vma=str(program.proves_replication),
    )
    text += [*lines(mapped, 4, "mapped = "), ""]

    writer = Writer({}, Constants(), "mapped", indent=4)
    writer.known.update(dict.fromkeys(open_jaxpr(closed)[0].constvars, INSIDE))
    text += writer.function("run", names, closed, "The results of flat global arrays.")
    text.append("")
    for name, values in (("ins", program.inputs), ("outs", program.outputs)):
        specs = "IN_SPECS" if name == "ins" else "OUT_SPECS"
        text.append(f"    {name} = [NamedSharding(grid, spec) for spec in {specs}]")
        hosts = [n for n, tensor in enumerate(tensors(program, values)) if tensor.on_host]
        text += [f'    {name}[{n}] = {name}[{n}].with_memory_kind("pinned_host")' for n in hosts]
    jitted = call(
        "jax.jit",
        "run",
        in_shardings="tuple(ins)",
        out_shardings="tuple(outs)",
        donate_argnums="DONATED",
    )
    return [*text, *lines(jitted, 4, "return ")]


def _users(function: Function, constants: Constants) -> list[str]:
    """The user's function."""
    positional = [name for name, _ in function.arguments if name not in function.keywords]
    named = [name for name, _ in function.arguments if name in function.keywords]
    parameters = [*positional, *(["*", *named] if named else [])]
    text = lines(call(function.name, *parameters), 0, "def ", ":")
    text.append('    """As the function that was planned."""')
    keywords = ", ".join(f"{quoted(name)}: {name}" for name in named)
    given = "".join(f"{name}, " for name in positional).rstrip()
    given = given if len(positional) == 1 else given.rstrip(",")
    text.append(f"    flat_inputs = jax.tree.leaves((({given}), {{{keywords}}}))")
    made = [call("jnp.asarray", constants.text(value)) for value in function.constants]
    text += lines(sequence(made, "[]"), 4, "flat_constants = ")
    text.append("    flat_results = program()(*flat_inputs, *flat_constants)")

    leaves = (f"flat_results[{n}]" for n in range(function.out_tree.num_leaves))
    known = [part for name, tree in function.arguments for part in parts(name, tree)]
    return [*text, *lines(result_text(function.out_tree, leaves, known), 4, "return ")]


def _docstring(about: Sequence[str]) -> str:
    shown = [line.replace("\\", "/").replace('"""', "'''") for line in about]
    return "\n".join([f'"""{shown[0]}', *shown[1:], '"""'])


def _imports(text: str) -> str:
    needed = [line for line, seen in _IMPORTS if not line or re.search(rf"(?<!\w){seen}", text)]
    return "\n".join(needed).strip()


def _stripped(section: Sequence[str]) -> list[str]:
    """Lines without blank ones that stand together, or at an end, or right behind a colon."""
    found: list[str] = []
    for line in section:
        if not line.strip() and (not found or not found[-1].strip()):
            continue
        found.append(line)
    while found and not found[-1].strip():
        found.pop()
    return found
