"""Every block of Python and every command in the documents runs, and shows what its page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import Block, Differs, blocks_of, commands_of, compare, edit, run_page
from tests.docs.pages import DOCS, ROOT, WRITTEN, name_of
from tests.docs.process import run_apart

RUN = [page for page in WRITTEN if page.name != "CONTRIBUTING.md"]
WITH_CODE = [
    page
    for page in RUN
    if any(b.language in ("python", "console") for b in blocks_of(page.read_text(encoding="utf-8")))
]
QUICK = {ROOT / "README.md", DOCS / "index.md", DOCS / "tutorial.md"}
"""What is read first; a page takes a process, and seconds."""
OF_MODELS = {DOCS / "guide" / "libraries.md"}
"""What needs the extra `models`."""


def _marks(page: Path) -> list[pytest.MarkDecorator]:
    if page in OF_MODELS:
        return [pytest.mark.models]
    return [] if page in QUICK else [pytest.mark.slow]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=name_of(page), marks=_marks(page)) for page in WITH_CODE],
)
def test_a_page_runs(page: Path) -> None:
    run_apart(page)


def test_the_pages_that_teach_have_code() -> None:
    assert {ROOT / "README.md", DOCS / "index.md", DOCS / "tutorial.md"} <= set(WITH_CODE)


PAGE = """
Words.

```python
from pathlib import Path

x = 1
print(x)
```

```text
1
```

```toml title="a.toml"
b = 2
```

- item
  ```python
  print(Path("a.toml").read_text())
  ```
  ```text
  b = 2
  ```

```text
by itself
```
"""


def test_blocks_are_read_with_their_outputs() -> None:
    assert blocks_of(PAGE) == [
        Block("python", "", "from pathlib import Path\n\nx = 1\nprint(x)\n", 5, "1\n"),
        Block("toml", "a.toml", "b = 2\n", 16),
        Block("python", "", 'print(Path("a.toml").read_text())\n', 21, "b = 2\n"),
        Block("text", "", "by itself\n", 28),
    ]


def page_of(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


def test_a_page_is_run_in_one_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page_of(tmp_path, PAGE + "```python\nprint(x + 1)\n```\n```text\n2\n```\n"))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (PAGE.replace("print(x)", "print(2)"), "page.md:5: the page says"),
        ("```python\nprint(3)\n```\n", "page.md:2: prints"),
        ("```console\n$ rm page.md\n```\n", "is neither autopar nor pytest"),
        ("```python\n1 / 0\n```\n```text\nZeroDivisionError: another\n```\n", "and it shows"),
        ("```console\n$ pytest nothing.py\n```\n", "the tests fail"),
    ],
    ids=["another output", "an output not shown", "another command", "another error", "no test"],
)
def test_a_page_that_says_something_else_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Differs, match=error):
        run_page(page_of(tmp_path, text))


def test_an_error_that_the_page_does_not_show_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ZeroDivisionError):
        run_page(page_of(tmp_path, "```python\n1 / 0\n```\n"))


def test_lines_may_be_left_out_and_errors_wrapped() -> None:
    compare("here", "a\n...\nd\n", "a\nb\nc\nd\n", None)
    compare("here", "E: one\ntwo ... four\n", "", "E: one two three four")
    for expected, printed, error in (
        ("a\n...\nd\n", "a\nb\n", None),
        ("E: one ... four\n", "", "E: one two"),
    ):
        with pytest.raises(Differs):
            compare("here", expected, printed, error)


def test_commands_have_their_outputs() -> None:
    assert list(commands_of("$ a b \\\n c\nout\n$ d\n")) == [("a b   c", "out\n"), ("d", "")]


def test_an_edit_replaces_what_stands_there_once(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("a\nb\nc\n")
    edit(file, " a\n-b\n+B\n+D\n c\n")
    assert file.read_text() == "a\nB\nD\nc\n"
    with pytest.raises(Differs, match="0 times"):
        edit(file, " b\n+c\n")
