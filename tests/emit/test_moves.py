"""Moves as JAX runs them, against what placements and steps mean (tests/redistribute/simulate.py, in numpy)."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from autopar._compat import make_mesh, shard_map
from autopar._payload import Payload
from autopar.backends.backend import Backend
from autopar.backends.known import UNKNOWN, XLA_CPU, XLA_TPU
from autopar.core.graph import OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Kind, Placement
from autopar.core.program import Compute, Move, ShardedProgram, Value
from autopar.core.strategy import Strategy
from autopar.emit.moves import neutral, permutation, run_move
from autopar.emit.wrap import device_mesh, wrap
from autopar.passes.verify import verify
from autopar.redistribute.route import Router
from autopar.redistribute.step import Step
from tests.emit.chains import ONE, THREE, TWO, bucket, chain, chains, tensor
from tests.redistribute import simulate
from tests.redistribute.oracle import all_placements
from tests.redistribute.prices import alpha_beta, lottery

SHAPE = (16, 8)


def p(*dims: str, unreduced: str = "", kind: Kind = "sum") -> Placement:
    return Placement(tuple(tuple(dim) for dim in dims), tuple(unreduced), kind)


# Every device on its own: what it holds before and after a move ---------------------------------------------------


def run_locally(
    program: ShardedProgram, given: list[simulate.Locals], backend: Backend = UNKNOWN
) -> list[simulate.Locals]:
    """The program's moves on the devices' own values, unreduced ones too, without wrap's in and out shardings."""
    mesh = program.mesh
    order = simulate.devices(mesh)
    stacked = [np.stack([local[device] for device in order]) for local in given]

    def body(*blocks: jax.Array) -> list[jax.Array]:
        env = {value: block[0] for value, block in zip(program.inputs, blocks, strict=True)}
        for move in program.instructions:
            results = run_move(program, move, [env[v] for v in move.ins], backend)
            env.update(zip(move.outs, results, strict=True))
        return [env[value][None] for value in program.outputs]

    spec = PartitionSpec(mesh.names)
    run = shard_map(body, make_mesh(mesh.sizes, mesh.names), spec, spec, check_vma=False)
    results = jax.jit(run)(*stacked)
    return [dict(zip(order, np.asarray(result), strict=True)) for result in results]


NO_ROOM = {"bool", "uint8"}
"""Types in which there may be no value below or above a given one: these hold 0 and 1 only."""


def draw(
    array: np.ndarray, placement: Placement, mesh: DeviceMesh, seed: int = 0
) -> simulate.Locals:
    """The devices' shards of `array` in its own type; small integers, so that sums are exact."""
    rng = np.random.default_rng(seed)
    if array.dtype.name in NO_ROOM:
        local = draw_bool(array.astype(bool), placement, mesh, rng)
    else:
        local = simulate.distribute(array.astype(np.int64), placement, mesh, rng)
    return {device: shard.astype(array.dtype) for device, shard in local.items()}


def draw_bool(
    array: np.ndarray, placement: Placement, mesh: DeviceMesh, rng: np.random.Generator
) -> simulate.Locals:
    """One part is the value, and the others say no more than it (max is or) or no less (min is and)."""
    axes, parts = placement.unreduced, []
    for _ in range(mesh.product(axes) - 1):
        noise = rng.random(array.shape) < 0.5
        parts.append(array & noise if placement.kind == "max" else array | noise)
    parts.insert(int(rng.integers(len(parts) + 1)), array)
    return {
        device: simulate.shard(
            parts[simulate.part_number(device, axes, mesh)], device, placement, mesh
        )
        for device in simulate.devices(mesh)
    }


def values(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).integers(0, 2 if dtype in NO_ROOM else 100, shape)
    return np.asarray(drawn).astype(jnp.dtype(dtype))


def assert_moves(
    mesh: DeviceMesh, steps: list[Step], dtype: str = "int32", shape: tuple[int, ...] = SHAPE
) -> None:
    program = chain(mesh, shape, dtype, steps)
    verify_moves(program)
    array = values(shape, dtype)
    for backend in (UNKNOWN, Backend(tiled=True)):
        (after,) = run_locally(program, [draw(array, steps[0].before, mesh)], backend)
        simulate.assert_holds(after, array, steps[-1].after, mesh)


