"""Programs: a case as a JAX program on all devices at once, that repeats it in a loop or outside of loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autopar._compat import make_mesh, shard_map, untyped_jax
from autopar.calibration.cases import CHAIN, PACKED_COLUMNS, PACKS, POOLS, Case
from autopar.calibration.collectives import (
    Operands,
    Shapes,
    before_and_after,
    between_kernels,
    sent,
)
from cost_models.curves import CONVOLUTIONS

lax = untyped_jax.lax
jnp = untyped_jax.numpy
Body = (
    Callable[[Any], Operands]
    | Callable[[Any, Any], Operands]
    | Callable[[Any, Any, Any], Operands]
    | Callable[[Any, Any, Any, Any, Any], Operands]
)
"""The operands of one device to those of the next round."""


@dataclass(frozen=True)
class Program:
    """`run(times, *operands)` runs the case `times * inner` times and returns the operands for the next call."""

    run: Callable[..., tuple[Any, ...]]
    operands: tuple[Any, ...]
    inner: int


def inner_rounds(case: Case, platform: str) -> int:
    """How many rounds are in a loop of a fixed length: on accelerators several of a short case, else one.

    A loop whose length is an argument asks its condition of an accelerator in every round, which takes as long as short
    kernels do. On processors it takes nothing.
    """
    short = case.operations < 1e10 and case.size_bytes < 1e8
    return 16 if platform != "cpu" and short else 1


def program_of(case: Case, devices: Sequence[Any], inner: int = 1) -> Program:
    """The program of `case` on all of `devices`, `inner` rounds at once, and its operands, placed.

    Every round needs what the one before made, so none is left out; loops hold no other kernels but one that hands on
    a single element. The number of rounds is an argument, so it is compiled once.
    """
    mesh = _mesh(case, devices)
    names = mesh.axis_names
    shapes, body = _of_arrays(_made(case, names, _touch), case.arrays)
    spec = PartitionSpec(names)

    def one(_: Any, held: Operands) -> Operands:
        again: Callable[..., Operands] = body
        return again(*held)

    def several(_: Any, held: Operands) -> Operands:
        return one(0, held) if inner == 1 else lax.fori_loop(0, inner, one, held)

    def rounds(times: Any, *operands: Any) -> Operands:
        return lax.fori_loop(0, times, several, operands)

    in_specs = (PartitionSpec(), *(spec for _ in shapes))
    mapped = shard_map(rounds, mesh, in_specs, tuple(spec for _ in shapes), check_vma=False)
    donated = tuple(range(1, len(shapes) + 1))
    run = untyped_jax.jit(mapped, donate_argnums=donated)
    return Program(run, _operands(case, mesh, shapes), inner * case.arrays)


def straight_programs(case: Case, devices: Sequence[Any]) -> tuple[Program, Program]:
    """`case` once for each of its arrays, outside of loops, and what of that is not the case, on the same operands.

    XLA's CPU compiler (JAX 0.10.2) copies operands and results in each round of a loop, convolves slowly there, and
    launches nothing inside small ones: 1024 elements are moved in 0.9 us there and in 11 us outside.
    Results lie in the memory of the last ones. One call ends before the next begins: the devices share threads, and two
    calls with collectives may wait for each other. Beside a collective the second program has the kernels around it
    (`between_kernels`), else it does nothing.
    """
    mesh = _mesh(case, devices)
    spec = PartitionSpec(mesh.axis_names)
    if case.what == "collective":
        shapes, body, beside = between_kernels(case, mesh.axis_names)
    else:
        (shapes, body) = _of_arrays(_made(case, mesh.axis_names, _untouched), case.arrays)
        beside = _nothing

    specs = tuple(spec for _ in shapes)

    def program(once: Callable[..., Operands], inner: int) -> Program:
        mapped = shard_map(once, mesh, specs, specs, check_vma=False)
        call = untyped_jax.jit(mapped, donate_argnums=tuple(range(len(shapes))), keep_unused=True)

        def run(times: Any, *operands: Any) -> Operands:
            for _ in range(int(times)):
                operands = untyped_jax.block_until_ready(call(*operands))
            return operands

        return Program(run, _operands(case, mesh, shapes), inner)

    return program(body, case.arrays), program(beside, case.arrays)


def _nothing(*operands: Any) -> Operands:
    return operands


def fresh_programs(
    case: Case, devices: Sequence[Any]
) -> tuple[Callable[[Any], Any], Callable[[Any], Any], Any]:
    """Twice the operand, in memory that is new, and in the operand's own; and the operand."""
    mesh = _mesh(case, devices)
    spec = PartitionSpec(mesh.axis_names)
    mapped = shard_map(_scaled, mesh, (spec,), spec, check_vma=False)
    new = untyped_jax.jit(mapped)
    old = untyped_jax.jit(mapped, donate_argnums=(0,))
    return new, old, _filled(mesh, case.dims, case.dtype, case.dims[0])


def _scaled(x: Any) -> Any:
    return x * 1.001


def _mesh(case: Case, devices: Sequence[Any]) -> Mesh:
    sizes = case.mesh or (len(devices),)
    return make_mesh(sizes, tuple(f"axis{n}" for n in range(len(sizes))), devices)


