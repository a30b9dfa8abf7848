"""Control: loops, branches, and what else holds a function of its own, written as functions inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autopar._compat import open_jaxpr, scan_counts
from autopar.emit.source.layout import Text, assignment, call, sequence
from autopar.emit.source.values import value_text
from autopar.emit.source.writer import Known, Writer, writes

_WINDOW = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")


@writes("scan")
def scan(writer: Writer, eqn: Any) -> None:
    """`lax.scan` of a function of what is carried and a slice; what it reads besides it closes over."""
    closed = eqn.params["jaxpr"]
    jaxpr, _ = open_jaxpr(closed)
    consts, carry = scan_counts(eqn.params)
    outside = eqn.invars[:consts]
    writer.known.update(zip(jaxpr.invars[:consts], map(writer.operand, outside), strict=True))

    def returns(inner: Writer, atoms: Sequence[Any]) -> Text:
        return sequence([inner.tuple_of(atoms[:carry]), inner.tuple_of(atoms[carry:])])

    rest = jaxpr.invars[consts:]
    name = writer.nested("body", closed, rest, carries=(carry, len(rest) - carry), returns=returns)
    first = writer.tuple_of(eqn.invars[consts : consts + carry])
    scanned = writer.tuple_of(eqn.invars[consts + carry :])
    named = {key: value_text(eqn.params[key]) for key in ("length", "reverse", "unroll")}
    value = call("lax.scan", name, first, scanned, **named)
    targets = writer.targets(eqn.outvars, "scanned")
    both = [sequence(targets[:carry]), sequence(targets[carry:])]
    writer.text += assignment(both, value, writer.indent)


@writes("while")
def while_loop(writer: Writer, eqn: Any) -> None:
    """`lax.while_loop` of two functions of what is carried."""
    params = eqn.params
    tested, _ = open_jaxpr(params["cond_jaxpr"])
    body, _ = open_jaxpr(params["body_jaxpr"])
    first = params["cond_nconsts"]
    second = first + params["body_nconsts"]
    operands = [writer.operand(atom) for atom in eqn.invars[:second]]
    writer.known.update(zip(tested.invars[:first], operands[:first], strict=True))
    writer.known.update(zip(body.invars[: second - first], operands[first:], strict=True))
    count = len(eqn.invars) - second

    def one(inner: Writer, atoms: Sequence[Any]) -> Text:
        return inner.cast(atoms[0])

    test = writer.nested(
        "goes_on", params["cond_jaxpr"], tested.invars[first:], carries=(count,), returns=one
    )
    step = writer.nested(
        "body", params["body_jaxpr"], body.invars[second - first :], carries=(count,)
    )
    value = call("lax.while_loop", test, step, writer.tuple_of(eqn.invars[second:]))
    writer.assign(eqn, value)


@writes("cond")
def cond(writer: Writer, eqn: Any) -> None:
    """`lax.switch` between functions without arguments; `lax.platform_dependent` where the platform chooses."""
    index, *operands = eqn.invars
    platforms = eqn.params.get("branches_platforms")
    known = list(map(writer.operand, operands))
    names: list[str] = []
    for closed in eqn.params["branches"]:
        jaxpr, _ = open_jaxpr(closed)
        writer.known.update(zip(jaxpr.invars, known, strict=True))
        names.append(writer.nested("branch", closed, ()))
        for var in jaxpr.invars:
            del writer.known[var]

    if platforms is None:
        value = call("lax.switch", writer.cast(index), sequence(names, "[]"))
    else:
        named: dict[str, Text] = {
            platform: name
            for group, name in zip(platforms, names, strict=True)
            for platform in group or ("default",)
        }
        value = call("lax.platform_dependent", **named)
    writer.assign(eqn, value)


@writes("reduce", "reduce_window")
def reduced(writer: Writer, eqn: Any) -> None:
    """A reduction by a function of two elements; in windows, if it has any."""
    params = eqn.params
    jaxpr, _ = open_jaxpr(params["jaxpr"])
    count = len(eqn.outvars)
    name = writer.nested("combine", params["jaxpr"], jaxpr.invars, carries=(count, count))
    operands = writer.tuple_of(eqn.invars[:count])
    first = writer.tuple_of(eqn.invars[count:])
    keys = ("dimensions",) if eqn.primitive.name == "reduce" else _WINDOW
    named = {key: value_text(params[key]) for key in keys}
    writer.assign(eqn, call(f"lax.{eqn.primitive.name}", operands, first, name, **named))


@writes("platform_index")
def platform(writer: Writer, eqn: Any) -> None:
    """The number of the branch that a platform takes; a branch that says so itself does not read it."""
    named: dict[str, Text] = {
        platform: f"lambda: np.int32({number})"
        for number, group in enumerate(eqn.params["platforms"])
        for platform in group or ("default",)
    }
    found = call("lax.platform_dependent", **named)
    writer.known[eqn.outvars[0]] = Known(found, is_array=False, is_platform=True)


@writes("custom_linear_solve")
def solved(writer: Writer, eqn: Any) -> None:
    """A linear system, solved as its function says; the rest of its parameters are for derivatives."""
    lengths = eqn.params["const_lengths"]
    jaxpr, constants = open_jaxpr(eqn.params["jaxprs"].solve)
    before = lengths.matvec + lengths.vecmat
    total = before + lengths.solve + lengths.transpose_solve
    atoms = [*eqn.invars[before : before + lengths.solve], *eqn.invars[total:]]
    known = list(map(writer.operand, atoms))
    writer.bind_constants(jaxpr.constvars, constants)
    writer.known.update(zip(jaxpr.invars, known, strict=True))
    writer.equations(jaxpr)
    for var, atom in zip(eqn.outvars, jaxpr.outvars, strict=True):
        writer.known[var] = writer.operand(atom)