def verify_moves(program: ShardedProgram) -> None:
    """`verify`, but for outputs: here they may be unreduced."""
    whole = [value for value in program.outputs if not program.values[value].placement.unreduced]
    verify(
        ShardedProgram(
            program.mesh, program.values, program.inputs, tuple(whole), program.instructions
        )
    )


ONE_STEP = [
    (TWO, Step("all_gather", ("y",), p("xy", ""), p("x", ""), 0)),
    (TWO, Step("all_gather", ("y", "x"), p("yx", ""), p("", ""), 0)),
    (TWO, Step("all_gather", ("x", "y"), p("", "xy"), p("", ""), 1)),
    (THREE, Step("all_gather", ("y", "x"), p("zyx", ""), p("z", ""), 0)),
    (TWO, Step("slice", ("y",), p("x", ""), p("xy", ""), 0)),
    (TWO, Step("slice", ("y", "x"), p("", ""), p("", "yx"), 1)),
    (TWO, Step("all_to_all", ("x",), p("x", "y"), p("", "yx"), 0, 1)),
    (TWO, Step("all_to_all", ("y", "x"), p("yx", ""), p("", "yx"), 0, 1)),
    (THREE, Step("all_to_all", ("y",), p("zy", "x"), p("z", "xy"), 0, 1)),
    (TWO, Step("reduce_scatter", ("y",), p("x", "", unreduced="y"), p("xy", ""), 0)),
    (TWO, Step("reduce_scatter", ("y", "x"), p("", "", unreduced="xy"), p("", "yx"), 1)),
    (THREE, Step("reduce_scatter", ("z", "x"), p("y", "", unreduced="xz"), p("yzx", ""), 0)),
    (TWO, Step("all_reduce", ("x",), p("y", "", unreduced="x"), p("y", ""))),
    (TWO, Step("all_reduce", ("x", "y"), p("", "", unreduced="xy"), p("", ""))),
    (THREE, Step("all_reduce", ("x", "z"), p("y", "", unreduced="xz"), p("y", ""))),
    (THREE, Step("all_reduce", ("z",), p("y", "", unreduced="xz"), p("y", "", unreduced="x"))),
    (TWO, Step("mask", ("y",), p("x", ""), p("x", "", unreduced="y"))),
    (TWO, Step("mask", ("x", "y"), p("", ""), p("", "", unreduced="xy"))),
    (THREE, Step("mask", ("z",), p("y", "", unreduced="x"), p("y", "", unreduced="xz"))),
    (TWO, Step("permute", ("x", "y"), p("xy", ""), p("yx", ""))),
    (THREE, Step("permute", ("x", "y"), p("x", "y"), p("y", "x"))),
    (THREE, Step("permute", ("x", "y"), p("x", ""), p("y", ""))),
    (THREE, Step("permute", ("x", "y", "z"), p("x", "y"), p("y", "z"))),
    (THREE, Step("permute", ("x", "y", "z"), p("xyz", ""), p("zxy", ""))),
    (THREE, Step("permute", ("x", "z"), p("x", "", unreduced="y"), p("z", "", unreduced="y"))),
    (
        DeviceMesh.of({"x": 2, "y": 4, "z": 1}),
        Step("permute", ("x", "y"), p("xy", ""), p("yx", "")),
    ),
    (DeviceMesh.of({"x": 4, "y": 2}), Step("permute", ("x", "y"), p("xy", ""), p("yx", ""))),
    (ONE, Step("all_to_all", ("x",), p("x", ""), p("", "x"), 0, 1)),
]


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(("mesh", "step"), ONE_STEP, ids=str)
def test_one_move(mesh: DeviceMesh, step: Step) -> None:
    assert_moves(mesh, [step])


