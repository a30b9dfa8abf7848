"""Every message that a user can meet has a program or a test that provokes it; docs/reference/messages.md shows all."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jax
import pytest

from tests.docs.process import SHOWN_BY
from tests.provoked.page import TARGET, entry, module, names, sections
from tests.provoked.provoke import code_of, programs_of, provoke, title_of
from tests.provoked.sites import all_sites, site_at

ROOT = Path(__file__).resolve().parents[2]
PAGE = TARGET.read_text(encoding="utf-8")
BY_TESTS = {name: test for section in sections() for name, test in section.tests.items()}


@pytest.mark.quick_share(5)
@pytest.mark.skipif(
    not jax.__version__.startswith(SHOWN_BY), reason="messages of JAX itself are of one release"
)
@pytest.mark.parametrize("name", names())
def test_the_page_is_what_the_programs_show(name: str, tmp_path: Path) -> None:
    programs = programs_of(module(name))
    assert programs
    for program in programs:
        message = provoke(program, tmp_path)
        assert bool(message.kinds) == (name != "progress"), message
        assert entry(program, message) in PAGE, "run python -m tests.provoked"


def test_the_page_shows_no_other_programs() -> None:
    programs = [one for name in names() for one in programs_of(module(name))]
    assert PAGE.count("\n**") == len(programs) == len({title_of(one) for one in programs})
    assert all(f"```python\n{code_of(one)}\n```" in PAGE for one in programs)


def test_each_place_that_makes_a_message_is_met_by_a_program_or_a_test() -> None:
    by_programs = PAGE.partition(f"\n## {sections()[0].title}\n")[0]
    met = set(re.findall(r"^<!-- (.*) -->$", by_programs, re.MULTILINE))
    assert met.isdisjoint(BY_TESTS)
    assert sorted(met.union(BY_TESTS)) == sorted(site.name for site in all_sites())


def test_the_page_shows_what_tests_provoke() -> None:
    texts = [section.text() for section in sections()]
    assert PAGE.endswith("\n\n" + "\n\n".join(texts) + "\n"), "run python -m tests.provoked"


@pytest.mark.parametrize("name", BY_TESTS)
def test_the_test_that_is_named_quotes_the_message(name: str) -> None:
    """Three words in a row at least that no other message has, in the test or beside all tests of its file."""
    (site,) = (site for site in all_sites() if site.name == name)
    own = {phrase for phrase in phrases(site.template) if held()[phrase] == 1}
    file, _, test = BY_TESTS[name].partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert test in {one.name for one in cases_in(tree)}
    assert own & {phrase for text in texts(tree, test) for phrase in phrases(text)}


def phrases(text: str) -> set[tuple[str, ...]]:
    """Three words each, with nothing filled in between them."""
    parts = (re.findall(r"\w+", part) for part in text.split("…"))
    return {tuple(words[n : n + 3]) for words in parts for n in range(len(words) - 2)}


@cache
def held() -> Counter[tuple[str, ...]]:
    """How many messages have each phrase."""
    templates = {site.template for site in all_sites()}
    return Counter(phrase for template in templates for phrase in phrases(template))


def cases_in(tree: ast.Module) -> list[ast.FunctionDef]:
    return [
        one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name[:5] == "test_"
    ]


def texts(tree: ast.Module, test: str) -> Iterator[str]:
    """All text in a module but that of other tests; what is filled in is an ellipsis."""
    others = [one for one in cases_in(tree) if one.name != test]
    for top in tree.body:
        for node in ast.walk(top) if top not in others else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values
                )


def test_each_class_has_a_message() -> None:
    shown = set(re.findall(r"^## (\w+)$|^(?:```text\n)(\w+): ", PAGE, re.MULTILINE))
    raised = {site.kind for site in all_sites()}
    assert raised <= {name for pair in shown for name in pair}


def test_a_site_is_found_by_its_innermost_call() -> None:
    site = next(
        s for s in all_sites() if s.file == "api/options.py" and "no option of autopar" in s.name
    )
    assert site_at(site.file, site.first) == site
    assert site_at(site.file, site.last) == site
    assert site_at(site.file, site.last + 1) is None
