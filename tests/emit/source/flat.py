"""Flat: a jaxpr as plain data, equal for two that compute alike: calls looked into, what is unread left out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autopar._compat import HIGH, high_function, is_jaxpr, is_literal, open_jaxpr, untyped_jax

CALLS = {"jit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr"}
CALLS |= {"custom_vjp_call": "call_jaxpr", "core_call": "call_jaxpr", "remat": "jaxpr"}
CALLS |= {"checkpoint": "jaxpr"}
FUNCTIONS = ("computation", "memory_space", "sharding", "out_sharding")
"""Parameters that hold what a jaxpr beside them was made of, that say nothing where all axes are split by hand, and
that say the memory of devices.
"""
SAME = {"add_any": "add", "empty2": "empty"}
"""Operators that compute alike."""


def flat(closed: Any, operands: Sequence[Any] = ()) -> tuple[Any, ...]:
    """The operators of a closed jaxpr, each with what it reads, and what the jaxpr gives."""
    jaxpr, constants = open_jaxpr(closed)
    known: dict[Any, Any] = dict(
        zip(jaxpr.invars, operands or range(len(jaxpr.invars)), strict=True)
    )
    known |= dict(zip(jaxpr.constvars, map(str, constants), strict=True))
    return tuple(_read(atom, _Operators(known).of(jaxpr)) for atom in jaxpr.outvars)


def _called(eqn: Any) -> Any:
    if eqn.primitive.name in CALLS:
        return eqn.params[CALLS[eqn.primitive.name]]
    return untyped_jax.make_jaxpr(high_function(eqn))(*(atom.aval for atom in eqn.invars))


class _Operators:
    """What each value of a jaxpr is made of: an operator, its parameters, and what each operand is made of."""

    def __init__(self, known: dict[Any, Any]) -> None:
        self.known = known

    def of(self, jaxpr: Any) -> dict[Any, Any]:
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            ins = [_read(atom, self.known) for atom in eqn.invars]
            if name in CALLS or name in HIGH:
                inner, constants = open_jaxpr(_called(eqn))
                self.known.update(zip(inner.invars, ins, strict=True))
                self.known.update(zip(inner.constvars, map(str, constants), strict=True))
                self.of(inner)
                results = [_read(atom, self.known) for atom in inner.outvars]
            elif name == "convert_element_type" and is_number(ins[0]):
                results = [(ins[0][0], str(eqn.outvars[0].aval.dtype))]
            elif name == "convert_element_type" and is_varying_number(ins[0]):
                (_, (number,), params), n, _ = ins[0]
                aval = eqn.outvars[0].aval.strip_weak_type()
                results = [(("pvary", ((number[0], str(aval.dtype)),), params), n, str(aval))]
            elif (
                name == "convert_element_type"
                and eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype
            ):
                results = ins
            else:
                made = SAME.get(name, name), tuple(ins), _plain(eqn.params)
                results = [
                    (made, n, str(var.aval.strip_weak_type())) for n, var in enumerate(eqn.outvars)
                ]
            self.known.update(zip(eqn.outvars, results, strict=True))
        return self.known


def _read(atom: Any, known: Mapping[Any, Any]) -> Any:
    return (
        (f"number {complex(atom.val)}", str(atom.aval.dtype)) if is_literal(atom) else known[atom]
    )


def is_number(read: Any) -> bool:
    """Whether what is read is a literal: JAX converts one while it traces."""
    return isinstance(read, tuple) and str(read[0]).startswith("number ")


def is_varying_number(read: Any) -> bool:
    """Whether what is read is a literal that is marked as varying."""
    made = read[0] if isinstance(read, tuple) else None
    return isinstance(made, tuple) and made[0] == "pvary" and is_number(made[1][0])


def _is_empty(value: Any) -> bool:
    return isinstance(value, tuple) and not value


def _plain(params: Mapping[str, Any]) -> tuple[Any, ...]:
    """Parameters that say something; of jaxprs what they compute."""
    return tuple(
        (name, _value(value))
        for name, value in sorted(params.items())
        if not (value is None or value is False or name in FUNCTIONS or _is_empty(value))
    )


def _value(value: Any) -> Any:
    if isinstance(value, tuple) and any(map(is_jaxpr, value)):
        return tuple(map(_value, value))
    value = np.dtype(value) if isinstance(value, type) else value
    return flat(value) if is_jaxpr(value) else re.sub(r"np\.int64\((-?\d+)\)", r"\1", repr(value))
