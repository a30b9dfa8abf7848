"""What a traced graph records: names, sources, phases, regions, constants, literals, state, donation, parameters."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autopar.core.graph import OpGraph, OpNode
from autopar.core.regions import BOUNDARY, WHILE_TRIPS
from autopar.errors import TraceError
from autopar.trace import fingerprint, trace
from autopar.trace.params import plain_params
from tests.trace.evaluate import as_function, assert_same

X = np.ones((4, 8), np.float32)


class State(NamedTuple):
    params: Any
    opt: Any


def graph_of(fn: Any, *args: Any, **options: Any) -> OpGraph:
    return trace(fn, args, **options).graph


def ops(graph: OpGraph, kind: str) -> list[OpNode]:
    return [op for op in graph.ops if op.kind == kind]


# Arguments ------------------------------------------------------------------------------------------------------------


def test_input_names_follow_jax() -> None:
    def step(state: State, x: Any, *rest: Any, scale: Any, **more: Any) -> Any:
        return state.params["w1"] + state.opt[0] + x + rest[0] + scale + more["b"][1]

    traced = trace(step, (State({"w1": X}, [X]), X, X), {"scale": 2.0, "b": (X, X)})
    names = [tensor.name for tensor in traced.graph.inputs]
    assert names == ["state.params['w1']", "state.opt[0]", "x", "rest[0]", "b[0]", "b[1]", "scale"]


def test_specs_arrays_and_scalars_trace_alike() -> None:
    spec = jax.ShapeDtypeStruct(X.shape, X.dtype)
    prints = {fingerprint(graph_of(lambda x, y: x * y, x, 2.0)) for x in (spec, X, jnp.asarray(X))}
    assert len(prints) == 1


def test_shardings_of_arguments_are_ignored() -> None:
    mesh = jax.make_mesh((2,), ("d",), devices=jax.devices()[:2])
    sharded = jax.device_put(X, jax.NamedSharding(mesh, jax.P("d")))
    assert fingerprint(graph_of(jnp.sin, sharded)) == fingerprint(graph_of(jnp.sin, X))


def test_static_arguments_and_keywords() -> None:
    def fn(power: int, x: Any, mode: str, *, y: Any) -> Any:
        return x**power + y if mode == "add" else x

    traced = trace(fn, (3, X, "add"), {"y": X}, static_argnums=(0, -1), donate_argnums=1)
    assert [tensor.name for tensor in traced.graph.inputs] == ["x", "y"]
    assert (traced.static_argnums, traced.graph.donated) == ((0, 2), (0,))
    assert_same(fn(3, jnp.asarray(X), "add", y=X), as_function(traced)(3, X, "add", y=X), 1e-6)


def test_callable_objects_even_if_they_cannot_be_hashed() -> None:
    class Model:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, x: Any) -> Any:
            return 2 * x

    for fn in (Model(), partial(jnp.multiply, 2), jnp.sin):
        assert len(graph_of(fn, X).ops) == 1


def test_weak_types_of_results_are_known() -> None:
    traced = trace(lambda x: (x + 1, jnp.float32(x)), (1.0,))
    assert [aval.weak_type for aval in traced.output_avals] == [True, False]


def test_typed_keys_at_the_border() -> None:
    traced = trace(lambda x, k: (k, x), (X, jax.random.split(jax.random.key(0, impl="rbg"), 3)))
    assert (traced.key_inputs, traced.key_outputs) == (((1, "rbg"),), ((0, "rbg"),))
    assert (traced.graph.inputs[1].shape, traced.graph.inputs[1].dtype) == ((3, 4), "uint32")


# Errors ---------------------------------------------------------------------------------------------------------------


def broken(x: Any) -> Any:
    return x @ x


def test_jax_errors_name_the_function_and_keep_the_cause() -> None:
    with pytest.raises(TraceError, match="cannot trace broken: TypeError: dot_general") as caught:
        graph_of(broken, X)
    assert isinstance(caught.value.__cause__, TypeError)


def test_effects_stay_and_keep_what_they_need() -> None:
    def noisy(x: Any) -> Any:
        jax.debug.print("{}", x * 2, ordered=True)
        return x

    graph = graph_of(noisy, X)
    assert [(op.kind, op.effect) for op in graph.ops] == [("mul", None), ("debug_print", "ordered")]
    graph = graph_of(lambda x: jax.lax.scan(lambda c, r: (c + r[0], noisy(r) + 1), 0.0, x)[1], X)
    assert {op.kind for op in graph.ops} == {
        "scan_slice",
        "mul",
        "debug_print",
        "add",
        "scan_stack",
    }


def test_other_effects_are_refused_with_their_line() -> None:
    def stateful(x: Any) -> Any:
        ref = jax.new_ref(x)
        ref[...] = x * 2
        return ref[...]

    with pytest.raises(TraceError, match=r"test_graph\.py:\d+ \(stateful\) has a side effect"):
        graph_of(stateful, X)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"static_argnums": 0, "donate_argnums": 0}, "both static and donated"),
        ({"carry": "always"}, "carry must be"),
        ({"carry": ((2, 0),)}, "carry names result 2"),
        ({"carry": ((0, 5),)}, "no traced argument at position 5"),
        ({"carry": ((1, 0),)}, "float32"),
        ({"carry": (("[3]", "a"),)}, r"result '\[3\]'"),
        ({"carry": ((0, 0), (0, 1))}, "names a result twice"),
    ],
)
def test_bad_options_say_what_is_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        trace(lambda a, b: (a + b, a[0]), (X, X), **options)


def test_an_argument_that_is_no_array_is_named() -> None:
    with pytest.raises(TraceError, match=r"argument p\['mode'\] is a str"):
        graph_of(lambda p: p["x"], {"x": X, "mode": "add"})


def test_values_of_an_enclosing_trace_are_refused() -> None:
    with pytest.raises(TraceError, match=r"closes over .* pass it as an argument"):
        jax.jit(lambda outer: graph_of(lambda x: x + outer, X))(X)


# Origin ---------------------------------------------------------------------------------------------------------------


def inner(w: Any, x: Any) -> Any:
    with jax.named_scope("inner"):
        return jax.nn.softmax(jnp.where(x > 0, x @ w, 0.0))


def test_sources_are_the_users_lines_even_in_cached_library_calls() -> None:
    line = inner.__code__.co_firstlineno + 2
    jnp.where(X > 0, X, 0.0)
    graph = graph_of(lambda w, x: jax.jit(inner)(w, x), np.ones((8, 8), np.float32), X)
    assert {op.source for op in graph.ops} == {f"test_graph.py:{line} (inner)"}
    assert all("inner" in op.scope for op in graph.ops)


def test_name_stacks_of_calls_are_joined() -> None:
    def outer(x: Any) -> Any:
        with jax.named_scope("outer"):
            return jax.jit(inner)(jnp.ones((8, 8)), x)

    assert {op.scope for op in ops(graph_of(outer, X), "dot_general")} == {"outer/inner"}


def sgd(w: Any, x: Any) -> Any:
    loss, grad = jax.value_and_grad(lambda w: (inner(w, x) ** 2).sum())(w)
    return w - 0.1 * grad, loss


def test_phases() -> None:
    graph = graph_of(sgd, np.ones((8, 8), np.float32), X)
    first, second = ops(graph, "dot_general")
    assert (first.phase, second.phase) == ("forward", "backward")
    assert ops(graph, "sub")[-1].phase == "update"
    assert graph.producers[graph.outputs[1].id].phase == "forward"


def phases_of(fn: Any) -> str:
    """The first letters of the phases of a function's products, sines and cosines, in order."""
    graph = graph_of(fn, np.ones((8, 8), np.float32), X)
    return "".join(op.phase[0] for op in graph.ops if op.kind in ("dot_general", "sin", "cos"))


