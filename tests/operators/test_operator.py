"""The decorator: the ordinary function everywhere but in a plan, and one operator there, with derivatives and maps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import autopar
from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.errors import RuleError, TraceError
from autopar.operators import KEEP
from autopar.operators.primitive import operator_p
from autopar.ops.rules import rule_of
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.ops.rules.factor_rule import FactorRule
from autopar.ops.rules.user import as_rule
from autopar.trace import fingerprint, trace
from tests.api.same import SLOW, assert_same
from tests.ops.build import Built
from tests.ops.property import MESHES, check_rule


@autopar.operator("... d -> ... d", frozen="d")
def unit(x: Any) -> Any:
    """A doc."""
    return x / jnp.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


@autopar.operator("b d, d n -> b n", reduced="d", linear=(0, 1))
def product(x: Any, w: Any) -> Any:
    return x @ w


@autopar.operator("... d -> ... d, ...", frozen="d", static=("power", "how"))
def sorted_powers(x: Any, power: int = 1, *, how: str = "up") -> Any:
    """Two results, one of them of integers; no rule of what is inside splits the last dim."""
    y = jnp.sort(x, axis=-1) ** power
    return {"values": y if how == "up" else -y, "count": (x > 0).sum(-1)}


@autopar.operator(as_rule("a b -> a", reduced={"b": "max"}))
def largest(x: Any) -> Any:
    return x.max(1)


@autopar.operator("a -> a", name="nested_units")
def nested(tree: Any) -> Any:
    return unit(tree["x"][0][:, None])[:, 0] * 2


RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 32)).astype(np.float32)
W = RNG.normal(size=(32, 64)).astype(np.float32)


def net(x: Any, w: Any) -> Any:
    return (unit(jnp.tanh(product(x, w))) ** 3).sum()


GRADIENT = jax.value_and_grad(net, (0, 1))
WHICH = ("best", "kept", "expanded")


def graph_of(function: Any, *args: Any) -> OpGraph:
    with KEEP(True):
        return trace(function, args).graph


def kinds(function: Any, *args: Any) -> list[str]:
    return [op.kind for op in graph_of(function, *args).ops if op.body is not None]


# --- outside of a plan -----------------------------------------------------------------------------------------------


def test_outside_of_a_plan_it_is_the_ordinary_function() -> None:
    plain = getattr(unit, "__wrapped__")  # noqa: B009 - pyright knows no __wrapped__
    assert (unit.__name__, unit.__doc__) == ("unit", "A doc.")
    for transform in (lambda f: f, jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())):
        np.testing.assert_array_equal(transform(unit)(X), transform(plain)(X))
    assert "autopar" not in str(jax.make_jaxpr(GRADIENT)(X, W))


def test_traces_with_and_without_operators_do_not_mix() -> None:
    """Not even where JAX remembers the trace of an inner jit."""
    inner = jax.jit(unit)
    for _ in range(2):
        assert "autopar_operator" not in str(jax.make_jaxpr(inner)(X))
        with KEEP(True):
            assert "autopar_operator" in str(jax.make_jaxpr(inner)(X))


# --- in a trace ------------------------------------------------------------------------------------------------------


def test_a_call_is_one_operator_with_its_arguments_as_parameters() -> None:
    (op,) = graph_of(lambda x: sorted_powers(x, how="down", power=3), X).ops
    assert op.kind == "sorted_powers"
    assert op.params == {"power": 3, "how": "down", "arguments": ("x",)}
    assert [t.shape for t in op.outs] == [(16,), (16, 32)]  # of a dict, by name
    assert op.source.startswith("test_operator.py")
    assert op.body is not None
    assert "sort" in [inner.kind for inner in op.body.ops]


def test_what_jax_makes_of_it() -> None:
    assert kinds(net, X, W) == ["product", "unit"]
    assert kinds(GRADIENT, X, W) == ["product", "unit", "unit.vjp", "product.vjp"]
    assert kinds(lambda x, w: jax.jvp(net, (x, w), (x, w)), X, W) == [
        "product",
        "product.jvp",
        "unit",
        "unit.jvp",
    ]
    assert kinds(jax.vmap(net, (0, None)), X[:, None], W) == ["product", "unit"]
    assert kinds(jax.vmap(jax.grad(net), (0, None)), X[:, None], W) == [
        "product",
        "unit",
        "unit.vjp",
        "product.vjp",
    ]
    assert kinds(jax.checkpoint(net), X, W) == ["product", "unit"]
    assert kinds(nested, {"x": [X[:, 0]]}) == ["nested_units"]


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(
    "function",
    [
        net,
        GRADIENT,
        jax.vmap(GRADIENT, (0, None)),
        lambda x, w: jax.jvp(net, (x[0], w), (x[0], w)),
        lambda x, w: jax.jvp(jax.grad(net), (x[0], w), (x[0], w)),
        lambda x, w: jax.hessian(net)(x[0, :1], w),
        lambda x, w: jax.grad(lambda v: jax.vmap(net, (None, 0))(x[0], v).sum())(
            jnp.stack([w, w + 1])
        ),
        lambda x, w: jax.linearize(lambda v: net(v, w), x[0])[1](x[1]),
        lambda x, w: jax.vjp(jax.vmap(lambda t: jax.jvp(net, (x[0], w), (t, w))[1]), x)[1](
            jnp.ones(2)
        ),
        lambda x, w: lax.scan(lambda c, y: (c + net(y, w), unit(y)), 0.0, x),
    ],
)
def test_values_are_those_of_the_ordinary_function(function: Any) -> None:
    args = (X, W) if function in (net, GRADIENT) else (np.stack([X[:4], X[4:8]]), W)
    expected = jax.jit(function)(*args)
    with KEEP(True):
        assert_same(jax.jit(function)(*args), expected)
        if function is GRADIENT:
            assert_same(function(*args), expected)


def test_integers_and_unused_results_are_differentiated() -> None:
    def loss(x: Any) -> Any:
        found = sorted_powers(x, 2)
        return (found["values"] * found["count"][:, None]).sum()

    expected = jax.grad(loss)(X)
    with KEEP(True):
        assert_same(jax.grad(loss)(X), expected)
    assert kinds(jax.grad(loss), X) == ["sorted_powers", "sorted_powers.vjp"]


# --- derived rules ---------------------------------------------------------------------------------------------------


def placed(op: OpNode) -> set[str]:
    strategies = enumerate_strategies(rule_of(op), DeviceMesh.of({"x": 2}))
    return {f"{' '.join(map(str, s.ins))} -> {' '.join(map(str, s.outs))}" for s in strategies}


def derived_op(function: Any, kind: str, *args: Any) -> OpNode:
    return next(op for op in graph_of(function, *args).ops if op.kind == kind)


def test_the_rule_of_gradients() -> None:
    assert placed(derived_op(GRADIENT, "product.vjp", X, W)) == {
        "[-, -] [-, -] [-, -] -> [-, -] [-, -]",
        "[x, -] [-, -] [x, -] -> [x, -] [-, -] sum(x)",
        "[-, x] [x, -] [-, -] -> [-, x] [x, -]",
        "[-, -] [-, x] [-, x] -> [-, -] sum(x) [-, x]",
        "[-, -] [-, -] [-, -] sum(x) -> [-, -] sum(x) [-, -] sum(x)",
    }


def test_the_rule_of_gradients_of_a_map() -> None:
    """What all of the batch share has a gradient that is summed over it."""

    def loss(x: Any, w: Any) -> Any:
        return jax.vmap(product, (0, None))(x, w).sum()

    found = placed(derived_op(jax.grad(loss, (0, 1)), "product.vjp", X.reshape(4, 4, 32), W))
    assert "[x, -, -] [-, -] [x, -, -] -> [x, -, -] [-, -] sum(x)" in found
    assert "[-, -, x] [x, -] [-, -, -] -> [-, -, x] [x, -]" in found


def test_the_rule_of_tangents() -> None:
    op = derived_op(
        lambda x, w, dx, dw: jax.jvp(product, (x, w), (dx, dw)), "product.jvp", X, W, X, W
    )
    assert "[-, x] [x, -] [-, x] [x, -] -> [-, -] sum(x)" in placed(op)
    assert "[-, -] [-, -] [-, -] sum(x) [-, -] sum(x) -> [-, -] sum(x)" in placed(op)


def test_a_maximum_has_no_such_derivative() -> None:
    assert "[-, x] -> [-] max(x)" in placed(derived_op(largest, "largest", X))
    found = placed(derived_op(jax.grad(lambda x: largest(x).sum()), "largest.vjp", X))
    assert {p for p in found if "[-, x]" in p} == set()
    assert "[x, -] [x] -> [x, -]" in found


def test_a_planted_bug_is_found() -> None:
    """The rule of gradients without its sums does not compute the gradients."""
    op = derived_op(GRADIENT, "product.vjp", X, W)
    values = (X, W, RNG.normal(size=(16, 64)).astype(np.float32))
    results = tuple(map(np.asarray, operator_p.bind(*values, **op.payload.params)))  # type: ignore[attr-defined]
    assert check_rule(Built(op, values, results), rule_of(op), MESHES[0]) > 1
    wrong = FactorRule.of(
        op,
        ins=[["b", "d"], ["d", "n"], ["b", "n"]],
        outs=[["b", "d"], ["d", "n"]],
        reduced={"b": "max", "n": "max"},
    )
    with pytest.raises(AssertionError):
        check_rule(Built(op, values, results), wrong, MESHES[0])


# --- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.quick_share(9)
@pytest.mark.parametrize("which", WHICH)
def test_a_plan_computes_what_the_function_does(which: Any, tmp_path: Any) -> None:
    options = autopar.SearchOptions(operators=which)
    compiled = autopar.compile(GRADIENT, cluster=SLOW, options=options)
    assert_same(compiled(X, W), GRADIENT(X, W))
    plan = compiled.plan(X, W)
    rows = {row.kind for row in plan.summary.operators}
    assert ("unit.vjp" in rows) == (which == "kept")
    plan.save(tmp_path / "plan.json")
    assert_same(autopar.Plan.load(tmp_path / "plan.json").compile(GRADIENT)(X, W), GRADIENT(X, W))


def test_an_operator_knows_what_its_parts_do_not() -> None:
    """A rule may say more than those of what is inside: then the plan with the operator is the better one."""

    @autopar.operator("... d -> ... d", frozen="d", name="turned_twice")
    def turned(x: Any) -> Any:
        return x.reshape(-1, 3, 5)[::-1, ::-1].reshape(x.shape)[::-1] * 2

    x = RNG.normal(size=(24 * 4096, 5)).astype(np.float32)
    best, kept, expanded = (
        autopar.plan(
            turned, x, cluster="8xh100", carry=None, options=autopar.SearchOptions(operators=which)
        )
        for which in WHICH
    )
    assert best.objective_s == kept.objective_s < expanded.objective_s
    assert [row.kind for row in best.summary.operators] == ["turned_twice"]
    assert "operators kept or expanded" in best.summary.space
    assert best.lower_bound_s <= min(kept.lower_bound_s, expanded.lower_bound_s)
    assert_same(best.compile(devices=jax.devices()[:8])(x), turned(jnp.asarray(x)))


def test_memory_and_fingerprints_see_what_is_inside() -> None:
    def with_power(power: int) -> OpGraph:
        return graph_of(lambda x: sorted_powers(x, power), X)

    assert fingerprint(with_power(2)) == fingerprint(with_power(2)) != fingerprint(with_power(3))
    args = [jax.ShapeDtypeStruct((8, 512, 1, 64), "float32")] * 3
    options = autopar.SearchOptions(operators="kept")
    plan = autopar.plan(
        autopar.operators.attention, *args, cluster="8xh100", options=options, mesh={"x": 8}
    )
    scores = 512 * 512 * 4
    assert plan.peak_memory_bytes >= 4 * 512 * 64 * 4 + scores


# --- what is refused -------------------------------------------------------------------------------------------------


def test_names_belong_to_one_function() -> None:
    with pytest.raises(
        RuleError, match=r"the name 'tanh' of the operator .* is that of a primitive"
    ):
        autopar.operator("a -> a", name="tanh")(lambda x: x)
    with pytest.raises(
        RuleError, match=r"the name 'unit' .* is that of .*unit: give it another by name="
    ):
        autopar.operator("a -> a", name="unit")(lambda x: x)
    for frozen in ("a", ()):  # a cell that is run again

        @autopar.operator("a -> a", frozen=frozen)
        def defined_again(x: Any) -> Any:
            return x + 1

    assert "[x] -> [x]" in placed(derived_op(defined_again, "defined_again", X[:, 0]))


def test_what_is_no_operator() -> None:
    with pytest.raises(RuleError, match=r"static names \['axes'\], which 'no_axis' does not take"):
        autopar.operator("a -> a", static="axes", name="no_axis")(lambda x, axis: x)
    with pytest.raises(
        TraceError,
        match="an argument of operator 'unit' is 'text', a str and no array: name it in st",
    ):
        graph_of(lambda x: unit("text"), X)

    def closes_over(x: Any) -> Any:
        return autopar.operator("a -> a", name="closes_over")(lambda y: y + x.sum())(x)

    with pytest.raises(TraceError, match="closes over a value of the function around it"):
        graph_of(closes_over, X[:, 0])

    @autopar.operator("a -> a")
    def prints(x: Any) -> Any:
        jax.debug.print("{}", x)
        return x

    with pytest.raises(TraceError, match="operator 'prints' has a side effect"):
        graph_of(prints, X[:, 0])


def test_a_rule_that_does_not_fit_names_the_operator_and_its_line() -> None:
    with pytest.raises(
        RuleError, match=r"of 'product' \(test_operator.py:\d+.*\) says that operand 0 has 2 dims"
    ):
        autopar.plan(
            lambda x: product(x, x),
            X[:, 0],
            cluster=SLOW,
            options=autopar.SearchOptions(operators="kept"),
        )


def test_a_loop_inside_may_carry_what_is_split() -> None:
    """A carry that begins as zeros and takes up what is split: JAX's check of replication cannot follow it."""

    @autopar.operator("a b -> a b", frozen="b")
    def running(x: Any) -> Any:
        def add(total: Any, column: Any) -> Any:
            return total + column, total

        return lax.scan(add, jnp.zeros(x.shape[:1], x.dtype), x.T)[1].T

    settings: Any = {
        "mode": "data_parallel",
        "carry": None,
        "options": autopar.SearchOptions(operators="kept"),
    }
    compiled = autopar.compile(lambda x: running(x), cluster="cpu8", mesh={"x": 8}, **settings)
    assert [str(p) for p in compiled.plan(X).record.stage.inputs] == ["[x, -]"]
    assert_same(compiled(X), running(X))
