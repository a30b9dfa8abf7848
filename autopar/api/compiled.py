"""compile and plan: trace, search, emit, in as many lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Unpack, overload

from autopar._compat import is_tracer, untyped_jax
from autopar.api.agreement import agreed
from autopar.api.call import Signature, call_signature, is_call_of
from autopar.api.dispatch import Dispatch
from autopar.api.host_values import check_global_shapes
from autopar.api.make import Function, alternatives, make_plan, name_of, signature_of, task_of
from autopar.api.options import Options, settings_of, split_options
from autopar.api.placing import Maker, init, plan_for
from autopar.api.plan import Plan
from autopar.api.runner import Bound, Runner
from autopar.api.settings import Settings
from autopar.errors import AutoparError, PlanFileError, SignatureMismatch
from autopar.search.search import restore
from autopar.search.task import SearchOptions
from autopar.trace import CONSTANT, fingerprint, input_signature
from autopar.trace.arguments import read_arguments
from cost_models import Cluster


class Compiled:
    """A function that plans itself once for every input signature, then runs sharded.

    Called like the function it was made from, with arrays (JAX or numpy) or scalars in pytrees; results have the
    function's own structure, as global arrays in the plan's placements.
    """

    def __init__(self, fn: Function, settings: Settings, given: Plan | None = None) -> None:
        self._fn = fn
        self._settings = settings
        self._given = given
        self._plans: dict[Signature, Plan] = {}
        self._asked: list[Signature] = []
        self._runners: dict[object, Runner] = {}
        self._dispatch = Dispatch(name_of(fn), settings, self._runner)
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            if hasattr(fn, name):
                setattr(self, name, getattr(fn, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's results, computed by the plan for this signature, which is made at its first call."""
        return self._dispatch(args, kwargs)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for arguments like these; jax.ShapeDtypeStructs will do.

        Once a plan was asked for, calls with arrays over several processes are refused if their shapes are others: that
        is how rows are lost where each process passes its own.
        """
        key = self._key(args, kwargs)
        self._asked.append(key)
        return self._plan(key, args, kwargs)

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
        return init(plan, maker, argument, plan.check_devices(self._devices()))

    @property
    def made(self) -> tuple[Plan, ...]:
        """The plans of the function itself that were made so far, one for each signature."""
        return tuple(self._plans.values())

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """JAX's `Lowered` of the program that runs for arguments like these: to be compiled and looked into.

        On devices of several processes it is that of this process's own plan; what runs is the first one's.
        """
        return self.plan(*args, **kwargs).lower(self._devices())

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
        return call_signature(args, kwargs, self._settings.static_argnums, self._settings.shardings == "keep")

    def _plan(self, key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        if key not in self._plans:
            self._plans[key] = self._made(key, args, kwargs)
        return self._plans[key]

    def _made(self, key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        given = self._given
        if given is None:
            on_other_meshes = [plan for other, plan in self._plans.items() if other.differs_by_mesh(key)]
            return make_plan(self._fn, self._settings, args, kwargs, on_other_meshes)
        if given.is_bound and given.bound.fn is self._fn and is_call_of(given.bound.traced, key):
            return given
        return _bind(given, self._fn, self._settings, args, kwargs)

    def _runner(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Runner:
        _refuse_tracers(args, kwargs)
        key = self._key(args, kwargs)
        if key not in self._runners:
            self._refuse_unasked(key, args, kwargs)
            plan = self._plan(key, args, kwargs)
            devices = plan.check_devices(self._devices())
            self._runners[key] = Runner(agreed(plan.bound, devices), devices)
        return self._runners[key]

    def _refuse_unasked(self, key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        asked = [other for other in self._asked if other.kind[:-1] == key.kind[:-1]]
        if asked and all(other.types != key.types for other in asked):
            arguments = read_arguments(self._fn, args, kwargs, self._settings.static_argnums)
            check_global_shapes(arguments, arguments.leaves(args, kwargs), asked[-1])

    def _devices(self) -> tuple[Any, ...] | None:
        return self._settings.own_devices()


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
      donate_argnums: positions of arguments whose memory the results may take.
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
    return make_plan(fn, settings_of(options), args, kwargs)


def compiled_from(given: Plan, fn: Function | None, devices: tuple[Any, ...]) -> Compiled:
    """The function that runs `given`, which is bound to `fn` at the first call unless it is already."""
    if given.is_bound:
        bound = given.bound
        function, settings = fn or bound.fn, bound.settings
    else:
        assert fn is not None
        function = fn
        signature, limit = given.file.signature, given.summary.memory_limit_bytes
        cluster = Cluster.from_dict(given.file.cluster)
        settings = Settings(
            cluster=cluster,
            mesh=dict(given.mesh.axes),
            static_argnums=signature.static_argnums,
            donate_argnums=signature.donate_argnums,
            carry=signature.carry,
            options=SearchOptions(while_trips=signature.while_trips),
            constraints=signature.constraints,
            memory_limit_bytes=None if limit == int(cluster.device.memory_bytes) else limit,
        )
    return Compiled(function, replace(settings, devices=devices), given)


def _bind(given: Plan, fn: Function, settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
    """`given` bound to `fn` as traced with these arguments; refused if it is another function."""
    signature = given.file.signature
    passed = input_signature(fn, args, kwargs, settings.static_argnums)
    wanted, rest = signature.inputs[: len(passed)], signature.inputs[len(passed) :]
    if wanted != passed or not all(name.startswith(CONSTANT) for name, _, _ in rest):
        raise SignatureMismatch(_mismatch(signature.inputs, passed))
    traces, expected = alternatives(fn, settings, args, kwargs), given.file.plan.fingerprint
    traced = next((t for t in traces if fingerprint(t.graph) == expected), traces[0])
    if signature.inputs != signature_of(traced, settings).inputs:
        raise PlanFileError(
            f"the plan was made for another function than {name_of(fn)}: its constants differ. Plan again."
        )
    if fingerprint(traced.graph) != expected:
        raise PlanFileError(
            f"the plan was made for another function than {name_of(fn)}: inputs agree, but the traced operators do not "
            f"(plan {expected[:12]}, function {fingerprint(traced.graph)[:12]}). Plan it again."
        )
    cluster = Cluster.from_dict(given.file.cluster)
    planned = restore(task_of(traced, settings, cluster), given.record)
    return Plan(
        given.record, lambda: given.summary, lambda _: given.file, Bound(fn, settings, traced, planned, cluster)
    )


def _mismatch(wanted: Sequence[Any], found: Sequence[Any]) -> str:
    differing = [(*w, f) for w, f in zip(wanted, found, strict=False) if w != f]
    if not differing:
        names = [", ".join(row[0] for row in rows) for rows in (wanted, found)]
        return (
            f"the plan is for {len(wanted)} input arrays ({names[0]}), given are {len(found)} ({names[1]}). "
            f"Pass what was planned, or plan again for these arguments."
        )
    name, shape, dtype, other = differing[0]
    return (
        f"the plan is for {name}: {dtype}{list(shape)}, given is {other[0]}: {other[2]}{list(other[1])}. "
        f"Pass what was planned, or plan again for these arguments."
    )


def _refuse_tracers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if any(is_tracer(leaf) for leaf in untyped_jax.tree.leaves((args, kwargs))):
        raise AutoparError(
            "a compiled function cannot be differentiated, vmapped or traced by JAX: its plan is for the function as "
            "it is. Use jax.value_and_grad inside the function that you compile."
        )
