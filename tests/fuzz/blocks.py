"""Makers of lines with inner functions: remat, gradients, calls, loops and branches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.fuzz.scope import NoFit, Scope
from tests.fuzz.source import Block, Var

Fill = Callable[[Scope, int], None]
DEEPEST = 2


def _inner(s: Scope, differentiable: bool = False) -> Scope:
    if s.depth >= DEEPEST:
        raise NoFit
    return Scope(s.rng, s, differentiable)


def _param(inner: Scope, like: Var, value: object = None) -> Var:
    return inner.param("p", inner.values[like.name] if value is None else value)


def _same(inner: Scope, carry: Var) -> str:
    """An expression of the type of `carry` that stays bounded from trip to trip."""
    others = [v for v in inner.pool if v.type == carry.type and v is not carry]
    if carry.kind == "f":
        return f"0.5 * {carry} + jnp.tanh({inner.choice(others) if others else carry})"
    if carry.kind == "b":
        return f"~{inner.choice(others) if others else carry}"
    return f"lax.rem({inner.choice(others) if others else carry}, jnp.asarray(13, '{carry.dtype}'))"


def _results(inner: Scope, count: int, kinds: str = "fib") -> list[Var]:
    made = [
        v
        for line in inner.lines
        for v in line.outs
        if v in inner.pool and v.kind in kinds and 0 not in v.shape
    ]
    if not made:
        raise NoFit
    unread = [v for v in made if v.name in inner.unread] or made
    return unread[-count:]


def checkpoint(s: Scope, fill: Fill) -> None:
    inner = _inner(s)
    given = [s.pick("f") for _ in range(1 + s.below(2))]
    for var in given:
        _param(inner, var)
    fill(inner, 2 + s.below(4))
    block = inner.block(_tuple(_results(inner, 2)))
    wrap = s.choice(("jax.checkpoint({0})", "jax.jit({0})", "jax.checkpoint({0})"))
    s.line(f"{wrap.format(block.name)}({', '.join(v.name for v in given)})", block)


def gradient(s: Scope, fill: Fill) -> None:
    inner = _inner(s, differentiable=True)
    given = list(
        dict.fromkeys(
            s.pick("f", where=lambda v: v.dtype == "float64") for _ in range(1 + s.below(2))
        )
    )
    for var in given:
        _param(inner, var)
    fill(inner, 2 + s.below(5))
    (result,) = _results(inner, 1, "f")
    block = inner.block(f"jnp.mean({result} * {result}).astype('float64')")
    function = block.name if s.chance(0.7) else f"jax.checkpoint({block.name})"
    numbers = tuple(range(len(given)))
    s.line(f"jax.grad({function}, {numbers})({', '.join(v.name for v in given)})", block)


def scan(s: Scope, fill: Fill) -> None:
    """A carry, rows of a stacked operand, and what the body takes from around it."""
    inner = _inner(s)
    carry = s.pick("fi")
    rows = s.pick("fi", 1) if s.chance(0.7) else None
    c = _param(inner, carry)
    x = None if rows is None else _param(inner, rows, s.values[rows.name][0])
    if x is None:
        inner.params.append(Var(s.name("p"), (), "bool"))
    fill(inner, 1 + s.below(4))
    stacked = inner.choice(inner.pool)
    block = inner.block(f"({_same(inner, c)}, {stacked if s.chance(0.7) else None})")
    xs = f"{rows}" if rows is not None else f"None, length={s.choice((1, 2, 3, 4))}"
    s.line(
        f"jax.tree.leaves(lax.scan({block.name}, {carry}, {xs}, reverse={s.chance(0.3)}))", block
    )


def samples(s: Scope, fill: Fill) -> None:
    """A scan whose rounds need nothing of one another: rows in, rows out, a total, an extreme and a counter."""
    inner = _inner(s)
    rows = s.pick("f", 1)
    row = s.values[rows.name][0]
    total, most, counter = (
        inner.param("p", value) for value in (np.zeros_like(row), row, np.int32(3))
    )
    x = _param(inner, rows, row)
    hidden = [total, most] if s.chance(0.8) else [total, most, counter]
    for var in hidden:
        inner.pool.remove(var)
    fill(inner, 1 + s.below(4))
    others = [v for v in inner.pool if v.type == x.type]
    add, least = inner.choice(others), inner.choice(others)
    after = (
        f"{total} {s.choice('+-')} {add}",
        f"{s.choice(('jnp.maximum', 'jnp.minimum'))}({most}, {least})",
        f"{counter} + 2",
    )
    stacked = inner.choice([v for v in inner.pool if v is not counter])
    block = inner.block(f"(({', '.join(after)}), {stacked})")
    start = f"(jnp.zeros({row.shape}, '{rows.dtype}'), {rows}[0], jnp.int32(3))"
    s.line(
        f"jax.tree.leaves(lax.scan(lambda c, x: {block.name}(*c, x), {start}, {rows}, reverse={s.chance(0.3)}))",
        block,
    )


def fori(s: Scope, fill: Fill) -> None:
    inner = _inner(s)
    carry = s.pick("fi")
    known = "np" if s.differentiable or s.chance(0.5) else "jnp"  # a scan, or a while loop
    inner.param("p", np.int64(0) if known == "np" else np.int32(0))
    c = _param(inner, carry)
    fill(inner, 1 + s.below(4))
    block = inner.block(_same(inner, c))
    s.line(
        f"lax.fori_loop({known}.int32(0), {known}.int32({s.below(4)}), {block.name}, {carry})",
        block,
    )


def while_(s: Scope, fill: Fill) -> None:
    """At most five trips, as many as the values say."""
    if s.differentiable or s.manual:
        raise NoFit
    inner = _inner(s)
    carry = s.pick("f")
    i = inner.param("p", np.int32(0))
    c = _param(inner, carry)
    fill(inner, 1 + s.below(4))
    body = inner.block(f"({i} + 1, {_same(inner, c)})")
    j, d = Var(s.name("p"), (), "int32"), Var(s.name("p"), carry.shape, carry.dtype)
    stop = s.choice((f"{j} < 3", f"({j} < 5) & (jnp.sum({d}) > -0.25)", f"{j} < 0"))
    test = Block(s.name("f"), (j, d), (), stop)
    s.line(
        f"lax.while_loop(lambda c: {test.name}(*c), lambda c: {body.name}(*c), (jnp.int32(0), {carry}))",
        test,
        body,
    )


def cond(s: Scope, fill: Fill) -> None:
    if s.manual:
        raise NoFit
    flag = s.pick("b", 0, lambda v: v.ndim == 0) if s.chance(0.6) else None
    given = s.pick("fi")
    bodies: list[Block] = []
    for _ in range(2):
        inner = _inner(s)
        p = _param(inner, given)
        fill(inner, 1 + s.below(3))
        bodies.append(inner.block(_same(inner, p)))
    test = f"{flag}" if flag is not None else f"jnp.sum({given}) > 0"
    s.line(f"lax.cond({test}, {bodies[0].name}, {bodies[1].name}, {given})", *bodies)


def mapped(s: Scope, fill: Fill) -> None:
    """vmap, and lax.map: a scan without a carry."""
    inner = _inner(s)
    rows = s.pick("f", 1)
    _param(inner, rows, s.values[rows.name][0])
    fill(inner, 1 + s.below(4))
    block = inner.block(_tuple(_results(inner, 1)))
    way = s.choice((f"jax.vmap({block.name})({rows})", f"lax.map({block.name}, {rows})"))
    s.line(f"jax.tree.leaves({way})[0]", block)


def associative_scan(s: Scope, fill: Fill) -> None:
    del fill
    x = s.pick("f", 1)
    s.line(
        f"lax.associative_scan({s.choice(('jnp.add', 'jnp.maximum'))}, {x}, axis={s.below(x.ndim)})"
    )


def _tuple(results: list[Var]) -> str:
    return results[0].name if len(results) == 1 else f"({', '.join(v.name for v in results)})"


MAKERS = {
    checkpoint: 2,
    gradient: 2.5,
    scan: 1.5,
    samples: 1.5,
    fori: 0.8,
    while_: 0.8,
    cond: 2.5,
    mapped: 1,
    associative_scan: 0.5,
}