def test_axes_of_a_permute_may_be_named_in_any_order() -> None:
    """ppermute itself numbers the devices of a group in mesh order, whatever order it is given."""
    assert_moves(TWO, [Step("permute", ("y", "x"), p("xy", ""), p("yx", ""))])
    assert_moves(THREE, [Step("permute", ("z", "y", "x"), p("x", "y"), p("y", "z"))])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "bool"])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_max_and_min(kind: Kind, dtype: str) -> None:
    parts, more = (p("y", "", unreduced=axes, kind=kind) for axes in ("x", "xz"))
    assert_moves(
        THREE,
        [Step("mask", ("z",), parts, more), Step("all_reduce", ("x", "z"), more, p("y", ""))],
        dtype,
    )


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e4m3fnuz", "float64"]
)
@pytest.mark.parametrize("kind", ["max", "min"])
def test_a_nan_of_any_device_stays(kind: Kind, dtype: str) -> None:
    """Whichever device has it, of either sign; and signs, zeros and infinities are in their order beside it."""
    with jax.enable_x64(dtype == "float64"):
        element = jnp.dtype(dtype)
        numbers = np.array([-2.0, -0.0, 0.0, 1.5, -np.inf, np.inf]).astype(element)
        pairs = np.array(list(product(numbers, repeat=2)))
        lone = np.tile(numbers[:1], (8, 8))
        nan = np.array(np.nan, element)
        for device in range(8):
            lone[device, device] = nan if device % 2 else -nan

        given = np.concatenate([np.tile(pairs.T, (4, 1)), lone], axis=1)
        before, after = p("", unreduced="x", kind=kind), p("")
        steps = [Step("all_reduce", ("x",), before, after)]
        program = chain(ONE, given.shape[1:], dtype, steps)
        devices = simulate.devices(ONE)
        (found,) = run_locally(program, [dict(zip(devices, given, strict=True))])

        expected = getattr(given.astype(np.float64), kind)(axis=0)
        assert np.isnan(expected[-8:]).all()
        for result in found.values():
            assert result.dtype == element
            np.testing.assert_array_equal(result.astype(np.float64), expected)


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [
        ("sum", "float32", 0.0),
        ("sum", "bool", False),
        ("max", "float32", -np.inf),
        ("min", "float32", np.inf),
        ("max", "float8_e4m3fn", -448.0),
        ("min", "float8_e4m3fn", 448.0),
        ("max", "float8_e5m2", -np.inf),
        ("max", "int8", -128),
        ("min", "int8", 127),
        ("max", "uint8", 0),
        ("min", "uint8", 255),
        ("max", "bool", False),
        ("min", "bool", True),
    ],
)
def test_neutral_values(kind: Kind, dtype: str, expected: object) -> None:
    found = neutral(kind, np.dtype(dtype))
    assert np.asarray(found).dtype == dtype
    assert found == expected


@pytest.mark.parametrize(
    ("before", "after", "axes"),
    [
        (p("x", "y"), p("y", "x"), ("x", "y")),
        (p("x", ""), p("y", ""), ("x", "y")),
        (p("xy", "z"), p("zx", "y"), ("x", "y", "z")),
    ],
    ids=str,
)
def test_a_permutation_sends_once_and_moves_no_more_than_it_must(
    before: Placement, after: Placement, axes: tuple[str, ...]
) -> None:
    pairs = permutation(before, after, axes, THREE)
    count = THREE.product(axes)
    assert sorted(a for a, _ in pairs) == sorted(b for _, b in pairs) == list(range(count))
    places = [
        d
        for d in simulate.devices(THREE)
        if all(d[n] == 0 for n, a in enumerate(THREE.names) if a not in axes)
    ]
    held, wanted = (
        [simulate.shard_number(d, placement, THREE) for d in places]
        for placement in (before, after)
    )
    assert all(held[a] == wanted[b] for a, b in pairs)
    assert [b for b in range(count) if held[b] == wanted[b]] == [b for a, b in pairs if a == b]


# Buckets ------------------------------------------------------------------------------------------------------------

SHAPES = [(16, 8), (8,), (4, 8, 2), (), (8, 1)]


def bucketed(
    mesh: DeviceMesh, placed: list[tuple[tuple[int, ...], Placement]], dtype: str
) -> ShardedProgram:
    """All-reduces over x, in one bucket."""
    routes = [
        (
            shape,
            [
                Step(
                    "all_reduce",
                    ("x",),
                    before,
                    Placement(before.dims, before.unreduced[1:], before.kind),
                )
            ],
        )
        for shape, before in placed
    ]
    program = chains(mesh, dtype, routes)
    return program.with_instructions((bucket(program.collectives),))


