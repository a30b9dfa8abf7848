"""Staging: the program of a plan as JAX's own stages, called as the function is: traced, lowered, to be compiled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from autopar._compat import untyped_jax, without_mesh
from autopar._mesh import spec_of
from autopar.api.call import put_back, read_call
from autopar.api.plan import Plan
from autopar.api.runner import Runner
from autopar.api.settings import Settings


def traced(
    plan: Plan, settings: Settings, devices: Sequence[Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """JAX's `Traced` of the program of a plan for arguments like these, which lie where the plan has them.

    Nothing is placed, so the devices need not be there.
    """
    runner = Runner(plan.bound, plan.check_devices(devices))
    call = read_call(args, kwargs, settings.static_argnums)
    avals = plan.bound.traced.input_avals
    specs = [_placed(aval, sharding) for aval, sharding in zip(avals, runner.shardings, strict=False)]
    placed_args, placed_kwargs = put_back(call, specs)
    program = partial(_inlined, runner, settings.static_argnums)
    program.__dict__["__name__"] = plan.function_name
    jitted = untyped_jax.jit(
        program,
        static_argnums=settings.static_argnums,
        donate_argnums=settings.donate_argnums,
        donate_argnames=settings.donate_argnames,
    )
    with without_mesh():
        return jitted.trace(*placed_args, **placed_kwargs)


def _placed(aval: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    spec = spec_of(aval)
    return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding, weak_type=aval.weak_type)


def _inlined(runner: Runner, static_argnums: int | Sequence[int], *args: Any, **kwargs: Any) -> Any:
    return runner.inlined(read_call(args, kwargs, static_argnums).leaves)
