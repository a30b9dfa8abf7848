"""Pages wide enough that no cell is broken, unless a test asks for the width that users see."""

from __future__ import annotations

import pytest

from autopar.report import render


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "WIDTH", 200)
