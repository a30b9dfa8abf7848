"""Values that processes hold alone are compared by digests, and what a process holds is told as slices."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier, local
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import autopar
from autopar.api import processes as module
from autopar.api.processes import agreed, same_everywhere, slices_of
from autopar.errors import DifferentValues, InvalidMesh
from tests.api.same import SLOW, W, X, layer

DTYPES = ("float32", "float64", "int8", "int32", "uint32", "bool", "complex64")


class Exchange:
    """What threads, one for each process, gather from one another; counts how often and how much."""

    def __init__(self, processes: int) -> None:
        self.barrier, self.number = Barrier(processes, timeout=30), local()
        self.rows: dict[int, bytes] = {}
        self.lengths: list[int] = []

    def gathered_rows(self, own: bytes, _devices: Any) -> dict[int, bytes]:
        self.rows[self.number.is_ours] = own
        self.barrier.wait()
        found = dict(sorted(self.rows.items()))
        if self.barrier.wait() == 0:
            self.lengths.append(len(own))
        return found


def told(names: list[str], values: list[list[Any]]) -> tuple[list[str], list[int]]:
    """What each process is told that passes one of `values`, "" for nothing; and the bytes of each exchange."""
    exchange = Exchange(len(values))

    def process(number: int) -> str:
        exchange.number.is_ours = number
        try:
            same_everywhere(names, values[number], ())
        except DifferentValues as error:
            return str(error)
        return ""

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(len(values)) as threads:
        patch.setattr(module, "gathered_rows", exchange.gathered_rows)
        return list(threads.map(process, range(len(values)))), exchange.lengths


@st.composite
def leaves(draw: st.DrawFn) -> Any:
    return draw(
        npst.arrays(
            draw(st.sampled_from(DTYPES)), npst.array_shapes(min_dims=0, max_side=3, min_side=0)
        )
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(leaves(), min_size=1, max_size=4), st.data())
def test_one_element_of_one_process_is_enough(values: list[Any], data: st.DataObject) -> None:
    """Equal values pass, in one exchange of 32 bytes; all are told the same of a value that differs in one place."""
    count = data.draw(st.integers(2, 4))
    names = [f"args[{n}]" for n in range(len(values))]
    assert told(names, [values] * count) == ([""] * count, [32])

    position = data.draw(st.integers(0, len(values) - 1))
    odd, value = data.draw(st.integers(0, count - 1)), np.array(values[position])
    if value.size == 0:
        return
    value.reshape(-1).view(np.uint8)[data.draw(st.integers(0, value.nbytes - 1))] ^= 1
    rows = [list(values) for _ in range(count)]
    rows[odd][position] = value
    messages, _ = told(names, rows)
    assert len(set(messages)) == 1
    assert f"different values of {names[position]} (" in messages[0]
    others = [n for n in range(count) if n != odd]
    assert f"process {odd}" in messages[0]
    assert f"process{'es' if len(others) > 1 else ''} {', '.join(map(str, others))}" in messages[0]


def test_types_and_shapes_count() -> None:
    ones = np.ones(4, np.float32)
    for other in (ones.view(np.int32), ones.reshape(2, 2), ones[:3], 1.0):
        messages, lengths = told(["x"], [[ones], [other]])
        assert messages[0] == messages[1] != ""
        assert lengths == [32, 16]


def test_all_that_differs_is_named_up_to_three() -> None:
    (message, _), _ = told(["a", "b", "c", "d", "e"], [[1, 2, 3, 4, 5], [1, 3, 4, 5, 6]])
    assert (
        "different values of b (process 0 / process 1), c (process 0 / process 1), d (process 0 / process 1) and 1 more"
        in message
    )


def test_numbers_and_arrays_of_jax_are_host_values() -> None:
    same = [0.5, jnp.arange(3), np.float32(2), True]
    assert told(list("abcd"), [same, [0.5, np.arange(3, dtype=np.int32), np.float32(2), True]])[
        0
    ] == ["", ""]


def test_in_one_process_it_holds_everything() -> None:
    plan = autopar.plan(lambda p, x: layer(p["w"], x), {"w": W}, X, cluster=SLOW)
    assert plan.in_slices() == ({"w": (slice(0, 16), slice(0, 24))}, (slice(0, 8), slice(0, 16)))
    with pytest.raises(InvalidMesh, match=r"process 3 has none of the plan's devices. Name one"):
        plan.in_slices(3)


def test_a_process_without_a_device_is_refused() -> None:
    plan = autopar.plan(layer, W, X, cluster=SLOW)
    devices = [SimpleNamespace(process_index=n) for n in (1, 2)]
    with pytest.raises(
        InvalidMesh, match=r"process 0, but the plan's devices belong to processes \[1, 2\]"
    ):
        agreed(plan.bound, devices)


class Elsewhere:
    """A sharding whose devices belong to several processes, each to that of its number."""

    def __init__(self, sharding: NamedSharding, processes: list[int]) -> None:
        self.sharding, self.processes = sharding, processes

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Any, Any]:
        indices = self.sharding.devices_indices_map(shape).values()
        return {
            At(n, process): index
            for n, (process, index) in enumerate(zip(self.processes, indices, strict=True))
        }


@dataclass(frozen=True)
class At:
    number: int
    process_index: int


@pytest.mark.parametrize(
    ("spec", "processes", "found"),
    [
        (
            P("a"),
            [0, 0, 0, 0, 1, 1, 1, 1],
            [(slice(0, 4), slice(0, 8)), (slice(4, 8), slice(0, 8))],
        ),
        (P(None, "b"), [0, 0, 0, 0, 1, 1, 1, 1], [(slice(0, 8), slice(0, 8))] * 2),
        (
            P("b", "a"),
            [0, 0, 1, 1, 0, 0, 1, 1],
            [(slice(0, 4), slice(0, 8)), (slice(4, 8), slice(0, 8))],
        ),
        (
            P(("a", "b")),
            [0, 1, 2, 3, 4, 5, 6, 7],
            [(slice(n, n + 1), slice(0, 8)) for n in range(8)],
        ),
        (P("b"), [0, 1, 0, 1, 0, 1, 0, 1], None),
        (P("a", "b"), [0, 1, 1, 1, 1, 0, 1, 1], None),
    ],
)
def test_what_a_process_holds(spec: P, processes: list[int], found: list[Any] | None) -> None:
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sharding: Any = Elsewhere(NamedSharding(mesh, spec), processes)
    if found is not None:
        assert [
            slices_of("x", (8, 8), sharding, process) for process in sorted(set(processes))
        ] == found
        return
    with pytest.raises(InvalidMesh, match=r"process 0 holds \[\(0, .* of x, which no slices name"):
        slices_of("x", (8, 8), sharding, 0)
