"""Local operators inside a real shard_map, with JAX's own check that what is claimed replicated is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, reduce
from operator import getitem
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from autopar._payload import Payload
from autopar.backends.backend import Backend
from autopar.backends.known import UNKNOWN, XLA_CPU, XLA_GPU, XLA_TPU
from autopar.core.graph import OpNode, TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy
from autopar.emit.local.counters import _product_of_words, _sum_of_words
from autopar.emit.local.localize import localize
from autopar.ops.rules import rule_of
from autopar.ops.rules.enumerate import enumerate_strategies
from tests.ops.all_cases import CASES
from tests.ops.build import Arg, Built, Case, build, raw
from tests.ops.drawn import MOVED, RANKED, WINDOWED, Rng
from tests.ops.property import assert_close

MESH = DeviceMesh.of({"x": 2, "y": 2})
REDUCE = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}


@cache
def built(name: str) -> Built:
    return build(next(case for case in CASES if case.name == name))


def spec(placement: Placement) -> PartitionSpec:
    return PartitionSpec(*placement.dims)


def run_sharded(
    found: Built, strategy: Strategy, *, backend: Backend = UNKNOWN
) -> list[np.ndarray]:
    """The operator under shard_map, unreduced results reduced."""
    axes = frozenset(axis for placement in strategy.ins for axis in placement.varying_axes)

    def body(*operands: jax.Array) -> list[jax.Array]:
        varying = [
            lax.pcast(x, tuple(sorted(axes - frozenset(placement.split_axes))), to="varying")
            for x, placement in zip(operands, strategy.ins, strict=True)
        ]
        results = localize(found.op, strategy, MESH, backend=backend)(*varying)
        return [
            REDUCE[placement.kind](x, placement.unreduced) if placement.unreduced else x
            for x, placement in zip(results, strategy.outs, strict=True)
        ]

    devices = np.array(jax.devices()[: MESH.size]).reshape(MESH.sizes)
    mesh = jax.sharding.Mesh(devices, MESH.names, axis_types=(jax.sharding.AxisType.Auto,) * 2)
    ins, outs = tuple(map(spec, strategy.ins)), list(map(spec, strategy.outs))
    run = jax.shard_map(body, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=True)
    return [raw(x) for x in jax.jit(run)(*found.values)]


@pytest.mark.quick_share(8)
@pytest.mark.parametrize(
    "name",
    [
        "dot_general batch",
        "conv_general_dilated groups",
        "reshape (32,) (4, 8)",
        "broadcast_in_dim",
        "slice",
        "tile",
        "iota rounded",
        "iota_2x32_shape",
        "threefry2x32",
        "gather rows fill",
        "gather two components filled",
        "gather booleans filled",
        "scatter-add rows clip",
        "scatter-add along axis",
        "select_and_scatter_add",
        "reduce_and",
        "gather mapped slice of one row",
        "scatter mapped write of two rows",
        "scatter-add segment_sum",
        "ragged_dot_general",
        "ragged_dot_general rows summed up",
        "ragged_dot_general sizes for each of a batch",
        "cholesky",
        "svd",
        "triangular_solve",
        "fft to real",
        "approx_top_k",
        "psum",
        "pmax",
        "empty",
        "threefry4x32",
    ],
)
def test_strategies_under_shard_map(name: str) -> None:
    """Those without unreduced operands (which have no spec); the two that use the most axes of each kind."""
    found = built(name)
    strategies = [
        s
        for s in enumerate_strategies(rule_of(found.op), MESH)
        if not any(p.unreduced for p in s.ins)
    ]
    strategies.sort(key=lambda s: -len({axis for _, axes in s.factors for axis in axes}))
    for strategy in strategies[:: max(1, len(strategies) // 3)][:3]:
        for result, whole in zip(run_sharded(found, strategy), found.results, strict=True):
            np.testing.assert_allclose(
                result.astype(np.float64),
                whole.astype(np.float64),
                rtol=1e-4,
                atol=1e-5,
                err_msg=str(strategy),
            )


def test_groups_of_a_result_are_split_where_no_operand_is() -> None:
    """What the devices write is told apart by where their groups begin alone."""
    found = built("ragged_dot_general rows summed up")
    strategies = [
        s
        for s in enumerate_strategies(rule_of(found.op), MESH)
        if not any(p.varying_axes for p in s.ins)
    ]
    (strategy,) = (s for s in strategies if s.outs[0].dims[0] == ("x",))
    for result, whole in zip(run_sharded(found, strategy), found.results, strict=True):
        assert_close(result, whole, str(strategy))


@pytest.mark.quick_share(4)
@pytest.mark.parametrize("draw", [*WINDOWED, *RANKED, *MOVED], ids=lambda draw: draw.__name__)
def test_exchanges_under_shard_map(draw: Callable[[Rng], Case]) -> None:
    """Of drawn operators the first that can exchange over both axes (dynamic slices: that can be split so)."""
    for seed in range(40):
        found = build(draw(np.random.default_rng(seed)))
        strategies = [
            s
            for s in enumerate_strategies(rule_of(found.op), MESH)
            if not any(p.unreduced for p in s.ins)
        ]
        strategies.sort(
            key=lambda s: (
                -len({a for e in s.exchanges for a in e.axes}),
                -len(s.factors),
                -s.split,
            )
        )
        if strategies[0].exchanges or found.op.kind.startswith("dynamic"):
            break
    for result, whole in zip(run_sharded(found, strategies[0]), found.results, strict=True):
        assert_close(result, whole, str(strategies[0]))


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(("shapes", "numbers", "matrices"), [
    (((4, 8, 2), (4, 8, 6)), (((0, 1), (0, 1)), ((), ())), ((32, 2), (32, 6))),
    (((4, 8, 2), (6, 4, 8)), (((0, 1), (1, 2)), ((), ())), ((32, 2), (6, 32))),
    (((4, 8, 2), (4, 6)), (((0,), (0,)), ((), ())), ((4, 16), (4, 6))),
    (((4, 8, 2), (4, 8, 2, 6)), (((0, 1, 2), (0, 1, 2)), ((), ())), ((64, 1), (64, 6))),
    (((2, 4, 4, 2), (2, 4, 4, 6)), (((1, 2), (1, 2)), ((0,), (0,))), ((2, 16, 2), (2, 16, 6))),
    (((4, 8, 2), (2, 6)), (((2,), (0,)), ((), ())), ((4, 8, 2), (2, 6))),
    (((8, 4, 2), (4, 8, 6)), (((1, 0), (0, 1)), ((), ())), ((8, 4, 2), (4, 8, 6))),
])  # fmt: skip
def test_products_are_of_matrices_where_dims_are_merged(
    shapes: tuple[tuple[int, ...], ...], numbers: Any, matrices: tuple[tuple[int, ...], ...]
) -> None:
    """For XLA's CPU compiler alone; the operands' own order stays, and so do results, however they are split."""

    def multiplied(x: jax.Array, y: jax.Array) -> jax.Array:
        return lax.dot_general(x, y, numbers)

    found = build(Case("dot_general", "drawn", multiplied, tuple(map(Arg, shapes))))
    strategies = [
        s
        for s in enumerate_strategies(rule_of(found.op), MESH)
        if not any(p.unreduced for p in s.ins)
    ]
    for backend, expected in ((UNKNOWN, shapes), (XLA_CPU, matrices)):
        local = localize(found.op, strategies[0], MESH, backend=backend)
        (product,) = (
            e
            for e in jax.make_jaxpr(local)(*found.values).eqns
            if e.primitive.name == "dot_general"
        )
        assert tuple(v.aval.shape for v in product.invars) == expected
        for strategy in strategies[:: max(1, len(strategies) // 6)]:
            for result, whole in zip(
                run_sharded(found, strategy, backend=backend), found.results, strict=True
            ):
                assert_close(result, whole, str(strategy))


def _primitives(kind: str, function: Callable[..., Any], dims: str, backend: Backend) -> list[str]:
    """What a device runs of the first strategy of `function`, of one operator, with the first operand split so."""
    found = build(
        Case(kind, "indexed", function, (Arg((16, 6)), Arg((5, 1), "int32"), Arg((5, 6))))
    )
    split = tuple((axis,) if axis.strip() else () for axis in dims)
    strategies = enumerate_strategies(rule_of(found.op), MESH)
    strategy = next(s for s in strategies if s.ins[0].dims == split)
    local = localize(found.op, strategy, MESH, lambda _: 0, backend=backend)
    return [e.primitive.name for e in jax.make_jaxpr(local)(*found.values).eqns]


@pytest.mark.parametrize(
    ("backend", "expected"), [(UNKNOWN, True), (XLA_CPU, True), (XLA_GPU, False), (XLA_TPU, False)]
)
def test_a_scatter_has_its_operand_apart_where_the_compiler_wants_that(
    backend: Backend, expected: bool
) -> None:
    def summed(x: jax.Array, rows: jax.Array, updates: jax.Array) -> jax.Array:
        numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
        return lax.scatter_add(x, rows, updates, numbers)

    assert ("optimization_barrier" in _primitives("scatter-add", summed, "x ", backend)) is expected
    assert "optimization_barrier" not in _primitives("scatter-add", summed, "  ", backend)


@pytest.mark.parametrize(
    ("backend", "expected"), [(UNKNOWN, False), (XLA_CPU, False), (XLA_TPU, True)]
)
def test_rows_are_kept_as_they_are_found_where_arrays_lie_in_tiles(
    backend: Backend, expected: bool
) -> None:
    def rows(x: jax.Array, rows: jax.Array, _updates: jax.Array) -> jax.Array:
        return lax.gather(x, rows, lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 6))

    def columns(x: jax.Array, rows: jax.Array, _updates: jax.Array) -> jax.Array:
        return lax.gather(x, rows, lax.GatherDimensionNumbers((0,), (0,), (0,)), (1, 6))

    assert ("layout_constraint" in _primitives("gather", rows, "x ", backend)) is expected
    assert "layout_constraint" not in _primitives("gather", rows, "  ", backend)
    assert "layout_constraint" not in _primitives("gather", columns, "x ", backend)


def test_an_operator_that_was_not_traced_is_refused() -> None:
    op = OpNode(0, "add", (), (TensorInfo(0, (), "float32", 4),))
    with pytest.raises(TypeError, match="holds no primitive"):
        localize(op, Strategy((), (Placement.replicated(0),)), MESH)()


def test_counters_are_exact_beyond_32_bits() -> None:
    """A shard of a tensor of 2^53 elements, which could never be made whole: its numbers against Python's."""
    shape, mesh = (
        (1 << 20, 3 << 12, 1 << 20),
        DeviceMesh.of({"x": 1 << 19, "y": 3 << 11, "z": 1 << 18}),
    )
    outs = tuple(TensorInfo(n, shape, "uint32", 4) for n in range(2))
    placement = Placement((("x",), ("y",), ("z",)))
    strategy = Strategy((), (placement, placement))
    op = OpNode(0, "iota_2x32_shape", (), outs, payload=Payload(None, {"shape": shape}))
    place = {"x": 400_001, "y": 5_003, "z": 200_003}
    high, low = localize(op, strategy, mesh, lambda axes: reduce(getitem, axes, place))()
    numbers = np.asarray(high).astype(object) * 2**32 + np.asarray(low).astype(object)
    assert numbers.shape == (2, 2, 4)
    for d, e, f in np.ndindex(2, 2, 4):
        at = [2 * place["x"] + d, 2 * place["y"] + e, 4 * place["z"] + f]
        assert numbers[d, e, f] == (at[0] * shape[1] + at[1]) * shape[2] + at[2]


def test_words_multiply_and_add_as_integers() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, y, z = (
            int(rng.integers(0, 2**32)),
            int(rng.integers(0, 2**63)),
            int(rng.integers(0, 2**63)),
        )
        product = _product_of_words(np.array([x], np.uint32), y)
        total = _sum_of_words(
            product, (np.array([z >> 32], np.uint32), np.array([z & 0xFFFFFFFF], np.uint32))
        )
        assert (int(total[0][0]) << 32 | int(total[1][0])) == (x * y + z) % 2**64
