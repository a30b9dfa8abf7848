"""`steps_from` gives exactly the steps that the definition allows, and each does what it says."""

from __future__ import annotations

import numpy as np
import pytest

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.redistribute.collective import group_size, size_bytes
from autopar.redistribute.step import Step
from autopar.redistribute.steps import steps_from
from tests.redistribute import oracle, simulate

CUBE = DeviceMesh.of({"x": 2, "y": 2, "z": 2})
REFINED = DeviceMesh.of({"x": 4, "y": 2, "z": 2})
PAIR = DeviceMesh.of({"x": 2, "y": 4})
LINE = DeviceMesh.of({"x": 8})


@pytest.mark.parametrize(
    ("mesh", "shape"),
    [
        (CUBE, (8, 8, 8)),
        (CUBE, (8, 6, 3)),
        (CUBE, (4,)),
        (CUBE, ()),
        (REFINED, (16, 16)),
        (REFINED, (8, 4)),
        (PAIR, (8, 8, 8)),
        (PAIR, (4, 6, 2)),
        (LINE, (8, 16)),
    ],
    ids=str,
)
def test_steps_are_those_of_the_definition(mesh, shape):
    placements = [
        p for p in oracle.all_placements(mesh, len(shape), ("sum", "max")) if p.fits(shape, mesh)
    ]
    for before in placements:
        links = {(after, oracle.link(before, after, mesh)) for after in placements}
        expected = {(after, *link) for after, link in links if link is not None}
        steps = steps_from(before, shape, mesh, ("sum", "max"))
        assert {(step.after, step.kind, _as_group(step, mesh)) for step in steps} == expected
        assert len(steps) == len(expected)
        assert all(step.before == before for step in steps)


def _as_group(step: Step, mesh: DeviceMesh) -> tuple[str, ...]:
    """The axes; for steps without a dim their order has no meaning, and it must be the mesh's."""
    assert step.dim is not None or step.axes == mesh.sort(step.axes)
    return step.axes


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(
    ("mesh", "rank"), [(CUBE, 2), (CUBE, 1), (REFINED, 2), (LINE, 3), (PAIR, 3)], ids=str
)
def test_every_step_reaches_its_placement(mesh, rank):
    shape = (mesh.size,) * rank
    rng = np.random.default_rng(0)
    array = rng.integers(-9, 9, shape)
    for before in oracle.all_placements(mesh, rank, ("sum", "max", "min")):
        local = simulate.distribute(array, before, mesh, rng)
        simulate.assert_holds(local, array, before, mesh)
        for step in steps_from(before, shape, mesh, ("sum", "max", "min")):
            simulate.assert_holds(simulate.apply_step(local, step, mesh), array, step.after, mesh)


def test_the_simulator_notices_a_wrong_claim():
    array = np.arange(16).reshape(4, 4)
    before, after = Placement((("x", "y"), ())), Placement((("y", "x"), ()))
    local = simulate.distribute(array, before, CUBE, np.random.default_rng(0))
    with pytest.raises(AssertionError):
        simulate.assert_holds(local, array, after, CUBE)
    gathered = Step("all_gather", ("x",), before, Placement((("y",), ())), 0)
    with pytest.raises(AssertionError):
        simulate.assert_holds(
            simulate.apply_step(local, gathered, CUBE), array, gathered.after, CUBE
        )


def test_only_sums_are_scattered():
    kinds = {step.kind for step in steps_from(Placement(((), ()), ("x",), "max"), (8, 8), CUBE)}
    assert kinds == {"all_reduce", "slice", "mask"}


def test_masks_keep_the_kind_there_is():
    held = steps_from(Placement(((),), ("x",), "min"), (8,), CUBE, ("sum", "max"))
    assert {step.after.kind for step in held if step.kind == "mask"} == {"min"}
    free = steps_from(Placement(((),)), (8,), CUBE, ("sum", "max"))
    assert {step.after.kind for step in free if step.kind == "mask"} == {"sum", "max"}


@pytest.mark.parametrize(
    ("before", "after", "axes"),
    [
        ([["x"], []], [["y"], []], ("x", "y")),
        ([["x", "y"], []], [["y", "x"], []], ("x", "y")),
        ([["x"], ["y"]], [["y"], ["x"]], ("x", "y")),
        ([["x", "y"], []], [["z", "y"], []], ("x", "z")),
    ],
)
def test_a_permute_names_the_axes_whose_role_changes(before, after, axes):
    old, new = (Placement(tuple(map(tuple, dims))) for dims in (before, after))
    (step,) = [step for step in steps_from(old, (8, 8), CUBE) if step.after == new]
    assert (step.kind, step.axes) == ("permute", axes)


def test_axes_of_size_one_are_axes():
    mesh = DeviceMesh.of({"a": 1, "x": 2, "b": 1})
    array = np.arange(4)
    for before in oracle.all_placements(mesh, 1):
        local = simulate.distribute(array, before, mesh, np.random.default_rng(0))
        steps = steps_from(before, (4,), mesh)
        assert all(step.axes for step in steps)
        for step in steps:
            simulate.assert_holds(simulate.apply_step(local, step, mesh), array, step.after, mesh)


def test_sizes():
    mesh = DeviceMesh.of({"x": 2, "y": 4})
    split, summed, whole = (
        Placement((("x", "y"), ())),
        Placement(((), ()), ("x", "y")),
        Placement(((), ())),
    )
    gather = Step("all_gather", ("x", "y"), split, whole, 0)
    scatter = Step("reduce_scatter", ("x", "y"), summed, split, 0)
    reduction = Step("all_reduce", ("x", "y"), summed, whole)
    cut = Step("slice", ("x", "y"), whole, split, 0)
    exchange = Step("all_to_all", ("y",), split, Placement((("x",), ("y",))), 0, 1)
    swap = Step("permute", ("x", "y"), split, Placement((("y", "x"), ())))
    mask = Step("mask", ("x", "y"), whole, summed)
    steps = (gather, scatter, reduction, cut, exchange, swap, mask)
    assert [group_size(step, mesh) for step in steps] == [8, 8, 8, 8, 4, 8, 8]
    assert [size_bytes(step, (16, 8), 4, mesh) for step in steps] == [
        512,
        512,
        512,
        512,
        64,
        64,
        512,
    ]
    assert [step.is_local for step in steps] == [False, False, False, True, False, False, True]
