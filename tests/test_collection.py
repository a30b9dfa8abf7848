"""What `make test` collects asks for the extra `dev` alone."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODELS = sorted((ROOT / "tests" / "models").glob("test_*.py"))
IMPORTED_AS = {"dm-haiku": "haiku"}


def libraries() -> list[str]:
    """The modules of the extra `models`."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    names: list[str] = [line.split(">")[0] for line in extras["models"]]
    return [IMPORTED_AS.get(name, name) for name in names]


def test_the_tests_of_models_are_collected_without_their_libraries() -> None:
    modules = [f"tests.models.{path.stem}" for path in MODELS]
    source = f"import sys; from {__name__} import collect; sys.exit(collect({modules!r}))"
    found = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert MODELS, "no tests of models: has the folder moved?"
    assert found.returncode == 0, found.stderr


def collect(modules: list[str]) -> None:
    """Imports these where no library of the extra can be."""
    missing: dict[str, Any] = dict.fromkeys(libraries())
    sys.modules.update(missing)
    for name in modules:
        import_module(name)
