"""Rules found by trial: never more than a written rule allows, the main factors, and nothing by accident."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

import autopar
from autopar.core.graph import OpNode
from autopar.core.mesh import DeviceMesh
from autopar.discover import find_rule
from autopar.errors import FoundRuleWarning, UnsupportedPrimitive, UnsupportedPrimitiveWarning
from autopar.ops.rules import registry, rule_of
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.ops.rules.notation import show
from autopar.ops.rules.user import as_rule
from autopar.trace import trace
from tests.api.same import SLOW, assert_same
from tests.ops.build import Built, build, operator_of
from tests.ops.cases import CASES
from tests.ops.property import MESHES, check_rule

by_name = {case.name: case for case in CASES}
Function = Callable[..., Any]


def primitive(name: str, function: Function) -> Primitive:
    """A primitive of several results as of a third party: an implementation, a lowering, no rule."""
    made = Primitive(name)
    made.multiple_results = True
    made.def_impl(function)
    made.def_abstract_eval(
        lambda *avals: (
            jax.make_jaxpr(function)(
                *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals)
            ).out_avals
        )
    )
    mlir.register_lowering(made, mlir.lower_fun(function, multiple_results=True))
    return made


def operator(function: Function, *shapes: tuple[int, ...], dtype: str = "float32") -> OpNode:
    """The operator of a primitive that computes `function`, as traced on operands of these shapes."""
    bound = primitive(f"computes {id(function)}", function)
    args = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)
    (op,) = trace(lambda *xs: bound.bind(*xs), args).graph.ops
    return op


def placed(op: OpNode, rule: Any) -> set[tuple[Any, Any]]:
    return {(s.ins, s.outs) for s in enumerate_strategies(rule, MESHES[1])}


def text(rule: Any) -> str:
    return "nothing" if rule is None else show(rule)


# --- against written rules -------------------------------------------------------------------------------------------

MAIN = {
    "tanh": '"d0 -> d0"',
    "add two dims": '"d0 d1, d0 d1 -> d0 d1"',
    "dot_general square": "\"d0 d1, d1 d2 -> d0 d2\", reduced={'d1': 'sum'}",
    "dot_general batch": "\"d0 d1 d2, d0 d2 d3 -> d0 d1 d3\", reduced={'d2': 'sum'}",
    "transpose": '"d0 d1 d2 -> d1 d2 d0"',
    "reduce_sum integers": "\"d0 d1 d2 -> d1\", reduced={'d0': 'sum', 'd2': 'sum'}",
    "reduce_max": "\"d0 d1 -> d0\", reduced={'d1': 'max'}",
    "reduce_or": "\"d0 d1 -> d0\", reduced={'d1': 'max'}",
    "reduce_or bits": "\"d0 d1 -> d0\", frozen=['d1']",
    "cumsum": "\"d0 d1 -> d0 d2\", frozen=['d1', 'd2']",
    "sort": "\"d0 d1 -> d2 d1\", frozen=['d0', 'd2']",
    "concatenate": "\"d0 d1, d0 d2 -> d0 d3\", frozen=['d1', 'd2', 'd3']",
    "argmax": "\"d0 d1 -> d0\", frozen=['d1']",
    "rev": "\"d0 d1 -> d0 d2\", frozen=['d1', 'd2']",
    "gather along axis": "\"d0 d1, d0 d2 d3 -> d0 d2\", frozen=['d1', 'd3']",
    "select_n scalar predicate": '", d0 d1, d0 d1 -> d0 d1"',
}


@pytest.mark.quick_share(6)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (n % 2)) for n, name in enumerate(sorted(MAIN))],
)
def test_what_is_found_is_what_is_written(name: str) -> None:
    """Its strategies are among those of the written rule, and the main factors are all there."""
    built = build(by_name[name])
    found = find_rule(built.op)
    assert found is not None
    assert found.found
    assert text(found) == MAIN[name]
    assert placed(built.op, found) <= placed(built.op, rule_of(built.op))
    assert check_rule(built, found, MESHES[0]) > 1


# --- nothing by accident ---------------------------------------------------------------------------------------------


def blocks(x: Any) -> Any:
    """Each block of 4 less its mean: halves of 16 are right, quarters of 8 are not."""
    parts = x.reshape(*x.shape[:-1], -1, min(4, x.shape[-1]))
    return [(parts - parts.mean(-1, keepdims=True)).reshape(x.shape)]


ACCIDENTS: dict[str, tuple[Function, Any, str]] = {
    "zeros": (lambda x: [x * 0], [(8,)], "nothing"),
    "a constant": (lambda x: [jnp.ones((4,))], [(8,)], "nothing"),
    "constant almost always": (lambda x: [(jnp.abs(x) < 1e6).sum(-1)], [(8, 8)], "nothing"),
    "always true": (lambda x: [jnp.isfinite(x).all(-1)], [(8, 8)], "nothing"),
    "an operand that is not used": (lambda x, y: [jnp.sin(x)], [(8,), (6,)], "\"d0, d1 -> d0\", frozen=['d1']"),
    "numbered": (lambda x: [x + jnp.arange(x.shape[0])], [(8,)], "nothing"),
    "a mean": (lambda x: [x.mean(-1)], [(8, 6)], "\"d0 d1 -> d0\", frozen=['d1']"),
    "a norm": (lambda x: [jnp.sqrt((x * x).sum(-1))], [(8, 6)], "\"d0 d1 -> d0\", frozen=['d1']"),
    "blocks": (blocks, [(6, 16)], "\"d0 d1 -> d0 d2\", frozen=['d1', 'd2']"),
    "the first": (lambda x: [x[0]], [(8, 6)], "\"d0 d1 -> d1\", frozen=['d0']"),
    "a difference of halves": (
        lambda x: [x[: x.shape[0] // 2].sum(0) - x[x.shape[0] // 2 :].sum(0)],
        [(8, 6)],
        "\"d0 d1 -> d1\", frozen=['d0']",
    ),
    "neighbours": (lambda x: [x + jnp.roll(x, 1, 0)], [(8, 6)], "\"d0 d1 -> d2 d1\", frozen=['d0', 'd2']"),
    "two results, one without": (
        lambda x, y: [jnp.sin(x), jnp.cos(y)],
        [(8,), (6,)],
        "nothing",
    ),
    "a sum beside": (lambda x: [jnp.sin(x), x.sum(0)], [(8, 6)], "\"d0 d1 -> d0 d1, d1\", reduced={'d0': 'sum'}"),
    "sum and maximum": (lambda x: [x.sum(0), x.max(0)], [(8, 6)], "\"d0 d1 -> d1, d1\", frozen=['d0']"),
}  # fmt: skip


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("name", sorted(ACCIDENTS))
def test_nothing_is_found_by_accident(name: str) -> None:
    function, shapes, expected = ACCIDENTS[name]
    assert text(find_rule(operator(function, *shapes))) == expected


def test_integers_and_booleans() -> None:
    assert text(find_rule(operator(lambda x: [x.sum(0)], (8, 6), dtype="int32"))).endswith(
        "reduced={'d0': 'sum'}"
    )
    assert text(find_rule(operator(lambda x: [x.any(0)], (8, 6), dtype="bool"))).endswith(
        "reduced={'d0': 'max'}"
    )
    assert text(find_rule(operator(lambda x: [x[::-1] + 1], (8, 6), dtype="uint8"))).endswith(
        "frozen=['d0', 'd2']"
    )
    found = find_rule(operator(lambda x, y: [x @ y], (8, 6), (6, 4), dtype="bfloat16"))
    assert text(found) == "\"d0 d1, d1 d2 -> d0 d2\", reduced={'d1': 'sum'}"


def test_large_operators_are_tried_small() -> None:
    runs: list[Any] = []

    def counted(x: Any, y: Any) -> Any:
        runs.append(x.shape)
        return [jnp.einsum("bmk,kn->bmn", x, y)]

    op = operator(counted, (512, 2048, 4096), (4096, 8192))
    runs.clear()
    assert text(find_rule(op)) == "\"d0 d1 d2, d2 d3 -> d0 d1 d3\", reduced={'d2': 'sum'}"
    assert max(max(shape) for shape in runs) < 20
    runs.clear()
    assert find_rule(op) is not None
    assert runs == []


def test_it_is_remembered_for_other_sizes() -> None:
    runs: list[Any] = []

    def counted(x: Any) -> Any:
        runs.append(x.shape)
        return [jnp.cumsum(x, 1)]

    bound = primitive("counted", counted)
    ops = [
        trace(lambda x: bound.bind(x), (jax.ShapeDtypeStruct((n, 3 * n), "float32"),)).graph.ops[0]
        for n in (128, 256)
    ]
    first = find_rule(ops[0])
    runs.clear()
    second = find_rule(ops[1])
    assert runs == []
    assert first is not None
    assert second is not None
    assert (first.sizes["d0"], second.sizes["d0"]) == (128, 256)


def test_parameters_that_fix_a_shape_are_kept() -> None:
    """A reshape says the sizes of its result."""
    built = build(by_name["reshape (4, 8) (32,)"])
    assert find_rule(built.op) is None
    window = build(by_name["reduce_window_sum"])
    found = find_rule(window.op)
    assert found is not None
    assert placed(window.op, found) <= placed(window.op, rule_of(window.op))


# --- what is never run -----------------------------------------------------------------------------------------------


def called_back(x: Any) -> Any:
    raise AssertionError("the host was called")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.pure_callback(called_back, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
        lambda x: lax.rng_uniform(0.0, 1.0, x.shape) + x,
    ],
    ids=["pure_callback", "rng_uniform"],
)
def test_what_may_not_be_run_is_not(function: Function) -> None:
    ops = trace(function, (jax.ShapeDtypeStruct((8, 4), "float32"),)).graph.ops
    (op,) = (op for op in ops if op.kind in ("pure_callback", "rng_uniform"))
    assert find_rule(op) is None


def test_what_fails_or_has_no_operands_has_no_rule() -> None:
    def picky(x: Any) -> Any:
        if x.shape != (8, 4):
            raise ValueError("only this shape")
        return [x + 1]

    assert find_rule(operator(picky, (8, 4))) is None
    assert find_rule(operator(lambda x: [x], (0, 4))) is None
    made_up = operator_of(by_name["tanh"])
    assert find_rule(OpNode(0, "tanh", made_up.ins, made_up.outs)) is None


# --- plans -----------------------------------------------------------------------------------------------------------

product_p = primitive("third party product", lambda x, w: [jnp.einsum("bmk,bkn->bmn", x, w)])
RNG = np.random.default_rng(0)
X, W = (
    RNG.normal(size=(8, 16, 32)).astype(np.float32),
    RNG.normal(size=(8, 32, 16)).astype(np.float32),
)


def user(x: Any, w: Any) -> Any:
    (y,) = product_p.bind(x, w)
    return jnp.tanh(y).sum((1, 2))


def test_a_plan_with_a_found_rule_says_so_and_is_right() -> None:
    compiled = autopar.compile(user, cluster=SLOW)
    with pytest.warns(
        FoundRuleWarning, match=r"'third party product' \(test_found.py:\d+ \(user\)\): one was"
    ) as caught:
        plan = compiled.plan(X, W)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert "rules found by trial" in plan.report()
    assert "third party product (test_found.py" in plan.report()
    assert [row.split for row in plan.summary.operators if row.kind == "third party product"] == [8]
    assert_same(compiled(X, W), user(X, W))


def test_a_found_rule_survives_a_file(tmp_path: Any) -> None:
    with pytest.warns(FoundRuleWarning):
        plan = autopar.plan(user, X, W, cluster=SLOW)
    plan.save(tmp_path / "plan.json")
    loaded = autopar.Plan.load(tmp_path / "plan.json")
    assert loaded.summary.found_rules == plan.summary.found_rules != ()
    assert_same(loaded.compile(user)(X, W), user(X, W))


@pytest.fixture
def registered_rule() -> Iterator[None]:
    yield
    registry.unregister("third party product")


@pytest.mark.usefixtures("registered_rule")
def test_under_strict_the_message_states_the_rule_which_then_is_taken() -> None:
    with pytest.raises(
        UnsupportedPrimitive, match="found by trial, which strict=True does not take"
    ) as caught:
        autopar.plan(user, X, W, cluster=SLOW, strict=True)
    statement = str(caught.value).partition("autopar.register_rule(")[2].rpartition(")")[0]
    exec(f"autopar.register_rule({statement})")  # what the user is told to write
    plan = autopar.plan(user, X, W, cluster=SLOW, strict=True)
    assert plan.summary.found_rules == ()


def test_what_has_no_rule_at_all_is_replicated() -> None:
    turned = primitive("third party turn", lambda x: [x[::-1]])
    with pytest.warns(UnsupportedPrimitiveWarning, match="'third party turn' .* it is replicated"):
        autopar.plan(lambda x: turned.bind(x)[0] * 2, X[0, 0], cluster=SLOW)


# --- planted bugs ----------------------------------------------------------------------------------------------------


def test_a_wrong_rule_would_be_caught() -> None:
    """The property that found rules are held to above fails for rules that trials must refuse."""
    values = RNG.normal(size=(8, 6)).astype(np.float32)
    op = operator(lambda x: [x.mean(0)], (8, 6))
    built = Built(op, (values,), (values.mean(0),))
    with pytest.raises(AssertionError):
        check_rule(built, as_rule("a b -> b", reduced="a")(op), DeviceMesh.of({"x": 4}))
