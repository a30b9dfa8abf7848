"""Alone: a shard_map over mesh axes of one device, walked in place; its collectives are what they do there.

Over a single device a sum, a maximum, a gather or an exchange gives its operand back, at most in another shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from autopar._compat import untyped_jax
from autopar.errors import TraceError

KEEPING = frozenset({
    "pbroadcast", "pcast", "pmax", "pmin", "preduced", "psum", "psum_invariant", "pvary", "unreduced_pmax",
    "unreduced_pmin", "unreduced_psum", "vary_unreduced_cast", "vary_unreduced_cast_p",
})  # fmt: skip
RESHAPING = frozenset({
    "all_gather", "all_gather_invariant", "all_gather_reduced", "all_to_all", "reduce_scatter",
    "unreduced_reduce_scatter",
})  # fmt: skip
COLLECTIVES = KEEPING | RESHAPING | {"axis_index", "ppermute"}
_AXES = ("axes", "axis_name")
_lax: Any = lax
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "psum": _lax.reduce_sum,
    "pmax": _lax.reduce_max,
    "pmin": _lax.reduce_min,
}


def axes_alone(eqn: Any) -> frozenset[str]:
    """The axes of a shard_map if there is one device along all of them together, else none."""
    axes = eqn.params["newly_manual_axes"]
    sizes = eqn.params["mesh"].shape
    return frozenset(map(str, axes)) if all(sizes[axis] == 1 for axis in axes) else frozenset()


def names_axes(eqn: Any, axes: frozenset[str]) -> bool:
    """Whether `eqn` is a collective over some of `axes`."""
    return not axes.isdisjoint(named_axes(eqn))


def alone(eqn: Any, source: str) -> Any:
    """A closed jaxpr that does to its operands what a collective does over axes of one device.

    Raises:
      TraceError: if it is not known what it does.
    """
    if eqn.primitive.name not in COLLECTIVES:
        raise TraceError(
            f"{eqn.primitive.name!r} at {source or 'an unknown line'} is a collective in a shard_map over one device, "
            f"and it is not known what it does there. Leave it out where the mesh has one device."
        )

    def function(*operands: Any) -> Sequence[Any]:
        return _run(eqn, operands)

    specs = [untyped_jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
    return untyped_jax.make_jaxpr(function)(*specs)


def _run(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
    name = eqn.primitive.name
    avals = [var.aval for var in eqn.outvars]
    if name == "axis_index":
        return [untyped_jax.numpy.zeros((), avals[0].dtype)]
    if name == "ppermute":
        return (
            operands if eqn.params["perm"] else [untyped_jax.numpy.zeros_like(x) for x in operands]
        )
    dims = tuple(axis for axis in eqn.params.get("axes", ()) if isinstance(axis, int))
    if dims:
        return [_REDUCTIONS[name](x, dims) for x in operands]
    return [_lax.reshape(x, aval.shape) for x, aval in zip(operands, avals, strict=True)]


def named_axes(eqn: Any) -> list[str]:
    """The axes of a collective that have a name."""
    given: list[Any] = []
    for name in _AXES:
        value = eqn.params.get(name, ())
        given += value if isinstance(value, tuple | list | frozenset | set) else [value]
    return [axis for axis in given if isinstance(axis, str)]
