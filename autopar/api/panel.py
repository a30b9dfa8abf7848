"""Panel: a session as widgets in a notebook. ipywidgets is an extra, imported only when a panel is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from math import log2
from typing import TYPE_CHECKING, Any

from jax.sharding import PartitionSpec

from autopar.errors import AutoparError, of_extra
from autopar.report.notebook import line_html, session_html
from autopar.report.placements import parse_placement
from autopar.report.sections import show_mesh
from autopar.search.mesh_shapes import mesh_shapes

if TYPE_CHECKING:
    from autopar.api.explore import Session

_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
_LEAST_SHARE = 8
"""Of the peak at the beginning: the smallest limit that the slider has is one part in so many."""
_AXES = 2
_GIB = 2**30
_WIDE = {"description_width": "8em"}


class Panel:
    """The questions of a session as widgets, with its plan and the last answer below.

    A widget that is moved asks; one that is set back by `undo`, or after an error, shows what holds. An error stands in
    `message`. `box` is all of it, to be displayed or put into other widgets.

    Attributes:
      limit: GiB that a device may use, on a logarithmic scale.
      links: for each level of the cluster, how many times as fast its links are.
      mesh: the mesh.
      batch: rows of data in a step; None where no argument is data.
      target: the path that `pin`, `release` are about.
      placement: where it is pinned, as reports show placements: "[-, x]".
      buttons: "pin", "release" and "undo".
      message: the last error, as HTML; "" if the last question has an answer.
      answer: the last answer, as HTML.
      table: the plan and what was asked, as HTML.
    """

    def __init__(self, session: Session) -> None:
        with of_extra("notebooks", "a session's panel is made of ipywidgets"):
            self._widgets: Any = import_module("ipywidgets")
        self._session = session
        self._is_set = False
        start = session.start.summary

        limit = start.memory_limit_bytes or start.peak_memory_bytes
        self._most = limit / _GIB
        least = min(start.peak_memory_bytes, limit) / _LEAST_SHARE / _GIB
        self.limit = self._slider(least)
        self.links = {level.name: self._factor(level.name) for level in self._levels}
        self.mesh = self._dropdown("mesh", self._meshes())
        self.batch = self._dropdown("batch", _batches(start.throughput.rows))
        self._make_pins([row.name for row in start.inputs])

        self.message, self.answer, self.table = (self._widgets.HTML() for _ in range(3))
        self.box = self._boxed()
        self._show()
        self._listen()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.box._repr_mimebundle_(**options)

    def __repr__(self) -> str:
        return f"Panel({self._session!r})"

    # Widgets --------------------------------------------------------------------------------------------------------

    @property
    def _levels(self) -> tuple[Any, ...]:
        return self._session.start.bound.cluster.topology.levels

    def _slider(self, least: float) -> Any:
        return self._widgets.FloatLogSlider(
            value=self._most,
            base=2,
            min=log2(least),
            max=log2(self._most),
            step=0.05,
            description="memory, GiB",
            continuous_update=False,
            readout_format=".3g",
            style=_WIDE,
        )

    def _factor(self, level: str) -> Any:
        return self._widgets.SelectionSlider(
            options=[(f"x {factor:g}", factor) for factor in _FACTORS],
            value=1.0,
            description=f"links, {level}",
            continuous_update=False,
            style=_WIDE,
        )

    def _dropdown(self, name: str, options: Mapping[str, Any]) -> Any:
        return self._widgets.Dropdown(
            options=list(options.items()), value=None, description=name, style=_WIDE
        )

    def _make_pins(self, names: list[str]) -> None:
        self.target = self._widgets.Combobox(
            options=names, placeholder="a path", description="pin", style=_WIDE
        )
        self.placement = self._widgets.Text(placeholder="[-, x]", layout={"width": "10em"})
        self.buttons = {
            name: self._widgets.Button(description=name, layout={"width": "6em"})
            for name in ("pin", "release", "undo")
        }

    def _meshes(self) -> dict[str, Any]:
        """The mesh at the beginning, then the shapes that are searched where none is asked for."""
        start = self._session.start.mesh.axes
        sizes = self._session.start.bound.cluster.topology.sizes
        others = [mesh.whole.axes for mesh in mesh_shapes(sizes, _AXES)]
        shown = {show_mesh(axes).partition(" (")[0]: axes for axes in others if axes != start}
        return {f"{show_mesh(start).partition(' (')[0]}, as it was": None, **shown}

    def _boxed(self) -> Any:
        pins = self._widgets.HBox([self.target, self.placement, *self.buttons.values()])
        sliders = [self.limit, *self.links.values(), self.mesh]
        rows = [*sliders, self.batch, pins, self.message, self.answer, self.table]
        return self._widgets.VBox(rows)

    # Questions ------------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Has every widget ask when its value changes, or it is pressed."""
        session = self._session
        self._on_change(self.limit, lambda value: session.limit(self._bytes(value)))
        for level, widget in self.links.items():
            self._on_change(widget, lambda value, level=level: session.links(value, level))
        self._on_change(
            self.mesh, lambda value: session.mesh(None if value is None else dict(value))
        )
        self._on_change(self.batch, session.batch)

        asked: dict[str, Callable[[], object]] = {
            "pin": self._pin,
            "release": lambda: session.release(self.target.value),
            "undo": session.undo,
        }
        for name, ask in asked.items():
            self.buttons[name].on_click(partial(self._pressed, ask))

    def _on_change(self, widget: Any, ask: Callable[[Any], object]) -> None:
        widget.observe(partial(self._moved, ask), names="value")

    def _pressed(self, ask: Callable[[], Any], _: object) -> None:
        self._ask(ask)

    def _moved(self, ask: Callable[[Any], Any], change: Mapping[str, Any]) -> None:
        self._ask(lambda: ask(change["new"]))

    def _bytes(self, gib: float) -> int | None:
        """The bytes of a limit; None at the end of the slider, where it is that of the beginning."""
        return None if gib >= self._most * (1 - 1e-9) else int(gib * _GIB)

    def _pin(self) -> object:
        dims = _dims_of(self.placement.value)
        return self._session.pin(self.target.value, PartitionSpec(*(axes or None for axes in dims)))

    def _ask(self, ask: Callable[[], Any]) -> None:
        """Asks, unless a value was set here and not by a person, then shows what holds."""
        if self._is_set:
            return

        try:
            answer = ask()
        except AutoparError as error:
            self.message.value = line_html(f"{type(error).__name__}: {error}")
        else:
            self.message.value = ""
            self.answer.value = answer._repr_html_()
        self._show()

    def _show(self) -> None:
        """Sets every widget to what the session holds."""
        asked = self._session.asked
        limit = asked.memory_limit_bytes
        factors = dict(asked.links)

        self._is_set = True
        try:
            self.limit.value = self._most if limit is None else min(limit / _GIB, self._most)
            for level, widget in self.links.items():
                widget.value = factors.get(level, 1.0)
            self.mesh.value = asked.mesh
            self.batch.value = asked.rows
        finally:
            self._is_set = False
        session = self._session
        self.table.value = session_html(
            session.plan.summary, session.history, session.start.summary
        )


def _batches(rows: int) -> dict[str, int | None]:
    """Halves and doubles of the rows of a step; nothing else where there are none."""
    many = [rows * 2**power for power in (1, 2, 3)] if rows else []
    few = [rows // 2**power for power in (2, 1) if rows and rows % 2**power == 0]
    return {
        **{f"{number:,} rows": number for number in few},
        f"{rows:,} rows, as it was": None,
        **{f"{number:,} rows": number for number in many},
    }


def _dims_of(text: str) -> tuple[tuple[str, ...], ...]:
    """The axes of each dim of a placement as reports show it; of other text, what no mesh has."""
    return parse_placement(text.strip())[0]
