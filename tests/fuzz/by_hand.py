"""Makers of what a user splits by hand: shard_maps over some axes of the mesh, with collectives in their bodies."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tests.fuzz.blocks import DEEPEST, Fill
from tests.fuzz.scope import MAX_ELEMENTS, NoFit, Scope
from tests.fuzz.source import Var

_SPEC = "jax.sharding.PartitionSpec"


def shard_map(s: Scope, fill: Fill) -> None:
    """A body on shards, drawn with the values of one position; its result differs along no axis that is left out."""
    if s.manual or s.depth >= DEEPEST:
        raise NoFit
    inner = Scope(s.rng, s, s.differentiable)
    inner.manual = _some(s, s.mesh.names)
    given = list(dict.fromkeys(s.pick("f") for _ in range(1 + s.below(2))))
    specs = [_split(s, var, inner.manual) for var in given]
    for var, entries in zip(given, specs, strict=True):
        first = tuple(
            slice(0, n // s.mesh.product(axes)) for n, axes in zip(var.shape, entries, strict=True)
        )
        inner.param("p", s.values[var.name][first])
    for _ in range(1 + s.below(3)):
        fill(inner, s.below(3))
        _collective(inner)
    fill(inner, s.below(2))

    result = inner.choice(
        [v for line in inner.lines for v in line.outs if v in inner.pool and v.kind == "f"]
        or [None]
    )
    if result is None:
        raise NoFit
    outer = tuple(axis for axis in inner.manual if result.ndim and s.chance(0.7))
    where = {axis: s.below(result.ndim) for axis in outer}
    out = [tuple(axis for axis in outer if where[axis] == d) for d in range(result.ndim)]
    if prod(result.shape) * s.mesh.product(outer) > MAX_ELEMENTS:
        raise NoFit
    left = tuple(axis for axis in inner.manual if axis not in outer)
    block = inner.block(f"lax.psum({result}, {left})" if left else f"{result}")
    ins = ", ".join(_text(entries) for entries in specs)
    options = f"in_specs=({ins},), out_specs={_text(out)}, axis_names=set({inner.manual}), check_vma=False"
    s.line(
        f"jax.shard_map({block.name}, mesh={_mesh(s)}, {options})({', '.join(v.name for v in given)})",
        block,
    )


def _collective(s: Scope) -> None:
    """A line that sends: its value is taken as if all positions had the same."""
    axes = _some(s, s.manual)
    count = s.mesh.product(axes)
    x = s.pick("f")
    value: Any = s.values[x.name]
    options: list[tuple[str, Any]] = [(f"lax.psum({x}, {axes})", value * count)]
    options.append((f"{x} * (1 + lax.axis_index({axes})).astype('{x.dtype}')", value))
    pairs = [(n, (n + 1) % count) for n in range(count) if s.chance(0.8)]
    in_order = s.mesh.sort(axes)  # others JAX counts in mesh order, or refuses
    options.append((f"lax.ppermute({x}, {in_order}, {pairs})", value))
    if not s.differentiable:
        options.append((f"lax.pmax({x}, {axes})", value))
    for d in range(x.ndim):
        if value.size * count <= MAX_ELEMENTS:
            joined = np.concatenate([value] * count, d)
            options.append((f"lax.all_gather({x}, {axes}, axis={d}, tiled=True)", joined))
            options.append((f"lax.all_gather({x}, {axes}, axis={d})", np.stack([value] * count, d)))
        if x.shape[d] % count == 0 and value.size:
            part = np.split(value, count, d)[0]
            options.append(
                (f"lax.psum_scatter({x}, {axes}, scatter_dimension={d}, tiled=True)", part * count)
            )
            to = s.below(x.ndim)
            moved = np.concatenate([part] * count, to)
            options.append((f"lax.all_to_all({x}, {axes}, {d}, {to}, tiled=True)", moved))
    s.stated(*s.choice(options))


def _some(s: Scope, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Some of `axes`, in any order, one at least."""
    order = [axes[int(n)] for n in s.rng.permutation(len(axes))]
    return tuple(order[: 1 + s.below(len(axes))])


def _split(s: Scope, var: Var, axes: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The axes that split each dim, evenly: each axis splits one of them or none."""
    found: list[tuple[str, ...]] = [() for _ in var.shape]
    for axis in axes:
        fitting = [
            d for d, n in enumerate(var.shape) if n and n % s.mesh.product((*found[d], axis)) == 0
        ]
        if fitting and s.chance(0.8):
            d = s.choice(fitting)
            found[d] = (*found[d], axis)
    return found


def _text(entries: list[tuple[str, ...]]) -> str:
    return f"{_SPEC}({', '.join(repr(axes or None) for axes in entries)})"


def _mesh(s: Scope) -> str:
    kinds = f"(jax.sharding.AxisType.Auto,) * {len(s.mesh.names)}"
    return f"jax.make_mesh({s.mesh.sizes}, {s.mesh.names}, {kinds}, devices=jax.devices()[:{s.mesh.size}])"


MAKERS = {shard_map: 2.5}
