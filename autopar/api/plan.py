"""Plan: what a user holds of a plan, made here or loaded from a file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax.sharding import Mesh

from autopar._compat import untyped_jax
from autopar._mesh import ambient_devices
from autopar.api import plan_file
from autopar.api.bound import Bound
from autopar.api.collection import collection_paused
from autopar.api.figures import Figures
from autopar.api.options import ClusterLike, checked_devices
from autopar.api.placing import Maker, abstract, init, place
from autopar.api.plan_file import PlanFile
from autopar.api.processes import slices_of
from autopar.api.runner import Runner
from autopar.api.source import source_of
from autopar.core.placement import Placement
from autopar.core.program import ShardedProgram
from autopar.emit.several import in_order, this_process
from autopar.emit.wrap import device_mesh, of_keys, shardings
from autopar.errors import (
    AutoparError,
    InvalidConstraint,
    InvalidMesh,
    NoFeasiblePlan,
    Unsolved,
    writing,
)
from autopar.report.brief import Detail
from autopar.report.compare import Comparison
from autopar.report.compare import compare as compare_reports
from autopar.report.data import to_json
from autopar.report.diff import diff
from autopar.report.explain import Why, explain, one_input
from autopar.report.front import FrontPoint
from autopar.report.notebook import report_html
from autopar.report.page import html
from autopar.report.render import text
from autopar.report.rivals import RivalRow
from autopar.report.step import with_alternatives
from autopar.report.summary import Report, step_schedule
from autopar.report.timeline import Timeline
from autopar.report.units import format_quantity
from autopar.search.constraints.matching import is_about
from autopar.search.constraints.records import Constraint, Follow, Forbid, Layout, Named
from autopar.search.constraints.stated import stated
from autopar.search.replan import ConstraintPrice, carry_price, constraint_prices
from autopar.search.verify_plan import Recheck, verify_plan
from autopar.trace import CONSTANT

if TYPE_CHECKING:
    from autopar.api.compiled import Compiled

COMPARED_OPERATORS = 20_000
"""Of a function: with more, a report compares it with other layouts only when asked, as each is solved for."""


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Figures):
    """A plan: placements and strategies for everything, what they cost, and what is proven of them.

    Times are seconds a step, bytes are of one device. `summary` is the typed Report behind every figure. A plan that
    was loaded knows no function until `compile(fn)` is given one. `record` holds the choices themselves.
    """

    _make_file: Callable[[Report], PlanFile] = field(repr=False)
    _bound: Bound | None = field(default=None, repr=False)

    @classmethod
    def of(cls, bound: Bound) -> Plan:
        """The plan that was found, as the user holds it; its figures are made when they are asked for."""
        return cls(bound.emitted.plan, bound.report, bound.file, bound)

    def bound_to(self, bound: Bound) -> Plan:
        """The same plan, and figures, with the function that it is for."""
        return Plan(self.record, lambda: self.summary, lambda _: self.file, bound)

    @cached_property
    def file(self) -> PlanFile:
        """All that is known of the plan without its function, validated."""
        return self._make_file(self.summary)

    @property
    def function_name(self) -> str:
        """What its function is called."""
        return self._bound.name if self._bound else self.summary.function

    @property
    def argument_inputs(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The path and shape of every flat argument; PRNG keys as their data."""
        if self._bound is not None:
            traced = self._bound.traced
            return tuple(
                (t.name, t.shape) for t in traced.graph.inputs[: traced.in_tree.num_leaves]
            )
        inputs = self.file.signature.inputs
        return tuple((name, shape) for name, shape, _ in inputs if not name.startswith(CONSTANT))

    @property
    def gap_tolerance(self) -> float | None:
        """The gap at which its search was to end; None if it is not known: of a file by an older version."""
        return (
            self._bound.settings.options.gap_tolerance
            if self._bound
            else self.file.signature.gap_tolerance
        )

    @property
    def data_inputs(self) -> tuple[int, ...]:
        """The positions of those flat arguments that are data, one row for each example; all others are state."""
        return self._bound.traced.graph.batch_inputs if self._bound else self.file.signature.data

    @property
    def placements(self) -> dict[str, Placement]:
        """The placement of every input, by its path; as a pin states it, where one does."""
        inputs = stated(self._bound.planned)[0] if self._bound else self.record.stage.inputs
        return {row.name: p for row, p in zip(self.summary.inputs, inputs, strict=True)}

    def jax_mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """The mesh over `devices` (None: see `check_devices`), row-major."""
        given = self.check_devices(devices)
        return (
            device_mesh(self.mesh, given, ())
            if self._bound is None
            else self._bound.jax_mesh(given)
        )

    def in_shardings(self, mesh: Mesh | None = None) -> Any:
        """The arguments' NamedShardings on `mesh`, as a tuple with the structure of the arguments."""
        traced = self.bound.traced
        inputs, _ = stated(self.bound.planned)
        placed = of_keys(inputs[: traced.in_tree.num_leaves], traced.graph.key_inputs)
        flat = shardings(placed, mesh or self.jax_mesh(), traced.graph.inputs[: len(placed)])
        args, kwargs = untyped_jax.tree.unflatten(traced.in_tree, flat)
        return (*args, kwargs) if kwargs else args

    def in_slices(self, process: int | None = None, *, devices: Sequence[Any] | None = None) -> Any:
        """The part of every argument that a process holds: a slice for each dim, in the structure of the arguments.

        With several processes, of which each loads its own rows, the batch of a step (argument 1, say) is

            rows = load(plan.in_slices()[1])
            batch = jax.make_array_from_process_local_data(plan.in_shardings()[1], rows)

        If the plan lies the batch whole on every process, these are all rows.

        Args:
          process: its number; None: this one.
          devices: those that the plan runs on; None: see `check_devices`.

        Raises:
          InvalidMesh: if none of the devices is of this process, or what they hold is no box.
          AutoparError: for a loaded plan.
        """
        bound = self.bound
        number = this_process() if process is None else process
        placed = untyped_jax.tree.leaves(self.in_shardings(self.jax_mesh(devices)))
        parts = [
            slices_of(tensor.name, aval.shape, sharding, number)
            for tensor, aval, sharding in zip(
                bound.traced.graph.inputs, bound.traced.input_avals, placed, strict=False
            )
        ]
        args, kwargs = untyped_jax.tree.unflatten(bound.traced.in_tree, parts)
        return (*args, kwargs) if kwargs else args

    def out_shardings(self, mesh: Mesh | None = None) -> Any:
        """The results' NamedShardings on `mesh`, with the structure of the result."""
        traced = self.bound.traced
        _, outputs = stated(self.bound.planned)
        placed = of_keys(outputs, traced.graph.key_outputs)
        flat = shardings(placed, mesh or self.jax_mesh(), traced.graph.outputs)
        return untyped_jax.tree.unflatten(traced.out_tree, flat)

    def place(
        self, tree: Any, argument: int | str = 0, *, devices: Sequence[Any] | None = None
    ) -> Any:
        """The arrays of `tree`, which become an argument of the function, where the plan has them.

        Args:
          tree: arrays of the host or with any sharding, of the argument's structure, shapes and dtypes. What lies in
            place already is shared, not copied. Objects of libraries that can change are changed.
          argument: its position, or its name.
          devices: None: see `check_devices`.

        Raises:
          SignatureMismatch: for other arrays; names the first that differs.
          DifferentValues: the devices belong to several processes, which do not all pass the same.
          AutoparError: for a loaded plan.
        """
        return place(self.bound, tree, argument, self.check_devices(devices))

    def abstract(self, argument: int | str = 0, *, devices: Sequence[Any] | None = None) -> Any:
        """An argument as jax.ShapeDtypeStructs, with the NamedShardings that the plan has for it.

        Args:
          argument: its position, or its name.
          devices: None: see `check_devices`.

        Raises:
          SignatureMismatch: if there is no such argument.
          AutoparError: for a loaded plan.
        """
        return abstract(self.bound, argument, self.check_devices(devices))

    def init(
        self,
        make_state: Callable[..., Any],
        *args: Any,
        argument: int | str = 0,
        devices: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """`make_state(*args, **kwargs)`, made where the plan has this argument of its function: whole on no device.

        It is planned with its results there, within the same memory limit, and run. Random numbers are those of plain
        JAX, bit for bit.

        Args:
          make_state: gives the argument, of its structure, shapes and dtypes.
          *args: as `make_state` takes them: arrays, and whatever else, such as sizes, which is passed on as it is.
          argument: the argument's position, or its name.
          devices: None: see `check_devices`.
          **kwargs: likewise.

        Raises:
          SignatureMismatch: it gives something else; names the first array that differs.
          AutoparError: for a loaded plan, or as `autopar.plan`.
        """
        from autopar.api.compiled import Compiled  # late: what it compiles to makes plans itself

        maker = Maker.of(make_state, args, kwargs)
        return init(self.bound, maker, argument, self.check_devices(devices), Compiled)

    def program(self) -> ShardedProgram:
        """The explicit program: local operators and collectives, in order."""
        return self.bound.emitted.program

    def report(
        self,
        *,
        prices: bool = False,
        compare: bool | None = None,
        details: Collection[Detail] = (),
    ) -> str:
        """The plan as text, with what following another plan costs, for which it is solved anew.

        Args:
          prices: with what each constraint and the carry cost, for which it is solved as often.
          compare: with what data parallelism, FSDP and Megatron would cost, for which it is solved with pins; None:
            where its function has at most `COMPARED_OPERATORS` operators.
          details: what is told in full: "ops", "collectives", "memory", "compare".
        """
        rivals = self.told_rivals(compare, details)
        return text(self.summary, self.prices(every=prices), rivals, details)

    def told_rivals(
        self,
        compare: bool | None,
        details: Collection[Detail] = (),
        layouts: Mapping[str, Sequence[Constraint]] | None = None,
    ) -> tuple[RivalRow, ...]:
        """The rivals that a report tells of, and `layouts`: arguments as of `report` and `rivals`."""
        if layouts:
            return self.rivals(**layouts)
        if not self.is_bound or compare is False:
            return ()
        is_asked = compare is True or "compare" in details
        is_quick = len(self.bound.traced.graph.ops) <= COMPARED_OPERATORS
        return self.rivals() if is_asked or is_quick else ()

    @cached_property
    def detailed(self) -> Report:
        """`summary`, with what runs in a step and its alternatives; these are not known of a loaded plan."""
        if not self.is_bound:
            return self.summary
        step = self.bound.step()
        with collection_paused():
            return replace(self.summary, step=with_alternatives(step, self.bound.emitted))

    def to_html(
        self,
        path: str | Path | None = None,
        *,
        compare: bool | None = None,
        front: Sequence[FrontPoint] = (),
    ) -> str:
        """The plan as one HTML page that loads nothing: the step as a graph, in time and in memory, and the report.

        Args:
          path: where it is written, too.
          compare: as of `report`.
          front: the points of a front to show beside it (`Front.to_html` gives its own).

        Raises:
          AutoparError: it cannot be written.
        """
        return _written(path, html(self.detailed, self.told_rivals(compare), front), "page")

    def to_json(self, path: str | Path | None = None, *, compare: bool | None = None) -> str:
        """All that the page shows as JSON, in seconds and bytes, placements as text and as data.

        Args:
          path: where it is written, too.
          compare: as of `report`.

        Raises:
          AutoparError: it cannot be written.
        """
        return _written(path, to_json(self.detailed, self.told_rivals(compare)), "report")

    def rivals(self, **layouts: Sequence[Constraint]) -> tuple[RivalRow, ...]:
        """What the layouts that people write by hand would cost on as many devices, within the same memory limit.

        Data parallelism, FSDP and, where weights are multiplied with, Megatron: pins of data and parameters, of which
        the rest is searched with bounded work. Solved when first asked for.

        Args:
          **layouts: constraints of your own by name, on the axes of the plan's mesh: by_hand=(autopar.pin(...), ...).

        Raises:
          InvalidConstraint: a layout names what there is not.
          AutoparError: for a loaded plan.
        """
        return self._rivals if not layouts else self.bound.rivals(layouts)

    @cached_property
    def _rivals(self) -> tuple[RivalRow, ...]:
        return self.bound.rivals({})

    def prices(self, *, every: bool = True) -> tuple[ConstraintPrice, ...]:
        """What each constraint and the carry cost; of following alone, unless of `every` one."""
        if not every:
            return self.follow_prices()
        carry = self.carry_price()
        return (*self.constraint_prices(), *(() if carry is None else (carry,)))

    def explain(self, name: str) -> str:
        """What the plan does with an input, given by its path, or with a source line, and why.

        Of a single input the next best placement is told with its price, for which the plan is solved anew.

        Raises:
          AutoparError: if there is no such thing; lists what is called similarly.
        """
        row = one_input(self.summary, name)
        why = self._why(name) if row is not None and self.is_bound else None
        return explain(self.summary, name, why)

    def _why(self, name: str) -> Why:
        """What holds an input where it is, and what it costs to lie otherwise."""
        position = [row.name for row in self.summary.inputs].index(name)
        own = self.record.stage.inputs[position]
        forced = tuple(str(one) for one in self.constraints if is_about(one, name))
        apart = Forbid(Named(name), Layout(own.dims, own.unreduced, own.kind))
        try:
            other = self.bound.resolved((*self.constraints, apart), None, None)
        except (NoFeasiblePlan, Unsolved, InvalidConstraint):
            return Why(forced, "", 0.0)
        placement = other.planned.plan.stage.inputs[position]
        return Why(forced, str(placement), other.planned.plan.objective_s - self.objective_s)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """What the plan is held to, the constraints of its mode included."""
        return (
            self.file.signature.constraints
            if self._bound is None
            else self._bound.planned.task.all_constraints
        )

    def resolve(
        self,
        *,
        constraints: Sequence[Constraint] | None = None,
        memory_limit_bytes: int | str | None = None,
        cluster: ClusterLike = None,
    ) -> Plan:
        """The best plan on the same mesh after a change of constraints, memory limit or cluster; None: as before.

        Nothing is traced again, no candidates are enumerated again, and only another cluster makes prices anew; but for
        recomputation, which is looked into as in `autopar.plan`, from a plan that recomputes even if the limit costs
        little. The other meshes, and operators kept or expanded the other way, are not tried.

        Args:
          constraints: all that the new plan is held to; (*plan.constraints, autopar.pin(...)) adds one.
          memory_limit_bytes: what a device may use, a number or text ("30GiB").
          cluster: as in `autopar.plan`, of as many devices; its memory is the limit unless one was ever given.

        Raises:
          AutoparError: as `autopar.plan`; for a loaded plan.
        """
        return Plan.of(self.bound.resolved(constraints, memory_limit_bytes, cluster))

    def constraint_prices(self) -> tuple[ConstraintPrice, ...]:
        """What each constraint costs: how much less the objective is without it. Solves once for each, when asked."""
        return self._prices

    def follow_prices(self) -> tuple[ConstraintPrice, ...]:
        """What it costs to follow another plan, or to keep arrays as they came; () where neither was asked for.

        Solves once for each, when first asked; of a loaded plan it is not known.
        """
        return self._follow_prices if self.is_bound else ()

    @cached_property
    def _follow_prices(self) -> tuple[ConstraintPrice, ...]:
        if not any(isinstance(constraint, Follow) for constraint in self.constraints):
            return ()
        return constraint_prices(self.bound.planned, (Follow,))

    def carry_price(self) -> ConstraintPrice | None:
        """What it costs that results keep the placements of the inputs that they become; None where none does.

        Solves once, when first asked.
        """
        return self._carry_price

    @cached_property
    def _carry_price(self) -> ConstraintPrice | None:
        return carry_price(self.bound.planned)

    @cached_property
    def _prices(self) -> tuple[ConstraintPrice, ...]:
        return constraint_prices(self.bound.planned)

    def verify(self, search_work: float = 20.0) -> Recheck:
        """The lower bound on this plan's mesh, proven anew by code that shares nothing with the search.

        Args:
          search_work: of CP-SAT, in its deterministic seconds, for doing again what only a search of it has shown.

        Raises:
          InvalidSolution: the bound is not proven: a bug.
          AutoparError: for a plan that was loaded: it holds no proof.
        """
        found = verify_plan(self.bound.planned, self.summary.lower_bound_s, search_work)
        if found is None:
            raise AutoparError(
                "this plan holds no proof of its bound, as it was loaded or kept in a cache: plan anew, with "
                "cache=False, then verify"
            )
        return found

    def diff(self, other: Plan) -> str:
        """What differs between this plan and another."""
        return diff(self.summary, other.summary)

    def timeline(self) -> Timeline:
        """The step as it is simulated, for Perfetto: `plan.timeline().save("step.json")`.

        Raises:
          AutoparError: for a loaded plan.
        """
        bound = self.bound
        return Timeline(
            self.summary.function, self.program(), step_schedule(bound.emitted, bound.priced_for)
        )

    def compile(
        self, fn: Callable[..., Any] | None = None, *, devices: Sequence[Any] | None = None
    ) -> Compiled:
        """The function that runs this plan on `devices` (None: see `check_devices`).

        A loaded plan needs `fn`, the function it was made for; it is refused at the first call if it differs.
        """
        if fn is None and not self.is_bound:
            raise AutoparError(
                "a loaded plan knows no function: call plan.compile(fn) with the one it was made for"
            )
        # late: what it compiles to makes plans itself
        from autopar.api.compiled import (
            compiled_from,
        )

        return compiled_from(self, fn, self.check_devices(devices))

    def lower(self, devices: Sequence[Any] | None = None) -> Any:
        """JAX's Lowered of the program that runs on `devices` (None: see `check_devices`), to be compiled.

        Nothing is placed or run, so the devices need not be there: those of `jax.experimental.topologies` will do.

        Raises:
          AutoparError: for a loaded plan, or another number of devices.
        """
        return Runner(self.bound, self.check_devices(devices)).lower()

    def to_source(self, path: str | Path | None = None) -> str:
        """The plan's program as a Python module that imports JAX and numpy alone, with a reason at each collective.

        The module has the function under its own name, to be called as it was, and `program(devices)`, jitted, of flat
        arrays. It needs as many devices as the mesh has. What an axis of Explicit type says is not kept.

        Args:
          path: where it is written, too; needed where constants are too large for text: they go into an .npz beside it.

        Raises:
          SourceError: something has no text that stands alone: a callback to the host, a primitive of your own.
          AutoparError: for a loaded plan; where it cannot be written.
        """
        summary = self.summary
        headline = f"{format_quantity(summary.step_time_s, 'time')} a step predicted"
        return source_of(self.bound, None if path is None else Path(path), headline)

    def save(self, path: str | Path) -> None:
        """Writes the plan to `path` as JSON."""
        plan_file.dump(self.file, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """The plan in the file at `path`, validated; nothing in it is executed.

        Raises:
          PlanFileError: if the file is missing, corrupt, or no plan.
        """
        file = plan_file.load(Path(path))
        return cls(file.plan, lambda: file.report, lambda _: file)

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        return f"Plan({self.summary.in_short})"

    def _repr_html_(self) -> str:
        return report_html(self.summary)

    @property
    def is_bound(self) -> bool:
        """Whether the plan knows its function."""
        return self._bound is not None

    @property
    def bound(self) -> Bound:
        """The function, its traced graph and program.

        Raises:
          AutoparError: for a loaded plan.
        """
        if self._bound is None:
            raise AutoparError(
                "a loaded plan knows no function: plan.compile(fn).plan(*args) is bound to one"
            )
        return self._bound

    def check_devices(self, devices: Sequence[Any] | None) -> tuple[Any, ...]:
        """`devices`, refused unless they are as many as the mesh has.

        None: those that the plan was asked for, by a list or by a mesh of JAX; else those of the mesh that is set, if
        they are as many; else those that are present.
        """
        asked = self._bound.settings.own_devices() if devices is None and self._bound else None
        ambient = ambient_devices() if devices is None else ()
        present = ambient if len(ambient) == self.mesh.size else in_order(untyped_jax.devices())
        given = asked or (present if devices is None else checked_devices(devices))
        if len(given) != self.mesh.size:
            raise InvalidMesh(
                f"the plan is for mesh {self.mesh} of {self.mesh.size} devices, {len(given)} are "
                f"{'present' if devices is None else 'given'}. Run it there, or plan again for these."
            )
        return given


def _written(path: str | Path | None, text: str, what: str) -> str:
    """`text`, written to `path` if there is one."""
    if path is not None:
        with writing(what, path):
            Path(path).write_text(text, encoding="utf-8")
    return text


def compare(this: Plan, other: Plan) -> Comparison:
    """Which of two plans takes less time in a step, and whether the cost model can tell; if not, measure both.

    What both owe to the same number of the cluster, or to the same kernel, errs alike in both and cancels.

    Raises:
      AutoparError: of one of them the errors are not known: saved by an older version, or with a pricing of its own.
    """
    return compare_reports(this.summary, other.summary)
