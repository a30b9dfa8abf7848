"""compile and plan: trace, search, emit, in as many lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MethodType
from typing import Any, Unpack, overload

from autopar._compat import is_tracing, without_mesh
from autopar.api.birth import Maker, init, plan_for
from autopar.api.calls import Calls
from autopar.api.dispatch import UNKNOWN
from autopar.api.make import Function
from autopar.api.opened import own_function
from autopar.api.options import Options, settings_of, split_options
from autopar.api.plan import Plan
from autopar.api.settings import Settings
from autopar.api.staging import traced
from autopar.search.task import SearchOptions
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
            return self.__wrapped__(*args, **kwargs) if TRACING.value else self._calls.call_in_trace(args, kwargs)
        result = self._calls.attempt(args, kwargs)
        return self._calls.call(args, kwargs) if result is UNKNOWN else result

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
        plan = plan_for(self, maker, argument, others)
        return init(plan, maker, argument, plan.check_devices(self._calls.devices()))

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
            return traced(plan, call.pure.settings, call.pure.own_devices(), call.args, call.kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes and types of the results, as ShapeDtypeStructs; nothing is planned."""
        with self._calls.opened(args, kwargs) as call:
            planned = call.pure.planned_call(call.args, call.kwargs)
            return call.shapes(planned.shapes, call.args, call.kwargs)

    def clear_cache(self) -> None:
        """Forgets all plans and programs."""
        self._calls.forget()


@overload
def compile(fn: None = None, **options: Unpack[Options]) -> Callable[[Function], Compiled]: ...  # noqa: A001
@overload
def compile(fn: Function, **options: Unpack[Options]) -> Compiled: ...  # noqa: A001
def compile(  # noqa: A001 - the name that jax users expect
    fn: Function | None = None, **options: Unpack[Options]
) -> Compiled | Callable[[Function], Compiled]:
    """A function that computes what `fn` does, split over the devices in the fastest way found.

    Usable as a decorator, with or without options. Like jax.jit it plans once for every signature of arguments.

    Args:
      fn: any function of pytrees that JAX can trace.
      cluster: a profile's name ("8xh100"), a profile's path, or a Cluster; None: the devices that are present, or those
        of the mesh that is set (`jax.set_mesh`) if they are several.
      mesh: axis sizes by name, major to minor, or a jax Mesh; None: that whose axes the function names, or of whose
        Explicit axes types speak; else the sensible shapes are tried, the best kept.
      mode: "auto"; "data_parallel" (data split along its first dim, all other inputs replicated); "semi_auto" (as
        "auto", with constraints); "manual" (the constraints leave every input and output one placement).
      memory_limit_bytes: what a device may use, a number or text ("30GiB"); None: all that the cluster's devices have.
      static_argnums: positions of arguments that are compile-time constants.
      static_argnames: their names. As in jax.jit, positions follow from names and names from positions unless both are
        given; so for `donate_argnames`.
      donate_argnums: positions of arguments whose memory the results may take.
      donate_argnames: their names.
      in_shardings: how arguments lie: NamedShardings, or PartitionSpecs of the axes of `mesh`, in a prefix of the
        tuple of positional arguments that are not static; None where that is searched. Arrays that lie otherwise are
        moved. NamedShardings name the mesh, too, unless `mesh` does.
      out_shardings: the same for results.
      carry: which results become the next call's inputs and keep their placement; "auto": of those that have the
        structure and shapes of an argument, trees (whose paths then agree), results of an argument's name
        (`{"w": ...}` for an argument `w`), and whatever becomes a donated argument; or pairs of (result, argument),
        each a position or a path; or None. Where an input and the result that follows it are pinned apart, the pins
        hold.
      strict: refuse an operator without a rule instead of replicating it with a warning.
      options: how to search.
      dump: a directory in which every stage is written as a numbered file.
      devices: the devices to run on, in mesh order; None: those that are present. They may belong to several processes
        (jax.distributed), which all call the function and run the plan of the first. Each argument is an array over
        these devices in all processes, or the same whole value in all: then its digest is compared at every call, which
        takes one small collective, and a second for each 0.5 to 2 GB that are hashed. Rows of each process's own become
        one array by `jax.make_array_from_process_local_data`; see `Plan.in_slices`.
      pricing: another pricing than the roofline of the cluster.
      constraints: what the plan is held to: autopar.pin, replicate, forbid, tie.
      follow: a plan, or a function compiled by autopar and planned: arguments that are of its state, by path and shape,
        lie as there, on its mesh. Its state is all but its data. The report says what that costs.
      shardings: what becomes of arrays that come in sharded: "move": to where the plan has them, which is said once
        (MovedWarning), with bytes; "keep": they are pins, and the mesh is theirs.
      cache: a directory in which plans are kept: one that is there for this function, cluster, mesh, options and these
        versions is taken, traced but not searched for; None: that of the environment variable AUTOPAR_CACHE, if it is
        set; False: none. Rules of your own are not looked at, and plans of a pricing of your own are not kept.

    Raises (at the first call for a signature):
      AutoparError: InvalidMesh, UnknownCluster, InvalidConstraint, TraceError, UnsupportedPrimitive, NoFeasiblePlan,
        Unsolved, DifferentValues; each says what, where, and what to do.
      KeyboardInterrupt: interrupted before any plan was found; later, the best so far is the plan, which says so.
    """
    settings = settings_of(options)
    if fn is not None:
        return Compiled(fn, settings)

    def decorate(function: Function) -> Compiled:
        return Compiled(function, settings)

    return decorate


@overload
def plan(fn: Function, *args: Any, **options: Unpack[Options]) -> Plan: ...
@overload
def plan(fn: Function, *args: Any, **keywords: Any) -> Plan: ...
def plan(fn: Function, *args: Any, **keywords: Any) -> Plan:
    """The plan of `fn` for arguments like these, on a cluster that need not be there.

    Args:
      fn: any function of pytrees that JAX can trace.
      *args: example arguments; jax.ShapeDtypeStructs will do.
      **keywords: options, which are those of `compile`; all others are arguments of `fn` by name.

    Raises:
      AutoparError: as `compile`.
    """
    options, kwargs = split_options(keywords)
    return Compiled(fn, settings_of(options)).plan(*args, **kwargs)


def compiled_from(given: Plan, fn: Function | None, devices: tuple[Any, ...]) -> Compiled:
    """The function that runs `given`, which is bound to `fn` at the first call unless it is already."""
    if given.is_bound:
        function, settings = own_function(given.bound.fn, given.bound.settings)
        function = fn or function
    else:
        assert fn is not None
        function = fn
        signature, limit = given.file.signature, given.summary.memory_limit_bytes
        cluster = Cluster.from_dict(given.file.cluster)
        settings = Settings(
            cluster=cluster,
            mesh=dict(given.mesh.axes),
            static_argnums=signature.static_argnums,
            static_argnames=signature.static_argnames,
            donate_argnums=signature.donate_argnums,
            donate_argnames=signature.donate_argnames,
            carry=signature.carry,
            options=SearchOptions(while_trips=signature.while_trips),
            constraints=signature.constraints,
            memory_limit_bytes=None if limit == int(cluster.device.memory_bytes) else limit,
        )
    return Compiled(function, replace(settings, devices=devices), given)