@pytest.mark.parametrize(
    ("kind", "dtype"), [("sum", "int32"), ("sum", "float32"), ("max", "int32"), ("min", "float32")]
)
def test_a_bucket_of_many_shapes(kind: Kind, dtype: str) -> None:
    """Split and replicated over other axes, scalars included, and one left unreduced over a further axis."""
    splits = [(("y",), ("z",)), ((),), ((), ("y",), ()), (), (("z", "y"), ())]
    placed = [(s, Placement(d, ("x",), kind)) for s, d in zip(SHAPES, splits, strict=True)]
    placed.append(((8,), Placement((("y",),), ("x", "z"), kind)))
    program = bucketed(THREE, placed, dtype)
    verify_moves(program)
    arrays = [values(shape, dtype, seed) for seed, (shape, _) in enumerate(placed)]
    local = [
        draw(a, before, THREE, seed)
        for seed, (a, (_, before)) in enumerate(zip(arrays, placed, strict=True))
    ]
    for backend in (UNKNOWN, XLA_CPU, XLA_TPU, Backend(apart_bytes=100)):
        after = run_locally(program, local, backend)
        for array, held, value in zip(arrays, after, program.outputs, strict=True):
            simulate.assert_holds(held, array, program.values[value].placement, THREE)


def assert_bucket_moves(
    mesh: DeviceMesh, steps: list[tuple[tuple[int, ...], Step]], dtype: str
) -> None:
    """One bucket of `steps` gives every value what its own step would."""
    program = chains(mesh, dtype, [(shape, [step]) for shape, step in steps])
    program = program.with_instructions((bucket(program.collectives),))
    verify_moves(program)
    arrays = [values(shape, dtype, seed) for seed, (shape, _) in enumerate(steps)]
    given = [
        draw(a, step.before, mesh, seed)
        for seed, (a, (_, step)) in enumerate(zip(arrays, steps, strict=True))
    ]
    for backend in (UNKNOWN, XLA_CPU, XLA_TPU, Backend(apart_bytes=100)):
        for array, held, (_, step) in zip(
            arrays, run_locally(program, given, backend), steps, strict=True
        ):
            simulate.assert_holds(held, array, step.after, mesh)


SCATTERED = [
    ((16, 8), p("x", "", unreduced="yz"), p("x", "yz"), 1),
    ((8,), p("", unreduced="yz"), p("yz"), 0),
    ((4, 8, 2), p("x", "", "", unreduced="yz"), p("x", "yz", ""), 1),
    ((8, 2), p("x", "", unreduced="yz"), p("xyz", ""), 0),
    ((8, 0), p("", "", unreduced="yz"), p("yz", ""), 0),
]


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_a_bucket_of_scatters_along_many_dims(dtype: str) -> None:
    steps = [(shape, Step("reduce_scatter", ("y", "z"), *rest)) for shape, *rest in SCATTERED]
    assert_bucket_moves(THREE, steps, dtype)


GATHERED = [
    ((16, 8), p("x", "zy"), p("x", ""), 1),
    ((8,), p("zy"), p(""), 0),
    ((4, 8, 2), p("", "xzy", ""), p("", "x", ""), 1),
    ((8, 2), p("zy", "x"), p("", "x"), 0),
    ((8, 0), p("zy", ""), p("", ""), 0),
]


@pytest.mark.parametrize("dtype", ["int32", "bfloat16", "bool"])
def test_a_bucket_of_gathers_along_many_dims(dtype: str) -> None:
    steps = [(shape, Step("all_gather", ("z", "y"), *rest)) for shape, *rest in GATHERED]
    assert_bucket_moves(THREE, steps, dtype)


@pytest.mark.parametrize("step", [SCATTERED[0], GATHERED[0]], ids=["scatters", "gathers"])
def test_a_bucket_of_shards_is_proven_by_jax(
    step: tuple[tuple[int, ...], Placement, Placement, int],
) -> None:
    """Wrapped, with JAX's check of what is replicated: two of the same step, from and to whole values."""
    shape, before, after, dim = step
    kind = "reduce_scatter" if before.unreduced else "all_gather"
    axes = before.unreduced or ("z", "y")
    more = [Step("mask", axes, Placement(before.dims), before)] if before.unreduced else []
    program = chains(THREE, "int32", [(shape, [*more, Step(kind, axes, before, after, dim)])] * 2)
    moves = [m for m in program.instructions if isinstance(m, Move) and m.kind == kind]
    program = program.with_instructions(
        (*(i for i in program.instructions if i not in moves), bucket(moves))
    )
    assert program.proves_replication
    arrays = [values(shape, "int32", seed) for seed in range(2)]
    for array, result in zip(arrays, run_whole(program, arrays), strict=True):
        np.testing.assert_array_equal(result, array, strict=True)


