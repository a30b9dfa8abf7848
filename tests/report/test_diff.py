from dataclasses import replace

from autopar.report.diff import diff

from . import make


def words(text: str) -> str:
    return " ".join(text.split())


def test_equal_plans_do_not_differ() -> None:
    assert diff(make.report(), make.report()).startswith("No differences")


def test_only_what_differs_is_listed() -> None:
    shown = words(diff(make.report(), make.report(step_time_s=1.5e-3, gap=0.5)))
    assert "step time 2.25 ms 1.5 ms -33.3 %" in shown
    assert "gap 0 % 50 %" in shown
    assert "compute" not in shown
    assert "Inputs" not in shown
    assert "Made for" not in shown


def test_settings() -> None:
    other = make.report(cluster="8xa100", memory_limit_bytes=None, mesh=(("x", 8),))
    shown = words(diff(make.report(), other))
    assert "cluster 8xh100 8xa100" in shown
    assert "memory limit 16 MiB none" in shown
    assert "mesh data=2 x model=4 (8 devices) x=8 (8 devices)" in shown


def test_a_placement_changed_in_one_layer_is_not_told_of_all() -> None:
    a = make.report(layers=3)
    moved = tuple(replace(r, placement="[-, -]") if "[1]['w1']" in r.name else r for r in a.inputs)
    shown = words(diff(a, replace(a, inputs=moved)))
    assert "params['layers'][1]['w1'] [-, model] [-, -] 1" in shown
    assert "[*]" not in shown
    assert "w2" not in shown


def test_a_placement_changed_in_all_layers_is_told_once() -> None:
    a = make.report(layers=3)
    moved = tuple(replace(r, placement="[-, -]") if "w1" in r.name else r for r in a.inputs)
    assert "params['layers'][*]['w1'] [-, model] [-, -] 3" in words(
        diff(a, replace(a, inputs=moved))
    )


def test_a_tensor_that_one_lacks() -> None:
    a = make.report()
    less = replace(a, inputs=a.inputs[:-1])
    assert "step int32[] [] - 1" in words(diff(a, less))
    assert "step - int32[] [] 1" in words(diff(less, a))


def test_collectives() -> None:
    a = make.report()
    fewer = replace(a, collectives=a.collectives[1:-1])
    shown = words(diff(a, fewer))
    assert "forward all_reduce model 3: 96 KiB, 300 us 2: 64 KiB, 200 us" in shown
    assert "redistribution all_gather model 1: 4 MiB, 50 us -" in shown
    assert "mirror" not in shown


def test_a_cost_that_was_nothing() -> None:
    assert "communication 0 s 750 us" in words(
        diff(make.report(communication_time_s=0.0), make.report())
    )
