"""The pause of garbage collection ends with the block, however that ends, and starts nothing that was off."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import autopar
from autopar.api.collection import collection_paused


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    was_on = gc.isenabled()
    yield
    gc.enable() if was_on else gc.disable()


def test_off_within_and_on_after() -> None:
    gc.enable()
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_on_after_an_error() -> None:
    gc.enable()
    with pytest.raises(RuntimeError), collection_paused():
        raise RuntimeError
    assert gc.isenabled()


def test_what_was_off_stays_off() -> None:
    gc.disable()
    with collection_paused():
        pass
    assert not gc.isenabled()


def test_what_was_made_counts_as_old() -> None:
    gc.enable()
    gc.collect()
    with collection_paused():
        made = [[n] for n in range(10_000)]
    assert len(made) > len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1))
    made.clear()


def test_what_the_user_froze_stays_frozen() -> None:
    gc.enable()
    gc.freeze()
    try:
        assert gc.get_freeze_count()
        with collection_paused():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()


def test_a_function_is_planned_without_collections() -> None:
    gc.enable()
    seen: list[bool] = []

    def function(x: object) -> object:
        seen.append(gc.isenabled())
        return x

    autopar.plan(function, np.ones(8), cluster="cpu8", mesh={"x": 8})
    assert seen == [False]
    assert gc.isenabled()
