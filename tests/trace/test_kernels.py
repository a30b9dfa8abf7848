"""Kernels of Pallas that people use: which axes of their grids may be split, and that devices may share them out.

Kernels run in interpret mode: every strategy on slices, put together, against the kernel run whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import flash_attention, matmul
from jax.experimental.pallas.ops.tpu.megablox import gmm
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.extend.core import Literal

import autopar
from autopar import _compat
from autopar._payload import Payload
from autopar.core.mesh import DeviceMesh
from autopar.ops.rules import rule_of
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.ops.rules.kernels import has_no_price
from autopar.ops.traits import work_flops
from autopar.trace import trace
from autopar.trace.walk import CALLS as CALLED
from tests.ops.build import Built, bind
from tests.ops.property import check_rule

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # JAX 0.12: they are in tokamax now
    from jax.experimental.pallas.ops.gpu import attention as gpu
    from jax.experimental.pallas.ops.gpu import decode_attention, paged_attention

Function = Callable[..., Any]
MESH = DeviceMesh.of({"x": 2})
rng = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


Seen = list[tuple[list[Any], list[Any]]]


def run(jaxpr: Any, consts: Any, args: Any, seen: Seen) -> list[Any]:
    """The results of a jaxpr, its kernels interpreted; `seen` gets what each of them reads and makes."""
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(atom: Any) -> Any:
        return np.asarray(atom.val, atom.aval.dtype) if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        values = [read(atom) for atom in eqn.invars]
        name = eqn.primitive.name
        if name in CALLED:
            results = run(*_compat.open_jaxpr(eqn.params[CALLED[name]]), values, seen)
        elif name == "pallas_call":
            results = bind(eqn.primitive, {**eqn.params, "interpret": True}, values)
            seen.append((values, results))
        else:
            results = bind(eqn.primitive, eqn.params, values)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def kernels(function: Function, *args: Any) -> list[Built]:
    """The kernels of a function that may be split, with the values of their operands and results."""
    ops = [op for op in trace(function, args).graph.ops if "pallas" in op.kind]
    seen: Seen = []
    run(*_compat.open_jaxpr(jax.make_jaxpr(function)(*args)), jax.tree.leaves(args), seen)
    found: list[Built] = []
    for op, (values, results) in zip(ops, seen, strict=True):
        assert isinstance(op.payload, Payload)
        params = {**op.payload.params, "interpret": True}
        shown = replace(op, payload=Payload(op.payload.primitive, params))
        if op.kind == "pallas_kernel":
            raw = [[np.asarray(value) for value in side] for side in (values, results)]
            found.append(Built(shown, tuple(raw[0]), tuple(raw[1])))
    return found


def gradients(attention: Function) -> Function:
    return jax.grad(lambda *qkv: (attention(*qkv) ** 2).sum(), (0, 1, 2))


def splashed(q: Any, k: Any, v: Any) -> Any:
    causal = masks.MultiHeadMask([masks.CausalMask((256, 256)) for _ in range(q.shape[1])])
    kernel = splash.make_splash_mha(causal, head_shards=1, q_seq_shards=1)
    return jax.vmap(kernel)(q, k, v)


def grouped(x: Any, weights: Any) -> Any:
    sizes = jnp.array([128, 0, 64, 64], jnp.int32)
    return gmm(x, weights, sizes, jnp.float32, tiling=(128, 128, 128))


LONG, WIDE = (2, 2, 256, 128), (2, 128, 2, 64)
CALLS: dict[str, tuple[Function, tuple[Any, ...], int]] = {
    "flash on TPU": (
        gradients(partial(flash_attention.flash_attention, causal=True)),
        tuple(floats(*LONG) for _ in range(3)),
        3,
    ),
    "splash on TPU": (gradients(splashed), tuple(floats(*LONG) for _ in range(3)), 3),
    "flash on GPU": (
        gradients(partial(gpu.mha, segment_ids=None, causal=True)),
        tuple(floats(*WIDE) for _ in range(3)),
        2,
    ),
    "groups of rows on TPU": (grouped, (floats(256, 128), floats(4, 128, 256)), 1),
    "product on TPU": (
        partial(matmul.matmul, block_shape=(128, 128)),
        (floats(256, 512), floats(512, 256)),
        1,
    ),
    "one query for groups of heads on GPU": (
        decode_attention.gqa,
        (floats(2, 4, 64), floats(2, 256, 2, 64), floats(2, 256, 2, 64)),
        1,
    ),
    "pages on GPU": (
        paged_attention.paged_attention,
        (
            floats(2, 4, 64),
            floats(2, 32, 16, 64),
            floats(2, 32, 16, 64),
            rng.integers(0, 32, (2, 16)).astype(np.int32),
            np.array([100, 256], np.int32),
        ),
        1,
    ),
}


@pytest.mark.quick_share(9)
@pytest.mark.parametrize("name", CALLS)
def test_devices_share_out_what_the_grid_picks(name: str) -> None:
    function, args, count = CALLS[name]
    found = kernels(function, *args)
    assert len(found) >= count
    for built in found:
        assert check_rule(built, rule_of(built.op), MESH, 8) > 1


def placements(function: Function, *args: Any) -> set[str]:
    (op,) = [op for op in trace(function, args).graph.ops if "pallas" in op.kind]
    strategies = enumerate_strategies(rule_of(op), MESH)
    return {f"{' '.join(map(str, s.ins))} -> {' '.join(map(str, s.outs))}" for s in strategies}


def on_grid(
    kernel: Function, grid: tuple[int, ...], ins: Any, out: Any, **options: Any
) -> Function:
    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=ins,
        out_specs=out,
        out_shape=jax.ShapeDtypeStruct((8, 128), "float32"),
        interpret=True,
        **options,
    )


ROWS = pl.BlockSpec((2, 128), lambda i: (i, 0))
X = floats(8, 128)


def copied(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...]


def numbered(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] + pl.program_id(0)


def carried(x_ref: Any, out_ref: Any, total_ref: Any) -> None:
    total_ref[...] = total_ref[...] + x_ref[...]
    out_ref[...] = total_ref[...]


def kind_of(function: Function, *args: Any) -> str:
    (kind,) = [op.kind for op in trace(function, args).graph.ops if "pallas" in op.kind]
    return kind


def test_only_what_picks_blocks_and_nothing_else_is_split() -> None:
    assert placements(on_grid(copied, (4,), [ROWS], ROWS), X) == {
        "[-, -] -> [-, -]",
        "[x, -] -> [x, -]",
    }
    same = pl.BlockSpec((2, 128), lambda i: (0, 0))
    turned = pl.BlockSpec((2, 128), lambda i: (3 - i, 0))
    scratch = [pltpu.VMEM((2, 128), jnp.float32)]
    said = pltpu.CompilerParams(dimension_semantics=("arbitrary",))
    for call in (
        on_grid(numbered, (4,), [ROWS], ROWS),  # it counts its points
        on_grid(copied, (4,), [ROWS], same),  # all write one block
        on_grid(copied, (4,), [turned], ROWS),  # blocks come in another order
        on_grid(carried, (4,), [ROWS], ROWS, scratch_shapes=scratch),  # one leaves something behind
        on_grid(copied, (4,), [ROWS], ROWS, compiler_params=said),  # its author says that one may
    ):
        assert kind_of(call, X) == "pallas_call"


def unread(x_ref: Any, out_ref: Any) -> None:
    pl.program_id(0)
    out_ref[...] = x_ref[...]


def test_what_is_said_of_axes_is_said_of_those_that_no_vmap_added() -> None:
    scratch = [pltpu.VMEM((2, 128), jnp.float32)]
    parallel, arbitrary = (
        pltpu.CompilerParams(dimension_semantics=(said,)) for said in ("parallel", "arbitrary")
    )
    axes: dict[Any, set[int]] = {}
    for said in (parallel, arbitrary):
        call = on_grid(carried, (4,), [ROWS], ROWS, scratch_shapes=scratch, compiler_params=said)
        (op,) = [op for op in trace(jax.vmap(call), (np.stack([X, X]),)).graph.ops if op.ins]
        arrays = op.params["blocks"].arrays
        axes[said] = {picked.axis for dims in arrays for picked in dims if picked is not None}
    assert list(axes.values()) == [{0, 1}, {0}]
    assert kind_of(on_grid(unread, (4,), [ROWS], ROWS), X) == "pallas_kernel"


def test_blocks_that_neighbours_share_go_with_them() -> None:
    """As heads of queries share heads of keys: key heads first, then queries of each, if all keys are apart."""
    keys = pl.BlockSpec((2, 128), lambda i: (i // 2, 0))
    call = on_grid(copied, (4,), [keys], ROWS)
    assert placements(call, X[:4]) == {"[-, -] -> [-, -]", "[x, -] -> [x, -]"}
    (built,) = kernels(call, X[:4])
    both = DeviceMesh.of({"x": 2, "y": 2})
    assert check_rule(built, rule_of(built.op), both, 64) > 2


def test_products_are_counted_where_nothing_is_stated() -> None:
    (op,) = [built.op for built in kernels(*_call("product on TPU"))]
    assert work_flops(op) == 2 * 256 * 512 * 256
    assert not has_no_price(op)
    forward, *backward = [built.op for built in kernels(*_call("flash on TPU"))]
    pairs = 2.0 * np.prod(LONG) * 256
    assert work_flops(forward) > 2 * pairs  # as its author says, with its exponentials
    assert sum(map(work_flops, backward)) == 7 * pairs / 2  # a choice to skip what is masked: half


def _call(name: str) -> tuple[Any, ...]:
    function, args, _ = CALLS[name]
    return function, *args


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("axes", [{"x": 2, "y": 4}, {"x": 8}])
def test_plans_have_the_values_of_jax(axes: dict[str, int]) -> None:
    function = gradients(partial(gpu.mha, segment_ids=None, causal=True, interpret=True))
    args = [floats(8, 128, 8, 64) for _ in range(3)]
    plan = autopar.plan(function, *args, cluster="8xh100", mesh=axes)
    kernel_rows = [row for row in plan.summary.operators if row.kind == "pallas_kernel"]
    assert kernel_rows
    assert any(row.split > 1 for row in kernel_rows)
    wanted = function(*args)
    for found, expected in zip(plan.compile(devices=jax.devices())(*args), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
