"""Damage at random, anywhere in a plan file: it is refused as a plan file, or what it says runs and is right."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jax.sharding import PartitionSpec as P

import autopar
from autopar.api.plan_file import to_json
from autopar.errors import PlanFileError
from tests.api.same import PARAMS, SLOW, X, assert_same, step

NUMBERS = (0, -1, 1.5, 10**9, 2**70, 1e308, float("nan"), float("inf"))
PARTS = ("signature", "plan", "cluster", "report")
TextOf = Callable[[random.Random, str], str]


@pytest.fixture(scope="module")
def text() -> str:
    """The text of a plan with constraints, on a mesh of two axes: what a file holds compressed, behind a checksum."""
    held = autopar.pin("p['w']", P("a")), autopar.forbid("x", "b")
    return to_json(
        autopar.plan(step, PARAMS, X, cluster=SLOW, mesh={"a": 2, "b": 4}, constraints=held).file
    )


def nodes(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a document, as the dict or list that holds it and the key."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from nodes(node[key])


def changed(rng: random.Random, text: str) -> str:
    """One place of one part holds something else, is gone, or stands twice."""
    data = json.loads(text)
    places = list(nodes(data[rng.choice(PARTS)]))
    held, key = rng.choice(places)
    other_held, other = rng.choice(places)
    match rng.randrange(5):
        case 0:
            del held[key]
        case 1 if isinstance(held, list):
            held.append(held[key])
        case 2 if isinstance(held, dict):
            held[f"{key}x"] = held.pop(key)
        case 3:
            held[key] = other_held[other]
        case _:
            value = held[key]
            near = (
                [value + 1, value - 1, -value, value * 2]
                if isinstance(value, int | float)
                else [f"{value}x"]
            )
            held[key] = rng.choice([*near, *NUMBERS, None, "", [], {}])
    return json.dumps(data)


def flipped(rng: random.Random, text: str) -> str:
    """One character is another."""
    place = rng.randrange(len(text))
    return text[:place] + rng.choice('0123456789abc"[]{},:-. ') + text[place + 1 :]


@pytest.mark.parametrize(
    ("damage", "count", "refused"),
    [
        (changed, 60, 25),
        (flipped, 40, 10),
        pytest.param(changed, 240, 100, marks=pytest.mark.slow),
        pytest.param(flipped, 160, 40, marks=pytest.mark.slow),
    ],
)
def test_damage_is_refused_or_changes_no_value(
    damage: TextOf, count: int, refused: int, text: str, tmp_path: Path
) -> None:
    path, found = tmp_path / "plan.json", Counter[str]()
    path.write_text(text)
    whole = autopar.Plan.load(path)
    for seed in range(count):
        path.write_text(damage(random.Random(seed), text))
        try:
            loaded = autopar.Plan.load(path)
            assert isinstance(loaded.report(), str)
            is_equal = (loaded.record, loaded.file.signature) == (
                whole.record,
                whole.file.signature,
            )
            if is_equal and loaded.file.cluster == whole.file.cluster:
                found["equal"] += 1
                continue
            run = loaded.compile(step)
            run.plan(PARAMS, X)
        except PlanFileError:
            found["refused"] += 1
            continue
        if not is_equal:
            assert_same(run(PARAMS, X), step(PARAMS, X))
        found["right"] += 1
    assert found["refused"] >= refused, found
    assert found["right"] + found["equal"] >= count // 20, found
