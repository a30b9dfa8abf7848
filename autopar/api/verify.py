"""Verify: a plan's program on virtual devices, beside plain JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import jax
import numpy as np

from autopar._compat import as_keys, is_key_dtype, key_data, untyped_jax
from autopar.api.compiled import plan as make
from autopar.api.options import split_options
from autopar.api.plan import Plan
from autopar.errors import InvalidMesh
from autopar.inspect.compare import ProgramComparison
from autopar.inspect.compare import compare as compare_collectives
from autopar.inspect.hlo import collectives_of, compile_unmerged
from autopar.report.verification import ResultRow, Verification
from autopar.trace.arguments import positions

jnp: Any = untyped_jax.numpy
_SHARES = {
    "float64": 1e-9,
    "complex128": 1e-9,
    "float32": 2e-4,
    "complex64": 2e-4,
    "float16": 1e-2,
    "bfloat16": 5e-2,
}
"""What of the largest element a result may be off by, for the coarsest type that the function computes in."""
_COARSE_SHARE = 0.3
_NOISES = 4
"""By how many times what plain JAX's own result changes for another last place of its inputs."""


def verify(fn: Callable[..., Any], *args: Any, seed: int = 0, **keywords: Any) -> Verification:
    """Whether a plan of `fn` computes what plain JAX does, by the collectives that it says.

    The plan is made, compiled and run on CPU devices, of which there must be as many as its mesh has: virtual ones, by
    `jax.config.update("jax_num_cpu_devices", 8)` before JAX first uses a device.

    Args:
      fn: any function that `autopar.plan` takes.
      *args: example arguments. Arrays are used as they are, and in the place of jax.ShapeDtypeStructs random numbers:
        positive ones, with which sums stay near 1, and whole numbers 0 and 1.
      seed: of the random numbers.
      **keywords: options of `autopar.plan`; all others are arguments of `fn` by name.

    Raises:
      InvalidMesh: there are too few CPU devices.
      AutoparError: as `autopar.plan`.
    """
    started = perf_counter()
    options, kwargs = split_options(fn, keywords)
    plan = make(fn, *args, **keywords)
    devices = _cpu_devices(plan.mesh.size)
    static = positions(options.get("static_argnums", ()), len(args), "static_argnums")
    inputs = _Inputs(args, kwargs, static, seed, frozenset(plan.data_inputs))
    planned = perf_counter()

    with untyped_jax.default_device(devices[0]):
        jitted = untyped_jax.jit(fn, static_argnums=static)
        plain = _host(jitted, inputs, noisy=False)
        shaken = _host(jitted, inputs, noisy=True)
    ran = perf_counter()

    found = _host(plan.compile(devices=devices), inputs, noisy=False)
    done = perf_counter()

    compared = compared_collectives(plan, devices)
    return Verification(
        function=plan.function_name,
        mesh=plan.mesh.whole.axes,
        results=_compared(plain, shaken, found, _share(plan)),
        collectives=compared.summary,
        unexplained=_unexplained(compared),
        plan_s=planned - started,
        plain_s=ran - planned,
        program_s=done - ran,
        collectives_s=perf_counter() - done,
    )


def compared_collectives(plan: Plan, devices: Sequence[Any]) -> ProgramComparison:
    """The collectives of a plan's compiled program beside those planned; XLA is kept from merging and sharing them."""
    compiled = compile_unmerged(plan.lower(devices), {"xla_backend_optimization_level": 0})
    return compare_collectives(plan.program(), collectives_of(compiled))


def _unexplained(compared: ProgramComparison) -> tuple[str, ...]:
    """The collectives that were not planned, and those that are gone without a reason, a line each."""
    gone = [one.planned for one in compared.vanished if one.reason == "unknown"]
    lines = [
        f"gone: {m.kind} over {', '.join(m.axes)} of {m.size_bytes} bytes ({m.source})"
        for m in gone
    ]
    return (
        *lines,
        *(f"not planned: {one.kind} of {one.size_bytes} bytes" for one in compared.unplanned),
    )


def _cpu_devices(count: int) -> list[Any]:
    """The first CPU devices.

    Raises:
      InvalidMesh: if there are fewer.
    """
    devices = untyped_jax.devices("cpu")
    if len(devices) < count:
        raise InvalidMesh(
            f"the plan is for {count} devices, and there are {len(devices)} CPU devices to verify it on. Call "
            f"jax.config.update('jax_num_cpu_devices', {count}) before JAX first uses a device"
        )
    return list(devices[:count])


