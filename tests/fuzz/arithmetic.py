"""Makers of arithmetic: elementwise, contraction, reduction, running, convolution, pooling, random numbers.

A maker draws operands from a scope and adds a line; it raises NoFit where nothing fits.
"""

from __future__ import annotations

from tests.fuzz.scope import MAX_ELEMENTS, NoFit, Scope
from tests.fuzz.source import Var

SAFE_UNARY = (
    "jnp.tanh({0})",
    "jnp.sin({0})",
    "jnp.cos({0})",
    "jax.nn.sigmoid({0})",
    "jax.nn.relu({0})",
    "jax.nn.gelu({0})",
    "jax.nn.silu({0})",
    "jax.nn.softplus({0})",
    "jnp.exp(-jnp.abs({0}))",
    "jnp.exp({0} * 0.25)",
    "jnp.log1p(jnp.abs({0}))",
    "jnp.log(jnp.abs({0}) + 0.5)",
    "jnp.sqrt({0} * {0} + 0.25)",
    "lax.rsqrt(jnp.abs({0}) + 0.5)",
    "{0} ** 2",
    "{0} ** 3 * 0.125",
    "-{0}",
    "jnp.abs({0})",
    "jnp.square({0})",
    "jnp.clip({0}, -0.75, 0.75)",
    "jnp.expm1({0} * 0.25)",
    "jax.nn.leaky_relu({0})",
    "jax.nn.elu({0})",
    "lax.erf({0})",
    "jnp.cbrt(jnp.abs({0}) + 0.5)",
    "jnp.nan_to_num({0})",
    "lax.stop_gradient({0})",
    "lax.optimization_barrier({0})",
)
DISCRETE_UNARY = ("jnp.sign({0})", "jnp.floor({0})", "jnp.round({0} * 2.0)", "jnp.ceil({0})")
BINARY = (
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1}",
    "jnp.maximum({0}, {1})",
    "jnp.minimum({0}, {1})",
    "{0} / (jnp.abs({1}) + 0.5)",
    "jnp.arctan2({0}, jnp.abs({1}) + 0.5)",
    "jnp.logaddexp({0}, {1})",
    "jnp.hypot({0}, jnp.abs({1}) + 0.5)",
)
INTEGER = (
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1}",
    "jnp.maximum({0}, {1})",
    "jnp.minimum({0}, {1})",
    "{0} & {1}",
    "{0} ^ {1}",
    "{0} // (jnp.abs({1}) + 1)",
    "jnp.mod({0}, jnp.abs({1}) + 2)",
)
ORDERS = ("{0} > {1}", "{0} <= {1}")
# of integers: whether two sums of floats are equal is up to their rounding
EQUALITIES = (
    "{0} == {1}",
    "{0} != {1}",
)


def fits(x: Var, y: Var) -> bool:
    """Whether two variables of one type broadcast to no more than MAX_ELEMENTS."""
    size = 1
    for n in range(1, max(x.ndim, y.ndim) + 1):
        a, b = (v.shape[-n] if n <= v.ndim else 1 for v in (x, y))
        if a != b and 1 not in (a, b):
            return False
        size *= max(a, b)
    return x.dtype == y.dtype and size <= MAX_ELEMENTS


def unary(s: Scope) -> None:
    s.line(s.choice(SAFE_UNARY).format(s.pick("f")))


def discrete(s: Scope) -> None:
    s.line(s.choice(DISCRETE_UNARY).format(s.pick("f")))


def binary(s: Scope) -> None:
    x = s.pick("f")
    s.line(s.choice(BINARY).format(x, s.pick("f", where=lambda y: fits(x, y))))


def with_scalar(s: Scope) -> None:
    text = s.choice(
        (
            "{0} * 0.5",
            "{0} + 1.25",
            "1.0 - {0}",
            "2.0 / (jnp.abs({0}) + 1.0)",
            "jnp.maximum({0}, 0.1)",
        )
    )
    s.line(text.format(s.pick("f")))


def integer(s: Scope) -> None:
    x = s.pick("i")
    s.line(s.choice(INTEGER).format(x, s.pick("i", where=lambda y: fits(x, y))))