def loss(w: Any, x: Any) -> Any:
    return jnp.sin(x @ w).sum()


def test_a_second_model_has_a_forward_pass_of_its_own() -> None:
    """Though it reads what was learnt from the first."""

    def twice(w: Any, x: Any) -> Any:
        w = w - jax.grad(loss)(w, x)
        return w - jax.grad(loss)(w, x)

    assert phases_of(twice) == "ffb" * 2


def test_an_inner_gradient_is_part_of_the_forward_pass_that_is_differentiated() -> None:
    def learnt(w: Any, x: Any) -> Any:
        return loss(w - jax.grad(loss)(w, x), x)

    found = phases_of(jax.grad(learnt))
    assert found == "f" * found.count("f") + "b" * found.count("b")
    assert found.count("f") > 4


@pytest.mark.parametrize("batched", [False, True])
def test_a_product_with_the_hessian_has_the_phases_of_the_gradient(batched: bool) -> None:
    def product(w: Any, x: Any) -> Any:
        return jax.jvp(lambda w: jax.grad(loss)(w, x), (w,), (w,))[1]

    def both(w: Any, x: Any) -> Any:
        return jax.grad(loss)(w, x) + product(w, x)

    fn = both if not batched else lambda w, x: jax.vmap(both, (0, None))(jnp.stack([w, w]), x)
    assert set(phases_of(product)) == {"f", "b"}
    assert "b" in phases_of(fn)
    assert "u" not in phases_of(fn)


