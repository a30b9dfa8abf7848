"""Writer: a jaxpr as statements, one for each operator, with loops and branches as functions inside."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from keyword import iskeyword
from math import prod
from typing import Any

import numpy as np

from autopar._compat import (
    HIGH,
    high_function,
    is_literal,
    open_jaxpr,
    side_effects,
    source_line,
    untyped_jax,
    varying_axes_of,
)
from autopar._payload import OPERATOR
from autopar.emit.source.calls import CASTING, Application, application_text
from autopar.emit.source.layout import Group, Text, assignment, call, flat, lines, sequence
from autopar.emit.source.values import (
    array_text,
    is_small,
    plain_number,
    quoted,
    scalar_text,
    value_text,
)
from autopar.errors import SourceError

MARK = "autopar_"
"""What the name of the scope that an instruction of the program runs in begins with, before its position."""
FROM = "from "
"""What a note begins with that is a line of the user's."""
_POSITION = re.compile(rf"{MARK}(\d+)")
_STEP = 4
_LONGEST_NAME = 20
_WORD_NUMBERS = 1 << 32
_CALLBACKS = frozenset({"debug_callback", "debug_print", "io_callback", "pure_callback"})
_INLINED = {
    "checkpoint": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
}
"""Operators that run a jaxpr once, and the parameter that holds it."""
_RECOMPUTING = frozenset({"checkpoint", "remat", "remat2"})


WritesEquation = Callable[["Writer", Any], None]


@dataclass(frozen=True)
class Known:
    """A value as text; `axes` of a number of Python that is still to be marked as varying over them.

    `is_platform`: the number of the branch that a platform takes, which `lax.platform_dependent` finds itself.
    """

    text: Text
    is_array: bool = True
    number: str | None = None
    axes: tuple[str, ...] = ()
    is_platform: bool = False

    @property
    def cast(self) -> Text:
        """The value with its mark."""
        if not self.axes:
            return self.text
        return call("lax.pcast", self.text, value_text(self.axes), to='"varying"')


INSIDE = Known("_", is_array=False)
"""A constant that the function which a shard_map runs has itself."""
NOTHING_FIXED: Mapping[Any, Any] = {}


@dataclass(eq=False)
class Constants:
    """Arrays that are too large for the text, by the name that they have in the file beside the module."""

    arrays: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict[str, np.ndarray[Any, Any]])

    def text(self, value: Any) -> Text:
        """An array as text."""
        array = np.asarray(value)
        if is_small(array):
            return array_text(array)
        name = next((k for k, known in self.arrays.items() if known is array), None)
        if name is None:
            name = f"array_{len(self.arrays)}"
            self.arrays[name] = array
        return f"ARRAYS[{quoted(name)}]"