def compare(s: Scope) -> None:
    x = s.pick("fi")
    y = s.pick("fi", where=lambda y: fits(x, y))
    exact = x.kind == y.kind == "i"
    s.line(s.choice((*ORDERS, *EQUALITIES) if exact else ORDERS).format(x, y))


def logical(s: Scope) -> None:
    x = s.pick("b")
    s.line(
        s.choice(("{0} & {1}", "{0} | {1}", "{0} ^ {1}", "~{0}")).format(
            x, s.pick("b", where=lambda y: fits(x, y))
        )
    )


def where(s: Scope) -> None:
    x = s.pick("fi")
    y = s.pick(x.kind, where=lambda y: fits(x, y))
    mask = s.pick("b", where=lambda m: m.shape in (x.shape, y.shape, ()))
    s.line(f"jnp.where({mask}, {x}, {y})")


def masked(s: Scope) -> None:
    x = s.pick("f", 1)
    s.line(
        s.choice(
            (f"jnp.where({x} > 0, {x}, 0.0)", f"jnp.tril({x})" if x.ndim > 1 else f"jnp.flip({x})")
        )
    )


def convert(s: Scope) -> None:
    options = [
        ("b", "float64"),
        ("b", "int32"),
        ("i", "float64"),
        ("i", "int64"),
        ("f", "int32"),
        ("i", "bool"),
    ]
    options += [("i", "uint8"), ("u", "int32"), ("u", "float64")]
    options += [("f", "float32"), ("f", "float64")] * (3 * s.mixed)
    kinds, dtype = s.choice(options)
    x = s.pick(kinds)
    s.line(
        f"({x} * 4.0).astype('int32')"
        if (kinds, dtype) == ("f", "int32")
        else f"{x}.astype('{dtype}')"
    )


def composite(s: Scope) -> None:
    x = s.pick("f", 1)
    axis = s.below(x.ndim)
    texts = (
        f"jax.nn.softmax({x}, axis={axis})",
        f"jax.nn.log_softmax({x}, axis={axis})",
        f"jax.nn.logsumexp({x}, axis={axis})",
        f"jax.nn.standardize({x}, axis={axis}, epsilon=0.1)",
        f"{x} / jnp.sqrt(jnp.sum({x} * {x}, axis={axis}, keepdims=True) + 0.5)",
        f"{x} - jnp.mean({x}, axis={axis}, keepdims=True)",
        f"jnp.var({x}, axis={axis})",
        f"jnp.linalg.norm({x} + 0.01, axis={axis})" if x.shape[axis] > 1 else f"jnp.abs({x})",
    )
    s.line(s.choice(texts))


def reduction(s: Scope) -> None:
    x = s.pick("fib", 1)
    axes = tuple(d for d in range(x.ndim) if s.chance(0.5)) or (s.below(x.ndim),)
    names = {
        "f": ("sum", "mean", "max", "min", "sum", "sum"),
        "i": ("sum", "max", "min"),
        "b": ("any", "all", "sum"),
    }
    keep = ", keepdims=True" if s.chance(0.3) else ""
    name = s.choice(names[x.kind])
    s.line(f"jnp.{name}({x}, axis={axes}{keep})")


def product(s: Scope) -> None:
    x = s.pick("fi", 1)
    s.line(f"jnp.prod({x}, axis={s.below(x.ndim)})")


def position(s: Scope) -> None:
    x = s.pick("fi", 1)
    s.line(f"jnp.{s.choice(('argmax', 'argmin'))}({x}, axis={s.below(x.ndim)})")


def dot_general(s: Scope) -> None:
    """Random dimension numbers: pairs of equal sizes become contracted or batched."""
    x = s.pick("f", 1)
    y = s.pick("f", 1, lambda v: v.dtype == x.dtype and bool(set(v.shape) & set(x.shape)))
    pairs: list[tuple[int, int]] = []
    for d in s.rng.permutation(x.ndim):
        partners = [
            e for e in range(y.ndim) if y.shape[e] == x.shape[d] and e not in {q for _, q in pairs}
        ]
        if partners and s.chance(0.6):
            pairs.append((int(d), int(s.choice(partners))))
    cut = s.below(len(pairs) + 1)
    contract, batch = pairs[:cut], pairs[cut:]
    sizes = [n for d, n in enumerate(x.shape) if d not in {p for p, _ in pairs}]
    sizes += [n for e, n in enumerate(y.shape) if e not in {q for _, q in pairs}] + [
        x.shape[p] for p, _ in batch
    ]
    total = 1
    for n in sizes:
        total *= n
    if total > MAX_ELEMENTS or len(sizes) > 5:
        raise NoFit
    numbers = tuple(
        tuple(tuple(pair[i] for pair in group) for i in (0, 1)) for group in (contract, batch)
    )
    s.line(f"lax.dot_general({x}, {y}, {numbers})")


