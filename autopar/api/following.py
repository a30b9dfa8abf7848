"""Following: a plan whose arguments lie as another plan has its state, as pins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

from jax.sharding import Mesh

from autopar.api.options import Settings
from autopar.api.plan import Plan
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.errors import InvalidMesh, InvalidOption
from autopar.search.constraints.carried import keys_of
from autopar.search.constraints.records import Follow, Layout, Named, Pin
from autopar.trace import input_signature
from cost_models import Cluster

Keys = tuple[str, ...]
_SHOWN = 5


def followed(
    settings: Settings, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Settings:
    """`settings` with the pins, the mesh and the cluster of the plan that they follow; as they are if they follow none.

    Raises:
      InvalidOption: nothing was planned yet that could be followed, or no argument is of its state, or one may be
        several parts of it.
      InvalidMesh: the mesh asked for is another one.
    """
    if settings.follow is None:
        return settings
    leader = LeaderState(plan_of(settings.follow))
    passed = input_signature(fn, args, kwargs, settings.static_argnums)
    pins = tuple(leader.pins([(name, shape) for name, shape, _ in passed]))
    if not pins:
        raise InvalidOption(
            f"{leader.source}: none of {_some([name for name, _, _ in passed])} has the path and shape of a part of "
            f"its state, {_some(leader.names)}. Call the argument as it is called there, or leave out follow."
        )
    constraints = (*settings.constraints, Follow(leader.source, pins))
    return replace(_on_its_mesh(settings, leader), follow=None, constraints=constraints)


def devices_of(settings: Settings) -> tuple[Any, ...] | None:
    """The devices that were asked for, else those that were for the plan that is followed; None for those present.

    Raises:
      InvalidOption: as `plan_of`.
    """
    own = settings.own_devices()
    if own is not None or settings.follow is None:
        return own
    leader = plan_of(settings.follow)
    return leader.bound.settings.own_devices() if leader.is_bound else None


def plan_of(leader: object) -> Plan:
    """The plan to follow: of a compiled function the first that was made.

    Raises:
      InvalidOption: if it is no plan and no compiled function, or one that was not planned yet.
    """
    if isinstance(leader, Plan):
        return leader
    made: object = getattr(leader, "made", None)
    if not isinstance(made, tuple):
        raise InvalidOption(f"follow is {leader!r}: pass a plan, or a function compiled by autopar")
    if not made:
        raise InvalidOption(
            f"follow={getattr(leader, '__name__', 'the compiled function')} was not planned yet: call it first, or its "
            "plan() with arguments like those to come"
        )
    return cast("tuple[Plan, ...]", made)[0]


@dataclass(frozen=True, eq=False)
class LeaderState:
    """What of a plan's inputs is state, and where it lies: all that is no data."""

    plan: Plan

    @property
    def source(self) -> str:
        """What follows it is said to follow."""
        return f"follow({self.plan.function_name})"

    @property
    def names(self) -> list[str]:
        """The paths of the state."""
        return [name for name, _, _ in self._rows]

    def pins(self, passed: Sequence[tuple[str, tuple[int, ...]]]) -> Iterator[Pin]:
        """Pins of those inputs that are of this state by path and shape, argument by argument.

        An argument is a part of the state if all of its leaves are there, with these shapes, under one path: that which
        ends with the argument's name, of several the shortest, else any, if the others lie alike. If only some are,
        these are.

        Raises:
          InvalidOption: an argument may be several parts, which lie differently.
        """
        arguments: dict[str, dict[str, tuple[Keys, tuple[int, ...]]]] = {}
        for name, shape in passed:
            first, *inner = _plain(name)
            arguments.setdefault(first, {})[name] = (tuple(inner), shape)
        for first, leaves in arguments.items():
            under = self._under(first, leaves)
            for name, (inner, shape) in leaves.items():
                path = self._own((first, *inner), shape) if under is None else (*under, *inner)
                if path is not None:
                    yield Pin(Named(name), Layout(self._at[path][1].dims))

    def _under(self, first: str, leaves: Mapping[str, tuple[Keys, tuple[int, ...]]]) -> Keys | None:
        """The path under which all leaves of the argument `first` are; None if there is none."""
        inner = next(iter(leaves.values()))[0]
        prefixes = [
            path[: len(path) - len(inner)]
            for path in self._at
            if path[len(path) - len(inner) :] == inner
        ]
        found = [prefix for prefix in prefixes if prefix and self._has(prefix, leaves)]
        named = [prefix for prefix in found if prefix[-1] == first]
        if named:
            found = [prefix for prefix in named if len(prefix) == min(map(len, named))]
        elif not found or not inner:
            return None

        lying = {
            tuple(self._at[(*prefix, *inner)][1] for inner, _ in leaves.values())
            for prefix in found
        }
        if len(lying) > 1:
            raise InvalidOption(
                f"{self.source}: argument {first!r} may be {' or '.join('.'.join(prefix) for prefix in found)}, which "
                f"lie differently. Call it as the part that it is."
            )

        return found[0]

    def _has(self, prefix: Keys, leaves: Mapping[str, tuple[Keys, tuple[int, ...]]]) -> bool:
        return all(self._is((*prefix, *inner), shape) for inner, shape in leaves.values())

    def _own(self, path: Keys, shape: tuple[int, ...]) -> Keys | None:
        """The shortest path of the state that ends so."""
        ending = [own for own in self._at if own[-len(path) :] == path and self._is(own, shape)]
        return min(ending, key=len, default=None)

    def _is(self, path: Keys, shape: tuple[int, ...]) -> bool:
        return path in self._at and self._at[path][0] == shape

    @cached_property
    def _at(self) -> dict[Keys, tuple[tuple[int, ...], Placement]]:
        """The shape and placement of every part of the state, by its path."""
        return {_plain(name): (shape, placement) for name, shape, placement in self._rows}

    @cached_property
    def _rows(self) -> list[tuple[str, tuple[int, ...], Placement]]:
        data = self.plan.data_inputs
        # constants come last
        placed = zip(self.plan.argument_inputs, self.plan.record.stage.inputs, strict=False)
        return [
            (name, shape, placement)
            for n, ((name, shape), placement) in enumerate(placed)
            if n not in data
        ]


def _on_its_mesh(settings: Settings, leader: LeaderState) -> Settings:
    plan = leader.plan
    if settings.mesh is not None:
        sizes = settings.mesh.shape if isinstance(settings.mesh, Mesh) else settings.mesh
        asked = DeviceMesh.of({str(name): size for name, size in sizes.items()})
        if asked != plan.mesh:
            raise InvalidMesh(
                f"{leader.source} is on mesh {plan.mesh}, and mesh {asked} is asked for: leave out one of the two"
            )
        return replace(settings, cluster=settings.cluster or _cluster(plan))

    own = plan.bound.settings if plan.is_bound else Settings()
    devices = own.own_devices() if settings.devices is None else settings.devices
    return replace(
        settings,
        mesh=dict(plan.mesh.axes),
        devices=devices,
        cluster=settings.cluster or _cluster(plan),
    )


def _cluster(plan: Plan) -> Cluster:
    return plan.bound.cluster if plan.is_bound else Cluster.from_dict(plan.file.cluster)


def _plain(name: str) -> Keys:
    """The keys of a path, however they are written: "state.params['w']" and "state['params'].w" are the same."""
    return tuple(key.strip("[].'\"") for key in keys_of(name))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
