"""Makers of what is rarer: transforms, linear algebra, bits, tensors without elements, indexing by several arrays."""

from __future__ import annotations

from math import prod

from tests.fuzz.movement import indices
from tests.fuzz.scope import MAX_ELEMENTS, NoFit, Scope


def fourier(s: Scope) -> None:
    """Not along some axes by hand: XLA (0.10.2) ends the process where it splits such a transform along the others."""
    if s.manual:
        raise NoFit
    x = s.pick("f", 1, lambda v: v.dtype == "float64")
    d, n = s.below(x.ndim), x.ndim
    texts = [f"jnp.abs(jnp.fft.fft({x}, axis={d})) * 0.25", f"jnp.fft.rfft({x}, axis={d}).real"]
    texts.append(
        f"jnp.fft.irfft(jnp.fft.rfft({x}), n={x.shape[n - 1]})" if x.shape[n - 1] > 1 else f"-{x}"
    )
    texts.append(f"(({x} + 2j) * jnp.conj({x} * 1j + 1.0)).imag")
    s.line(s.choice(texts))


def linear_algebra(s: Scope) -> None:
    """Of symmetric matrices with eigenvalues around their size, batched."""
    x = s.pick(
        "f", 2, lambda v: v.dtype == "float64" and prod(v.shape[:-1]) * v.shape[-2] <= MAX_ELEMENTS
    )
    n = x.shape[-2]
    matrix = s.line(f"{x} @ jnp.swapaxes({x}, -1, -2) / {4.0 * x.shape[-1]} + 2.0 * jnp.eye({n})")[
        0
    ]
    texts = (
        f"jnp.linalg.cholesky({matrix})",
        f"jnp.linalg.solve({matrix}, {x})",
        f"jnp.linalg.inv({matrix})",
        f"jnp.linalg.slogdet({matrix})[1]",
        f"jax.scipy.linalg.solve_triangular({matrix}, {x}, lower=True)",
        f"jnp.trace({matrix}, axis1=-2, axis2=-1)",
    )
    s.line(s.choice(texts))


def bits(s: Scope) -> None:
    x = s.pick("i", 0, lambda v: v.dtype == "int32")
    texts = (
        "lax.population_count({0})",
        "lax.clz(jnp.abs({0}))",  # XLA folds a constant clz(-1) to -32
        "jnp.left_shift({0}, 2)",
        "jnp.right_shift({0}, 1)",
        "lax.bitcast_convert_type({0}, 'uint8')",
        "jnp.bitwise_not({0})",
        "{0}.astype('uint32') >> 3",
    )
    s.line(s.choice(texts).format(x))


def empty(s: Scope) -> None:
    """Tensors without elements on the way."""
    x = s.pick("fi", 1)
    texts = (
        f"jnp.concatenate([{x}[:0], {x}, {x}[:0]])",
        f"jnp.sum({x}[:0], axis=0)",
        f"{x} + jnp.sum({x}[..., :0])",
    )
    s.line(s.choice(texts))


def index_by_two(s: Scope) -> None:
    x = s.pick("fi", 2)
    i = indices(s, s.choice(s.dims), x.shape[0])
    j = indices(s, i.shape[0], x.shape[-1])
    if j.shape != i.shape or prod(x.shape[1:]) * i.shape[0] > MAX_ELEMENTS:
        raise NoFit
    texts = (
        f"{x}[{i}, ..., {j}]",
        f"{x}[{i}, {j} * 0]",
        f"{x}.at[{i}, ..., {j}].add(2)",
        f"{x}[{i}[:, None], {j}]",
    )
    s.line(s.choice(texts[:3] if i.shape[0] > 8 else texts))


def search(s: Scope) -> None:
    x = s.pick("f", 1, lambda v: v.ndim == 1)
    y = s.pick("f", 1, lambda v: v.dtype == x.dtype and prod(v.shape) <= 64)
    s.line(
        f"jnp.searchsorted(jnp.sort({x}), {y}, method='{s.choice(('scan', 'compare_all', 'sort'))}')"
    )


def einsum(s: Scope) -> None:
    """One operand: diagonals, traces, sums; or a product with itself."""
    x = s.pick("f", 2, lambda v: v.ndim <= 3)
    letters = "abc"[: x.ndim]
    kept = "".join(letter for letter in s.rng.permutation(list(letters)) if s.chance(0.6))
    other = "".join(
        letter.upper() if s.chance(0.3) and letter in kept else letter for letter in letters
    )
    more = "".join(letter for letter in other if letter.isupper())
    if prod(x.shape[letters.index(c)] for c in kept + more.lower()) > MAX_ELEMENTS:
        raise NoFit
    s.line(f"jnp.einsum('{letters},{other}->{kept}{more}', {x}, {x})")


def convolution_2d(s: Scope) -> None:
    """Channels last, the kernel made of a variable, so that its gradient is taken too."""
    x = s.pick("f", 2, lambda v: 2 <= v.ndim <= 3 and min(v.shape[:2]) > 1)
    kernel = s.pick("f", 1, lambda v: v.dtype == x.dtype)
    image = x if x.ndim == 3 else s.line(f"{x}[..., None]")[0]
    channels, window, groups = image.shape[-1], s.choice((1, 2, 3)), 1
    if channels in (2, 4) and s.chance(0.5):
        groups = channels
    weights = s.line(
        f"jnp.resize({kernel}, ({window}, {window}, {channels // groups}, {groups * s.choice((1, 2))}))"
    )[0]
    copies = s.line(f"jnp.stack([{image}, {image} * 0.5])")[0]
    params = f"({s.choice((1, 2))}, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC')"
    s.line(f"lax.conv_general_dilated({copies}, {weights}, {params}, feature_group_count={groups})")


MAKERS = {
    fourier: 0.7,
    linear_algebra: 0.7,
    bits: 1,
    empty: 0.7,
    index_by_two: 1,
    search: 0.4,
    einsum: 1,
    convolution_2d: 1,
}
