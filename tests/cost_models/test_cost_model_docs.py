"""The page about cost_models runs as it stands."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cost_models.md"


def test_the_examples_run(tmp_path, monkeypatch):
    blocks = re.findall(r"```(python|toml)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    monkeypatch.chdir(tmp_path)
    scope = {}
    for language, text in blocks:
        if language == "toml":
            Path("mine.toml").write_text(text, encoding="utf-8")
        else:
            exec(compile(text, str(PAGE), "exec"), scope)
