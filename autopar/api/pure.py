"""Pure: a function of arrays that plans itself once for every signature, and what JAX's transformations make of it."""

from __future__ import annotations

from typing import Any

from jax.sharding import Mesh

from autopar._compat import axes_by_hand, is_tracing, untyped_jax
from autopar.api.call import Signature, call_signature, is_call_of, read_call
from autopar.api.following import devices_of
from autopar.api.make import bind, make_plan
from autopar.api.options import Function, Settings
from autopar.api.plan import Plan
from autopar.api.processes import agreed, check_global_shapes
from autopar.api.runner import Dispatch, Runner
from autopar.api.transforms.entry import PlannedCall, planned_call
from autopar.api.transforms.planned import Late
from autopar.core.mesh import DeviceMesh
from autopar.emit.several import in_order
from autopar.emit.wrap import device_mesh
from autopar.errors import TraceError
from autopar.trace.arguments import function_name, read_arguments
from autopar.trace.flat import FlatFunction

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class Pure:
    """A function of arrays with its plans. `given` is a plan that it runs; `late` completes its settings."""

    def __init__(
        self, fn: Function, settings: Settings, given: Plan | None = None, late: Late | None = None
    ) -> None:
        self.fn = fn
        self.settings = settings
        self.late = late
        self._given = given
        self.forget()

    def forget(self) -> None:
        """Forgets its plans and programs."""
        self._plans: dict[Signature, Plan] = {}
        self._asked: list[Signature] = []
        self._runners: dict[object, Runner] = {}
        self._calls: dict[object, PlannedCall] = {}
        self.dispatch = Dispatch(
            function_name(self.fn),
            self.settings,
            self.runner,
            tells=not isinstance(self.fn, FlatFunction),
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results: of the program for arrays, a part of the trace under way for its placeholders."""
        if is_tracing():
            return self.planned_call(args, kwargs)(args, kwargs)
        return self.dispatch(args, kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The results for arrays."""
        return self.dispatch(args, kwargs)

    def inlined(self, *args: Any, **kwargs: Any) -> Any:
        """The results for placeholders of an outer trace, in which the planned program is called.

        Raises:
          TraceError: each device traces on its own there, as in a shard_map.
        """
        if by_hand := axes_by_hand():
            raise TraceError(
                f"a compiled function is called inside jax.shard_map or jax.pmap, over axes {', '.join(by_hand)}: each "
                f"device is there on its own, and a plan is for all. Call the function itself there, or this one "
                f"outside."
            )
        with untyped_jax.ensure_compile_time_eval():
            runner = self.runner(args, kwargs)
        return runner.inlined(read_call(args, kwargs, self.settings.static_argnums).leaves)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for arguments like these; jax.ShapeDtypeStructs will do."""
        return self._plan(self._key(args, kwargs), args, kwargs)

    def asked_plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan that the user asked for; see `Compiled.plan`."""
        self._asked.append(self._key(args, kwargs))
        return self.plan(*args, **kwargs)

    @property
    def made(self) -> tuple[Plan, ...]:
        """The plans of the function itself that were made so far, one for each signature."""
        return tuple(self._plans.values())

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Those, then the plans of what transformations made of it."""
        return self.made + tuple(plan for call in self._calls.values() for plan in call.plans)

    def devices(self) -> tuple[Any, ...]:
        """The devices that it runs on, in mesh order: those asked for, else those present."""
        return self.own_devices() or in_order(untyped_jax.devices())

    def own_devices(self) -> tuple[Any, ...] | None:
        """The devices that were asked for; None for those present."""
        return devices_of(self.settings)

    def known_mesh(self) -> Mesh | None:
        """The mesh of its plans, where it was asked for or all plans so far are on the same; else None."""
        if isinstance(self.settings.mesh, Mesh):
            return self.settings.mesh
        meshes = {plan.mesh for plan in self.made}
        if self.settings.mesh is not None:
            meshes = {DeviceMesh.of(self.settings.mesh)}
        return device_mesh(meshes.pop(), self.devices()) if len(meshes) == 1 else None

    def derive(self, fn: FlatFunction, settings: Settings, late: Late | None) -> Pure:
        """Another function, compiled for the same devices."""
        return Pure(fn, settings, late=late)

    def runner(self, args: Args, kwargs: Kwargs) -> Runner:
        """The program for arguments like these, on its devices."""
        key = self._key(args, kwargs)
        if key not in self._runners:
            self._refuse_unasked(key, args, kwargs)
            plan = self._plan(key, args, kwargs)
            devices = plan.check_devices(self.own_devices())
            self._runners[key] = Runner(agreed(plan.bound, devices), devices, key.types)
        return self._runners[key]

    def planned_call(self, args: Args, kwargs: Kwargs) -> PlannedCall:
        """What stands for it under a trace of JAX. Kept, unless it is for values of that trace."""
        key = self._key(args, kwargs)
        if key in self._calls:
            return self._calls[key]
        made = planned_call(self.fn, self, args, kwargs)
        if not made.captured:
            self._calls[key] = made
        return made

    def _key(self, args: Args, kwargs: Kwargs) -> Signature:
        return call_signature(
            args, kwargs, self.settings.static_argnums, self.settings.shardings == "keep"
        )

    def _plan(self, key: Signature, args: Args, kwargs: Kwargs) -> Plan:
        if key not in self._plans:
            self._plans[key] = self._made(key, args, kwargs)
        return self._plans[key]

    def _made(self, key: Signature, args: Args, kwargs: Kwargs) -> Plan:
        given = self._given
        if given is None:
            settings = self.settings if self.late is None else self.late(self.settings)
            on_other_meshes = [
                plan for other, plan in self._plans.items() if other.differs_by_mesh(key)
            ]
            return make_plan(self.fn, settings, args, kwargs, on_other_meshes)
        if given.is_bound and given.bound.fn is self.fn and is_call_of(given.bound.traced, key):
            return given
        return bind(given, self.fn, self.settings, args, kwargs)

    def _refuse_unasked(self, key: Signature, args: Args, kwargs: Kwargs) -> None:
        asked = [other for other in self._asked if other.kind[:-1] == key.kind[:-1]]
        if asked and all(other.types != key.types for other in asked):
            arguments = read_arguments(self.fn, args, kwargs, self.settings.static_argnums)
            check_global_shapes(arguments, arguments.leaves(args, kwargs), asked[-1])