@dataclass(eq=False)
class Writer:
    """Writes equations as lines.

    `notes` are the comments on an instruction, by its position in the program. `whole` is the name of the function
    that a shard_map runs.
    """

    notes: Mapping[int, Sequence[str]]
    constants: Constants
    whole: str = ""
    text: list[str] = field(default_factory=list[str])
    names: Counter[str] = field(default_factory=Counter[str])
    known: dict[Any, Known] = field(default_factory=dict[Any, Known])
    indent: int = 0
    noted: int | None = None
    source: str = ""

    def function(
        self,
        name: str,
        parameters: Sequence[str],
        closed: Any,
        doc: str,
        fixed: Mapping[Any, Any] = NOTHING_FIXED,
    ) -> list[str]:
        """The lines of a function of `parameters` that runs a closed jaxpr; inputs that are `fixed` are constants."""
        jaxpr, constants = open_jaxpr(closed)
        self.names.update(dict.fromkeys(parameters, 1))

        self.text += lines(call(name, *parameters), self.indent, "def ", ":")
        self.indent += _STEP
        self.line(f'"""{doc}"""')
        self.bind_constants(jaxpr.constvars, constants)
        inside = [var for var in jaxpr.invars if var in fixed]
        self.bind_constants(inside, [fixed[var] for var in inside])
        inputs = zip([v for v in jaxpr.invars if v not in fixed], parameters, strict=True)
        self.known.update({var: Known(parameter) for var, parameter in inputs})
        self.equations(jaxpr)
        self.text += lines(self.tuple_of(jaxpr.outvars), self.indent, "return ")
        self.indent -= _STEP
        return self.text

    def line(self, text: str) -> None:
        """Adds one line."""
        self.text.append(f"{' ' * self.indent}{text}" if text else "")

    def bind_constants(self, variables: Sequence[Any], constants: Sequence[Any]) -> None:
        """Assigns the constants of a jaxpr, unless they are known."""
        for var, value in zip(variables, constants, strict=True):
            if var in self.known:
                continue
            name = self.fresh("constant")
            made = call("jnp.asarray", self.constants.text(value))
            self.text += lines(made, self.indent, f"{name} = ")
            self.known[var] = Known(name, is_array=False)

    def fresh(self, base: str) -> str:
        """A name that is not taken."""
        stem = re.sub(r"\W", "_", base)[:_LONGEST_NAME].strip("_")
        while True:
            self.names[stem] += 1
            name = f"{stem}_{self.names[stem]}"
            if name not in self.names and not iskeyword(name):
                self.names[name] = 1
                return name

    # Equations --------------------------------------------------------------------------------------------------------

    def equations(self, jaxpr: Any) -> None:
        """The statements of a jaxpr whose inputs are known; what nothing reads is left out."""
        for eqn in _read_equations(jaxpr):
            self.equation(eqn)

    def equation(self, eqn: Any) -> None:
        """The statements of one equation."""
        name = eqn.primitive.name
        if name == "pvary" and is_literal(eqn.invars[0]):
            literal = self.operand(eqn.invars[0])
            self.known[eqn.outvars[0]] = replace(literal, axes=tuple(eqn.params["axes"]))
            return

        self.comment(eqn)
        if name in _CALLBACKS:
            raise SourceError(
                f"{name} at {self.place(eqn)} calls a function of this process on "
                f"the host, which no text holds: leave it out of the function"
            )
        if name in _INLINED or name == OPERATOR or name in HIGH:
            self.inlined(eqn)
        elif name in _WRITTEN:
            _WRITTEN[name](self, eqn)
        elif name == "shard_map":
            given = [atom for atom in eqn.invars if self.operand(atom) is not INSIDE]
            self.assign(eqn, call(self.whole, *map(self.cast, given)))
        else:
            self.applied(eqn)

    def comment(self, eqn: Any) -> None:
        """The notes on the instruction that an equation begins; else its line of the user's, where that is another."""
        found = _POSITION.findall(str(eqn.source_info.name_stack))
        position = int(found[-1]) if found else None
        if position is None or position == self.noted:
            return

        self.noted = position
        notes = self.notes.get(position, ())
        for note in notes:
            if not (note.startswith(FROM) and note == self.source):
                self.line(f"# {note}")
            self.source = note if note.startswith(FROM) else self.source

    def place(self, eqn: Any) -> str:
        """The user's line that an equation comes from."""
        known = self.source.removeprefix(FROM)
        return source_line(eqn.source_info) or known or "an unknown line"

    def applied(self, eqn: Any) -> None:
        """An operator as an assignment."""
        operands = [self.operand(atom) for atom in eqn.invars]
        if eqn.primitive.name == "pvary" and operands[0].is_platform:
            self.known[eqn.outvars[0]] = operands[0]
            return

        if eqn.primitive.name == "iota_2x32_shape" and prod(eqn.params["shape"]) > _WORD_NUMBERS:
            raise SourceError(f"{eqn.params['shape']} elements are more than a word numbers")

        casts = eqn.primitive.name in CASTING and any(one.is_array for one in operands)
        this = Application(
            eqn.primitive,
            [(one.number or one.text) if casts else one.cast for one in operands],
            eqn.params,
            [atom.aval.dtype for atom in eqn.invars],
            [one.is_array for one in operands],
        )
        try:
            value = application_text(this)
            if casts and isinstance(value, Group):
                typed = replace(this, operands=[one.text for one in operands])
                value = application_text(typed)
        except SourceError as error:
            where = self.place(eqn)
            raise SourceError(
                f"{eqn.primitive.name} at {where} cannot be written: {error}"
            ) from error
        self.assign(eqn, value)

    def assign(self, eqn: Any, value: Text) -> None:
        """Names for the results of an equation, whose value is `value`."""
        name: str = eqn.primitive.name
        base = _BASES.get(name, name)
        targets = self.targets(eqn.outvars, base)
        if eqn.primitive.multiple_results:
            self.text += assignment(targets, value, self.indent)
        else:
            self.text += lines(value, self.indent, f"{targets[0]} = ")

    def targets(self, variables: Sequence[Any], base: str) -> list[str]:
        """Names for `variables`; "_" for those that nothing reads."""
        found: list[str] = []
        for var in variables:
            name = "_" if type(var).__name__ == "DropVar" else self.fresh(base)
            self.known[var] = Known(name)
            found.append(name)
        return found

    def operand(self, atom: Any) -> Known:
        """What an equation reads."""
        if not is_literal(atom):
            return self.known[atom]
        dtype = atom.aval.dtype
        return Known(scalar_text(atom.val, dtype), False, plain_number(atom.val, dtype))

    def cast(self, atom: Any) -> Text:
        """What an equation reads, marked as varying."""
        return self.operand(atom).cast

    def tuple_of(self, atoms: Sequence[Any]) -> Group:
        """Values as a tuple."""
        return sequence([self.cast(atom) for atom in atoms])

    # Operators that hold jaxprs ---------------------------------------------------------------------------------------

    def inlined(self, eqn: Any) -> None:
        """The equations of a function that is called, in the place of the call."""
        metadata = getattr(eqn.ctx, "xla_metadata", None)
        if metadata:
            self.called_apart(eqn, metadata)
            return

        jaxpr, constants = open_jaxpr(_body(eqn))
        atoms = [self.operand(atom) for atom in eqn.invars]
        if eqn.primitive.name in _RECOMPUTING:
            atoms = self.held(eqn, atoms)
        self.bind_constants(jaxpr.constvars, constants)
        self.known.update(zip(jaxpr.invars, atoms, strict=True))
        self.equations(jaxpr)
        for var, atom in zip(eqn.outvars, jaxpr.outvars, strict=True):
            self.known[var] = self.operand(atom)

    def held(self, eqn: Any, atoms: list[Known]) -> list[Known]:
        """What a recomputation reads, behind the barrier that keeps it from being merged with the first time."""
        prevents = eqn.params["prevent_cse"]
        waits = [prevents] * len(atoms) if isinstance(prevents, bool) else list(prevents)
        if not eqn.params["differentiated"] or not any(waits):
            return atoms

        waiting: dict[tuple[str, ...], list[int]] = {}
        for n, atom in enumerate(eqn.invars):
            if waits[n]:
                waiting.setdefault(tuple(sorted(varying_axes_of(atom.aval))), []).append(n)

        self.line("# computed anew: kept from being merged with the first time")
        found = list(atoms)
        for together in waiting.values():  # behind a barrier all vary over the axes of all
            names = [self.fresh("held") for _ in together]
            barrier = call("lax.optimization_barrier", sequence([atoms[n].cast for n in together]))
            self.text += assignment(names, barrier, self.indent)
            for n, name in zip(together, names, strict=True):
                found[n] = Known(name)
        return found

    def called_apart(self, eqn: Any, metadata: Mapping[str, str]) -> None:
        """A function that is called with attributes for XLA."""
        closed = eqn.params[_INLINED[eqn.primitive.name]]
        inner, _ = open_jaxpr(closed)
        name = self.nested("apart", closed, inner.invars, decorator="@jax.jit")
        named: dict[str, Text] = {key: value_text(value) for key, value in metadata.items()}
        opened = flat(call("set_xla_metadata", **named))
        self.line(f"with {opened}:")
        self.indent += _STEP
        targets = self.targets(eqn.outvars, "apart")
        value = call(name, *(self.cast(atom) for atom in eqn.invars))
        self.text += assignment(targets, value, self.indent)
        self.indent -= _STEP

    def nested(
        self,
        base: str,
        closed: Any,
        parameters: Sequence[Any],
        *,
        carries: Sequence[int] = (),
        returns: Callable[[Writer, Sequence[Any]], Text] | None = None,
        decorator: str = "",
    ) -> str:
        """Writes a function inside of this one, and returns its name.

        Args:
          base: what it is called.
          closed: the jaxpr that it runs, whose inputs before `parameters` are known already.
          parameters: those of its inputs that it is given.
          carries: of a loop's body: how many of these it is given in each of its tuples.
          returns: what it returns, given its results; by default a tuple of them.
          decorator: a line above it.
        """
        jaxpr, constants = open_jaxpr(closed)
        self.bind_constants(jaxpr.constvars, constants)
        name = self.fresh(base)
        given = (
            self.targets(parameters, "x")
            if not carries
            else [f"part_{n}" for n in range(len(carries))]
        )
        if self.text and self.text[-1].strip() and not self.text[-1].lstrip().startswith("#"):
            self.line("")

        if decorator:
            self.line(decorator)
        self.text += lines(call(name, *given), self.indent, "def ", ":")
        self.indent += _STEP
        self.unpack(parameters, carries)
        noted = self.noted, self.source
        self.equations(jaxpr)

        write = returns or Writer.tuple_of
        self.text += lines(write(self, jaxpr.outvars), self.indent, "return ")
        self.indent -= _STEP
        self.noted, self.source = noted
        self.line("")
        return name

    def unpack(self, parameters: Sequence[Any], carries: Sequence[int]) -> None:
        """Names for what a loop's body is given in tuples."""
        start = 0
        for n, count in enumerate(carries):
            targets = self.targets(parameters[start : start + count], "x")
            start += count
            if targets:
                self.text += assignment(targets, f"part_{n}", self.indent)


