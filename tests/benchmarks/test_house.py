"""benchmarks.house: what it counts of a file, by hand; and the circles that it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import house

TEXT = '''"""A module."""

from autopar.core import mesh
import autopar.emit


def f(x):
    """Says."""
    if x:  # a reason
        y = 1
    else:
        y = 2

    return y
'''


def test_what_is_counted_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "ROOT", tmp_path)
    path = tmp_path / "autopar" / "solve" / "trws" / "dual.py"
    path.parent.mkdir(parents=True)
    path.write_text(TEXT)
    found = house.module_of(path)
    assert (found.name, found.room) == ("autopar.solve.trws.dual", "autopar.solve.trws")
    assert (found.lines, found.comments, found.blanks, found.inside) == (14, 1, 1, 8)
    assert found.statements == (4,)
    assert found.imports == {"autopar.core", "autopar.core.mesh", "autopar.emit"}


def test_circles_and_arrows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "ROOT", tmp_path)
    for name, text in {
        "a/x": "from autopar.b import y",
        "b/y": "import autopar.a.x",
        "b/z": "import autopar.b.y",
    }.items():
        path = tmp_path / "autopar" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    modules = [house.module_of(path) for path in sorted(tmp_path.rglob("*.py"))]
    graph = house.arrows_of(modules)
    assert {*graph.edges} == {
        ("autopar.a.x", "autopar.b.y"),
        ("autopar.b.y", "autopar.a.x"),
        ("autopar.b.z", "autopar.b.y"),
    }
    assert [(room.name, room.arrows) for room in house.rooms_of(modules, graph)] == [
        ("autopar.a", 1),
        ("autopar.b", 1),
    ]


@pytest.mark.slow
def test_it_reads_this_repository(capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main([]) == 0
    shown = capsys.readouterr().out
    assert "autopar.solve.trws" in shown
    assert "circles" in shown
