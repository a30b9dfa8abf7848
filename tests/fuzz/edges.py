"""Makers of what lies at the edges: places far outside of an array, of every integer type; arrays without elements."""

from __future__ import annotations

from math import prod

import numpy as np

from tests.fuzz.scope import MAX_ELEMENTS, NoFit, Scope
from tests.fuzz.source import Var

TYPES = ("int32", "int32", "int64", "uint32", "int16", "int8", "uint8")
NARROW = 100
"""Dims of more elements take no index of 8 bits: XLA (0.10.2, CPU) writes outside of memory where those end first."""


def _type(s: Scope, largest: int) -> str:
    return s.choice([dtype for dtype in TYPES if largest <= NARROW or np.iinfo(dtype).bits > 8])


def _edge(s: Scope, size: int, dtype: str) -> int:
    """A place inside, about the ends, or far beyond them."""
    info = np.iinfo(dtype)
    about = [
        n + m
        for n in (-40 * size, -2 * size, -size, 0, size, 2 * size, 40 * size)
        for m in (-1, 0, 1)
    ]
    ends = (info.min, info.max, info.max - size)
    return s.choice(
        [place for place in (*range(size), *about, *ends) if info.min <= place <= info.max]
    )


def _places(s: Scope, sizes: tuple[int, ...], dtype: str) -> str:
    """A list of places, one in each of several sizes: numbers, or numbers that a variable is added to."""
    edges = [_edge(s, size, dtype) for size in sizes]
    try:
        var = s.pick("i") if s.chance(0.5) else None
    except NoFit:
        var = None
    if var is None:
        return f"jnp.asarray({edges}, '{dtype}')"
    return f"jnp.asarray({edges}, '{dtype}') + (jnp.sum({var}) * 0).astype('{dtype}')"


def far_slice(s: Scope) -> None:
    x = s.pick("fib", 1)
    sizes = tuple(s.choice((n, s.below(n + 1))) for n in x.shape)
    starts = s.line(_places(s, x.shape, _type(s, max(x.shape))))[0]
    if s.chance(0.5):
        s.line(f"lax.dynamic_slice({x}, list({starts}), {sizes})")
    else:
        s.line(f"lax.dynamic_update_slice({x}, jnp.full({sizes}, 1, '{x.dtype}'), list({starts}))")


def _indices(s: Scope, size: int) -> Var:
    count = s.choice([n for n in s.dims if n])
    return s.line(_places(s, (size,) * count, _type(s, size)))[0]


def far_take(s: Scope) -> None:
    x = s.pick("fi", 1)
    d = s.below(x.ndim)
    i = _indices(s, x.shape[d])
    if prod(i.shape) * prod(x.shape) // x.shape[d] > MAX_ELEMENTS:
        raise NoFit
    at = f"{':, ' * d}{i}"
    texts = [
        f"{x}[{at}]",
        *(f"jnp.take({x}, {i}, axis={d}, mode='{mode}')" for mode in ("clip", "wrap")),
    ]
    texts += [
        f"{x}.at[{at}].get(mode='fill', fill_value=1)",
        f"{x}.at[{at}].get(mode='promise_in_bounds')",
    ]
    s.line(s.choice(texts))


def far_scatter(s: Scope) -> None:
    """One value everywhere: which of several writers wins is open."""
    x = s.pick("fi", 1)
    d = s.below(x.ndim)
    i = _indices(s, x.shape[d])
    way = s.choice(
        ("add", "max", "min", "set") if s.differentiable else ("add", "max", "min", "set", "mul")
    )
    mode = s.choice(("drop", "clip", "promise_in_bounds"))
    s.line(f"{x}.at[{':, ' * d}{i}].{way}(2, mode='{mode}')")


def far_roll(s: Scope) -> None:
    x = s.pick("fib", 1)
    d = s.below(x.ndim)
    shift = s.line(_places(s, (x.shape[d],), "int32"))[0]
    s.line(f"jnp.roll({x}, {shift}[0] % 1000, axis={d})")


def hollow(s: Scope) -> None:
    """Arrays without elements, of what is there."""
    x = s.pick("fib", 1)
    d = s.below(x.ndim)
    index = ", ".join(":0" if e == d else ":" for e in range(x.ndim))
    shape = tuple(0 if e == d else n for e, n in enumerate(x.shape))
    s.line(s.choice((f"{x}[{index}]", f"jnp.zeros({shape}, '{x.dtype}')")))


def of_hollow(s: Scope) -> None:
    """What is computed of such an array; it may have elements again."""
    x = s.pick("fi", 1, hollow=True)
    d = x.shape.index(0)
    full = [e for e, n in enumerate(x.shape) if n]
    order = tuple(int(e) for e in s.rng.permutation(x.ndim))
    texts = [
        f"{x} * 2",
        f"jnp.where({x} > 0, {x}, 0)",
        f"{x}.transpose({order})",
        f"jnp.flip({x}, {d})",
    ]
    texts += [
        f"jnp.sum({x}, axis={s.below(x.ndim)})",
        f"jnp.prod({x}, axis={d})",
        f"{x}.reshape(-1)",
    ]
    texts += [
        f"lax.cumsum({x}, axis={d})",
        f"jnp.sort({x}, axis={d})",
        f"{x}[..., None]",
        f"jnp.stack([{x}, {x}])",
    ]
    texts += [
        f"jnp.pad({x}, 1)",
        f"jnp.broadcast_to({x}, (2, *{x.shape}))",
        f"jnp.roll({x}, 1, axis={d})",
    ]
    texts.append(
        f"jnp.concatenate([{x}, jnp.ones({(*x.shape[:d], 2, *x.shape[d + 1 :])}, '{x.dtype}')], axis={d})"
    )
    texts.append(f"lax.dynamic_slice({x}, [jnp.int32(9)] * {x.ndim}, {x.shape})")
    texts.append(f"jnp.ones({x.shape}, '{x.dtype}').at[...].set({x})")
    if x.kind == "f":
        texts.append(f"jnp.tensordot({x}, {x}, (({d},), ({d},)))")
    for e in full:
        texts += [
            f"jnp.take({x}, jnp.asarray([0, 5]), axis={e}, mode='clip')",
            f"jnp.max({x}, axis={e})",
        ]
        texts += [f"{x}.at[{':, ' * e}jnp.asarray([0, 9])].add(1)", f"jnp.argmax({x}, axis={e})"]
    if not d:
        rows = f"jnp.ones({(4, *x.shape[1:])}, '{x.dtype}')"
        texts += [
            f"{rows}.at[jnp.zeros(0, 'int32')].add({x})",
            f"{rows}[jnp.zeros({x.shape}, 'int32')]",
        ]
        texts.append(f"jax.ops.segment_sum({x}, jnp.zeros(0, 'int32'), 3)")
        texts.append(
            f"lax.scan(lambda c, r: (c + r, r * 2), jnp.ones({x.shape[1:]}, '{x.dtype}'), {x})[0]"
        )
    if prod(n or 2 for n in x.shape) > MAX_ELEMENTS // 4 or x.ndim > 4:
        raise NoFit
    s.line(s.choice(texts))


MAKERS = {far_slice: 1.5, far_take: 1.5, far_scatter: 1.5, far_roll: 0.5, hollow: 0.8, of_hollow: 2}
