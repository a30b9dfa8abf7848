"""Loops over samples in parts: the same values, only where rounds are independent, and split in the plan."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import autopar
from autopar._compat import function_of
from autopar.core.placement import Placement
from autopar.core.program import Move, Value
from autopar.errors import ProgramError
from autopar.passes.verify import verify
from autopar.trace.loop_parts import Carried, carries, in_parts, part_count

Function = Any


def scan_of(fn: Function, *args: Any) -> Any:
    """The one scan in the jaxpr of `fn`."""
    return next(eqn for eqn in jax.make_jaxpr(fn)(*args).eqns if eqn.primitive.name == "scan")


def looped(carry: tuple[str, ...], reverse: bool, stacked: bool, length: int) -> Function:
    """A scan with carries of these roles, which reads those that it may read."""

    def call(w: Any, xs: Any) -> Any:
        starts = {
            "sum": w[0],
            "less": w[1],
            "largest": w[2],
            "least": w[3],
            "counts": jnp.int32(5),
            "stays": w[1],
        }

        def body(held: dict[str, Any], x: Any) -> Any:
            value = jnp.tanh(w @ x)
            value = value * held["counts"] if "counts" in held else value
            value = value + held["stays"].sum() if "stays" in held else value
            after = {
                "sum": lambda c: c + value,
                "less": lambda c: c - value * 2,
                "largest": lambda c: jnp.maximum(value, c),
                "least": lambda c: jnp.minimum(c, value),
                "counts": lambda c: c + 3,
                "stays": lambda c: c,
            }
            return {name: after[name](c) for name, c in held.items()}, value if stacked else None

        return lax.scan(
            body, {name: starts[name] for name in carry}, xs, length=length, reverse=reverse
        )

    return call


def drawn(length: int, seed: int = 0) -> tuple[Any, Any]:
    r = np.random.default_rng(seed)
    return r.normal(size=(6, 6)), r.normal(size=(length, 6))


@settings(max_examples=16, deadline=None)
@given(
    st.lists(st.sampled_from(["sum", "less", "largest", "least", "counts", "stays"]), unique=True),
    st.booleans(),
    st.booleans(),
    st.sampled_from([2, 4, 6, 12]),
    st.sampled_from([2, 4, 8]),
)
def test_rounds_in_parts_give_the_same(
    roles: list[str], reverse: bool, stacked: bool, length: int, devices: int
) -> None:
    with jax.enable_x64(True):
        args = drawn(length)
        eqn = scan_of(looped(tuple(roles), reverse, stacked, length), *args)
        parts = part_count(eqn, devices)
        assert parts == np.gcd(length, devices)
        operands = [_operand(n, atom) for n, atom in enumerate(eqn.invars)]
        expected = eqn.primitive.bind(*operands, **eqn.params)
        found = function_of(in_parts(eqn, parts))(*operands)
        for one, other in zip(expected, found, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def _operand(seed: int, atom: Any) -> jax.Array:
    r = np.random.default_rng(seed)
    return jnp.asarray(r.normal(size=atom.aval.shape) * 5, atom.aval.dtype)


@pytest.mark.parametrize(
    ("dtype", "step", "length"),
    [("int8", 7, 300), ("uint8", 255, 12), ("int32", -3, 12), ("uint32", 2**32 - 1, 8)],
)
def test_counters_wrap_as_round_by_round(dtype: str, step: int, length: int) -> None:
    number = np.array([step % 2**32], np.uint32).astype(dtype)[0]

    def call(first: Any) -> Any:
        return lax.scan(lambda c, _: (c + number, c * 2), first, None, length=length)

    first = jnp.asarray(9, dtype)
    eqn = scan_of(call, first)
    assert carries(eqn) == [Carried("counts", int(number))]
    found = function_of(in_parts(eqn, 4))(first)
    for one, other in zip(jax.tree.leaves(call(first)), found, strict=True):
        np.testing.assert_array_equal(one, other)


BODIES: dict[str, Function] = {
    "the carry is read": lambda c, x: (c + x, c * x),
    "the term depends on the carry": lambda c, x: (c + c * x, None),
    "the carry is doubled": lambda c, x: (c + c, x),
    "the carry is scaled": lambda c, x: (0.5 * c + x, None),
    "what the carry is subtracted from": lambda c, x: (x - c, None),
    "what is accumulated is read": lambda c, x: ((d := c + x), d),
    "a branch": lambda c, x: (c, lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)),
    "a callback": lambda c, x: (c, jax.pure_callback(np.sin, x, x, vmap_method="sequential")),
    "an effect": lambda c, x: (jax.debug.callback(lambda _: None, x), (c, x))[1],
    "bits that depend on how they lie": lambda c, x: (c, lax.rng_uniform(0.0, 1.0, (3,))),
    "keys whose bits depend on how they lie": lambda c, x: (c, x * _rbg()),
}


def _rbg() -> Any:
    return jax.random.uniform(jax.random.wrap_key_data(jnp.zeros(4, "uint32"), impl="rbg"))


@pytest.mark.parametrize("name", BODIES)
def test_rounds_that_need_one_another_stay_whole(name: str) -> None:
    r = np.random.default_rng(0)
    xs = r.normal(size=(8, 3)).astype("float32")
    assert part_count(scan_of(lambda c, xs: lax.scan(BODIES[name], c, xs), xs[0], xs), 8) == 1


def test_rounds_of_two_carries_that_swap_stay_whole() -> None:
    def call(a: Any, b: Any, xs: Any) -> Any:
        return lax.scan(lambda c, x: ((c[1], c[0]), x), (a, b), xs)

    assert part_count(scan_of(call, 1.0, 2.0, np.ones(8, "float32")), 8) == 1


def one(w: Any, x: Any) -> Any:
    return jnp.sum(jnp.tanh(w @ x) ** 2)


def gradient_by_map(w: Any, xs: Any) -> Any:
    return jax.value_and_grad(lambda w: lax.map(lambda x: one(w, x), xs).mean())(w)


def gradient_of_chunks(w: Any, xs: Any) -> Any:
    return jax.grad(lambda w: lax.map(lambda x: one(w, x), xs, batch_size=2).mean())(w)


def summed(w: Any, xs: Any) -> Any:
    return lax.fori_loop(
        0, xs.shape[0], lambda i, total: total + one(w, xs[i]) * i, jnp.zeros((), xs.dtype)
    )


def nested(w: Any, xs: Any) -> Any:
    return lax.map(lambda x: lax.map(lambda r: one(w, x * r), w).sum(), xs)


def bits(w: Any, xs: Any) -> Any:
    keys = jax.random.split(jax.random.key(0), xs.shape[0])
    return lax.map(lambda each: one(w, each[0] + jax.random.normal(each[1], (6,))), (xs, keys))


def own_length(w: Any, xs: Any) -> Any:
    """A while loop in each round, of as many rounds as the sample takes."""

    def each(x: Any) -> Any:
        return lax.while_loop(lambda c: jnp.sum(c * c) > 0.1, lambda c: c * 0.7, w @ x)

    return lax.map(each, xs)


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(
    "fn", [gradient_by_map, gradient_of_chunks, summed, nested, bits, own_length]
)
@pytest.mark.parametrize("length", [8, 16])
def test_a_plan_with_loops_in_parts_computes_the_same(fn: Function, length: int) -> None:
    w, xs = (jnp.asarray(x, "float32") for x in drawn(length))
    options = autopar.SearchOptions(loops="parts")
    compiled = autopar.compile(fn, mesh={"d": 8}, options=options, in_shardings=(P(), P("d")))
    found, expected = compiled(w, xs), jax.jit(fn)(w, xs)
    program = compiled.plan(w, xs).bound.planned.program
    assert (
        all(program.tree.weight(move.region) == 1 for move in program.collectives)
        or fn is own_length
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), expected, found
    )


def test_large_samples_are_split_and_their_gradient_is_reduced_once_after_the_loop() -> None:
    w, xs = (
        jax.ShapeDtypeStruct((256, 1024), "float32"),
        jax.ShapeDtypeStruct((2**20, 1024), "float32"),
    )
    keywords: dict[str, Any] = {
        "cluster": "8xh100",
        "mesh": {"d": 8},
        "in_shardings": (P(), P("d")),
    }
    plan = autopar.plan(gradient_by_map, w, xs, **keywords)
    whole = autopar.plan(
        gradient_by_map, w, xs, options=autopar.SearchOptions(loops="whole"), **keywords
    )
    assert plan.step_time_s < 0.2 * whole.step_time_s
    assert "loops whole or in parts" in plan.summary.space
    program = plan.bound.planned.program
    assert all(program.tree.weight(move.region) == 1 for move in program.collectives)


@pytest.mark.parametrize(("mesh", "part"), [({"d": 8}, 0.3), ({"a": 2, "b": 4}, 1.1)])
def test_the_parts_of_a_loop_are_split_even_where_splitting_what_is_inside_costs_less(
    mesh: dict[str, int], part: float
) -> None:
    def mapped(w: Any, xs: Any) -> Any:
        return lax.map(lambda x: (jnp.tanh(w @ x) ** 2).sum(), xs)

    w, xs = (
        jax.ShapeDtypeStruct((256, 1024), "float32"),
        jax.ShapeDtypeStruct((1 << 20, 1024), "float32"),
    )
    plan = autopar.plan(mapped, w, xs, cluster="8xh100", mesh=mesh)
    assert plan.placements["xs"].dims[0]
    assert plan.peak_memory_bytes < part * 4 * xs.size
    assert "loops in up to 8 parts side by side" in " ".join(plan.report().split())


def test_loops_that_do_not_divide_and_loops_over_layers_are_planned_as_before() -> None:
    def layers(w: Any, x: Any) -> Any:
        return lax.scan(lambda h, w: (jnp.tanh(w * h), None), x, w)[0]

    plan = autopar.plan(layers, np.ones((8, 6)), np.ones(6), cluster="8xh100")
    assert not plan.bound.traced.has_parts
    plan = autopar.plan(lambda xs: lax.map(jnp.sin, xs), np.ones((7, 6)), cluster="8xh100")
    assert not plan.bound.traced.has_parts


def root(x: Any, scale: Any) -> Any:
    """By Newton's method, in as many rounds as it takes."""

    def goes_on(state: Any) -> Any:
        return jnp.abs(state[0] ** 2 - x) > 1e-6 * x

    def step(state: Any) -> Any:
        return 0.5 * (state[0] + x / state[0]) * scale, state[1] + 1

    return lax.while_loop(goes_on, step, (x, 0))