def matmul(s: Scope) -> None:
    x = s.pick("f", 1)
    y = s.pick("f", 2, lambda v: v.dtype == x.dtype and v.ndim == 2 and v.shape[0] == x.shape[-1])
    s.line(f"{x} @ {y}")


def running(s: Scope) -> None:
    x = s.pick("fi", 1)
    names = (
        ("cumsum", "cummax", "cummin", "cumprod", "cumlogsumexp")
        if x.kind == "f"
        else ("cumsum", "cummax")
    )
    s.line(f"lax.{s.choice(names)}({x}, axis={s.below(x.ndim)}, reverse={s.chance(0.3)})")


def convolution(s: Scope) -> None:
    """One spatial dim, with strides, dilation, padding and feature groups."""
    x = s.pick("f", 3, lambda v: v.ndim == 3)
    window, groups = (
        s.choice((1, 2, 3)),
        s.choice([g for g in (1, 2, 3, 4, 6) if x.shape[1] % g == 0]),
    )
    out = groups * s.choice((1, 2, 4))
    kernel = s.line(
        f"jnp.sin(jnp.arange({out * x.shape[1] // groups * window}, dtype='{x.dtype}')"
        f".reshape({out}, {x.shape[1] // groups}, {window}))"
    )[0]
    stride = s.choice((1, 1, 2))
    padding = s.choice(("'SAME'", "'VALID'" if x.shape[2] >= 3 else "'SAME'", "[(1, 2)]"))
    dilation = f", lhs_dilation=({s.choice((1, 2))},)" if padding[0] == "[" else ""
    s.line(
        f"lax.conv_general_dilated({x}, {kernel}, ({stride},), {padding}{dilation}, feature_group_count={groups})"
    )


def pooling(s: Scope) -> None:
    x = s.pick("f", 2)
    axis = s.below(x.ndim)
    size = s.choice([n for n in (1, 2, 3, 4) if n <= x.shape[axis]])
    stride = s.choice((1, size))
    window, strides = ([n if d == axis else 1 for d in range(x.ndim)] for n in (size, stride))
    init, function = s.choice((("0.0", "lax.add"), ("-np.inf", "lax.max"), ("np.inf", "lax.min")))
    padding = s.choice(("SAME", "VALID")) if function == "lax.add" else "VALID"
    s.line(
        f"lax.reduce_window({x}, np.{x.dtype}({init}), {function}, {window}, {strides}, '{padding}')"
    )


def random(s: Scope) -> None:
    key = s.pick("u", 1, lambda v: v.dtype == "uint32" and v.shape == (2,))
    shape = s.shape(1 + s.below(3))
    text = s.choice(
        (
            "jax.random.uniform({0}, {1})",
            "jax.random.normal({0}, {1})",
            "jax.random.bernoulli({0}, 0.5, {1})",
            "jax.random.randint({0}, {1}, 0, 9)",
            "jax.random.bits({0}, {1}, 'uint8')",
            "jax.random.split({0})[1]",
            "jax.random.fold_in({0}, 3)",
        )
    )
    s.line(text.format(key, shape))


MAKERS = {
    unary: 12,
    discrete: 1,
    binary: 14,
    with_scalar: 5,
    integer: 3,
    compare: 3,
    logical: 1,
    where: 4,
    masked: 2,
    convert: 4,
    composite: 4,
    reduction: 9,
    product: 1,
    position: 1,
    dot_general: 6,
    matmul: 5,
    running: 2,
    convolution: 1,
    pooling: 1.5,
    random: 1.5,
}