# Regions --------------------------------------------------------------------------------------------------------------


def test_nested_remat_is_a_flat_sequence_with_nested_regions() -> None:
    def block(x: Any) -> Any:
        return jnp.cos(jax.checkpoint(lambda y: jnp.sin(jnp.tanh(y)))(jnp.exp(x)))

    graph = graph_of(lambda x: jax.checkpoint(block)(x) + 1, X)
    assert [(op.kind, op.region) for op in graph.ops] == [
        ("exp", 0), ("tanh", 1), ("sin", 1), ("cos", 0), ("add", None),
    ]  # fmt: skip
    assert [(region.id, region.parent) for region in graph.regions] == [(0, None), (1, 0)]
    assert graph.regions[0].payload == {
        "prevent_cse": True,
        "differentiated": False,
        "policy": None,
    }


def test_a_remat_that_prevents_no_merging_is_no_region() -> None:
    graph = graph_of(lambda x: jax.checkpoint(jnp.sin, prevent_cse=False)(x) + 1, X)
    assert [(op.kind, op.region) for op in graph.ops] == [("sin", None), ("add", None)]


def test_a_remat_that_is_dead_leaves_no_region() -> None:
    def fn(x: Any) -> Any:
        jax.checkpoint(jnp.sin)(x)
        return jax.checkpoint(jnp.cos)(x)

    graph = graph_of(fn, X)
    assert [(op.kind, op.region) for op in graph.ops] == [("cos", 0)]
    assert len(graph.regions) == 1


# Constants, literals, dead code ---------------------------------------------------------------------------------------


def test_constants_are_hoisted_once_and_scalars_are_literals() -> None:
    table, mask, scale = np.arange(8.0, dtype=np.float32), jnp.ones((4, 8)), jnp.float32(0.5)
    unused = jnp.ones(3)

    def fn(x: Any) -> Any:
        unused.sum()
        return (x + table) * mask * scale - table

    traced = trace(fn, (X,))
    graph = traced.graph
    assert [tensor.name for tensor in graph.inputs] == ["x", "constant[0]", "constant[1]"]
    assert [constant.shape for constant in traced.constants] == [(8,), (4, 8)]
    literals = {
        tensor.literal: tensor.dtype
        for op in graph.ops
        for tensor in op.ins
        if tensor.literal is not None
    }
    assert literals[0.5] == "float32"
    assert all(
        tensor.shape == () for op in graph.ops for tensor in op.ins if tensor.literal is not None
    )


def test_a_constant_key_is_held_as_data() -> None:
    key = jax.random.key(3)
    traced = trace(lambda x: x + jax.random.normal(key, (8,)), (X,))
    assert [(c.shape, str(c.dtype)) for c in traced.constants] == [((2,), "uint32")]
    assert_same(
        jax.jit(lambda x: x + jax.random.normal(key, (8,)))(X),
        jax.jit(as_function(traced))(X),
        1e-6,
    )


def test_dead_code_and_aliases_go() -> None:
    def fn(x: Any) -> Any:
        jnp.sin(x)
        return jax.lax.stop_gradient(jnp.array(x, copy=True)), jax.lax.top_k(x, 2)[0]

    graph = graph_of(fn, X)
    assert [op.kind for op in graph.ops] == ["top_k"]
    assert len(graph.ops[0].outs) == 2
    assert graph.outputs[0] == graph.inputs[0]