@pytest.mark.parametrize("mesh", [{"d": 8}, {"a": 2, "b": 4}])
def test_devices_leave_a_mapped_while_loop_by_themselves(mesh: dict[str, int]) -> None:
    """Rounds differ from 2 to 20: nothing is sent, and results are those of plain JAX."""
    xs, roots = np.linspace(1, 1e12, 64), jax.vmap(root, (0, None))
    step = autopar.compile(roots, cluster="8xh100", mesh=mesh, in_shardings=(P(tuple(mesh)), P()))
    expected, found = jax.jit(roots)(xs, 1.0), step(xs, 1.0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), expected, found)
    assert len(set(np.asarray(expected[1]).tolist())) > 3
    (plan,) = step.plans
    assert not plan.program().collectives
    large = jax.ShapeDtypeStruct((1 << 22,), "float32"), jax.ShapeDtypeStruct((), "float32")
    plan = autopar.plan(roots, *large, cluster="8xh100", mesh=mesh)
    assert plan.placements["x"].split_axes == tuple(mesh)
    assert not plan.program().collectives
    assert "loops whole or in parts" in plan.summary.space


def test_loops_whose_devices_need_one_another_are_left_together() -> None:
    """Each round needs a sum over what is split, or the test does: where such a dim is split, devices stay together."""

    def norm(x: Any) -> Any:
        return lax.while_loop(
            lambda c: jnp.sum(c**2) > 1.0, lambda c: c - 0.1 * c * jnp.sum(c**2), x
        )

    xs = np.random.default_rng(0).normal(size=(8, 16)) * np.linspace(0.1, 1, 8)[:, None]
    for spec in (P("d"), P(None, "d")):
        found = autopar.compile(jax.vmap(norm), mesh={"d": 8}, in_shardings=spec)(xs)
        np.testing.assert_allclose(found, jax.jit(jax.vmap(norm))(xs), rtol=1e-9)


def test_a_collective_where_devices_leave_by_themselves_is_refused() -> None:
    xs, options = np.linspace(1, 9, 64), autopar.SearchOptions(loops="parts")
    roots = jax.vmap(root, (0, None))
    keywords: Any = {"cluster": "8xh100", "mesh": {"d": 8}, "in_shardings": (P("d"), P())}
    program = autopar.plan(roots, xs, 1.0, options=options, **keywords).program()
    position, made = next(
        (n, i)
        for n, i in enumerate(program.instructions)
        if i.region is not None
        and program.tree.kind(i.region) == "body"
        and [program.values[v].placement.split_axes for v in i.outs] == [("d",)]
    )
    (value,) = made.outs
    whole = max(program.values) + 1
    added = Value(whole, program.values[value].tensor, Placement(((),)))
    gather = Move(
        "all_gather", ("d",), (value,), (whole,), 512, 1e-6, "redistribution", 0, region=made.region
    )
    before, after = program.instructions[: position + 1], program.instructions[position + 1 :]
    verify(program)
    with pytest.raises(
        ProgramError, match="sent over d, along which devices leave it by themselves"
    ):
        verify(program.with_instructions((*before, gather, *after), {whole: added}))
