"""compile and plan: a function that plans itself, and its plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any, Unpack, overload

import jax

from autopar._compat import is_tracing, untyped_jax, without_mesh
from autopar._mesh import spec_of
from autopar.api.bound import own_function
from autopar.api.call import put_back, read_call
from autopar.api.calls import Calls
from autopar.api.options import Function, PlanOptions, Settings, split_options, takes_options
from autopar.api.placing import Made, Maker, init, slot_of
from autopar.api.plan import Plan
from autopar.api.plan_file import PlanSignature
from autopar.api.runner import UNKNOWN, Runner
from autopar.errors import SignatureMismatch
from autopar.report.notebook import lines_html
from autopar.search.task import SearchOptions
from autopar.trace.arguments import CARRIED, function_name, read_arguments
from autopar.trace.flat import TRACING
from cost_models import Cluster


class Compiled:
    """A function that plans itself once for every input signature, then runs sharded.

    Called like the function it was made from, with arrays (JAX or numpy) or scalars in pytrees; results have the
    function's own structure, as global arrays in the plan's placements. JAX's transformations take it as they take a
    function under `jax.jit`: inside `jax.jit` and loops its program becomes part of theirs, and what `jax.grad`,
    `jax.jvp`, `jax.vmap` and others make of it is planned as the function that it then is.

    Objects of flax.nnx and Keras are taken and changed as under `nnx.jit`, calls with modules of equinox as under
    `eqx.filter_jit`. A module that is compiled itself is an argument too. As an attribute of a class it is a method.
    """

    def __init__(self, fn: Function, settings: Settings, given: Plan | None = None) -> None:
        self.__wrapped__ = fn
        self._calls = Calls(fn, settings, given)
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            if hasattr(fn, name):
                setattr(self, name, getattr(fn, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's results, computed by the plan for this signature, which is made at its first call."""
        if is_tracing():
            return (
                self.__wrapped__(*args, **kwargs)
                if TRACING.value
                else self._calls.call_in_trace(args, kwargs)
            )
        result = self._calls.attempt(args, kwargs)
        return self._calls.call(args, kwargs) if result is UNKNOWN else result

    def __repr__(self) -> str:
        return f"Compiled({self._in_short})"

    def _repr_html_(self) -> str:
        return lines_html(self._in_short, [plan.summary.in_short for plan in self.plans])

    @property
    def _in_short(self) -> str:
        count = len(self.plans)
        planned = f"{count} plan{'' if count == 1 else 's'}" if count else "not planned yet"
        return f"{function_name(self.__wrapped__)}, {planned}"

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """The method of an instance, which is its first argument: a pytree, an object of a library, or static."""
        return self if instance is None else MethodType(self, instance)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for arguments like these; jax.ShapeDtypeStructs will do.

        Once a plan was asked for, calls with arrays over several processes are refused if their shapes are others: that
        is how rows are lost where each process passes its own.
        """
        with self._calls.opened(args, kwargs) as call:
            return call.pure.asked_plan(*call.args, **call.kwargs)

    def init(
        self,
        make_state: Callable[..., Any],
        *args: Any,
        argument: int = 0,
        others: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """`make_state(*args, **kwargs)`, an argument of the function, made where its plan has it: see `Plan.init`.

        Args:
          make_state: gives the argument.
          *args: as `make_state` takes them, arrays and others.
          argument: its position.
          others: the function's other arguments, in order, or their shapes; None: the first plan made that takes it.
          **kwargs: likewise.

        Raises:
          SignatureMismatch: nothing was planned that takes such an argument.
        """
        maker = Maker.of(make_state, args, kwargs)
        plan = _plan_for(self, maker, argument, others)
        return init(
            plan.bound, maker, argument, plan.check_devices(self._calls.devices()), Compiled
        )

    @property
    def made(self) -> tuple[Plan, ...]:
        """The plans of the function itself that were made so far, one for each signature."""
        return tuple(plan for pure in self._calls.pures for plan in pure.made)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Every plan made so far: of the function for each signature, then of what transformations made of it."""
        return tuple(plan for pure in self._calls.pures for plan in pure.plans)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """JAX's `Lowered` of the program that runs for arguments like these: to be compiled, looked into and called.

        It takes arrays: objects of libraries as what they hold. On devices of several processes it is that of this
        process's own plan; what runs is the first one's.
        """
        with without_mesh():
            return self.trace(*args, **kwargs).lower()

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """JAX's `Traced` of that program, with its jaxpr."""
        with self._calls.opened(args, kwargs) as call:
            plan = call.pure.plan(*call.args, **call.kwargs)
            return _traced(
                plan, call.pure.settings, call.pure.own_devices(), call.args, call.kwargs
            )

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes and types of the results, as ShapeDtypeStructs; nothing is planned."""
        with self._calls.opened(args, kwargs) as call:
            planned = call.pure.planned_call(call.args, call.kwargs)
            return call.shapes(planned.shapes, call.args, call.kwargs)

    def clear_cache(self) -> None:
        """Forgets all plans and programs."""
        self._calls.forget()


@overload
def compile(fn: None = None, **options: Unpack[PlanOptions]) -> Callable[[Function], Compiled]: ...  # noqa: A001
@overload
def compile(fn: Function, **options: Unpack[PlanOptions]) -> Compiled: ...  # noqa: A001
@takes_options
def compile(  # noqa: A001 - the name that jax users expect
    fn: Function | None = None, **options: Unpack[PlanOptions]
) -> Compiled | Callable[[Function], Compiled]:
    """A function that computes what `fn` does, split over the devices in the fastest way found.

    Usable as a decorator, with or without options. Like jax.jit it plans once for every signature of arguments.

    Args:
      fn: any function of pytrees that JAX can trace.
      **options: those of `autopar.PlanOptions`.

    Raises (at the first call for a signature):
      AutoparError: InvalidMesh, UnknownCluster, InvalidConstraint, TraceError, UnsupportedPrimitive, NoFeasiblePlan,
        Unsolved, DifferentValues; each says what, where, and what to do.
      KeyboardInterrupt: interrupted before any plan was found; later, the best so far is the plan, which says so.
    """
    settings = Settings.of(options)
    if fn is not None:
        return Compiled(fn, settings)

    def decorate(function: Function) -> Compiled:
        return Compiled(function, settings)

    return decorate


@overload
def plan(fn: Function, *args: Any, **options: Unpack[PlanOptions]) -> Plan: ...
@overload
def plan(fn: Function, *args: Any, **keywords: Any) -> Plan: ...
@takes_options
def plan(fn: Function, *args: Any, **keywords: Any) -> Plan:
    """The plan of `fn` for arguments like these, on a cluster that need not be there.

    Args:
      fn: any function of pytrees that JAX can trace.
      *args: example arguments; jax.ShapeDtypeStructs will do.
      **keywords: options, those of `autopar.PlanOptions`; all others are arguments of `fn` by name.

    Raises:
      AutoparError: as `compile`; UnknownOption for a name that `fn` does not take and that is nearly an option's.
    """
    options, kwargs = split_options(fn, keywords)
    return Compiled(fn, Settings.of(options)).plan(*args, **kwargs)


def compiled_from(given: Plan, fn: Function | None, devices: tuple[Any, ...]) -> Compiled:
    """The function that runs `given`, which is bound to `fn` at the first call unless it is already."""
    if given.is_bound:
        function, settings = own_function(given.bound.fn, given.bound.settings)
        function = fn or function
    else:
        assert fn is not None
        function = fn
        signature = given.file.signature
        limit = given.summary.memory_limit_bytes
        cluster = Cluster.from_dict(given.file.cluster)
        settings = Settings(
            cluster=cluster,
            mesh=dict(given.mesh.axes),
            static_argnums=signature.static_argnums,
            static_argnames=signature.static_argnames,
            donate_argnums=signature.donate_argnums,
            donate_argnames=signature.donate_argnames,
            carry=signature.carry,
            options=_search_options(signature),
            constraints=signature.constraints,
            memory_limit_bytes=None if limit == int(cluster.device.memory_bytes) else limit,
        )

    return Compiled(function, replace(settings, devices=devices), given)


def _search_options(signature: PlanSignature) -> SearchOptions:
    """What a file says of how its plan was searched."""
    if signature.gap_tolerance is None:
        return SearchOptions(while_trips=signature.while_trips)
    return SearchOptions(while_trips=signature.while_trips, gap_tolerance=signature.gap_tolerance)


def _plan_for(
    compiled: Compiled, maker: Maker, argument: int, others: Sequence[Any] | None
) -> Plan:
    """The plan of `compiled` that such a state is for: with the `others` as its other arguments, or the first made.

    Raises:
      SignatureMismatch: none was made that takes such a state.
    """
    with maker.opened() as made:
        if others is not None:
            return compiled.plan(*others[:argument], made.example(), *others[argument:])
        return _first_of(compiled.made, made, argument)


def _first_of(plans: Sequence[Plan], made: Made, argument: int) -> Plan:
    refusals: list[SignatureMismatch] = []
    for plan in plans:
        try:
            slot_of(plan.bound, argument).check(made.what, made.shapes)
        except SignatureMismatch as error:
            refusals.append(error)
        else:
            return plan

    if refusals:
        raise refusals[0]

    raise SignatureMismatch(
        "init: the function was not planned yet, so where its state lies is not known. Pass its other arguments, or "
        "their shapes, as others=(...), or call its plan() before"
    )


# As stages of JAX -----------------------------------------------------------------------------------------------------


def _traced(
    plan: Plan,
    settings: Settings,
    devices: Sequence[Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """JAX's `Traced` of the program of a plan for arguments like these, which lie where the plan has them.

    Nothing is placed, so the devices need not be there.
    """
    runner = Runner(plan.bound, plan.check_devices(devices))
    call = read_call(args, kwargs, settings.static_argnums)
    avals = plan.bound.traced.input_avals
    specs = [
        _placed(aval, sharding) for aval, sharding in zip(avals, runner.shardings, strict=False)
    ]
    placed_args, placed_kwargs = put_back(call, specs)
    program = partial(_inlined, runner, settings.static_argnums)
    program.__dict__["__name__"] = plan.function_name
    jitted = untyped_jax.jit(
        program,
        static_argnums=settings.static_argnums,
        **_donated(plan, settings, args, kwargs),
    )

    with without_mesh():
        return jitted.trace(*placed_args, **placed_kwargs)


def _donated(
    plan: Plan, settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """What jax.jit is to donate: it takes whole arguments only, so those all of whose arrays are donated."""
    if settings.donate_argnums != CARRIED:
        return {
            "donate_argnums": settings.donate_argnums,
            "donate_argnames": settings.donate_argnames,
        }

    arrays = set(plan.bound.traced.graph.donated)
    read = read_arguments(plan.bound.fn, args, kwargs, settings.static_argnums)
    whole = [one for one in read.traced if one.avals and arrays.issuperset(one.inputs)]
    return {
        "donate_argnums": [one.position for one in whole if one.position is not None],
        "donate_argnames": [one.name for one in whole if one.position is None],
    }


def _placed(aval: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    spec = spec_of(aval)
    return jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding, weak_type=aval.weak_type)


def _inlined(runner: Runner, static_argnums: int | Sequence[int], *args: Any, **kwargs: Any) -> Any:
    return runner.inlined(read_call(args, kwargs, static_argnums).leaves)
