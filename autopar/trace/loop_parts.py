"""Loops over samples: a scan whose rounds need nothing of one another, as fewer rounds of several samples each.

With R = length / parts, the rounds p R ... p R + R - 1 are part p. The scan becomes one of R rounds whose body is
mapped over the parts, so that the parts are a dim, which can be split: each device then loops over its own part.

A carry may be one that stays, that counts the rounds, or that only accumulates: carry + term, the largest, the least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, Literal, cast

import numpy as np

from autopar import _compat
from autopar._compat import untyped_jax
from autopar.trace.types import typed_specs

jnp = untyped_jax.numpy
lax = untyped_jax.lax

Role = Literal["stays", "counts", "sum", "largest", "least"]
ACCUMULATE: dict[str, Role] = {
    "add": "sum",
    "add_any": "sum",
    "sub": "sum",
    "max": "largest",
    "min": "least",
}
NOT_MAPPED = frozenset({
    "cond", "ffi_call", "pallas_call", "pure_callback", "reshard", "rng_bit_generator", "rng_uniform", "shard_map",
    "sharding_constraint",
})  # fmt: skip
"""Mapped, these mean or cost something else: all branches run, calls are counted, bits differ, pins lack a dim."""
ANY_ORDER = "threefry2x32"
"""The generator whose bits are the same mapped or not."""


@dataclass(frozen=True)
class Carried:
    """What a loop does with one carry: its role and, if it counts, by how much in each round."""

    role: Role
    step: int = 0


def part_count(eqn: Any, devices: int) -> int:
    """Into how many parts the rounds of the scan `eqn` are divided for so many devices; 1 if they must stay whole."""
    parts = gcd(int(eqn.params["length"]), devices)
    if parts == 1 or eqn.effects or not _can_be_mapped(eqn.params["jaxpr"]):
        return 1
    carried = carries(eqn)
    if carried is None:
        return 1
    consts, _ = _compat.scan_counts(eqn.params)
    differs = len(eqn.invars) > consts + len(carried) or any(
        each.role != "stays" for each in carried
    )
    return parts if differs else 1


def carries(eqn: Any) -> list[Carried] | None:
    """What the scan does with each of its carries; None if a round needs what another one makes of one."""
    consts, count = _compat.scan_counts(eqn.params)
    jaxpr, _ = _compat.open_jaxpr(eqn.params["jaxpr"])
    atoms = [atom for each in jaxpr.eqns for atom in each.invars] + list(jaxpr.outvars)
    uses = Counter(id(atom) for atom in atoms if not _compat.is_literal(atom))
    makers = {id(var): each for each in jaxpr.eqns for var in each.outvars}
    pairs = zip(jaxpr.invars[consts : consts + count], jaxpr.outvars[:count], strict=True)
    found = [_carried(given, made, makers.get(id(made)), uses) for given, made in pairs]
    kept = [each for each in found if each is not None]
    return kept if len(kept) == len(found) else None


def _carried(given: Any, made: Any, maker: Any, uses: Counter[int]) -> Carried | None:
    if made is given:
        return Carried("stays")
    if maker is None or maker.primitive.name not in ACCUMULATE:
        return None

    name = maker.primitive.name
    (left, right) = maker.invars
    if left is not given and (right is not given or name == "sub"):
        return None

    other = right if left is given else left
    is_number = not given.aval.shape and np.issubdtype(given.aval.dtype, np.integer)
    if name == "add" and is_number and _compat.is_literal(other):
        return Carried("counts", int(other.val))
    if uses[id(given)] > 1 or uses[id(made)] > 1:
        return None

    return Carried(ACCUMULATE[name])


def _can_be_mapped(closed: Any) -> bool:
    for eqn in _equations(_compat.open_jaxpr(closed)[0]):
        name = eqn.primitive.name
        if name in NOT_MAPPED or not _compat.has_batching_rule(eqn.primitive):
            return False
        if any(
            _compat.is_key_dtype(var.aval.dtype) and not _in_any_order(var.aval)
            for var in eqn.invars
        ):
            return False
    return True


def _in_any_order(aval: Any) -> bool:
    return _compat.key_implementation_name(aval.dtype) == ANY_ORDER


def _equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr, and of the jaxprs in their parameters."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in _values(eqn.params):
            if _compat.is_jaxpr(inner):
                yield from _equations(_compat.open_jaxpr(inner)[0])


def _values(params: dict[str, Any]) -> Iterator[Any]:
    """The parameters of an equation, with those in tuples and lists one by one."""
    for value in params.values():
        yield from cast("Sequence[Any]", value) if isinstance(value, (tuple, list)) else (value,)


def in_parts(eqn: Any, parts: int) -> Any:
    """A closed jaxpr of the scan `eqn` with its rounds in so many parts, which go on side by side."""
    with eqn.ctx.manager:
        return untyped_jax.make_jaxpr(_Loop(eqn, parts))(*typed_specs(eqn))


class _Loop:
    """The function of a scan's operands that goes through `parts` parts of the rounds at once."""

    def __init__(self, eqn: Any, parts: int) -> None:
        params = eqn.params
        self.params = params
        self.parts = parts
        self.rounds = params["length"] // parts
        self.body = _compat.function_of(params["jaxpr"])
        self.consts, count = _compat.scan_counts(params)
        self.carried = carries(eqn) or []
        self.first_slice = self.consts + count

    def __call__(self, *operands: Any) -> list[Any]:
        given = operands[self.consts : self.first_slice]
        sliced = operands[self.first_slice :]
        counts = [
            self._counted(n, c)
            for n, c in zip(given, self.carried, strict=True)
            if c.role == "counts"
        ]
        totals = [
            self._start(n, c) for n, c in zip(given, self.carried, strict=True) if _accumulates(c)
        ]
        step = untyped_jax.vmap(self._step(operands[: self.consts], given))
        read = [self._divided(x) for x in (*counts, *sliced)]
        if self.rounds == 1:
            totals, stacked = step(totals, [x[:, 0] for x in read])
            stacked = list(stacked)
        else:
            turned = [jnp.swapaxes(x, 0, 1) for x in read]
            unroll = min(int(self.params.get("unroll", 1)), self.rounds)
            keywords = {"length": self.rounds, "reverse": self.params["reverse"], "unroll": unroll}
            totals, stacked = lax.scan(step, totals, turned, **keywords)
            stacked = [jnp.swapaxes(y, 0, 1) for y in stacked]

        return [*self._finals(given, totals), *(self._joined(y) for y in stacked)]

    def _step(self, consts: Sequence[Any], given: Sequence[Any]) -> Callable[..., Any]:
        """One round of one part: what is accumulated and what is read, to what is accumulated and what is stacked."""
        counted = sum(c.role == "counts" for c in self.carried)

        def step(totals: list[Any], read: list[Any]) -> tuple[list[Any], list[Any]]:
            accumulated = iter(totals)
            counts = iter(read[:counted])
            carry = [
                next(accumulated)
                if _accumulates(c)
                else next(counts)
                if c.role == "counts"
                else value
                for value, c in zip(given, self.carried, strict=True)
            ]
            results = self.body(*consts, *carry, *read[counted:])
            made = results[: len(carry)]
            stacked = results[len(carry) :]

            return [
                value for value, c in zip(made, self.carried, strict=True) if _accumulates(c)
            ], list(stacked)

        return step

    def _counted(self, first: Any, carried: Carried) -> Any:
        """What a carry that counts is at each index that is scanned over."""
        length = self.params["length"]
        order = lax.iota(np.uint32, length).astype(first.dtype)
        order = (length - 1) - order if self.params["reverse"] else order
        return first + jnp.asarray(carried.step, first.dtype) * order

    def _start(self, first: Any, carried: Carried) -> Any:
        shape = (self.parts, *first.shape)
        return (
            jnp.zeros(shape, first.dtype)
            if carried.role == "sum"
            else jnp.broadcast_to(first, shape)
        )

    def _finals(self, given: Sequence[Any], totals: Sequence[Any]) -> Iterator[Any]:
        accumulated = iter(totals)
        for first, carried in zip(given, self.carried, strict=True):
            if carried.role == "stays":
                yield first
            elif carried.role == "counts":
                steps = (carried.step * self.params["length"]) % 2**64
                yield first + np.array([steps], np.uint64).astype(first.dtype)[0]
            elif carried.role == "sum":
                yield first + jnp.sum(next(accumulated), axis=0, dtype=first.dtype)
            else:
                yield (jnp.max if carried.role == "largest" else jnp.min)(next(accumulated), axis=0)

    def _divided(self, x: Any) -> Any:
        return x.reshape(self.parts, self.rounds, *x.shape[1:])

    def _joined(self, y: Any) -> Any:
        """Parts and rounds as one dim again; with a single round there is none for the rounds."""
        start = 1 if self.rounds == 1 else 2
        return y.reshape(self.params["length"], *y.shape[start:])


def _accumulates(carried: Carried) -> bool:
    return carried.role in ("sum", "largest", "least")