def _operands(case: Case, mesh: Mesh, shapes: Shapes) -> tuple[Any, ...]:
    """Integers among them are indices of rows."""
    return tuple(_filled(mesh, shape, dtype, case.dims[0]) for shape, dtype in shapes)


def _filled(mesh: Mesh, shape: tuple[int, ...], dtype: str, rows: int) -> Any:
    """An array of `shape` on every device, of small numbers that are not all the same; integers are below `rows`."""
    whole = (shape[0] * mesh.size, *shape[1:])
    spec = PartitionSpec(mesh.axis_names)
    draw = np.random.default_rng(0)
    block = draw.integers(rows, size=shape) if dtype == "int32" else draw.uniform(0.5, 1.0, shape)
    made = np.asarray(block).astype(jnp.dtype(dtype))

    def block_of(_: Any) -> Any:
        return made

    return untyped_jax.make_array_from_callback(whole, NamedSharding(mesh, spec), block_of)


def _of_arrays(made: tuple[Shapes, Body], count: int) -> tuple[Shapes, Body]:
    """The same to each of `count` sets of operands."""
    shapes, body = made
    width = len(shapes)

    def all_of_them(*operands: Any) -> Operands:
        again: Callable[..., Operands] = body
        return tuple(
            out for n in range(0, count * width, width) for out in again(*operands[n : n + width])
        )

    several: Any = all_of_them
    return shapes * count, several


Touch = Callable[[Any, Any], Any]
"""Makes an operand of the next round wait for a result of this one."""


def _made(case: Case, names: tuple[str, ...], touch: Touch) -> tuple[Shapes, Body]:
    if case.what == "collective":
        return _collective(case, tuple(names[a] for a in case.axes))
    if case.what == "product":
        return _product(case, touch)
    if case.what == "picking":
        return _picked(case, touch)
    if case.what in ("moving", "fresh") or len(case.dims) == 1:
        return _elementwise(case, touch)
    if case.kind in CONVOLUTIONS:
        return _convolution(case, touch)
    if case.kind == "attention":
        return _attention(case)
    if case.kind in POOLS:
        return _pool(case, touch)
    if case.kind in PACKS:
        return _packed(case, touch)

    return _by_rows(case, touch)


def _touch(operand: Any, result: Any) -> Any:
    """`operand` with its first element from `result`: so the next round waits for this one."""
    first = lax.slice(result, (0,) * result.ndim, (1,) * result.ndim)
    value = jnp.reshape(first, (1,) * operand.ndim).astype(operand.dtype)
    return lax.dynamic_update_slice(operand, value, (0,) * operand.ndim)


def _untouched(operand: Any, _result: Any) -> Any:
    return operand


def _product(case: Case, touch: Touch) -> tuple[Shapes, Body]:
    b, m, n, k = case.dims
    lhs, rhs = ((b, m, k), (b, k, n)) if b > 1 else ((m, k), (k, n))
    made = "int32" if case.dtype == "int8" else case.dtype
    out = (b, m, n) if b > 1 else (m, n)

    def body(x: Any, w: Any, y: Any) -> tuple[Any, ...]:
        x = touch(x, y)
        return x, w, jnp.matmul(x, w, preferred_element_type=jnp.dtype(made))

    return ((lhs, case.dtype), (rhs, case.dtype), (out, made)), body


def _elementwise(case: Case, touch: Touch) -> tuple[Shapes, Body]:
    shape = (case.dims, case.dtype)
    match case.kind:
        case "axpy":
            return (shape, shape, shape), lambda x, z, y: (touch(x, y), z, x * 0.5 + z)
        case "scale":
            return (shape,), lambda x: (x * 0.999 + 0.001,)
        case "other":
            return (shape, shape), lambda x, z: (_chain(x, z) * 0.01, z)
        case _:
            function = _FUNCTIONS[case.kind]
            return (shape,), lambda x: (function(x),)


_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "exp": lambda v: jnp.exp(-v),
    "tanh": jnp.tanh,
    "log": lambda v: jnp.log(jnp.abs(v) + 1.5),
    "div": lambda v: 1.0 / (v + 0.5),
    "sqrt": lambda v: jnp.sqrt(v + 0.1),
    "rsqrt": lambda v: lax.rsqrt(v + 0.5),
    "logistic": lambda v: lax.logistic(v),
    "erf": lambda v: lax.erf(v),
    "sin": jnp.sin,
    "pow": lambda v: lax.pow(v + 0.5, v),
    "threefry2x32": lambda v: _random(v),
}


def _random(value: Any) -> Any:
    """As many random numbers, by a key made of the first two."""
    key = lax.bitcast_convert_type(value[:2].astype(jnp.float32), jnp.uint32)
    return untyped_jax.random.uniform(
        untyped_jax.random.wrap_key_data(key, impl="threefry2x32"), value.shape
    )


def _chain(value: Any, other: Any) -> Any:
    for _ in range(CHAIN):
        value = value * other + other
    return value


