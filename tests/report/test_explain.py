import pytest

from autopar.core.placement import Placement
from autopar.errors import AutoparError
from autopar.report.explain import explain
from autopar.report.placements import parse_placement
from autopar.report.summary import TensorRow

from . import make

pytestmark = pytest.mark.usefixtures("wide")


def words(text: str) -> str:
    return " ".join(text.split())


def test_an_input() -> None:
    shown = words(explain(make.report(), "params['layers'][0]['w1']"))
    assert "params['layers'][0]['w1'], an input of train_step" in shown
    assert "dim 1 split over model=4: 512 of 2,048 on every device" in shown
    assert "replicated over data=2" in shown
    assert "1 MiB on every device" in shown
    assert "among the largest tensors at the peak" in shown
    assert "all_gather over model [-, model] -> [-, -] model.py:50 (head) 4 MiB 50 us" in shown


def test_an_input_that_nothing_moves() -> None:
    shown = words(explain(make.report(), "params['layers'][1]['w1']"))
    assert "Collectives that move it None" in shown


def test_an_output() -> None:
    shown = words(explain(make.report(), "output[2]"))
    assert "output[2], an output of train_step" in shown
    assert "dim 0 split over model=4" in shown
    assert "Collectives" not in shown


def test_a_dim_split_over_two_axes_and_an_unreduced_one() -> None:
    row = TensorRow("x", (64, 8), "float32", "[data*model, -] max(pod)", 64)
    report = make.report(inputs=(row,), mesh=(("pod", 2), ("data", 2), ("model", 4)))
    shown = words(explain(report, "x"))
    assert "dim 0 split over data=2 x model=4: 8 of 64 on every device" in shown
    assert "unreduced over pod" in shown
    assert "replicated" not in shown


@pytest.mark.parametrize("name", ["params", "params['layers']"])
def test_the_beginning_of_paths(name: str) -> None:
    shown = explain(make.report(layers=5), name)
    assert f"{name}: 10 tensors" in shown
    assert "params['layers'][*]['w2']" in shown
    assert "model.py:50 (head)" in shown


def test_a_path_as_the_report_groups_it() -> None:
    assert "[*]['w2']: 3 tensors" in explain(make.report(), "params['layers'][*]['w2']")
    shown = explain(make.report(), "output[1,3,5]")
    assert "output[1,3,5]: 3 tensors" in shown
    assert "[*]" not in shown


@pytest.mark.parametrize("name", ["model.py:41", "model.py:41 (mlp)"])
def test_a_source_line(name: str) -> None:
    shown = words(explain(make.report(), name))
    assert (
        "dot_general forward model.py:41 (mlp) [data, -], [-, model] -> [data, model] 8 3 746 us 49.7 %"
        in shown
    )
    assert "mirror all_reduce data" in shown
    assert "model.py:42" not in shown


def test_a_line_shows_what_is_cheap_too() -> None:
    assert "add" in explain(make.report(), "model.py:43")


def test_a_file() -> None:
    shown = explain(make.report(), "model.py")
    assert all(f"model.py:{line}" in shown for line in (41, 42, 43, 50))


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("params['layers'][0]['w3']", "params['layers'][0]['w1']"),
        ("param", "params['layers'][*]['w1']"),
        ("model.py:4", "model.py:41"),
        ("layers", "params['layers'][*]['w1']"),
        ("", "for example: params['layers'][*]['w1']"),
        ("zzz", "for example: params['layers'][*]['w1']"),
    ],
)
def test_an_unknown_name_lists_what_is_close(name: str, close: str) -> None:
    with pytest.raises(AutoparError, match="has no input, output or source line called") as error:
        explain(make.report(), name)
    assert repr(name) in str(error.value)
    assert close in str(error.value)


@pytest.mark.parametrize(
    "placement",
    [
        Placement(()),
        Placement(((), ("data", "model"), ())),
        Placement((("data",), ()), ("model", "pod"), "max"),
        Placement((), ("data",), "sum"),
    ],
)
def test_placements_read_back(placement: Placement) -> None:
    assert parse_placement(str(placement)) == (placement.dims, placement.unreduced)