@pytest.mark.parametrize(
    ("dtype", "itemsize"),
    [
        ("bfloat16", 2),
        ("float8_e4m3fn", 1),
        ("int4", 1),
        ("bool", 1),
        ("int32", 4),
        ("complex64", 8),
    ],
)
def test_itemsizes(dtype: str, itemsize: int) -> None:
    (tensor,) = graph_of(lambda x: x, jax.ShapeDtypeStruct((2, 3), dtype)).inputs
    assert (tensor.dtype, tensor.itemsize, tensor.size_bytes) == (dtype, itemsize, 6 * itemsize)


# Parameters -----------------------------------------------------------------------------------------------------------


def is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(is_plain(part) for part in value.values())
    if type(value) is tuple:
        return all(map(is_plain, value))
    return type(value) in (bool, int, float, complex, str, type(None))


def test_parameters_are_plain_data() -> None:
    def fn(x: Any, i: Any) -> Any:
        image, kernel = x[None, :, :, None], jnp.ones((3, 3, 1, 2))
        conv = jax.lax.conv_general_dilated(
            image,
            kernel,
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            precision="highest",
        )
        folded = jax.lax.reduce(x, np.float32(0), lambda a, b: a + 2 * b, (0,))
        return conv, x[i], x.at[i].add(1.0), x.astype(jnp.bfloat16), folded, jnp.linalg.qr(x)

    graph = graph_of(fn, X, np.arange(2))
    assert all(is_plain(dict(op.params)) for op in graph.ops)
    assert ops(graph, "conv_general_dilated")[0].params["dimension_numbers"]["rhs_spec"] == (
        3,
        2,
        0,
        1,
    )
    assert ops(graph, "gather")[0].params["mode"] == "PROMISE_IN_BOUNDS"
    assert ops(graph, "convert_element_type")[0].params["new_dtype"] == "bfloat16"
    assert "jaxpr" not in ops(graph, "reduce")[0].params


def test_plain_params_leaves_out_what_is_not_data() -> None:
    params = {
        "f": len,
        "a": np.ones(2),
        "mixed": (1, len),
        "n": np.int32(3),
        "t": jnp.float32,
        "s": {"b", "a"},
    }
    assert plain_params(params) == {"n": 3, "t": "float32", "s": ("a", "b")}


def test_ranges_are_data() -> None:
    """As numpyro passes them, which fills triangles of matrices."""
    numbers = jax.lax.ScatterDimensionNumbers(range(1), (1,), (1,))
    assert plain_params({"numbers": numbers})["numbers"]["update_window_dims"] == (0,)


# State ----------------------------------------------------------------------------------------------------------------

W = {"w": np.ones((8, 8), np.float32), "b": np.ones(8, np.float32)}
OPT = {"m": W, "count": np.int32(0)}


def new(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf + 1, tree)


def step(params: Any, opt: Any, x: Any, rate: Any) -> Any:
    return new(params), new(opt), rate * x.sum()


def test_state_is_found_in_order() -> None:
    graph = graph_of(step, W, OPT, X, 0.1)
    assert graph.carry == ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4))
    assert graph.batch_inputs == (5,)


def test_the_whole_result_may_be_the_state() -> None:
    assert graph_of(lambda state, x: (new(state[0]), state[1]), (W, OPT), X).carry == tuple(
        (i, i) for i in range(5)
    )
    assert graph_of(new, X, donate_argnums=0).carry == ((0, 0),)


def test_what_is_not_state() -> None:
    assert graph_of(new, X).carry == ()
    assert graph_of(lambda x, y: (y.T, x.T), np.eye(4), np.eye(4)).carry == ()
    assert graph_of(lambda params, x: x + params["b"], W, X).carry == ()
    assert graph_of(lambda x, rate: rate * x.sum(), X, 0.1, donate_argnums=(0, 1)).carry == ()
    assert graph_of(step, W, OPT, X, 0.1, carry=None).carry == ()


def test_equal_trees_are_taken_in_order() -> None:
    assert graph_of(lambda a, b: (new(b), new(a)), W, W).carry == ((0, 0), (1, 1), (2, 2), (3, 3))