# Routes between random placements -------------------------------------------------------------------------------------

FEW = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@cache
def placements(mesh: DeviceMesh, rank: int) -> list[Placement]:
    return [
        placement for placement in all_placements(mesh, rank) if placement.fits((16,) * rank, mesh)
    ]


@st.composite
def routes(draw: Any) -> tuple[DeviceMesh, tuple[int, ...], list[Step]]:
    """A mesh, a shape, and steps from one placement of it to another."""
    mesh, rank = draw(st.sampled_from([TWO, THREE])), draw(st.integers(1, 3))
    source, target = (draw(st.sampled_from(placements(mesh, rank))) for _ in range(2))
    price = draw(st.sampled_from([alpha_beta(mesh), lottery(1), lottery(2)]))
    whole = Placement.replicated(rank)
    router = Router(mesh, lambda kind, axes, size: min(price(kind, axes, size), 1e6))
    steps = list(router.route((16,) * rank, 4, source, target))
    return (
        mesh,
        (16,) * rank,
        steps or [Step("slice", mesh.names, whole, Placement((mesh.names, *whole.dims[1:])), 0)],
    )


@FEW
@given(routes())
def test_routes_between_placements(case: tuple[DeviceMesh, tuple[int, ...], list[Step]]) -> None:
    mesh, shape, steps = case
    assert_moves(mesh, steps, shape=shape)


# Whole programs, under jit with in and out shardings and JAX's own proof of replication ------------------------------


def run_whole(program: ShardedProgram, arrays: list[np.ndarray]) -> list[np.ndarray]:
    verify(program)
    jitted = wrap(program, device_mesh(program.mesh, jax.devices()))
    return [np.asarray(result) for result in jitted(*arrays)]


@FEW
@given(routes())
def test_a_wrapped_route_gives_its_input_back(
    case: tuple[DeviceMesh, tuple[int, ...], list[Step]],
) -> None:
    """From fully reduced to fully reduced: the value is the same, and JAX proves what is replicated if it can."""
    mesh, shape, steps = case
    source, target = steps[0].before, steps[-1].after
    router = Router(mesh, alpha_beta(mesh))
    whole = Placement(source.dims), Placement(target.dims)
    steps = [
        *router.route(shape, 4, whole[0], source),
        *steps,
        *router.route(shape, 4, target, whole[1]),
    ]
    array = values(shape, "int32")
    program = chain(mesh, shape, "int32", steps)
    (result,) = run_whole(program, [array])
    np.testing.assert_array_equal(result, array, strict=True)


PERMUTES = [
    (TWO, Step("permute", ("x", "y"), p("xy", ""), p("yx", "")), True),
    (THREE, Step("permute", ("x", "y"), p("x", "y"), p("y", "x")), True),
    (THREE, Step("permute", ("x", "y"), p("x", "z"), p("y", "z")), False),
    (THREE, Step("permute", ("x", "y", "z"), p("xy", ""), p("zx", "")), False),
]


@pytest.mark.parametrize(("mesh", "step", "proven"), PERMUTES, ids=str)
def test_a_permute_may_change_what_is_replicated(
    mesh: DeviceMesh, step: Step, proven: bool
) -> None:
    program = chain(mesh, SHAPE, "float32", [step])
    array = values(SHAPE, "float32")
    assert program.proves_replication == proven
    np.testing.assert_array_equal(run_whole(program, [array])[0], array, strict=True)


REDUCTION = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min}


def reduced(
    mesh: DeviceMesh, dtype: str, kind: Kind, before: Placement, steps: list[Step]
) -> ShardedProgram:
    """A reduction over dim 0, which is split: an operator that leaves its result unreduced, then `steps`."""
    shape = (8, *SHAPE)
    aval = jax.ShapeDtypeStruct(shape, dtype)
    (eqn,) = jax.make_jaxpr(lambda a: REDUCTION[kind](a, axis=0))(aval).eqns
    result = tensor(1, SHAPE, dtype)
    rest = chain(mesh, SHAPE, dtype, steps)
    whole = tensor(0, shape, dtype)
    op = OpNode(
        0, str(eqn.primitive), (whole,), (result,), payload=Payload(eqn.primitive, eqn.params)
    )
    compute = Compute(op, Strategy((before,), (steps[0].before,)), (100,), (0,))
    values = {n: Value(n, result, value.placement) for n, value in rest.values.items()}
    values[100] = Value(100, whole, before)
    return ShardedProgram(mesh, values, (100,), rest.outputs, (compute, *rest.instructions))


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_an_operator_that_leaves_its_result_unreduced(kind: Kind, dtype: str) -> None:
    parts = p("y", "", unreduced="x", kind=kind)
    program = reduced(
        TWO, dtype, kind, p("x", "y", ""), [Step("all_reduce", ("x",), parts, p("y", ""))]
    )
    assert program.proves_replication
    array = values((8, *SHAPE), dtype)
    (result,) = run_whole(program, [array])
    np.testing.assert_array_equal(result, np.asarray(REDUCTION[kind](array, axis=0)), strict=True)