# Inputs ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Inputs:
    """The arguments of a function; `data` are the flat positions of those that are data. Made anew for each call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    static: tuple[int, ...]
    seed: int
    data: frozenset[int]

    def make(self, *, noisy: bool) -> tuple[list[Any], dict[str, Any]]:
        """Positional arguments and those by name; if `noisy`, with others in the last place of floats."""
        dynamic = [arg for n, arg in enumerate(self.args) if n not in self.static]
        leaves, tree = untyped_jax.tree.flatten((dynamic, dict(self.kwargs)))
        rng = np.random.default_rng(self.seed)
        values = [_drawn(leaf, n in self.data, rng) for n, leaf in enumerate(leaves)]
        if noisy:
            values = [_shaken(value, rng) for value in values]
        args, kwargs = untyped_jax.tree.unflatten(tree, values)
        for n in self.static:
            args.insert(n, self.args[n])
        return args, kwargs


def _drawn(leaf: Any, is_data: bool, rng: Any) -> Any:
    """A leaf as it is, on the host; random numbers for one of which only the shape is known."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return _random(leaf, is_data, rng)
    if isinstance(leaf, jax.Array) and is_key_dtype(leaf.dtype):
        return as_keys(np.asarray(key_data(leaf)), leaf)
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def _random(spec: Any, is_data: bool, rng: Any) -> Any:
    if is_key_dtype(spec.dtype):
        data = untyped_jax.eval_shape(key_data, spec)
        return as_keys(rng.integers(0, 2**32, data.shape, np.uint32), spec)
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return rng.random(spec.shape) < 0.5
    if jnp.issubdtype(dtype, jnp.integer):
        return rng.integers(0, 2, spec.shape).astype(dtype)

    # what a matrix is multiplied with grows by its rows; no element is negative: states have square roots
    rows = 1 if is_data or len(spec.shape) < 2 else spec.shape[-2]
    return (rng.uniform(0.25, 1.75, spec.shape) / rows).astype(dtype)


def _shaken(value: Any, rng: Any) -> Any:
    """An array with each float a last place more or less."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or is_key_dtype(dtype) or not jnp.issubdtype(dtype, jnp.floating):
        return value
    signs = rng.integers(0, 2, value.shape) * 2.0 - 1.0
    return (value.astype(np.float64) * (1 + signs * float(jnp.finfo(dtype).eps))).astype(dtype)


# Results --------------------------------------------------------------------------------------------------------------


def _host(fn: Callable[..., Any], inputs: _Inputs, *, noisy: bool) -> list[tuple[str, Any]]:
    """Path and value, on the host, of every result."""
    args, kwargs = inputs.make(noisy=noisy)
    leaves, _ = untyped_jax.tree_util.tree_flatten_with_path(fn(*args, **kwargs))
    return [
        (f"output{untyped_jax.tree_util.keystr(path)}", np.asarray(key_data(jnp.asarray(leaf))))
        for path, leaf in leaves
    ]


def _share(plan: Plan) -> float:
    """Of the coarsest type that is computed in."""
    kinds = {tensor.dtype for op in plan.bound.traced.graph.ops for tensor in op.outs}
    floats = [kind for kind in kinds if jnp.issubdtype(kind, jnp.inexact)]
    return max((_SHARES.get(kind, _COARSE_SHARE) for kind in floats), default=0.0)


def _compared(
    plain: Sequence[tuple[str, Any]],
    shaken: Sequence[tuple[str, Any]],
    found: Sequence[tuple[str, Any]],
    share: float,
) -> tuple[ResultRow, ...]:
    """A row for each result of plain JAX; one more where the program has others."""
    rows = [
        result_row(name, wanted, other, given, share, is_same=name == path)
        for (name, wanted), (_, other), (path, given) in zip(plain, shaken, found, strict=False)
    ]
    if len(plain) != len(found):
        rows.append(ResultRow(f"{len(found)} results for {len(plain)}", "", 0, 0, 0, 0, False))
    return tuple(rows)


def result_row(
    name: str, wanted: Any, other: Any, given: Any, share: float, *, is_same: bool
) -> ResultRow:
    """What comes of one result.

    Args:
      name: its path.
      wanted: plain JAX's.
      other: plain JAX's, of inputs in which each float is a last place more or less.
      given: the program's.
      share: of the largest element of `wanted`: what floats may be off by.
      is_same: whether both have the same path.
    """
    is_same = is_same and wanted.shape == given.shape and wanted.dtype == given.dtype
    if not is_same:
        return ResultRow(name, str(wanted.dtype), 0.0, 0.0, 0.0, 0.0, False)
    wide = [_wide(one) for one in (wanted, other, given)]
    finite = np.isfinite(wide[0]) & np.isfinite(wide[2])
    unbounded = [np.where(finite, 0, one) for one in (wide[0], wide[2])]
    if not np.array_equal(unbounded[0], unbounded[1], equal_nan=True):
        return ResultRow(name, str(wanted.dtype), 0.0, 0.0, 0.0, 0.0, False)

    first, second, third = (np.where(finite & np.isfinite(wide[1]), one, 0) for one in wide)
    largest = float(np.abs(first).max(initial=0))
    noise = float(np.abs(second - first).max(initial=0))
    is_exact = not jnp.issubdtype(wanted.dtype, jnp.inexact)
    allowed = max(0.0 if is_exact else share * largest, _NOISES * noise)
    difference = float(np.abs(third - first).max(initial=0))
    return ResultRow(name, str(wanted.dtype), difference, largest, noise, allowed)


def _wide(value: Any) -> Any:
    return value.astype(np.complex128 if np.iscomplexobj(value) else np.float64)