def test_donated_arrays_are_state_in_order() -> None:
    def update(w: Any, m: Any, x: Any) -> Any:
        return x.sum(), w + x, m + x

    assert graph_of(update, X, X, X).carry == ()
    assert graph_of(update, X, X, X, donate_argnums=(0, 1)).carry == ((1, 0), (2, 1))
    assert graph_of(update, X, X, X, donate_argnums=1).carry == ((1, 1),)
    assert graph_of(update, X, X, X).batch_inputs == (2,)


def test_what_is_carried_is_donated_array_by_array() -> None:
    graph = graph_of(step, W, OPT, X, 0.1, donate_argnums="carried")
    assert graph.donated == tuple(position for _, position in graph.carry) == (0, 1, 2, 3, 4)

    def named(state: Any, x: Any) -> Any:
        return {"w": state["w"] + x.sum(), "loss": x.sum()}

    graph = graph_of(named, W, X, donate_argnums="carried")
    assert [graph.inputs[n].name for n in graph.donated] == ["state['w']"]
    with pytest.raises(TraceError, match="no result of new takes the place of an argument"):
        graph_of(new, X, donate_argnums="carried")


def test_results_of_an_arguments_name_are_its_state() -> None:
    def named(w: Any, m: Any, x: Any) -> Any:
        return {"loss": x, "m": m + x, "w": w + x}

    assert graph_of(named, X, X, X).carry == ((1, 1), (2, 0))
    assert graph_of(lambda w, x: State(w + x, x), X, X).carry == ()
    assert graph_of(lambda params, x: State(params + x, x), X, X).carry == ((0, 0),)
    assert graph_of(lambda m, x: {"m": m.sum(0), "x": x}, X, X).carry == ((1, 1),)


def test_results_of_the_name_of_a_part_are_its_state() -> None:
    """A state that comes back with metrics beside its parts, or without some."""

    def step(state: Any, x: Any) -> Any:
        return {"loss": x.sum(), "opt": new(state["opt"]), "params": new(state["params"]), "x": x}

    state = {"opt": OPT, "params": W, "rate": X}
    assert graph_of(step, state, X).carry == ((1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 6))


def test_lists_and_fields_are_paths_too() -> None:
    layers = [(X, X[0]), (X, X[0])]
    assert graph_of(lambda layers, x: (x.sum(), new(layers)), layers, X).carry == tuple(
        (i + 1, i) for i in range(4)
    )
    state = State(W, OPT)
    assert graph_of(lambda x, state: (x, new(state)), X, state).carry == tuple(
        (i + 1, i + 1) for i in range(5)
    )


@pytest.mark.parametrize(
    ("carry", "pairs"),
    [
        (((1, 1),), ((2, 2), (3, 3), (4, 4))),
        ((("[0]['w']", "params['w']"),), ((1, 1),)),
        ((("[1]['m']", "params"),), ((3, 0), (4, 1))),
        (((0, "opt['m']"),), ((0, 3), (1, 4))),
    ],
)
def test_explicit_state(carry: Any, pairs: Any) -> None:
    assert graph_of(step, W, OPT, X, 0.1, carry=carry).carry == pairs


def test_batch_inputs_leave_out_keys_and_state() -> None:
    def fn(w: Any, x: Any, raw: Any, typed: Any, n: Any) -> Any:
        draws = jax.random.normal(raw, (8,)) + jax.random.normal(typed[0], (8,))
        return (x + draws) @ w + n + TABLE

    keys = jax.random.split(jax.random.key(0), 2)
    traced = trace(fn, (W["w"], X, np.array([0, 1], np.uint32), keys, 2.0), carry=None)
    assert traced.graph.batch_inputs == (1,)
    assert len(traced.graph.inputs) == 6
    assert graph_of(jnp.sum, X).batch_inputs == (0,)


TABLE = np.ones((4, 8), np.float32)


# Fingerprint ----------------------------------------------------------------------------------------------------------


