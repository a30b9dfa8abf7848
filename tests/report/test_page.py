"""page: its numbers are those of the JSON, it loads nothing, and a browser draws it without a complaint."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autopar
from autopar.report.page import html
from tests.report import make
from tests.report.test_render import loads

LISTED = {"inputs", "outputs", "operators", "collectives", "peak", "uses"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def block(p: Any, x: Any) -> Any:
    return x + jax.nn.gelu(x @ p["up"]) @ p["down"]


def train_step(state: Any, x: Any, y: Any) -> Any:
    def loss(params: Any) -> Any:
        h = x
        for p in params:
            h = block(p, h)
        return jnp.mean((h - y) ** 2)

    params, velocity = state
    value, grads = jax.value_and_grad(loss)(params)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return (jax.tree.map(lambda p, v: p - 1e-2 * v, params, velocity), velocity), value


@cache
def planned(layers: int = 4, mode: str = "auto") -> autopar.Plan:
    shape = jax.ShapeDtypeStruct
    weights = {"up": shape((1024, 4096), jnp.float32), "down": shape((4096, 1024), jnp.float32)}
    params = [weights for _ in range(layers)]
    rows = shape((4096, 1024), jnp.float32)
    options: dict[str, Any] = {"mesh": {"x": 2, "y": 4}, "donate_argnums": 0, "mode": mode}
    return autopar.plan(train_step, (params, params), rows, rows, cluster="2x4xh100", **options)


class Page(HTMLParser):
    """The JSON of a page, and by id of the part around them the values and the text of what is drawn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.data: Any = None
        self.values: dict[str, list[float]] = {}
        self.texts: dict[str, str] = {}
        self.links: set[str] = set()
        self._part = ""
        self._is_data = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._part = given.get("id") or self._part
        self._is_data = tag == "script" and given.get("id") == "report"
        if tag == "data":
            self.values.setdefault(self._part, []).append(float(given["value"] or ""))
        if tag == "a" and "data-node" in given:
            self.links.add(given["href"] or "")

    def handle_endtag(self, tag: str) -> None:
        self._is_data = False

    def handle_data(self, data: str) -> None:
        if self._is_data:
            self.data = json.loads(data)
        else:
            self.texts[self._part] = self.texts.get(self._part, "") + data


def of_json(plan: autopar.Plan) -> Any:
    whole = json.loads(plan.to_json(compare=False))
    return {name: value for name, value in whole.items() if name not in LISTED}


def test_a_page_holds_the_numbers_of_the_json_and_loads_nothing() -> None:
    page = planned().to_html(compare=False)
    assert Page(page).data == of_json(planned())
    assert loads(page) == []
    assert "default-src 'none'" in page


def test_equal_layers_add_events_only() -> None:
    few, many = (planned(layers, "data_parallel").to_html(compare=False) for layers in (4, 8))
    events = [len(Page(page).data["step"]["computing"]) for page in (few, many)]
    assert events[1] > 1.5 * events[0]
    assert len(few) < 250_000
    # an event is three numbers; what is held has a row for each operator until it has 500
    assert len(many) - len(few) < 100 * (events[1] - events[0]) + 30_000


def test_what_a_function_is_called_is_no_markup() -> None:
    page = html(make.report(function="</script><q>"))
    assert page.count("</script>") == 2
    assert "<q>" not in page


def test_a_front_stands_beside_its_fastest_plan(tmp_path: Path) -> None:
    shapes = [jax.ShapeDtypeStruct((256, 256), jnp.float32)] * 2
    found = autopar.front(
        lambda w, x: jnp.mean(jnp.tanh(x @ w)), *shapes, points=2, cluster="2xh100", mesh={"a": 2}
    )
    page = Page(found.to_html(tmp_path / "front.html", compare=False))
    assert [point["objective_s"] for point in page.data["front"]] == [p.objective_s for p in found]
    assert page.data["objective_s"] == found.fastest.objective_s
    assert (tmp_path / "front.html").is_file()
    with pytest.raises(autopar.AutoparError, match=r"the page cannot be written to .*gone"):
        found.to_html(tmp_path / "gone" / "front.html", compare=False)


def drawn(page: Path, part: str) -> tuple[Page, list[str]]:
    """`page` as a browser draws it with a part chosen, and what its console says."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"there is no browser: none of {', '.join(BROWSERS)}")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0")
    own = f"--user-data-dir={page.parent / 'profile'}"
    command = [browser, *flags, own, "--dump-dom", f"{page.as_uri()}#{part}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Page(done.stdout), console


@pytest.mark.slow
def test_a_browser_draws_it_and_an_operator_shows_its_alternatives(tmp_path: Path) -> None:
    planned().to_html(tmp_path / "page.html", compare=True)
    step = json.loads(planned().to_json(compare=True))["step"]
    main = [n for n, node in enumerate(step["nodes"]) if node["is_main"]]
    chosen = next(n for n in main if step["nodes"][n]["kind"] == "dot_general")
    page, console = drawn(tmp_path / "page.html", f"node-{chosen}")
    assert console == []
    assert page.links == {f"#node-{n}" for n in main}

    node = step["nodes"][chosen]
    assert node["source"] in page.texts["chosen"]
    figures = (node["runs"], node["time_s"], node["split"])
    costs = [option["costs_s"] for option in node["alternatives"]]
    assert len(costs) > 2
    read = [one for one in step["inputs"] if one["name"] in node["inputs"]]
    assert read
    costs += [option["costs_s"] for one in read for option in one["alternatives"]]
    assert page.values["chosen"] == [*figures, *costs]

    totals = [sum(row) for row in zip(*step["held"]["held_bytes"], strict=True)]
    peak = totals.index(max(totals))
    held = [row[peak] for row in step["held"]["held_bytes"]]
    assert page.values["held-table"] == [*held, totals[peak]]
    moved = [node for node in step["nodes"] if node["axes"]]
    assert len(moved) > 0
    assert sum(page.values["links-table"][2::4]) == pytest.approx(sum(n["time_s"] for n in moved))
    assert "Megatron" in page.texts["rivals-table"]
