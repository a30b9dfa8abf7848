"""The documents' sentences are short, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean

import pytest

from tests.docs.pages import PAGES, ROOT, WRITTEN, name_of
from tests.docs.prose import sentences, words

MOST_WORDS, MEAN_WORDS = 30, 18
LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\(([^)#:\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_no_sentence_is_long(page: Path) -> None:
    long = [s for s in sentences(page.read_text(encoding="utf-8")) if words(s) > MOST_WORDS]
    assert long == []


def test_sentences_are_short_on_average() -> None:
    counts = [words(s) for page in WRITTEN for s in sentences(page.read_text(encoding="utf-8"))]
    assert mean(counts) <= MEAN_WORDS


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_no_page_tells_the_time(page: Path) -> None:
    assert re.findall(r"\b\d\d:\d\d UTC", page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize(("name", "most"), [("README.md", 112), ("ARCHITECTURE.md", 70)])
def test_the_pages_at_the_root_are_short(name: str, most: int) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= most


def test_sentences_are_told_apart() -> None:
    text = "# No\n\nOne `a. b` is. Two [link](x.md) here!\n\n- Three is.\n- Four\n  goes on.\n\n| no | no |\n\n"
    text += "```py\nno. No\n```\n"
    assert list(sentences(text)) == [
        "One `code` is.",
        "Two link here!",
        "Three is.",
        "Four goes on.",
    ]
    assert [words(s) for s in sentences(text)] == [3, 3, 2, 3]