def test_fingerprint_sees_structure_and_nothing_else() -> None:
    def other_name(y: Any) -> Any:
        return jnp.tanh(y) + 1

    base = fingerprint(graph_of(lambda x: jnp.tanh(x) + 1, X))
    assert fingerprint(graph_of(other_name, X)) == base
    different = [
        graph_of(lambda x: jnp.tanh(x) + 2, X),
        graph_of(lambda x: jnp.sin(x) + 1, X),
        graph_of(lambda x: jnp.tanh(x) + 1, X[:2]),
        graph_of(lambda x: jnp.tanh(x) + 1, X.astype(np.float16)),
        graph_of(lambda x: jnp.tanh(x) + 1, X, carry=[(0, 0)]),
        graph_of(lambda x: jnp.tanh(x) + x, X),
    ]
    assert len({base, *map(fingerprint, different)}) == len(different) + 1


def test_fingerprint_sees_into_loops() -> None:
    def scan(scale: float) -> OpGraph:
        return graph_of(
            lambda x: jax.lax.scan(lambda c, row: (c + scale * row, None), x[0], x)[0], X
        )

    assert fingerprint(scan(2.0)) == fingerprint(scan(2.0)) != fingerprint(scan(3.0))


def test_a_scan_becomes_its_body_between_boundary_operators() -> None:
    """Constants are read from outside, what is not needed goes, trip counts and branches' chances are weights."""

    def fn(x: Any, w: Any) -> Any:
        def body(c: Any, row: Any) -> Any:
            held, unused = c
            picked = jax.lax.cond(row[0] > 0, lambda h: h @ w, lambda h: h, held)
            return (picked + row, unused + 1), (row * 2, row * 3)

        (held, _), (doubled, _) = jax.lax.scan(body, (x[0], 0), x)
        return held, doubled

    graph = graph_of(fn, X, jnp.ones((X.shape[1], X.shape[1])))
    assert len(ops(graph, "carry_in")) == len(ops(graph, "carry_out")) == 1
    assert len(ops(graph, "scan_stack")) == 1
    assert [region.kind for region in graph.regions] == ["scan", "body", "cond", "branch", "branch"]
    assert graph.loop_carries == {ops(graph, "carry_out")[0].id: ops(graph, "carry_in")[0].id}
    (product,) = ops(graph, "dot_general")
    assert product.ins[1] == graph.inputs[1]
    assert graph.tree.weight(product.region) == X.shape[0] / 2
    assert graph.tree.kind(product.region) == "branch"
    assert graph.tree.site(None, product.region) is None
    assert graph.tree.site(graph.regions[1].id, product.region) == product.region


def test_a_while_loop_is_needed_with_its_test() -> None:
    def fn(x: Any, limit: Any) -> Any:
        return jax.lax.while_loop(lambda s: s[0] < limit, lambda s: (s[0] + 1, s[1] * 2), (0, x))[1]

    graph = graph_of(fn, X, 3)
    assert [op.kind for op in graph.ops if op.kind in BOUNDARY] == [
        *("carry_in", "carry_in", "while_test", "carry_out", "carry_out")
    ]
    assert graph.tree.weight(ops(graph, "mul")[0].region) == WHILE_TRIPS
    assert trace(fn, (X, 3), while_trips=3.0).graph.regions[1].trips == 3.0


def test_a_loop_that_is_mapped_goes_on_until_all_have_stopped() -> None:
    """vmap gives the test dims."""

    def collatz(n: Any) -> Any:
        def step(state: Any) -> Any:
            n, steps = state
            return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

        return jax.lax.while_loop(lambda state: state[0] != 1, step, (n, 0))[1]

    traced = trace(jax.vmap(collatz), (np.arange(1, 9),))
    assert [tensor.shape for op in ops(traced.graph, "while_test") for tensor in op.ins] == [()]
    assert_same(as_function(traced)(np.arange(1, 9)), jax.vmap(collatz)(np.arange(1, 9)))


def test_an_unused_loop_goes() -> None:
    def fn(x: Any) -> Any:
        jax.lax.scan(lambda c, row: (c + row, row), x[0], x)
        return x + 1

    graph = graph_of(fn, X)
    assert [op.kind for op in graph.ops] == ["add"]
    assert graph.regions == ()


def test_multiples_of_a_tensor_are_known() -> None:
    graph = graph_of(lambda g: -(0.1 * g.astype(jnp.float32)) * g, X)
    last = graph.ops[-1]
    assert {tensor.root for tensor in last.ins} == {graph.inputs[0].id}
