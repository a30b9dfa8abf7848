"""Options: the keywords of `compile`, `plan` and `front`: what each means, how it is checked, and its default."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast

from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from autopar._compat import untyped_jax
from autopar.api.call import Parameters
from autopar.api.constraints import checked
from autopar.api.sizes import limit_of
from autopar.core.mesh import DeviceMesh
from autopar.cost.pricing import MakePricing
from autopar.errors import InvalidMesh, InvalidOption, UnknownOption
from autopar.search.constraints.records import Constraint
from autopar.search.task import SearchOptions
from autopar.trace.arguments import DonateArgnums, function_name
from cost_models import Cluster

if TYPE_CHECKING:
    from autopar.api.compiled import Compiled
    from autopar.api.plan import Plan

MeshLike = Mapping[str, int] | Mesh | None
ClusterLike = str | Path | Cluster | None
Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


class PlanOptions(TypedDict, total=False):
    """The keyword options of `autopar.compile`, `plan` and `front`.

    Attributes:
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
      donate_argnums: positions of arguments whose memory the results may take, which are gone after a call; "carried":
        every array whose place a result takes, as `carry` says.
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
      options: how to search; None: as `SearchOptions()` says.
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
    """

    cluster: ClusterLike
    mesh: MeshLike
    mode: str
    memory_limit_bytes: int | str | None
    static_argnums: int | Sequence[int]
    static_argnames: str | Iterable[str]
    donate_argnums: int | Sequence[int] | Literal["carried"]
    donate_argnames: str | Iterable[str]
    in_shardings: Any
    out_shardings: Any
    carry: Any
    strict: bool
    options: SearchOptions | None
    dump: str | Path | None
    devices: Sequence[Any] | None
    pricing: MakePricing | None
    constraints: Sequence[Constraint]
    follow: Plan | Compiled | None
    shardings: Literal["move", "keep"]
    cache: str | Path | Literal[False] | None


@dataclass(frozen=True)
class Settings:
    """`PlanOptions` as they are kept: checked, with their defaults."""

    cluster: ClusterLike = None
    mesh: MeshLike = None
    mode: str = "auto"
    memory_limit_bytes: int | None = None
    static_argnums: int | Sequence[int] = ()
    static_argnames: str | Iterable[str] = ()
    donate_argnums: DonateArgnums = ()
    donate_argnames: str | Iterable[str] = ()
    in_shardings: Any = None
    out_shardings: Any = None
    carry: Any = "auto"
    strict: bool = False
    options: SearchOptions = field(default_factory=SearchOptions)
    dump: str | Path | None = None
    devices: tuple[Any, ...] | None = None
    pricing: MakePricing | None = None
    constraints: tuple[Constraint, ...] = ()
    follow: Any = None
    shardings: Literal["move", "keep"] = "move"
    cache: Path | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """The settings that these options make.

        Raises:
          UnknownOption: for a name that is no option, with the reason for one of jax.jit.
          InvalidOption: for a value that its option does not take.
        """
        for name, value in options.items():
            is_default_of_jit = name in _OF_JIT and not value
            if name not in PlanOptions.__annotations__ and not is_default_of_jit:
                raise UnknownOption(_unknown(name))

        given = {name: value for name, value in options.items() if name not in _OF_JIT}
        if given.get("options") is None:
            given.pop("options", None)
        elif not isinstance(given["options"], SearchOptions):
            raise InvalidOption(
                f"options is {given['options']!r}: pass autopar.SearchOptions(...), what says how to search"
            )
        if given.get("pricing") is not None and not callable(given["pricing"]):
            raise InvalidOption(
                f"pricing is {given['pricing']!r}: pass a function of a graph, a mesh and a cluster, or None"
            )

        given["constraints"] = checked(given.get("constraints", ()))
        if given.get("devices") is not None:
            given["devices"] = tuple(given["devices"])
        if given.get("memory_limit_bytes") is not None:
            given["memory_limit_bytes"] = limit_of(given["memory_limit_bytes"])

        given["cache"] = _checked_cache(given.get("cache"))
        settings = cls(**given)

        if settings.shardings not in ("move", "keep"):
            raise InvalidOption(
                f"shardings is {settings.shardings!r}: pass 'move', to have arrays moved to where the plan has them, "
                f"or 'keep', to have the plan made for where they lie"
            )

        if settings.pricing is not None and options.get("cache"):
            raise InvalidOption(
                "plans of a pricing of your own cannot be kept, as it has no name: leave out cache"
            )

        return replace(settings, mesh=_mesh_with_shardings(settings))

    def counted_as(self, static: int | Sequence[int], donated: DonateArgnums) -> Settings:
        """The same, with other positions of arguments."""
        return replace(self, static_argnums=static, donate_argnums=donated)

    def own_devices(self) -> tuple[Any, ...] | None:
        """The devices that the user named, by a list or by a mesh of JAX; None where there are none."""
        if isinstance(self.mesh, Mesh):
            return tuple(self.mesh.devices.flat)
        return None if self.devices is None else checked_devices(self.devices)


# Keywords of functions ------------------------------------------------------------------------------------------------


def takes_options(function: F) -> F:
    """`function` with the options in the place of its `**keywords`, in its signature and in its documentation."""
    own = signature(function)
    defaults = {
        one.name: None if one.default is MISSING else one.default for one in fields(Settings)
    }
    options = [
        Parameter(
            name, Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind.__forward_arg__
        )
        for name, kind in PlanOptions.__annotations__.items()
    ]
    kept = [one for one in own.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    function.__dict__["__signature__"] = Signature(
        [*kept, *options], return_annotation=own.return_annotation
    )

    meanings = (PlanOptions.__doc__ or "").partition("Attributes:")[2]
    function.__doc__ = f"{function.__doc__ or ''}\n    Options:{meanings}"
    return function


def split_options(
    fn: Function, keywords: Mapping[str, Any], without: Collection[str] = ()
) -> tuple[PlanOptions, dict[str, Any]]:
    """The options among `keywords`, and the others: arguments of `fn`, the function that is planned.

    Raises:
      InvalidOption: for one of `without`, options that mean nothing where they were given.
      UnknownOption: for a name that `fn` does not take and that is nearly one of an option.
    """
    for name in without:
        if name in keywords and _is_option(name, keywords[name]):
            raise InvalidOption(
                f"{name} is an option of autopar.compile and plan only: leave it out here"
            )

    options = {name: value for name, value in keywords.items() if _is_option(name, value)}
    rest = {name: value for name, value in keywords.items() if name not in options}

    parameters = Parameters.of(fn) if rest else None
    for name in rest:
        if name == "cache" and parameters is not None and not parameters.takes(name):
            raise InvalidOption(
                f"cache is {keywords[name]!r}: pass the directory in which plans are kept, or None"
            )
        near = get_close_matches(name, PlanOptions.__annotations__, n=1)
        if near and parameters is not None and not parameters.takes(name):
            raise UnknownOption(
                f"{name} is no option of autopar.plan, and {function_name(fn)} has no such argument; did you mean "
                f"{near[0]}?"
            )

    return cast("PlanOptions", options), rest


def _is_option(name: str, value: object) -> bool:
    """Whether a keyword is an option; arrays called `cache` are those of a function that decodes, and no directory."""
    if name == "cache":
        return value is None or value is False or isinstance(value, str | Path)
    return name in PlanOptions.__annotations__


_OF_JIT = {
    "abstracted_axes": "a plan is for known shapes",
    "backend": "name the devices: devices=jax.devices(backend)",
    "compiler_options": "set XLA_FLAGS, or lower(...).compile(compiler_options=...)",
    "device": "a plan is for several devices: devices=...",
    "inline": "under a trace of JAX the planned program is always a part of what is around it",
    "keep_unused": "arguments that are not used are always kept",
}
"""Options of jax.jit that are none here, and why."""


def _unknown(name: str) -> str:
    if name in _OF_JIT:
        return f"autopar.compile has no option {name}, which jax.jit has: {_OF_JIT[name]}"
    near = get_close_matches(name, PlanOptions.__annotations__, n=1)
    hint = (
        f"; did you mean {near[0]}?"
        if near
        else f"; they are {', '.join(PlanOptions.__annotations__)}"
    )
    return f"autopar.compile has no option {name}{hint}"


# Values of options ----------------------------------------------------------------------------------------------------

_ORDINARY_MEMORY = None, "device", "unpinned_host"


def checked_devices(devices: Sequence[Any]) -> tuple[Any, ...]:
    """`devices` as a tuple.

    Raises:
      InvalidMesh: if there is none, one is given twice, or one is no JAX device.
    """
    given = tuple(devices)
    for device in given:
        if not isinstance(device, untyped_jax.Device):
            raise InvalidMesh(
                f"{device!r} is given as a device; pass JAX devices, such as jax.devices()[:4]"
            )
    if not given or len(set(given)) != len(given):
        raise InvalidMesh(f"devices must be at least one, each given once; given are {list(given)}")
    return given


def is_sharding(value: Any) -> bool:
    """Whether `value` stands for one leaf of `in_shardings`, or of `out_shardings`."""
    return value is None or isinstance(value, Sharding | PartitionSpec)


def _checked_cache(given: object) -> Path | None:
    """The directory of plans that the option `cache` names; None for none.

    Raises:
      InvalidOption: if it is no directory.
    """
    if given is None:
        given = os.environ.get("AUTOPAR_CACHE") or False
    if given is False:
        return None

    if not isinstance(given, str | Path) or not str(given):
        raise InvalidOption(
            f"cache is {given!r}: pass a directory, False for none, or None for that of AUTOPAR_CACHE"
        )

    path = Path(given).expanduser()
    if path.exists() and not path.is_dir():
        raise InvalidOption(
            f"cache is {str(given)!r}, which is no directory: name one, which is made if it is missing"
        )

    return path


def _mesh_with_shardings(settings: Settings) -> MeshLike:
    """The mesh that is asked for, else that of the NamedShardings among the settings.

    Raises:
      InvalidOption: for what is no sharding of several devices, or shardings on several meshes.
    """
    meshes: list[Any] = []
    for name in ("in_shardings", "out_shardings"):
        for leaf in untyped_jax.tree.leaves(getattr(settings, name), is_leaf=is_sharding):
            _check_sharding(name, leaf)
            if isinstance(leaf, NamedSharding) and leaf.mesh not in meshes:
                meshes.append(leaf.mesh)

    if len(meshes) > 1:
        shown = ", ".join(str(DeviceMesh.of(dict(mesh.shape))) for mesh in meshes)
        raise InvalidOption(
            f"in_shardings and out_shardings are on several meshes, {shown}: a plan has one"
        )

    if not meshes:
        return settings.mesh

    mesh = meshes[0]
    if settings.mesh is None:
        return mesh if isinstance(mesh, Mesh) else dict(mesh.shape)

    asked = settings.mesh.shape if isinstance(settings.mesh, Mesh) else settings.mesh
    if dict(asked) != dict(mesh.shape):
        raise InvalidOption(
            f"in_shardings and out_shardings are on mesh {DeviceMesh.of(dict(mesh.shape))}, and mesh "
            f"{DeviceMesh.of(dict(asked))} is asked for: leave out mesh, or pass PartitionSpecs of its axes"
        )

    return settings.mesh


def _check_sharding(what: str, leaf: Any) -> None:
    if leaf is None or isinstance(leaf, PartitionSpec):
        return
    if not isinstance(leaf, NamedSharding):
        raise InvalidOption(
            f"{what} holds {leaf!r}: pass a jax.sharding.NamedSharding, a PartitionSpec, or None for what is searched"
        )
    if leaf.memory_kind not in _ORDINARY_MEMORY:
        raise InvalidOption(
            f"{what} holds {leaf!r}: a plan places arrays in the memory of devices, not {leaf.memory_kind}"
        )