_WRITTEN: dict[str, Callable[[Writer, Any], None]] = {}
"""What writes an operator that holds functions of its own (`emit.source.control`)."""


def writes(*names: str) -> Callable[[WritesEquation], WritesEquation]:
    """Has a function write the operators of these names."""

    def register(function: WritesEquation) -> WritesEquation:
        _WRITTEN.update(dict.fromkeys(names, function))
        return function

    return register


_BASES = {
    "all_gather_invariant": "all_gather",
    "broadcast_in_dim": "broadcast",
    "conv_general_dilated": "conv",
    "convert_element_type": "converted",
    "dot_general": "dot",
    "psum_invariant": "psum",
    "shard_map": "result",
    "add_any": "add",
}
"""What results are called, where that is not the operator's name."""


def _body(eqn: Any) -> Any:
    """The jaxpr that an operator runs once."""
    name = eqn.primitive.name
    if name in _INLINED:
        return eqn.params[_INLINED[name]]
    function = eqn.params["composite"].function if name == OPERATOR else high_function(eqn)
    return untyped_jax.make_jaxpr(function)(*(v.aval for v in eqn.invars))


def _read_equations(jaxpr: Any) -> list[Any]:
    """The equations that a result depends on, or that have effects."""
    read = {atom for atom in jaxpr.outvars if not is_literal(atom)}
    found: list[Any] = []
    for eqn in reversed(jaxpr.eqns):
        if side_effects(eqn) or read.intersection(eqn.outvars):
            read.update(atom for atom in eqn.invars if not is_literal(atom))
            found.append(eqn)
    return found[::-1]
