"""Every message that a user can meet has a program that provokes it; docs/reference/messages.md is what they show."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import pytest

from tests.docs.process import SHOWN_BY
from tests.provoked.page import TARGET, entry, module, names, unprovoked
from tests.provoked.provoke import code_of, programs_of, provoke, title_of
from tests.provoked.sites import all_sites, site_at

MOST_UNPROVOKED = 77
"""May only go down."""
PAGE = TARGET.read_text(encoding="utf-8")
MET = set(re.findall(r"^<!-- (.*) -->$", PAGE, re.MULTILINE))


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


def test_each_place_that_makes_a_message_is_met_or_says_why_not() -> None:
    """A new error needs a program; one that a program meets is no longer listed as not provoked."""
    listed = [site for sites in unprovoked().values() for site in sites]
    assert len(listed) == len(set(listed)) <= MOST_UNPROVOKED
    assert MET.isdisjoint(listed)
    assert sorted(MET.union(listed)) == sorted(site.name for site in all_sites())


def test_each_class_has_a_message() -> None:
    """But those that nothing raises, and what is always a bug."""
    shown = set(re.findall(r"^## (\w+)$", PAGE, re.MULTILINE))
    raised = {site.name.split(":")[1].strip() for site in all_sites()}
    assert raised - shown == {"ProgramError", "Unsolved", "DifferentValues"}
    assert shown - raised == {"Progress"}


def test_a_site_is_found_by_its_innermost_call() -> None:
    site = next(
        s for s in all_sites() if s.file == "api/options.py" and "no option of autopar" in s.name
    )
    assert site_at(site.file, site.first) == site
    assert site_at(site.file, site.last) == site
    assert site_at(site.file, site.last + 1) is None
