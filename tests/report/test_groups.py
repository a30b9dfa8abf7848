from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autopar.report.groups import group_collectives, group_operators, group_tensors, weighty
from autopar.report.summary import TensorRow

from . import make


def row(name: str, placement: str = "[-]") -> TensorRow:
    return TensorRow(name, (8,), "float32", placement, 32)


def labels(*rows: TensorRow) -> list[str]:
    return [group.label for group in group_tensors(rows)]


def test_layers_alike_are_one_group() -> None:
    assert labels(row("p['layers'][0]['w']"), row("p['layers'][1]['w']"), row("x")) == [
        "p['layers'][*]['w']",
        "x",
    ]


def test_names_that_end_in_a_number_after_an_underscore() -> None:
    assert labels(row("p['layer_0']['w']"), row("p['layer_1']['w']")) == ["p['layer_*']['w']"]


def test_w1_and_w2_are_different_things() -> None:
    assert labels(row("p['w1']"), row("p['w2']")) == ["p['w1']", "p['w2']"]


def test_a_part_of_what_matches_says_which() -> None:
    rows = [row(f"p[{n}]", "[x]" if n in (3, 7) else "[-]") for n in range(9)]
    assert labels(*rows) == ["p[0-2,4-6,8]", "p[3,7]"]


def test_every_second_number_is_told_by_its_ends() -> None:
    rows = [row(f"p[{n}]", "[x]" if n % 2 else "[-]") for n in range(10)]
    assert labels(*rows) == ["p[0,2,..,8]", "p[1,3,..,9]"]


def test_two_numbers() -> None:
    rows = [row(f"p[{n}][{k}]", "[x]" if n == 0 else "[-]") for n in range(3) for k in range(2)]
    assert labels(*rows) == ["p[0][0-1]", "p[1-2][0-1]"]


def test_numbers_that_form_no_grid_are_not_told_as_one() -> None:
    rows = [row(f"p[{n}][{k}]", "[x]" if n == k else "[-]") for n in range(2) for k in range(2)]
    assert labels(*rows) == ["p[0][0] and 1 like it", "p[0][1] and 1 like it"]


def test_another_shape_type_or_size_is_another_group() -> None:
    a = row("p[0]")
    for other in (replace(a, shape=(4,)), replace(a, dtype="int32"), replace(a, local_bytes=1)):
        assert len(group_tensors((a, replace(other, name="p[1]")))) == 2


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from(["[x]", "[-]"])),
        unique_by=lambda t: t[:2],
    )
)
def test_groups_hold_every_row_once_and_labels_are_distinct(
    drawn: list[tuple[int, int, str]],
) -> None:
    rows = [row(f"p[{n}][{k}]", placement) for n, k, placement in drawn]
    groups = group_tensors(rows)
    assert sorted(r.name for g in groups for r in g.members) == sorted(r.name for r in rows)
    assert len({g.label for g in groups}) == len(groups)
    assert all(len({r.placement for r in g.members}) == 1 for g in groups)


def test_operators_of_one_line_and_strategy_are_one_group() -> None:
    report = make.report(layers=4)
    groups = group_operators(report.operators)
    assert [len(g.members) for g in groups] == [4, 4, 4]
    assert sum(g.time_s for g in groups) - report.compute_time_s < 1e-12
    moved = replace(report.operators[0], outs=("[-, -]",))
    assert len(group_operators((*report.operators, moved))) == 4


def test_a_contraction_has_weight_whatever_it_takes() -> None:
    product, _, add = group_operators(make.report().operators)
    assert weighty(product, 1e9, 0.01)
    assert not weighty(add, 1.5e-3, 0.01)
    assert weighty(add, 1.5e-3, 0.005)


def test_collectives_come_longest_first() -> None:
    groups = group_collectives(make.report(layers=3).collectives)
    assert [(g.members[0].role, len(g.members), g.size_bytes) for g in groups] == [
        ("mirror", 1, 6 * make.MIB),
        ("forward", 3, 96 * 1024),
        ("redistribution", 1, 4 * make.MIB),
    ]
