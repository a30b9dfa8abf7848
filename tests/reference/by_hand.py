"""A user's shard_map in numpy: its body at all positions along the manual axes side by side, equation by equation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np

from autopar._compat import is_jaxpr, is_literal, open_jaxpr

Values = list[np.ndarray]
Position = tuple[int, ...]
Each = Callable[[Any, Sequence[Any]], Values]
"""The results of an equation without collectives on the operands of one position."""

_REDUCTIONS = {"pmax": np.maximum, "pmin": np.minimum, "psum": np.add, "psum_invariant": np.add}
_MARKS = frozenset({"pbroadcast", "pcast", "pvary"})
_CALLS = {
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
_CALLS |= {"checkpoint": "jaxpr", "jit": "jaxpr", "pjit": "jaxpr", "remat2": "jaxpr"}
COLLECTIVES = frozenset(
    {*_REDUCTIONS, "all_gather", "all_gather_invariant", "all_to_all", "ppermute", "reduce_scatter"}
)


def shard_map(values: Sequence[Any], params: Mapping[str, Any], each: Each) -> Values:
    """The results of a shard_map on whole `values`, along axes that specs leave out those of the first position."""
    sizes = {
        str(axis): size
        for axis, size in params["mesh"].shape.items()
        if axis in params["newly_manual_axes"]
    }
    positions = list(product(*map(range, sizes.values())))
    shards = [
        {p: _window(np.asarray(value), spec, p, sizes) for p in positions}
        for value, spec in zip(values, params["in_specs"], strict=True)
    ]
    outs = _body(params["jaxpr"], shards, sizes, each)
    return [_joined(out, spec, sizes) for out, spec in zip(outs, params["out_specs"], strict=True)]


def collective(name: str, params: Mapping[str, Any], held: Sequence[np.ndarray]) -> Values:
    """What a group of devices has, each in its turn, after a collective of JAX's on what they hold."""
    count = len(held)
    if name in _REDUCTIONS:
        return [reduce(_REDUCTIONS[name], held)] * count
    if name in ("all_gather", "all_gather_invariant"):
        join = np.concatenate if params["tiled"] else np.stack
        return [join(held, axis=params["all_gather_dimension"])] * count
    if name == "reduce_scatter":
        parts = np.split(reduce(np.add, held), count, axis=params["scatter_dimension"])
        return (
            parts
            if params["tiled"]
            else [np.squeeze(part, params["scatter_dimension"]) for part in parts]
        )
    if name == "all_to_all":
        sent = [np.split(array, count, axis=params["split_axis"]) for array in held]
        return [
            np.concatenate([parts[n] for parts in sent], axis=params["concat_axis"])
            for n in range(count)
        ]
    senders = {target: source for source, target in params["perm"]}
    return [held[senders[n]] if n in senders else np.zeros_like(held[n]) for n in range(count)]


def axes_of(params: Mapping[str, Any]) -> tuple[str, ...]:
    """The named axes of a collective, major to minor."""
    named = params["axes"] if "axes" in params else params["axis_name"]
    return tuple(named) if isinstance(named, tuple | list) else (named,)


def _body(
    jaxpr: Any, ins: Sequence[Mapping[Position, np.ndarray]], sizes: Mapping[str, int], each: Each
) -> list[dict[Position, np.ndarray]]:
    inner, consts = open_jaxpr(jaxpr)
    positions = list(product(*map(range, sizes.values())))
    same = [dict.fromkeys(positions, np.asarray(const)) for const in consts]
    env: dict[Any, Mapping[Position, np.ndarray]] = dict(
        zip([*inner.constvars, *inner.invars], [*same, *ins], strict=True)
    )

    def read(atom: Any) -> Mapping[Position, np.ndarray]:
        if is_literal(atom):
            return dict.fromkeys(positions, np.asarray(atom.val, atom.aval.dtype))
        return env[atom]

    for eqn in inner.eqns:
        outs = _equation(eqn, [read(atom) for atom in eqn.invars], sizes, each)
        env.update(zip(eqn.outvars, outs, strict=True))
    return [dict(read(atom)) for atom in inner.outvars]


def _equation(
    eqn: Any, ins: Sequence[Mapping[Position, np.ndarray]], sizes: Mapping[str, int], each: Each
) -> list[dict[Position, np.ndarray]]:
    name, params = eqn.primitive.name, eqn.params
    positions = list(product(*map(range, sizes.values())))
    if name in _MARKS:
        return [dict(value) for value in ins]
    if name == "axis_index":
        return [{p: np.asarray(_number(p, axes_of(params), sizes), np.int32) for p in positions}]
    if name in COLLECTIVES and all(isinstance(axis, str) for axis in axes_of(params)):
        return [_sent(name, params, value, sizes) for value in ins]
    if name in _CALLS and is_jaxpr(params.get(_CALLS[name])):
        return _body(params[_CALLS[name]], ins, sizes, each)
    rows = {p: each(eqn, [value[p] for value in ins]) for p in positions}
    return [{p: rows[p][n] for p in positions} for n in range(len(eqn.outvars))]


def _sent(
    name: str,
    params: Mapping[str, Any],
    value: Mapping[Position, np.ndarray],
    sizes: Mapping[str, int],
) -> dict[Position, np.ndarray]:
    axes = axes_of(params)
    rest = tuple(axis for axis in sizes if axis not in axes)
    groups: dict[int, list[Position]] = {}
    for position in value:
        groups.setdefault(_number(position, rest, sizes), []).append(position)
    found: dict[Position, np.ndarray] = {}
    for group in groups.values():
        members = sorted(group, key=lambda position: _number(position, axes, sizes))
        found.update(
            zip(members, collective(name, params, [value[p] for p in members]), strict=True)
        )
    return found


def _number(position: Position, axes: Sequence[str], sizes: Mapping[str, int]) -> int:
    """The number of a position along `axes`, major to minor."""
    place = dict(zip(sizes, position, strict=True))
    number = 0
    for axis in axes:
        number = number * sizes[axis] + place[axis]
    return number


def _entries(spec: Any, ndim: int) -> list[tuple[str, ...]]:
    entries = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec]
    return entries + [()] * (ndim - len(entries))


def _window(
    value: np.ndarray, spec: Any, position: Position, sizes: Mapping[str, int]
) -> np.ndarray:
    for dim, axes in enumerate(_entries(spec, value.ndim)):
        parts = prod(sizes[axis] for axis in axes)
        value = np.split(value, parts, axis=dim)[_number(position, axes, sizes)]
    return value


def _joined(
    shards: Mapping[Position, np.ndarray], spec: Any, sizes: Mapping[str, int]
) -> np.ndarray:
    first = next(iter(shards.values()))
    entries = _entries(spec, first.ndim)
    counts = [prod(sizes[axis] for axis in axes) for axes in entries]
    whole = np.empty([n * count for n, count in zip(first.shape, counts, strict=True)], first.dtype)
    for position in reversed(shards):  # the first of those that lie in one place stays
        numbers = [_number(position, axes, sizes) for axes in entries]
        window = tuple(
            slice(n * size, (n + 1) * size) for n, size in zip(numbers, first.shape, strict=True)
        )
        whole[window] = shards[position]
    return whole
