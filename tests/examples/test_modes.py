"""The examples of modes and of collectives: what is planned, what is written by hand and plain JAX are the same."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

import autopar
from autopar.inspect.compare import compare
from autopar.inspect.hlo import collectives_of, compile_unmerged

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODES = ("manual", "mean", "sum", "semi-automatic", "automatic")
STEPS = 3


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """Examples import one another as scripts of one folder do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        yield


def example(name: str) -> ModuleType:
    return importlib.import_module(name)


@cache
def plan_of(mode: str) -> autopar.Plan:
    return example("modes").MODES[mode].plan()


@cache
def batches() -> list[Any]:
    return list(islice(example("digits_mlp").batches(), STEPS))


def sent(plan: autopar.Plan) -> Counter[tuple[str, str, tuple[str, ...]]]:
    """How many collectives of each role, kind and axes a plan has."""
    return Counter((row.role, row.kind, tuple(row.axes)) for row in plan.summary.collectives)


def is_faster(plan: autopar.Plan, other: autopar.Plan) -> bool:
    """Whether a plan is predicted to take less time than another, by more than the prices may err."""
    found = autopar.compare(other, plan)
    return found.is_told_apart and found.difference_s < 0


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("mode", MODES)
def test_each_mode_learns_as_one_device_does(mode: str) -> None:
    modes = example("modes")
    assert tuple(modes.MODES) == MODES
    alone = modes.losses(jax.jit(example("digits_mlp").step), batches())
    assert alone[-1] != alone[0]
    planned = modes.losses(plan_of(mode).compile(), batches())
    by_hand = modes.losses(jax.jit(modes.MODES[mode].by_hand), batches())
    np.testing.assert_allclose(planned, alone, rtol=1e-5)
    np.testing.assert_allclose(by_hand, alone, rtol=1e-5)


@pytest.mark.parametrize("mode", ["mean", "sum"])
def test_gradients_are_reduced_at_once_and_nothing_else_is_sent(mode: str) -> None:
    assert sent(plan_of(mode)) == {("mirror", "all_reduce", ("data",)): 1}


def test_what_is_reduced_by_hand_is_listed_as_an_exchange() -> None:
    """The loss, and the gradients of three matrices and three vectors."""
    found = sent(plan_of("manual"))
    by_hand = {row: count for row, count in found.items() if row[0] == "exchange"}
    assert by_hand == {("exchange", "all_reduce", ("data",)): 7}


def test_a_sum_of_gradients_is_their_mean_as_often_as_there_are_devices() -> None:
    modes = example("modes")
    state = example("digits_mlp").initial_state()
    images, labels = batches()[0]

    def change(reduce: Any) -> Any:
        new, _ = jax.jit(modes.data_parallel(reduce, 1.0))(state, images, labels)
        return jax.tree.map(lambda after, before: after - before, new, state)

    jax.tree.map(
        lambda total, mean: np.testing.assert_allclose(total, 8 * mean, atol=2e-6),
        change(jax.lax.psum),
        change(jax.lax.pmean),
    )


def test_what_is_stated_holds_and_costs_something() -> None:
    spec = plan_of("semi-automatic").in_shardings()[0]["params"][0]["w"].spec
    assert spec == jax.P(None, "model")
    automatic = plan_of("automatic")
    for mode in ("manual", "mean", "sum"):
        assert plan_of(mode).objective_s > automatic.objective_s
        assert is_faster(automatic, plan_of(mode))


@cache
def pair_of(name: str) -> tuple[Any, autopar.Plan, autopar.Plan]:
    pair = example("collectives").PAIRS[name]
    return (pair, *pair.plans())


@pytest.mark.parametrize("name", ["collectives", "product and sum"])
def test_collectives_by_hand_give_what_plain_jax_gives(name: str) -> None:
    pair, *plans = pair_of(name)
    expected = pair.plain(*pair.arguments)
    for run in (jax.jit(pair.by_hand), *(plan.compile() for plan in plans)):
        jax.tree.map(
            lambda got, wanted: np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3),
            run(*pair.arguments),
            expected,
        )


def test_collectives_by_hand_are_priced_listed_and_compiled() -> None:
    _, by_hand, searched = pair_of("collectives")
    kinds = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "permute": 2, "all_to_all": 1}
    assert sent(by_hand) == {("exchange", kind, ("x",)): n for kind, n in kinds.items()}
    assert all(row.time_s > 0 for row in by_hand.summary.collectives)
    assert all("collectives.py:" in row.source for row in by_hand.summary.collectives)
    assert compare(by_hand.program(), collectives_of(compile_unmerged(by_hand.lower()))).exact
    assert not searched.summary.collectives  # by columns all are on one device
    assert is_faster(searched, by_hand)
    assert "exchange all_to_all" in " ".join(by_hand.diff(searched).split())


def test_collectives_by_hand_are_linted_by_what_the_search_finds() -> None:
    """Each line that moves what the plan leaves where it is, with its price; of reductions that they cost more."""
    pair, by_hand, searched = pair_of("collectives")
    found = pair.findings()
    lines = (EXAMPLES / "collectives.py").read_text().splitlines()
    moved = {one.line: one for one in found.findings if one.kind == "redistribution"}
    words = [lines[number - 1].split("lax.")[1].partition("(")[0] for number in sorted(moved)]
    assert words == ["all_gather", "ppermute", "all_to_all"]
    assert all(one.file.endswith("collectives.py") and one.time_s > 0 for one in moved.values())
    assert found.plan_communication_time_s == 0
    total = sum(row.time_s for row in by_hand.summary.collectives)
    assert sum(one.time_s for one in moved.values()) < found.communication_time_s <= total
    assert found.plan_step_time_s == pytest.approx(searched.summary.step_time_s)


def test_a_split_product_is_what_the_search_finds() -> None:
    _, by_hand, searched = pair_of("product and sum")
    assert sent(by_hand) == {("exchange", "all_reduce", ("x",)): 1}
    assert sent(searched) == {("forward", "all_reduce", ("x",)): 1}
    assert by_hand.summary.step_time_s == pytest.approx(searched.summary.step_time_s)
