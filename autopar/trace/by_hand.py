"""By hand: a shard_map in the user's function, walked in place, between its borders.

Each operand enters as the shard that the specs say, each result leaves so. The body's collectives become operators of
`core.manual`; marks of what varies along which axes change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, cast

from autopar import _compat
from autopar._compat import untyped_jax
from autopar._payload import Payload
from autopar.core.manual import INDEX
from autopar.trace.alone import named_axes

MARKS = frozenset({"pbroadcast", "pcast", "pvary"})
_COLLECTIVES = {
    "all_gather": "manual_all_gather",
    "all_gather_invariant": "manual_all_gather",
    "all_to_all": "manual_all_to_all",
    "axis_index": INDEX,
    "pmax": "manual_all_reduce",
    "pmin": "manual_all_reduce",
    "ppermute": "manual_permute",
    "psum": "manual_all_reduce",
    "psum_invariant": "manual_all_reduce",
    "reduce_scatter": "manual_reduce_scatter",
}
_ON_THE_HOST = frozenset({"io_callback", "pure_callback"})
_KERNELS = frozenset({"call_exported", "core_map", "custom_partitioning", "pallas_call"})
_BEFORE = ("split_axis", "scatter_dimension")
_AFTER = ("concat_axis", "all_gather_dimension")


def is_walked(eqn: Any) -> bool:
    """Whether all that a shard_map's body does is known here; else the body is run as it is, without a price."""
    return all(_is_known(inner) for inner in _equations(_compat.open_jaxpr(eqn.params["jaxpr"])[0]))


def collective_kind(eqn: Any) -> str | None:
    """The kind of the operator that a collective over named axes is; None for all else."""
    return _COLLECTIVES.get(eqn.primitive.name) if named_axes(eqn) else None


def collective_params(eqn: Any) -> dict[str, Any]:
    """The parameters of such an operator (`core.manual.COLLECTIVES`)."""
    params = eqn.params
    found: dict[str, Any] = {"axes": tuple(named_axes(eqn)), "primitive": eqn.primitive.name}
    if eqn.primitive.name != "axis_index":
        found["dims"] = tuple(
            tuple(params[name] for name in side if name in params) for side in (_BEFORE, _AFTER)
        )
    if "perm" in params:
        found["pairs"] = tuple((int(source), int(target)) for source, target in params["perm"])
    return found


def collective_payload(eqn: Any) -> Payload:
    """What runs it: the plain sum or gather in the place of those whose results are typed as the same everywhere."""
    name = eqn.primitive.name
    params = dict(eqn.params)
    if name not in ("psum_invariant", "all_gather_invariant"):
        return Payload(eqn.primitive, params)
    plain = untyped_jax.lax.psum_p if name == "psum_invariant" else untyped_jax.lax.all_gather_p
    return Payload(plain, {"axis_index_groups": None, **params})


def _is_known(eqn: Any) -> bool:
    name = eqn.primitive.name
    params = eqn.params
    if _compat.side_effects(eqn) or name in _ON_THE_HOST:
        return False
    if name == "shard_map" or name in MARKS or not named_axes(eqn):
        return True
    by_number = not all(isinstance(axis, str) for axis in params.get("axes", ()))
    return name in _COLLECTIVES and not by_number and params.get("axis_index_groups") is None


def _equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr and of all jaxprs in their parameters, but for the bodies of kernels."""
    for eqn in jaxpr.eqns:
        yield eqn
        if eqn.primitive.name in _KERNELS:
            continue
        values: list[Any] = list(eqn.params.values())
        several = [cast("list[Any]", value) for value in values if isinstance(value, tuple | list)]
        for value in (*values, *chain.from_iterable(several)):
            if _compat.is_jaxpr(value):
                yield from _equations(_compat.open_jaxpr(value)[0])
