"""explored: the function of a session: planned for one mesh and one number of rows after another, and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import isfinite
from numbers import Real
from typing import Any

from autopar._compat import untyped_jax
from autopar._mesh import aval_of
from autopar.api.calls import Calls, OpenedCall
from autopar.api.following import followed
from autopar.api.make import alternatives, plan_of_traces
from autopar.api.options import Function, PlanOptions, Settings
from autopar.api.plan import Plan
from autopar.api.shardings import kept
from autopar.api.target import PlanningTarget
from autopar.errors import InvalidOption
from autopar.trace import Traced
from autopar.trace.arguments import positional_names
from cost_models import Cluster, replace_link

Axes = tuple[tuple[str, int], ...]


@dataclass(eq=False)
class ExploredFunction:
    """What a session is about: planned anew for a mesh and for rows of data, and kept."""

    fn: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: PlanOptions
    _traces: dict[int | None, list[Traced]] = field(
        default_factory=dict[int | None, "list[Traced]"]
    )
    _plans: dict[tuple[Axes | None, int | None], Plan] = field(
        default_factory=dict[tuple[Axes | None, int | None], Plan]
    )

    def plan(self, mesh: Axes | None, rows: int | None) -> Plan:
        """The plan on `mesh` for so many rows, without what was asked else; None: as at the beginning."""
        if mesh is not None and rows is None and mesh == self.first.mesh.axes:
            return self.first
        if (mesh, rows) not in self._plans:
            settings = Settings.of(self.options)
            if mesh is not None:
                settings = replace(settings, mesh=dict(mesh), devices=settings.own_devices())
            self._plans[mesh, rows] = self._planned(settings, rows)
        return self._plans[mesh, rows]

    def _planned(self, settings: Settings, rows: int | None) -> Plan:
        """The plan under `settings`."""
        args, kwargs = self._arguments(rows)
        with Calls(self.fn, settings, None).opened(args, kwargs) as call:
            fn = call.pure.fn
            leading = followed(call.pure.settings, fn, call.args, call.kwargs)
            own = kept(leading, fn, call.args, call.kwargs)
            return plan_of_traces(fn, own, self._traced(call, own, rows))

    def _traced(self, call: OpenedCall, settings: Settings, rows: int | None) -> list[Traced]:
        """The traces of a call: made once for as many rows, unless types speak of a mesh."""
        traces = self._traces.get(rows)
        if traces is None:
            cluster = PlanningTarget.of(settings).cluster
            traces = alternatives(call.pure.fn, settings, call.args, call.kwargs, cluster)

        if not traces[0].mesh:
            self._traces[rows] = traces
        return traces

    @property
    def first(self) -> Plan:
        """The plan at the beginning."""
        return self.plan(None, None)

    def cluster(self, links: Sequence[tuple[str, float]]) -> Cluster:
        """The cluster with so many times the bandwidth of these levels."""
        found = self.first.bound.cluster
        topology = found.topology
        for level, factor in links:
            link = topology.levels[topology.index(level)].link
            found = replace_link(
                found, level, bandwidth_bytes_per_s=factor * link.bandwidth_bytes_per_s
            )

        changed = ", ".join(f"{level} x {factor:g}" for level, factor in links)
        return replace(found, name=f"{found.name} ({changed})") if links else found

    def changed_links(
        self, links: Sequence[tuple[str, float]], factor: float, level: str | None
    ) -> tuple[tuple[str, float], ...]:
        """`links` after those of a level, or of all, became `factor` times as fast; see `Session.links`."""
        given: object = factor
        if (
            isinstance(given, bool)
            or not isinstance(given, Real)
            or not isfinite(given)
            or given <= 0
        ):
            raise InvalidOption(
                f"links({factor!r}): pass how many times as fast links are, a finite number > 0"
            )

        names = [one.name for one in self.first.bound.cluster.topology.levels]
        if level is not None and level not in names:
            near = get_close_matches(level, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"they are {', '.join(names)}"
            raise InvalidOption(
                f"links({factor:g}, {level!r}): the cluster has no such level; {hint}"
            )

        changed = [level] if level is not None else names
        factors = {**dict(links), **dict.fromkeys(changed, float(factor))}
        return tuple((name, factors[name]) for name in names if factors.get(name, 1.0) != 1)

    @property
    def rows(self) -> int | None:
        """How many rows of data a step takes at the beginning; None where no argument is data."""
        data = self.first.data_inputs
        return self.first.argument_inputs[data[0]][1][0] if data else None

    def _arguments(self, rows: int | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with so many rows of data, these as shapes.

        Raises:
          InvalidOption: no argument is data.
        """
        if rows is None:
            return self.args, self.kwargs

        before = self.rows
        inputs = self.first.argument_inputs
        names = {inputs[n][0] for n in self.first.data_inputs if inputs[n][1][:1] == (before,)}
        called = positional_names(self.fn, len(self.args))
        args = [
            _with_rows(arg, name, names, rows) for arg, name in zip(self.args, called, strict=True)
        ]
        kwargs = {name: _with_rows(value, name, names, rows) for name, value in self.kwargs.items()}
        given = (*self.args, *self.kwargs.values())
        if all(new is old for new, old in zip((*args, *kwargs.values()), given, strict=True)):
            raise InvalidOption(
                f"batch({rows}): no argument of {self.first.function_name} is known to be data, one row for each "
                f"example. Pass it beside the state, as an argument of its own."
            )
        return tuple(args), kwargs


def _with_rows(argument: Any, name: str, data: set[str], rows: int) -> Any:
    """`argument` with so many rows in the leaves that are among the paths of `data`; itself if it has none."""
    leaves, tree = untyped_jax.tree_util.tree_flatten_with_path(argument)
    paths = [name + untyped_jax.tree_util.keystr(path) for path, _ in leaves]
    if data.isdisjoint(paths):
        return argument

    changed = [
        _of_rows(leaf, rows) if path in data else leaf
        for path, (_, leaf) in zip(paths, leaves, strict=True)
    ]
    return untyped_jax.tree_util.tree_unflatten(tree, changed)


def _of_rows(leaf: Any, rows: int) -> Any:
    aval = aval_of(leaf)
    return untyped_jax.ShapeDtypeStruct((rows, *aval.shape[1:]), aval.dtype)