def test_an_operator_whose_sum_is_scattered() -> None:
    parts = p("y", "", unreduced="x")
    steps = [
        Step("reduce_scatter", ("x",), parts, p("yx", ""), 0),
        Step("all_gather", ("y", "x"), p("yx", ""), p("", ""), 0),
    ]
    program = reduced(TWO, "int32", "sum", p("x", "y", ""), steps)
    assert program.proves_replication
    array = values((8, *SHAPE), "int32")
    np.testing.assert_array_equal(
        run_whole(program, [array])[0], array.sum(0).astype(np.int32), strict=True
    )


def test_a_dropped_all_reduce_is_refused_by_jax() -> None:
    """The planted bug: the output is claimed to be whole, and is not."""
    parts = p("y", "", unreduced="x")
    program = reduced(
        TWO, "int32", "sum", p("x", "y", ""), [Step("all_reduce", ("x",), parts, p("y", ""))]
    )
    compute, _ = program.instructions
    outputs = tuple(compute.outs)
    claimed = dict(program.values) | {0: Value(0, program.values[0].tensor, p("y", ""))}
    dropped = ShardedProgram(TWO, claimed, program.inputs, outputs, (compute,))
    with pytest.raises(ValueError, match="replicat"):
        wrap(dropped, device_mesh(TWO, jax.devices()))(values((8, *SHAPE), "int32"))


def test_a_bucket_is_one_collective_unless_the_compiler_joins_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    masked, whole = p("", "", unreduced="x"), p("", "")
    both = [Step("mask", ("x",), whole, masked), Step("all_reduce", ("x",), masked, whole)]
    program = chains(TWO, "int32", [(SHAPE, both), ((4, 3), both)])
    masks = tuple(move for move in program.instructions if move not in program.collectives)
    program = program.with_instructions((*masks, bucket(program.collectives)))
    arrays = [values(SHAPE, "int32", 1), values((4, 3), "int32", 2)]
    large = 4 * SHAPE[0] * SHAPE[1]
    for apart_bytes, count in ((None, 1), (0, 2), (large, 2), (large + 1, 1)):
        monkeypatch.setattr(
            "autopar.emit.wrap.backend_on", {"cpu": Backend(apart_bytes=apart_bytes)}.get
        )
        jitted: Any = wrap(program, device_mesh(program.mesh, jax.devices()))
        assert jitted.lower(*arrays).as_text().count("stablehlo.all_reduce") == count
        for result, array in zip(run_whole(program, arrays), arrays, strict=True):
            np.testing.assert_array_equal(result, array, strict=True)


def test_a_wrapped_bucket() -> None:
    """Of values that are replicated over the same axes, which JAX's proof follows, and over different ones."""
    masked = p("", "", unreduced="x")
    both = [Step("mask", ("x",), p("", ""), masked), Step("all_reduce", ("x",), masked, p("", ""))]
    split = p("y", "", unreduced="x")
    other = [Step("mask", ("x",), p("y", ""), split), Step("all_reduce", ("x",), split, p("y", ""))]
    for second, proven in [(both, True), (other, False)]:
        program = chains(TWO, "int32", [(SHAPE, both), ((4, 3), second)])
        masks = tuple(move for move in program.instructions if move not in program.collectives)
        program = program.with_instructions((*masks, bucket(program.collectives)))
        assert program.proves_replication == proven
        arrays = [values(SHAPE, "int32", 1), values((4, 3), "int32", 2)]
        for result, array in zip(run_whole(program, arrays), arrays, strict=True):
            np.testing.assert_array_equal(result, array, strict=True)
