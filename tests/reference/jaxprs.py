"""Jaxprs on numpy arrays, equation by equation: calls in place, loops trip by trip, branches as they are taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autopar._compat import is_literal, open_jaxpr, scan_counts
from tests.reference import by_hand
from tests.reference.primitives import TABLE, Values, run

Observe = Callable[[Values], Values]


def evaluate(jaxpr: Any, values: Sequence[Any], observe: Observe = list) -> Values:
    """The results of a jaxpr (with its constants) on `values`; `observe` may change what every equation gives."""
    inner, consts = open_jaxpr(jaxpr)
    env: dict[Any, np.ndarray] = dict(
        zip([*inner.constvars, *inner.invars], [*map(np.asarray, consts), *values], strict=True)
    )

    def read(atom: Any) -> np.ndarray:
        return np.asarray(atom.val, atom.aval.dtype) if is_literal(atom) else env[atom]

    for eqn in inner.eqns:
        env.update(
            zip(
                eqn.outvars,
                _equation(eqn, [read(atom) for atom in eqn.invars], observe),
                strict=True,
            )
        )
    return [read(atom) for atom in inner.outvars]


def _equation(eqn: Any, operands: Sequence[Any], observe: Observe) -> Values:
    name = eqn.primitive.name
    if name in CONTROL:
        return CONTROL[name]([*operands], eqn.params, observe)
    return observe(run(eqn.primitive, eqn.params, operands))


def _call(name: str) -> Callable[..., Values]:
    return lambda values, params, observe: evaluate(params[name], values, observe)


def _scan(values: Values, params: Mapping[str, Any], observe: Observe) -> Values:
    fixed, carried = scan_counts(dict(params))
    consts, carry, xs = values[:fixed], values[fixed : fixed + carried], values[fixed + carried :]
    inner, _ = open_jaxpr(params["jaxpr"])
    stacks = [
        np.zeros((params["length"], *v.aval.shape), v.aval.dtype) for v in inner.outvars[carried:]
    ]
    trips = range(params["length"])
    for trip in reversed(trips) if params["reverse"] else trips:
        results = evaluate(params["jaxpr"], [*consts, *carry, *(x[trip] for x in xs)], observe)
        carry = results[:carried]
        for stack, y in zip(stacks, results[carried:], strict=True):
            stack[trip] = y
    return [*carry, *stacks]


def _while(values: Values, params: Mapping[str, Any], observe: Observe) -> Values:
    tests, bodies = params["cond_nconsts"], params["body_nconsts"]
    cond_consts, body_consts, carry = (
        values[:tests],
        values[tests : tests + bodies],
        values[tests + bodies :],
    )
    while (going := evaluate(params["cond_jaxpr"], [*cond_consts, *carry], observe)[0]).any():
        after = evaluate(params["body_jaxpr"], [*body_consts, *carry], observe)
        carry = [_where(going, new, old) for new, old in zip(after, carry, strict=True)]
    return carry


def _where(going: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Of several loops in one (vmap), those that have ended keep what they have. `going` has the leading dims."""
    return np.where(going.reshape(going.shape + (1,) * (new.ndim - going.ndim)), new, old)


def _cond(values: Values, params: Mapping[str, Any], observe: Observe) -> Values:
    branches = params["branches"]
    taken = min(max(int(values[0]), 0), len(branches) - 1)
    return evaluate(branches[taken], values[1:], observe)


def _shard_map(values: Values, params: Mapping[str, Any], observe: Observe) -> Values:
    return by_hand.shard_map(
        values, params, lambda eqn, operands: _equation(eqn, operands, observe)
    )


CONTROL: dict[str, Callable[[Values, Mapping[str, Any], Observe], Values]] = {
    "checkpoint": _call("jaxpr"),
    "closed_call": _call("call_jaxpr"),
    "cond": _cond,
    "custom_jvp_call": _call("call_jaxpr"),
    "custom_vjp_call": _call("call_jaxpr"),
    "jit": _call("jaxpr"),
    "pjit": _call("jaxpr"),
    "remat2": _call("jaxpr"),
    "scan": _scan,
    "shard_map": _shard_map,
    "while": _while,
}


def _as_primitive(name: str) -> Callable[..., Values]:
    return lambda *values, **params: CONTROL[name](list(values), params, list)


# An operator of a graph may be a whole loop.
TABLE.update({name: _as_primitive(name) for name in ("scan", "while", "cond", "closed_call")})
