"""The surface of jax.jit: arguments by name, shardings, methods, stages; what is refused, and how."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

import autopar
from autopar.errors import (
    ConstantsWarning,
    InvalidOption,
    SignatureMismatch,
    TraceError,
    UnknownOption,
)
from tests.api.same import PARAMS, SLOW, W, X, arrays, assert_same, check, layer, step

MESH = {"a": 2, "b": 4}
ON = partial(autopar.compile, cluster=SLOW, mesh=MESH)


def raised(x: Any, n: Any, *, plus: Any = 0) -> Any:
    return x**n + plus


# Static and donated ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "marks", [{"static_argnames": "n"}, {"static_argnums": 1}, {"static_argnums": -1}]
)
def test_static_arguments_by_position_and_by_name(marks: Any) -> None:
    compiled = ON(raised, **marks)
    for args, kwargs in (((X, 2), {}), ((X,), {"n": 2}), ((), {"x": X, "n": 3}), ((X, 2.0), {})):
        assert_same(compiled(*args, **kwargs), jnp.asarray(raised(*args, **kwargs)))
        assert compiled.eval_shape(*args, **kwargs).shape == X.shape
    assert all("n" not in plan.placements for plan in compiled.plans)
    assert len(compiled.plans) == 4


def test_static_arguments_that_have_no_position() -> None:
    compiled = ON(raised, static_argnames=("plus",))
    assert_same(compiled(X, 2, plus=3), jnp.asarray(X**2 + 3))
    assert_same(compiled(X, 2), jnp.asarray(X**2))
    with pytest.raises(
        SignatureMismatch, match="static argument 'plus' is a list, which is not hashable"
    ):
        compiled(X, 2, plus=[3])


def test_true_is_not_one() -> None:
    def kind(x: Any, n: Any) -> Any:
        return x + (10 if n is True else n)

    compiled = ON(kind, static_argnames="n")
    assert [float(compiled(jnp.float32(0), n)) for n in (1, True, 1.0)] == [1, 10, 1]
    assert [float(compiled(jnp.float32(0), n=n)) for n in (1, True, 1.0)] == [1, 10, 1]


@pytest.mark.parametrize("marks", [{"donate_argnames": "p"}, {"donate_argnums": 0}])
def test_donated_arguments_by_position_and_by_name(marks: Any) -> None:
    compiled = ON(step, **marks)
    for passed in ((arrays(PARAMS), {}), (None, {"p": arrays(PARAMS)})):
        args, kwargs = ((passed[0], X), {}) if passed[0] else ((), {**passed[1], "x": X})
        assert_same(compiled(*args, **kwargs), jax.jit(step)(PARAMS, X))
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(passed[0] or passed[1]))
    assert all(plan.bound.traced.graph.carry for plan in compiled.plans)


def test_marks_are_saved_with_a_plan(tmp_path: Any) -> None:
    ON(raised, static_argnames="n").plan(X, n=2).save(tmp_path / "plan.json")
    loaded = autopar.Plan.load(tmp_path / "plan.json").compile(raised)
    assert_same(loaded(X, n=2), jnp.asarray(X**2))
    assert_same(
        autopar.plan(raised, X, n=2, static_argnames="n", cluster=SLOW).compile()(X, n=2),
        jnp.asarray(X**2),
    )


# Shardings ------------------------------------------------------------------------------------------------------------


def named(*spec: Any) -> NamedSharding:
    return NamedSharding(
        jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2), PartitionSpec(*spec)
    )


def test_shardings_are_pins_and_name_the_mesh() -> None:
    compiled = autopar.compile(
        step,
        cluster=SLOW,
        in_shardings=({"w": named(None, "b"), "b": None}, named("a")),
        out_shardings=(None, named()),
    )
    check(compiled, step, PARAMS, X)
    (plan,) = compiled.plans
    assert plan.mesh.axes == (("a", 2), ("b", 4))
    assert str(plan.placements["p['w']"]) == "[-, b]"
    assert str(plan.placements["x"]) == "[a, -]"
    assert {str(constraint) for constraint in plan.constraints} == {
        *("pin(\"p['w']\", P(None, 'b'))", "pin('x', P('a'))", "pin('output[1]', P())"),
    }


@pytest.mark.parametrize(
    "shardings", [PartitionSpec("a"), [PartitionSpec("a"), PartitionSpec("a", None)]]
)
def test_one_sharding_for_all_arguments_and_lists(shardings: Any) -> None:
    compiled = ON(layer, in_shardings=shardings, out_shardings=PartitionSpec())
    out = check(compiled, layer, W, X)
    assert out.sharding.is_fully_replicated
    assert {str(placement) for placement in compiled.plans[0].placements.values()} == {"[a, -]"}


def test_shardings_hold_for_derivatives_and_maps() -> None:
    compiled = ON(layer, in_shardings=(PartitionSpec(None, "b"), PartitionSpec("a")))
    gradient = jax.grad(lambda w: compiled(w, X).sum())(W)
    assert gradient.sharding.spec == PartitionSpec(None, "b")
    jax.vmap(compiled, (None, 0))(W, np.stack([X, X]))
    assert compiled.plans[-1].placements["x"].dims[1:] == (("a",), ())
    assert str(compiled.plans[-1].placements["w"]) == "[-, b]"


SHARDINGS: list[tuple[dict[str, Any], str]] = [
    (
        {"in_shardings": (PartitionSpec(),) * 3},
        r"in_shardings is no prefix of the arguments: .* Give one sharding",
    ),
    ({"out_shardings": {"a": PartitionSpec()}}, "out_shardings is no prefix of the results"),
    (
        {"in_shardings": SingleDeviceSharding(jax.devices()[0])},
        "in_shardings holds SingleDevice.*: pass a",
    ),
    ({"in_shardings": "a"}, "in_shardings holds 'a': pass a jax.sharding.NamedSharding"),
    (
        {"in_shardings": named("a"), "mesh": {"a": 8}},
        r"on mesh \(a=2, b=4\), and mesh a=8 is asked for",
    ),
    ({"in_shardings": PartitionSpec("z")}, "names mesh axis 'z'|axis 'z'"),
]


@pytest.mark.parametrize(("options", "message"), SHARDINGS)
def test_shardings_that_are_none(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        autopar.compile(layer, **{"cluster": SLOW, "mesh": MESH, **options})(W, X)


# Methods --------------------------------------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    w: Any

    @ON
    def __call__(self, x: Any) -> Any:
        return jnp.tanh(x @ self.w)

    @ON
    def loss(self, x: Any) -> Any:
        return (self(x) ** 2).mean()


class Scaled:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    @partial(ON, static_argnums=0)
    def __call__(self, x: Any) -> Any:
        return x * self.factor


def test_methods_take_their_object_as_an_argument() -> None:
    one = Layer(W)
    assert_same(one(X), jnp.tanh(X @ W))
    assert_same(one.loss(X), (jnp.tanh(X @ W) ** 2).mean())
    assert_same(
        jax.grad(Layer.loss)(one, X).w, jax.grad(lambda w: (jnp.tanh(X @ w) ** 2).mean())(W)
    )
    assert list(Layer.loss.plans[0].placements) == ["self.w", "x"]
    assert_same(Layer(2 * W)(X), jnp.tanh(2 * X @ W))
    assert_same(Scaled(3.0)(X), jnp.asarray(3 * X))


def test_a_callable_pytree_is_an_argument() -> None:
    plain = dataclasses.make_dataclass(
        "Affine", ["w"], namespace={"__call__": lambda self, x: x @ self.w}
    )
    jax.tree_util.register_dataclass(plain, ["w"], [])
    affine = plain(jnp.asarray(W))
    compiled = ON(affine)
    assert_same(compiled(X), jnp.asarray(X @ W))
    affine.w = 2 * affine.w
    assert_same(compiled(X), jnp.asarray(2 * X @ W))
    assert list(compiled.plans[0].placements) == ["self.w", "x"]
    assert_same(ON(jax.tree_util.Partial(layer, W))(X), layer(W, X))


def test_arrays_of_other_objects_are_constants_and_told_to_be() -> None:
    class Holder:
        def __init__(self) -> None:
            self.w = jnp.asarray(W)

        def __call__(self, x: Any) -> Any:
            return x @ self.w

    for fn in (Holder(), Holder().__call__):
        with pytest.warns(
            ConstantsWarning, match=r"a Holder holds arrays \(w\), which will be constants"
        ) as caught:
            compiled = ON(fn)
        assert caught[0].filename == __file__
        assert_same(compiled(X), jnp.asarray(X @ W))


# Stages ---------------------------------------------------------------------------------------------------------------


def test_stages_are_called_as_the_function_is() -> None:
    compiled = ON(step, donate_argnums=0)
    traced = compiled.trace(PARAMS, X)
    assert traced.fun_name == "step"
    executable = traced.lower().compile()
    state, loss = executable(arrays(PARAMS), jnp.asarray(X))
    assert_same((state, loss), jax.jit(step)(PARAMS, X))
    assert state["w"].sharding.is_equivalent_to(compiled.plan(PARAMS, X).out_shardings()[0]["w"], 2)
    assert len(compiled.plans) == 1
    assert_same(ON(raised, static_argnums=1).lower(X, 3).compile()(X), jnp.asarray(X**3))


def test_shapes_of_results() -> None:
    compiled = ON(step)
    assert compiled.eval_shape(PARAMS, X) == jax.eval_shape(step, PARAMS, X)
    assert compiled.plans == ()


def test_what_was_planned_is_forgotten() -> None:
    compiled = ON(layer)
    for _ in range(2):
        check(compiled, layer, W, X)
        jax.grad(lambda w, c=compiled: c(w, X).sum())(W)
        assert len(compiled.plans) == 4
        compiled.clear_cache()
        assert compiled.plans == ()
    assert compiled.__wrapped__ is layer
    assert compiled.__name__ == "layer"


@pytest.mark.parametrize("mesh", [{"a": 8}, MESH])
def test_what_has_no_derivative_is_float0(mesh: dict[str, int]) -> None:
    """Of integers, of masks beside a value, as results and as arguments."""
    params = {"w": jnp.ones((16, 8)), "steps": jnp.arange(3), "done": jnp.ones((), bool)}

    def gradient(p: Any) -> Any:
        return jax.grad(lambda p: (p["w"] ** 2).sum(), allow_int=True)(p)

    compiled = autopar.compile(gradient, cluster=SLOW, mesh=mesh)
    found = compiled(params)
    assert jax.tree.map(_like, found) == jax.tree.map(_like, jax.jit(gradient)(params))
    again = autopar.compile(lambda g: (g["w"] * 2, g["steps"]), cluster=SLOW, mesh=mesh)(found)
    assert _like(again[1]) == _like(found["steps"])

    def masked(x: Any) -> Any:
        return jax.jvp(lambda x: (x * 2, x > 0), (x,), (x,))

    split = autopar.compile(masked, cluster=SLOW, mesh=mesh)(params["w"])
    assert jax.tree.map(_like, split) == jax.tree.map(_like, jax.jit(masked)(params["w"]))


def _like(leaf: Any) -> tuple[Any, ...]:
    return leaf.shape, leaf.dtype


def test_a_compiled_function_is_for_all_devices() -> None:
    mesh = jax.make_mesh((8,), ("q",), axis_types=(AxisType.Auto,))
    inside = jax.shard_map(
        ON(layer), mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec()
    )
    for mapped in (lambda: inside(W, X), lambda: jax.pmap(ON(jnp.sin))(X[:8])):
        with pytest.raises(TraceError, match=r"inside jax.shard_map or jax.pmap, over axes \w+: "):
            mapped()


# Refused --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["abstracted_axes", "backend", "compiler_options", "device", "inline", "keep_unused"]
)
def test_options_of_jit_that_are_none_here_say_why(name: str) -> None:
    with pytest.raises(UnknownOption, match=f"no option {name}, which jax.jit has: "):
        ON(layer, **{name: "something"})
    check(ON(layer, **{name: None}), layer, W, X)


def test_mutable_references() -> None:
    for fn in (lambda r: r[...] * 2, lambda r: r):
        with pytest.raises(
            TraceError, match=r"argument r is a mutable reference.*: pass its value, r\[\.\.\.\]"
        ):
            ON(fn)(jax.new_ref(jnp.asarray(X)))


class Mine(Exception):
    pass


def failing(x: Any) -> Any:
    raise Mine("of the user")


@pytest.mark.parametrize(
    "transform",
    [lambda f: f, jax.jit, jax.grad, jax.vmap, lambda f: lambda x: jax.eval_shape(f, x)],
)
def test_the_users_own_exception_is_the_cause(transform: Any) -> None:
    with pytest.raises(
        TraceError, match=r"Mine: of the user, at test_like_jit.py:\d+ \(failing\)"
    ) as error:
        transform(ON(failing))(X)
    assert isinstance(error.value.__cause__, Mine)