def _by_rows(case: Case, touch: Touch) -> tuple[Shapes, Body]:
    rows, columns, *_ = case.dims
    table = (case.dims, case.dtype)
    if case.kind == "transpose":
        return (table, ((columns, rows), case.dtype)), lambda x, y: (touch(x, y), x.T)

    if case.kind == "transpose:rows":
        return (table, ((columns, rows, *case.dims[2:]), case.dtype)), lambda x, y: (
            touch(x, y),
            x.swapaxes(0, 1),
        )

    if case.kind == "sort":
        return (table,), lambda x: (lax.sort(1.0 - x, dimension=1),)
    if case.kind == "cumsum":
        return (table,), lambda x: (lax.cumsum(x, axis=1) * (1.0 / columns),)

    if case.kind == "concatenate":
        part = ((rows // 4, columns), case.dtype)
        return (part, part, part, part, ((rows // 4 * 4 * columns,), case.dtype)), _side_by_side(
            touch
        )

    kind, _, last = case.kind.partition(":")
    dim, left = (1, rows) if last or kind == "argmax" else (0, columns)
    reduce = {"reduce_sum": jnp.sum, "reduce_max": jnp.max, "argmax": jnp.argmax}[kind]
    made = ((left,), "int32" if kind == "argmax" else case.dtype)
    return (table, made), lambda x, y: (touch(x, y), reduce(x, axis=dim))


def _picked(case: Case, touch: Touch) -> tuple[Shapes, Body]:
    rows, row, count = case.dims
    table = ((rows, row), case.dtype)
    indices = ((count,), "int32")
    picked = ((count, row), case.dtype)

    def gather(x: Any, i: Any, y: Any) -> Operands:
        return touch(x, y), i, x.at[i].get(mode="promise_in_bounds")

    def scatter(x: Any, i: Any, y: Any) -> Operands:
        return x.at[i].add(y, mode="promise_in_bounds"), i, y

    return (table, indices, picked), gather if case.kind == "gather" else scatter


def _side_by_side(touch: Touch) -> Body:
    """All elements end to end, as in a bucket of collectives; of the last operand what an operator makes of them."""

    def body(a: Any, b: Any, c: Any, d: Any, flat: Any) -> Operands:
        return (
            touch(a, flat),
            b,
            c,
            d,
            jnp.concatenate([part.ravel() for part in (a, b, c, d * 0.999)]),
        )

    return body


def _pool(case: Case, touch: Touch) -> tuple[Shapes, Body]:
    batch, image, channels = case.dims
    x_shape = (batch, image, image, channels)
    y_shape = (batch, image // 2, image // 2, channels)

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def forward(x: Any, y: Any) -> Operands:
        return touch(x, y), pool(x)

    def backward(x: Any, y: Any, last: Any) -> Operands:
        (dx,) = untyped_jax.vjp(pool, x)[1](touch(y, last))
        return x, y, dx

    given = (x_shape, case.dtype), (y_shape, case.dtype)
    return (given, forward) if case.kind == POOLS[0] else ((*given, given[0]), backward)


def _packed(case: Case, touch: Touch) -> tuple[Shapes, Body]:
    rows, columns = case.dims
    shapes = ((rows, columns), (rows, PACKED_COLUMNS), (columns, PACKED_COLUMNS))

    def body(x: Any, w: Any, y: Any) -> Operands:
        x = touch(x, y)
        return x, w, lax.dot_general(x, w, (((0,), (0,)), ((), ())))

    return tuple((shape, case.dtype) for shape in shapes), body


def _convolution(case: Case, touch: Touch) -> tuple[Shapes, Body]:
    batch, image, window, c_in, c_out = case.dims
    x_shape = (batch, image, image, c_in)
    w_shape = (window, window, c_in, c_out)
    y_shape = (batch, image, image, c_out)

    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def body(x: Any, w: Any, y: Any) -> tuple[Any, ...]:
        if case.kind == CONVOLUTIONS[0]:
            return touch(x, y), w, convolve(x, w)
        if case.kind == CONVOLUTIONS[1]:
            (x,) = untyped_jax.linear_transpose(partial(convolve, w=w), x)(y)
            return x, w, touch(y, x)
        (w,) = untyped_jax.linear_transpose(partial(convolve, x), w)(y)
        return x, w, touch(y, w)

    return ((x_shape, case.dtype), (w_shape, case.dtype), (y_shape, case.dtype)), body


def _attention(case: Case) -> tuple[Shapes, Body]:
    batch, length, heads, width = case.dims
    shape = ((batch, length, heads, width), case.dtype)

    def body(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
        return untyped_jax.nn.dot_product_attention(q, k, v), k, v

    return (shape, shape, shape), body


def _collective(case: Case, axes: tuple[str, ...]) -> tuple[Shapes, Body]:
    before, _ = before_and_after(case)
    send = sent(case, axes)
    if case.kind == "all_reduce":
        members = prod(case.mesh[a] for a in case.axes)
        return (before,), lambda x: (send(x) * (1.0 / members),)
    if case.kind in ("all_gather", "reduce_scatter"):
        return (before,), lambda x: (_touch(x, send(x)),)
    return (before,), lambda x: (send(x),)
