"""Kernels of Pallas: which dims of its arrays a kernel goes through block by block, each block for itself.

A kernel runs once at each point of its grid, and an index map says which block of an array it sees there. Where the
number of a point along an axis only picks blocks, and goes into nothing that is computed, the points along it have
nothing to do with one another: a device may do some of them. Found is plain data (`core.blocks`), of which
`ops.rules.kernels` makes a rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from autopar import _compat
from autopar._compat import untyped_jax
from autopar.core.blocks import Blocks, Dims, Picked

KERNEL = "pallas_kernel"
"""The kind of a kernel that may be split; others are of the kind "pallas_call"."""

_Axes = frozenset[int]
_NUMBERS = ("program_id", "num_programs")


def blocks_of(eqn: Any) -> Blocks | None:
    """How a `pallas_call` goes through its arrays; None where no axis of its grid may be split."""
    mapping = eqn.params["grid_mapping"]
    leading = mapping.num_dynamic_grid_bounds + mapping.num_index_operands
    if eqn.params.get("mesh") is not None or len(eqn.invars) != leading + mapping.num_inputs:
        return None

    grid = tuple(size if isinstance(size, int) else 0 for size in mapping.grid)
    free = {axis for axis, size in enumerate(grid) if size > 1 and _is_independent(eqn, axis)}
    free -= _numbered(eqn.params["jaxpr"], mapping)
    found = [_Array(block, grid) for block in mapping.block_mappings]
    for array in found:
        free -= array.tied

    free -= _told_apart([array.dims for array in found], eqn, mapping)
    if not free:
        return None
    arrays = tuple(_only(array.dims, free) for array in found)
    flops = _flops(eqn.params["jaxpr"]) if all(grid) else None
    return Blocks(grid, leading, arrays, None if flops is None else flops * prod(grid))


def _only(dims: Dims, free: Iterable[int]) -> Dims:
    axes = frozenset(free)
    return tuple(dim if dim is not None and dim.axis in axes else None for dim in dims)


def _told_apart(arrays: Sequence[Dims], eqn: Any, mapping: Any) -> _Axes:
    """The axes along which results are not told apart, or an operand that a result is written over is not as it is."""
    inputs: int = mapping.num_inputs
    outs = arrays[inputs:]
    axes = range(len(mapping.grid))
    lacking = {axis for axis in axes if any(_of(dims, axis) is None for dims in outs)}
    first: int = mapping.num_index_operands
    aliases: tuple[tuple[int, int], ...] = eqn.params["input_output_aliases"]
    for operand, result in aliases:
        place = operand - first
        if place < 0 or mapping.num_dynamic_grid_bounds:
            return frozenset(axes)
        lacking |= {a for a in axes if _of(arrays[place], a) != _of(outs[result], a)}

    several = [
        {dim.shared for dims in arrays if (dim := _picked(dims, axis)) and dim.shared > 1}
        for axis in axes
    ]
    return frozenset(lacking | {axis for axis in axes if len(several[axis]) > 1})


def _of(dims: Dims, axis: int) -> int | None:
    """The dim whose blocks an axis picks."""
    return next((n for n, dim in enumerate(dims) if dim is not None and dim.axis == axis), None)


def _picked(dims: Dims, axis: int) -> Picked | None:
    place = _of(dims, axis)
    return None if place is None else dims[place]


def _is_independent(eqn: Any, axis: int) -> bool:
    """Whether no point leaves anything behind for the next one along `axis`.

    GPUs run them in any order; elsewhere its author says so, or there is nothing to leave it in but results.
    """
    mapping = eqn.params["grid_mapping"]
    params = eqn.params["compiler_params"]
    if axis in mapping.vmapped_dims or _compat.is_gpu_kernel(params):
        return True
    own = _own(mapping)
    stated = getattr(params, "dimension_semantics", None)
    if stated is not None and len(stated) == len(own):
        said = stated[own.index(axis)]
        return "parallel" in str(getattr(said, "value", said)).lower()
    return not mapping.scratch_avals


def _own(mapping: Any) -> list[int]:
    """The axes of the grid that its author wrote: those that no vmap added."""
    return [axis for axis in range(len(mapping.grid)) if axis not in mapping.vmapped_dims]


def _numbered(jaxpr: Any, mapping: Any) -> _Axes:
    """The axes along which a kernel asks for the number of its point; it counts its own."""
    own = _own(mapping)
    return frozenset(own[axis] for axis in _asked(jaxpr))


def _asked(jaxpr: Any) -> Iterator[int]:
    """The axes whose numbers are asked for and read."""
    inner = _opened(jaxpr)
    atoms = [*inner.outvars, *(atom for eqn in inner.eqns for atom in eqn.invars)]
    read = {atom for atom in atoms if not _compat.is_literal(atom)}
    for eqn in inner.eqns:
        if eqn.primitive.name in _NUMBERS and not read.isdisjoint(eqn.outvars):
            yield eqn.params["axis"]
        for each in _inner(eqn):
            yield from _asked(each)


def _equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr, and of those within it."""
    for eqn in _opened(jaxpr).eqns:
        yield eqn
        for inner in _inner(eqn):
            yield from _equations(inner)


