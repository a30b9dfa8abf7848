"""The panel: what its widgets ask, and what it shows, without a browser."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autopar
from autopar.api.panel import Panel
from autopar.errors import MissingExtra

GIB = 2**30


def step(w: Any, x: Any) -> Any:
    def loss(w: Any) -> Any:
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    return w - 0.1 * jax.grad(loss)(w)


@pytest.fixture(scope="module")
def session() -> autopar.Session:
    def shape(*dims: int) -> Any:
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    options: dict[str, Any] = {"cluster": "2xh100", "mesh": {"all": 2}, "donate_argnums": 0}
    return autopar.explore(step, shape(64, 64), shape(256, 64), **options)


@pytest.fixture
def panel(session: autopar.Session) -> Any:
    yield session.panel()
    while session.history:
        session.undo()


def test_widgets_ask_and_the_answer_is_shown(session: autopar.Session, panel: Panel) -> None:
    (links,) = panel.links.values()
    links.value = 0.5
    assert session.asked.links == (("device", 0.5),)
    assert "links(0.5, &#x27;device&#x27;)" in panel.answer.value
    assert session.plan.summary.in_short not in panel.message.value
    assert "device x 0.5" in panel.table.value

    panel.batch.value = 512
    assert session.asked.rows == 512
    assert "<td>batch(512)</td>" in panel.table.value

    panel.limit.value = session.plan.peak_memory_bytes / GIB * 2
    assert session.asked.memory_limit_bytes == pytest.approx(
        2 * session.plan.peak_memory_bytes, rel=1e-3
    )
    panel.limit.value = 2**panel.limit.max
    assert session.asked.memory_limit_bytes is None


def test_pins_are_written_as_reports_show_placements(
    session: autopar.Session, panel: Panel
) -> None:
    assert panel.target.options == ("w", "x")
    panel.target.value = "x"
    panel.placement.value = "[-, all]"
    press(panel, "pin")
    assert str(session.plan.placements["x"]) == "[-, all]"
    assert panel.message.value == ""
    press(panel, "release")
    assert session.asked.constraints == ()


def test_a_bad_question_is_told_and_the_widgets_show_what_holds(
    session: autopar.Session, panel: Panel
) -> None:
    before = session.plan
    panel.target.value = "y"
    panel.placement.value = "[all]"
    press(panel, "pin")
    assert "InvalidConstraint" in panel.message.value
    press(panel, "undo")
    assert "nothing was asked" in panel.message.value
    panel.limit.value = 2**panel.limit.min
    assert "smallest peak found" in panel.message.value
    assert panel.limit.value == pytest.approx(2**panel.limit.max)
    assert session.plan is before


def test_undo_sets_the_widgets_back(session: autopar.Session, panel: Panel) -> None:
    (links,) = panel.links.values()
    links.value = 0.25
    press(panel, "undo")
    assert links.value == 1.0
    assert session.history == ()


def test_it_shows_itself_as_widgets(panel: Panel) -> None:
    assert "application/vnd.jupyter.widget-view+json" in panel._repr_mimebundle_()
    assert repr(panel).startswith("Panel(Session(step on 2xh100")


def test_without_ipywidgets_the_extra_is_named(
    session: autopar.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(MissingExtra, match=r"pip install 'autopar\[notebooks\]'"):
        session.panel()


def press(panel: Panel, name: str) -> None:
    panel.buttons[name].click()
