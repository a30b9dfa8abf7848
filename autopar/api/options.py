"""Options: the keywords of `compile`, `plan` and `front`, stated once, and the Settings that they make."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from autopar.api.constraints import checked
from autopar.api.plan_cache import checked_cache
from autopar.api.settings import ClusterLike, MeshLike, Settings
from autopar.api.shardings import with_mesh_of_shardings
from autopar.api.sizes import limit_of
from autopar.errors import InvalidOption, UnknownOption
from autopar.price.pricing import MakePricing
from autopar.search.constraints.records import Constraint
from autopar.search.task import SearchOptions

if TYPE_CHECKING:
    from autopar.api.compiled import Compiled
    from autopar.api.plan import Plan


class Options(TypedDict, total=False):
    """The keyword options of `autopar.compile`, `plan` and `front`; `compile` says what each means.

    Their defaults are those of `Settings`, whose fields have the same names.
    """

    cluster: ClusterLike
    mesh: MeshLike
    mode: str
    memory_limit_bytes: int | str | None
    static_argnums: int | Sequence[int]
    static_argnames: str | Iterable[str]
    donate_argnums: int | Sequence[int]
    donate_argnames: str | Iterable[str]
    in_shardings: Any
    out_shardings: Any
    carry: Any
    strict: bool
    options: SearchOptions
    dump: str | Path | None
    devices: Sequence[Any] | None
    pricing: MakePricing | None
    constraints: Sequence[Constraint]
    follow: Plan | Compiled | None
    shardings: Literal["move", "keep"]
    cache: str | Path | Literal[False] | None


def settings_of(options: Mapping[str, Any]) -> Settings:
    """The settings that these options make.

    Raises:
      UnknownOption: for a name that is no option, with the reason for one of jax.jit.
      InvalidOption: for a memory limit that is none, or a constraint that is none.
    """
    for name, value in options.items():
        if name in _OF_JIT and not value:
            continue  # as jax.jit has it by itself
        if name not in Options.__annotations__:
            raise UnknownOption(_unknown(name))
    given = {name: value for name, value in options.items() if name not in _OF_JIT}
    given["constraints"] = checked(given.get("constraints", ()))
    if given.get("devices") is not None:
        given["devices"] = tuple(given["devices"])
    if given.get("memory_limit_bytes") is not None:
        given["memory_limit_bytes"] = limit_of(given["memory_limit_bytes"])
    if given.get("shardings", "move") not in ("move", "keep"):
        raise InvalidOption(
            f"shardings is {given['shardings']!r}: pass 'move', to have arrays moved to where the plan has them, or "
            f"'keep', to have the plan made for where they lie"
        )
    given["cache"] = checked_cache(given.get("cache"))
    if given.get("pricing") is not None and options.get("cache"):
        raise InvalidOption("plans of a pricing of your own cannot be kept, as it has no name: leave out cache")
    return with_mesh_of_shardings(Settings(**given))


def split_options(keywords: Mapping[str, Any], without: Collection[str] = ()) -> tuple[Options, dict[str, Any]]:
    """The options among `keywords`, and the others: arguments of the function that is planned.

    Raises:
      InvalidOption: for one of `without`, options that mean nothing where they were given.
    """
    for name in without:
        if name in keywords and _is_option(name, keywords[name]):
            raise InvalidOption(f"{name} is an option of autopar.compile and plan only: leave it out here")
    options = {name: value for name, value in keywords.items() if _is_option(name, value)}
    rest = {name: value for name, value in keywords.items() if name not in options}
    return cast("Options", options), rest


def _is_option(name: str, value: object) -> bool:
    """Whether a keyword is an option; arrays called `cache` are those of a function that decodes, and no directory."""
    if name == "cache":
        return value is None or value is False or isinstance(value, str | Path)
    return name in Options.__annotations__


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
    near = get_close_matches(name, Options.__annotations__, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; they are {', '.join(Options.__annotations__)}"
    return f"autopar.compile has no option {name}{hint}"
