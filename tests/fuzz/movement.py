"""Makers of movement: reshape, transpose, cut, join, pad, look up, scatter, sort."""

from __future__ import annotations

from math import prod

from tests.fuzz.scope import MAX_ELEMENTS, NoFit, Scope
from tests.fuzz.source import Var

ANY = "fib"


def reshape(s: Scope) -> None:
    """Neighbouring dims are joined, a dim is cut in two, or all are laid end to end."""
    x = s.pick(ANY, 1)
    shape = list(x.shape)
    d = s.below(x.ndim)
    way = s.below(4)
    if way == 0:
        shape = [prod(shape)]
    elif way == 1 and d + 1 < x.ndim:
        shape[d : d + 2] = [shape[d] * shape[d + 1]]
    elif way == 2 and d + 2 < x.ndim:
        shape[d : d + 3] = [shape[d + 1], shape[d + 2], shape[d]]
    else:
        part = s.choice([n for n in range(1, shape[d] + 1) if shape[d] % n == 0])
        shape[d : d + 1] = [part, shape[d] // part]
    s.line(f"{x}.reshape({tuple(shape)})")


def transpose(s: Scope) -> None:
    x = s.pick(ANY, 2)
    s.line(f"{x}.transpose({tuple(int(d) for d in s.rng.permutation(x.ndim))})")


def broadcast(s: Scope) -> None:
    x = s.pick(ANY)
    n = s.choice(s.dims)
    if prod(x.shape) * n > MAX_ELEMENTS or x.ndim > 3:
        raise NoFit
    dim = s.below(x.ndim + 1)
    text = s.choice(
        (
            f"jnp.broadcast_to({x}, {(n, *x.shape)})",
            f"jnp.repeat(jnp.expand_dims({x}, {dim}), {n}, axis={dim})",
            f"jnp.stack([{x}] * 2, axis={dim})",
            f"{x}[..., None]",
            f"jnp.tile({x}, 2)",
        )
    )
    s.line(text)


def squeeze(s: Scope) -> None:
    x = s.pick(ANY, 1, lambda v: 1 in v.shape)
    s.line(f"jnp.squeeze({x}, {x.shape.index(1)})")


def concatenate(s: Scope) -> None:
    x = s.pick(ANY, 1)
    d = s.below(x.ndim)
    y = s.pick(
        x.kind,
        1,
        lambda v: (
            v.dtype == x.dtype
            and _without(v.shape, d) == _without(x.shape, d)
            and v.ndim == x.ndim
            and prod(x.shape) + prod(v.shape) <= MAX_ELEMENTS
        ),
    )
    s.line(f"jnp.concatenate([{x}, {y}], axis={d})")


def _without(shape: tuple[int, ...], d: int) -> tuple[int, ...]:
    return (*shape[:d], *shape[d + 1 :])


def split(s: Scope) -> None:
    x = s.pick(ANY, 1, lambda v: max(v.shape) > 1)
    d = s.choice([d for d, n in enumerate(x.shape) if n > 1])
    parts = [n for n in (2, 3, 4) if x.shape[d] % n == 0]
    if parts and s.chance(0.7):
        s.line(f"jnp.split({x}, {s.choice(parts)}, axis={d})")
    else:
        s.line(f"jnp.split({x}, [{1 + s.below(x.shape[d] - 1)}], axis={d})")


def slice_(s: Scope) -> None:
    """Ranges with steps, single elements, reversed dims."""
    x = s.pick(ANY, 1)
    index: list[str] = []
    for n in x.shape:
        low = s.below(n)
        high = low + 1 + s.below(n - low)
        index.append(
            s.choice(
                (
                    ":",
                    ":",
                    ":",
                    f"{low}:{high}",
                    f"::{s.choice((2, 3))}",
                    "::-1",
                    f"{low}",
                    f"-{low + 1}",
                )
            )
        )
    s.line(f"{x}[{', '.join(index)}]")


def pad(s: Scope) -> None:
    x = s.pick("fi", 1)
    config = tuple(
        (s.below(3) - (n > 3), s.below(3), s.below(2)) if s.chance(0.6) else (0, 0, 0)
        for n in x.shape
    )
    if prod(2 * n + 4 for n in x.shape) > 4 * MAX_ELEMENTS:
        raise NoFit
    value = s.choice((0, 0, 1))
    s.line(f"lax.pad({x}, jnp.asarray({value}, '{x.dtype}'), {config})")


def iota(s: Scope) -> None:
    shape = s.shape(1 + s.below(3))
    s.line(
        f"lax.broadcasted_iota('{s.choice(('int32', 'float64'))}', {shape}, {s.below(len(shape))})"
    )


def filled(s: Scope) -> None:
    """Constants of the program's shapes: all alike, or written out."""
    shape = s.shape(1 + s.below(3))
    texts = [
        f"jnp.zeros({shape})",
        f"jnp.ones({shape})",
        f"jnp.full({shape}, 3, 'int32')",
        f"jnp.eye({shape[0]})",
    ]
    s.line(s.choice([*texts, f"jnp.asarray(np.linspace(-1.0, 1.0, {shape[0]}))"]))


def one_hot(s: Scope) -> None:
    x = s.pick("i", 0, lambda v: prod(v.shape) <= 64)
    s.line(f"jax.nn.one_hot({x}, {s.choice(s.dims)}, dtype='float64')")


def dynamic_slice(s: Scope) -> None:
    x = s.pick("fi", 1)
    d = s.below(x.ndim)
    i = s.pick("i", 0, lambda v: v.ndim == 0) if s.chance(0.7) else s.below(x.shape[d])
    size = 1 + s.below(x.shape[d])
    if s.chance(0.5):
        s.line(f"lax.dynamic_slice_in_dim({x}, {i}, {size}, axis={d})")
    else:
        y = s.pick(
            x.kind,
            x.ndim,
            lambda v: v.dtype == x.dtype and v.ndim == x.ndim and _below(v.shape, x.shape),
        )
        starts = ", ".join(str(i) if e == d else "0" for e in range(x.ndim))
        s.line(f"lax.dynamic_update_slice({x}, {y}, [jnp.int32(k) for k in ({starts},)])")


def _below(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    return all(n <= m for n, m in zip(small, large, strict=True))


def take(s: Scope) -> None:
    """Embeddings, jnp.take in its modes, and indexing with arrays; indices out of range included."""
    x = s.pick("fi", 1)
    d = s.below(x.ndim)
    i = s.pick(
        "i",
        0,
        lambda v: (
            prod(v.shape) * prod(x.shape) // x.shape[d] <= MAX_ELEMENTS and v.ndim + x.ndim < 6
        ),
    )
    inside = f"jnp.mod({i}, {x.shape[d]})"
    before = ":, " * d
    texts = [f"{x}[{before}{i}]", f"{x}[{before}{inside}]", f"jnp.take({x}, {inside}, axis={d})"]
    texts.append(f"jnp.take({x}, {i}, axis={d}, mode='clip')")
    if x.kind == "f":
        texts.append(f"jnp.take({x}, {i}, axis={d}, mode='fill', fill_value=0.5)")
    s.line(s.choice(texts))


def take_along(s: Scope) -> None:
    x = s.pick("fi", 1)
    d = s.below(x.ndim)
    i = s.pick(
        "i", x.ndim, lambda v: v.ndim == x.ndim and _without(v.shape, d) == _without(x.shape, d)
    )
    s.line(f"jnp.take_along_axis({x}, jnp.mod({i}, {x.shape[d]}), axis={d})")


def scatter(s: Scope) -> None:
    """Rows are added to, or compared or multiplied with; repeated places and places out of range included."""
    x = s.pick("fi", 1)
    i = indices(s, s.choice(s.dims), x.shape[0])
    shape = (*i.shape, *x.shape[1:])
    fitting = [v for v in s.pool if v.dtype == x.dtype and v.shape in (shape, x.shape[1:], ())]
    y = (
        s.choice(fitting)
        if fitting and s.chance(0.7)
        else s.choice(("2", f"jnp.full({shape}, 3, '{x.dtype}')"))
    )
    way = s.choice(("add", "add", "max", "min", "mul"))
    way = "add" if s.differentiable and way == "mul" else way  # JAX has no gradient of it
    index = i if s.chance(0.4) else f"jnp.mod({i}, {x.shape[0]})"
    s.line(f"{x}.at[{index}].{way}({y})")


def indices(s: Scope, count: int, limit: int) -> Var:
    """A vector of indices: one that is there, or a new one of `count` constants around 0..limit."""
    try:
        return s.pick("i", 1, lambda v: v.ndim == 1 and (v.shape[0] == count or s.chance(0.5)))
    except NoFit:
        constants = [int(n) for n in s.rng.integers(-1, limit + 1, count)]
        return s.line(f"jnp.asarray({constants}, 'int32')")[0]


def set_(s: Scope) -> None:
    """Distinct places only: which of several writers wins is open."""
    x = s.pick("fi", 1)
    n = 1 + s.below(x.shape[0])
    y = s.pick(
        x.kind, 0, lambda v: v.dtype == x.dtype and v.shape in ((n, *x.shape[1:]), x.shape[1:], ())
    )
    index = s.choice((f":{n}", f"np.arange({n})", f"np.arange({n})[::-1]"))
    s.line(f"{x}.at[{index}].set({y})")


def segment(s: Scope) -> None:
    x = s.pick("fi", 1)
    i = indices(s, x.shape[0], 8)
    if i.shape != x.shape[:1]:
        raise NoFit
    s.line(f"jax.ops.segment_sum({x}, {i}, num_segments={s.choice(s.dims)})")


def sort(s: Scope) -> None:
    x = s.pick("fi", 1)
    d = s.below(x.ndim)
    texts = [
        f"jnp.sort({x}, axis={d})",
        f"jnp.argsort({x}, axis={d})",
        f"lax.top_k({x}, {1 + s.below(x.shape[-1])})",
    ]
    s.line(s.choice(texts))


def roll(s: Scope) -> None:
    x = s.pick(ANY, 1)
    s.line(f"jnp.roll({x}, {1 + s.below(5)}, axis={s.below(x.ndim)})")


MAKERS = {
    reshape: 7,
    transpose: 6,
    broadcast: 4,
    squeeze: 1,
    concatenate: 4,
    split: 3,
    slice_: 5,
    pad: 2,
    iota: 1.5,
    filled: 1,
    one_hot: 1.5,
    dynamic_slice: 2,
    take: 2.5,
    take_along: 0.7,
    scatter: 2.5,
    set_: 1,
    segment: 1.5,
    sort: 1.5,
    roll: 1,
}
