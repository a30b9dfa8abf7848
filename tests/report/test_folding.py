from autopar.report.folding import fold
from autopar.report.groups import group_tensors
from autopar.report.summary import TensorRow

from . import make


def row(name: str, placement: str = "[x]") -> TensorRow:
    return TensorRow(name, (8,), "float32", placement, 4)


def labels(*rows: TensorRow) -> list[str]:
    return [folded.label for folded in fold(group_tensors(rows))]


def test_a_parameter_and_its_moments_are_one_row() -> None:
    paths = [f"s['{part}']['layers'][{n}]['{w}']" for part in "mpv" for n in range(3) for w in "qk"]
    assert labels(*map(row, paths)) == ["s[m|p|v]['layers'][*][q|k]"]


def test_what_lies_otherwise_stands_apart() -> None:
    assert labels(row("s['m']['w']"), row("s['v']['w']"), row("s['p']['w']", "[-]")) == [
        "s[m|v]['w']",
        "s['p']['w']",
    ]


def test_paths_that_differ_in_two_keys_stand_apart() -> None:
    assert labels(row("s['m']['w']"), row("s['v']['u']")) == ["s['m']['w']", "s['v']['u']"]


def test_fields_and_many_keys() -> None:
    assert labels(row("s.mu"), row("s.nu")) == ["s(.mu|.nu)"]
    many = [row(f"s['{name}']") for name in "abcdef"]
    assert labels(*many) == ["s[a|b|c|3 more]"]


def test_nothing_is_lost() -> None:
    rows = make.report(layers=5).inputs
    folded = fold(group_tensors(rows))
    assert sorted(member.name for one in folded for member in one.members) == sorted(
        one.name for one in rows
    )