def _inner(eqn: Any) -> list[Any]:
    members: list[Any] = []
    for value in eqn.params.values():
        members += value if isinstance(value, tuple | list) else [value]
    return [member for member in members if _compat.is_jaxpr(member)]


def _opened(jaxpr: Any) -> Any:
    return jaxpr.jaxpr if hasattr(jaxpr, "jaxpr") else jaxpr


class _Array:
    """What picks the blocks of one array; `tied` are the axes that pick them in a way that is not known here."""

    def __init__(self, block: Any, grid: tuple[int, ...]) -> None:
        self.grid = grid
        self.jaxpr = _opened(block.index_map_jaxpr)
        self.reads = self._reads()
        tied: set[int] = set()
        dims: list[Picked | None] = []
        places = zip(block.block_shape, block.array_aval.shape, self.jaxpr.outvars, strict=False)
        for kind, size, var in places:
            picked = self._picks(kind, size, var)
            axes = self._axes(var)
            if picked is None or picked.axis in {dim.axis for dim in dims if dim is not None}:
                tied |= axes
                picked = None
            dims.append(picked)

        if len(dims) != len(block.array_aval.shape) or len(self.jaxpr.outvars) != len(dims):
            tied |= set(range(len(grid)))
        self.dims = tuple(dims)
        self.tied = frozenset(tied)

    def _reads(self) -> Mapping[Any, frozenset[Any]]:
        """The operands of the index map that each value comes of."""
        found: dict[Any, frozenset[Any]] = {var: frozenset([var]) for var in self.jaxpr.invars}
        for eqn in self.jaxpr.eqns:
            read = [found.get(v, frozenset()) for v in eqn.invars if not _compat.is_literal(v)]
            found.update(dict.fromkeys(eqn.outvars, frozenset[Any]().union(*read)))
        return found

    def _axes(self, var: Any) -> _Axes:
        """The axes of the grid that a value comes of."""
        if _compat.is_literal(var):
            return frozenset()
        invars = list(self.jaxpr.invars)
        places = [invars.index(read) for read in self.reads.get(var, frozenset())]
        return frozenset(place for place in places if place < len(self.grid))

    def _picks(self, kind: Any, size: int, var: Any) -> Picked | None:
        """The one axis that picks the blocks of a dim, if it does so in order."""
        length = _compat.block_length(kind)
        axes = self._axes(var)
        if length is None or len(axes) != 1 or len(self.reads[var]) != 1:
            return None

        (axis,) = axes
        count = self.grid[axis]
        shared = self._shared(axis, var)
        if not shared or count % shared or count // shared * length != size:
            return None
        return Picked(axis, shared, length)

    def _shared(self, axis: int, var: Any) -> int:
        """How many neighbours along `axis` see one block, where each so many see the next; 0 where it is not so."""
        point = self.jaxpr.invars[axis]
        if var is point:
            return 1
        if not self.grid[axis]:
            return 0
        needed = [eqn for eqn in self.jaxpr.eqns if self.reads[eqn.outvars[0]] <= {point}]

        def block_at(number: Any) -> Any:
            env: dict[Any, Any] = {point: number}
            for eqn in needed:
                values = [v.val if _compat.is_literal(v) else env[v] for v in eqn.invars]
                params = eqn.primitive.get_bind_params(eqn.params)
                found = eqn.primitive.bind(*values, **params)
                several = found if eqn.primitive.multiple_results else [found]
                env.update(zip(eqn.outvars, several, strict=True))
            return env[var]

        points = np.arange(self.grid[axis], dtype=np.int32)
        seen = np.asarray(untyped_jax.vmap(block_at)(points))
        shared = int((seen == 0).sum())
        return shared if shared and np.array_equal(seen, points // shared) else 0


def _flops(jaxpr: Any) -> float | None:
    """The operations of the products of matrices at one point, a choice by the mean of what is chosen from.

    A loop whose rounds only a run tells goes once over what it reads piece by piece; None where it reads no pieces.
    """
    total = 0.0
    for eqn in _opened(jaxpr).eqns:
        if eqn.primitive.name == "dot_general":
            total += _product_flops(eqn)
            continue
        inner = [_flops(each) for each in _inner(eqn)]
        known = [each for each in inner if each is not None]
        if len(known) != len(inner):
            return None
        if any(known):
            rounds = _rounds(eqn)
            if rounds is None:
                return None
            total += rounds * sum(known)

    return total


def _rounds(eqn: Any) -> float | None:
    """How often what is within an equation runs; each of several branches by its part."""
    name = eqn.primitive.name
    if name == "scan":
        return float(eqn.params["length"])
    if name == "cond":
        return 1 / len(eqn.params["branches"])
    if name != "while":
        return 1.0

    pieces = [
        prod(read.invars[0].aval.shape) / max(1, prod(read.outvars[0].aval.shape))
        for read in _equations(eqn.params["body_jaxpr"])
        if read.invars and read.outvars and _compat.is_reference_type(read.invars[0].aval)
    ]
    return max(pieces, default=None)


def _product_flops(eqn: Any) -> float:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    lhs = eqn.invars[0].aval.shape
    return 2.0 * prod(eqn.outvars[0].aval.shape) * prod(lhs[dim] for dim in contracted)
