"""Callbacks to the host, with effects or without: one device makes each call, and ordered ones wait for each other.

Order is a value, the token: a call takes that of the call before it and gives one to the next, through loops as a
further carry. JAX's own ordered effects are for one device only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import experimental

from autopar._compat import callback_of, pcast_varying, untyped_jax
from autopar._payload import Payload
from autopar.core.mesh import DeviceMesh
from autopar.core.program import Compute, Instruction

Array = jax.Array
TOKEN = -1
"""The place of the token among the values of a program, which are numbered from 0."""
lax = untyped_jax.lax
jnp = untyped_jax.numpy
io_callback: Any = experimental.io_callback


def is_made_once(compute: Compute) -> bool:
    """Whether `compute` is a call that the first device makes for all.

    A call without effects is one unless a rule of the user's splits it: then nothing is left to be told the others.
    """
    op = compute.op
    strategy = compute.strategy
    if op.kind != "pure_callback":
        return op.effect is not None
    whole = not any(placement.varying_axes for placement in strategy.ins)
    return whole and any(placement.unreduced for placement in strategy.outs)


def run_callback(
    compute: Compute, mesh: DeviceMesh, values: Sequence[Array], env: dict[int, Array]
) -> list[Array]:
    """The results of a callback on the first device, zeros on all others; an ordered one renews the token of `env`."""
    op = compute.op
    assert isinstance(op.payload, Payload)
    call = callback_of(op.kind, op.payload.params)
    shapes = [jax.ShapeDtypeStruct(tensor.shape, np.dtype(tensor.dtype)) for tensor in op.outs]

    def on_host(_token: Any, *operands: Any) -> list[Any]:
        results = call(*operands) or ()
        return [
            np.int32(0),
            *(np.asarray(r, s.dtype) for r, s in zip(results, shapes, strict=True)),
        ]

    specs = [jax.ShapeDtypeStruct((), np.int32), *shapes]
    given = [pcast_varying(value, mesh.names) for value in (token_of(mesh, env), *values)]

    def make_call() -> list[Array]:
        made = io_callback(on_host, specs, *given, ordered=False)
        return [pcast_varying(value, mesh.names) for value in made]

    def make_none() -> list[Array]:
        return [pcast_varying(jnp.zeros(s.shape, s.dtype), mesh.names) for s in specs]

    token, *results = lax.cond(lax.axis_index(mesh.names) == 0, make_call, make_none)
    if op.effect == "ordered":
        env[TOKEN] = token

    return results


def token_of(mesh: DeviceMesh, env: dict[int, Array]) -> Array:
    """The token of the last ordered call, or a first one."""
    return env[TOKEN] if TOKEN in env else pcast_varying(jnp.int32(0), mesh.names)


def is_ordered(instructions: Sequence[Instruction]) -> bool:
    """Whether one of `instructions` is an ordered call."""
    return any(isinstance(i, Compute) and i.op.effect == "ordered" for i in instructions)
