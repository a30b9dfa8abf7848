"""Objects of libraries as arguments: changed as their own jit changes them, shared where they are shared, in place."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import autopar
from autopar.errors import SignatureMismatch, TraceError
from tests.models.check import free_latency

pytestmark = pytest.mark.models

X = np.linspace(-1, 1, 16 * 8, dtype=np.float32).reshape(16, 8)
close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)


def on(fn: Any, **options: Any) -> autopar.Compiled:
    return autopar.compile(fn, cluster=free_latency(), mesh={"a": 8}, **options)


# flax.nnx -------------------------------------------------------------------------------------------------------------


def tied() -> Any:
    """A model whose last layer is its first one's table."""
    from flax import nnx

    class Tied(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first = nnx.Linear(8, 16, use_bias=False, rngs=rngs)
            self.last = nnx.Linear(8, 16, use_bias=False, rngs=rngs)
            self.last.kernel = self.first.kernel
            self.idle = nnx.Param(jnp.ones(8))
            self.fixed = nnx.Variable(jnp.ones(16))

        def __call__(self, x: jax.Array) -> jax.Array:
            return (self.fixed * nnx.tanh(self.first(x))) @ self.last.kernel[...].T

        def encode(self, x: jax.Array) -> jax.Array:
            return nnx.tanh(self.first(x))

    return Tied(nnx.Rngs(0))


def descend(model: Any, optimizer: Any, x: Any) -> Any:
    from flax import nnx

    loss, gradients = nnx.value_and_grad(lambda model: ((model(x) - x) ** 2).mean())(model)
    optimizer.update(model, gradients)
    return loss


def trained(compile_step: Any, count: int = 3, **options: Any) -> Any:
    import optax
    from flax import nnx

    model = tied()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    step = compile_step(descend, **options)
    losses = [float(step(model, optimizer, X)) for _ in range(count)]
    return losses, model, optimizer, step


@pytest.mark.parametrize(
    ("options", "apart"),
    [({}, 2), ({"donate_argnums": (0, 1)}, 1), ({"donate_argnums": "carried"}, 2)],
)
def test_what_is_shared_is_one_array(options: Any, apart: int) -> None:
    from flax import nnx

    losses, model, optimizer, step = trained(on, **options)
    expected, plain, _, _ = trained(nnx.jit)
    close(losses, expected)
    assert model.last.kernel is model.first.kernel
    close(model.first.kernel[...], plain.first.kernel[...])
    close(model.idle[...], 1)
    assert int(optimizer.step[...]) == 3
    (plan,) = step.plans
    names = [name for name in plan.placements if "kernel" in name]
    assert names == ["model.first.kernel", "optimizer.opt_state[0].trace.first.kernel"]
    # What is given back is all but the data and `fixed`, which would be lost if it was donated.
    assert len(plan.bound.traced.graph.carry) == len(plan.placements) - apart
    close(model.fixed[...], 1)


def test_the_second_call_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, model, optimizer, step = trained(on, 1)
    x = jax.device_put(X, step.plans[0].in_shardings()[2])
    moved: list[Any] = []
    put = jax.device_put
    monkeypatch.setattr(
        jax, "device_put", lambda *args, **kwargs: moved.append(args) or put(*args, **kwargs)
    )
    step(model, optimizer, x)
    assert not moved
    (plan,) = step.plans
    placed = dict(
        zip(
            (t.name for t in plan.bound.traced.graph.inputs), plan.record.stage.inputs, strict=False
        )
    )
    for name, value in (("model.first.kernel", model.first.kernel), ("model.fixed", model.fixed)):
        spec = tuple(axes[0] if axes else None for axes in placed[name].dims)
        assert tuple(value[...].sharding.spec) == spec


def test_variables_that_a_call_adds() -> None:
    from flax import nnx

    def step(model: Any, x: Any) -> Any:
        if not hasattr(model, "seen"):
            model.seen = nnx.Variable(jnp.zeros(8))
        model.seen[...] += x.sum(0)
        model.calls = 7
        return model(x)

    model, plain = tied(), tied()
    compiled, jitted = on(step), nnx.jit(step)
    for _ in range(3):
        close(compiled(model, X), jitted(plain, X))
        close(model.seen[...], plain.seen[...])
    assert model.calls == 7
    assert len(compiled.plans) == 2


def test_values_that_change_places() -> None:
    from flax import nnx

    def swap(first: Any, second: Any) -> Any:
        first[...], second[...] = second[...], first[...]
        return first

    first, second = nnx.Variable(jnp.arange(8.0)), nnx.Variable(jnp.ones(8))
    assert on(swap)(first, second) is first
    close(first[...], 1)
    close(second[...], np.arange(8))


def test_an_object_in_the_result_that_was_no_argument() -> None:
    from flax import nnx

    def doubled(model: Any) -> Any:
        made = nnx.clone(model)
        made.idle[...] = model.idle[...] * 2
        return {"made": made, "first": model.first}

    model = tied()
    found = on(doubled)(model)
    assert found["first"] is model.first
    assert found["made"] is not model
    close(found["made"].idle[...], 2)
    close(found["made"](X), model(X))
    shapes = on(doubled).eval_shape(model)
    assert shapes["made"].idle.shape == (8,)
    close(model.idle[...], 1)


def test_a_call_that_fails_changes_nothing() -> None:
    def step(model: Any, x: Any) -> Any:
        model.idle[...] = model.idle[...] + 1
        raise ValueError("of the user")

    model = tied()
    with pytest.raises(TraceError, match="ValueError: of the user"):
        on(step)(model, X)
    close(model.idle[...], 1)
    close(on(lambda model, x: model(x))(model, X), model(X))


def test_a_module_that_is_compiled_is_an_argument() -> None:
    model = tied()
    whole, part, bound = (
        on(model),
        on(model.encode),
        on(partial(lambda scale, model, x: scale * model(x), 2.0, model)),
    )
    close(whole(X), model(X))
    for plan in whole.plans:
        assert not plan.bound.traced.constants
        assert list(plan.placements) == ["self.first.kernel", "self.fixed", "self.idle", "x"]
    model.first.kernel[...] = model.first.kernel[...] * 3
    for compiled, plain in ((whole, model), (part, model.encode), (bound, lambda x: 2 * model(x))):
        close(compiled(X), plain(X))
    plan = whole.plan(X)
    assert plan.summary.function == "Tied"
    close(plan.compile()(X), model(X))


@pytest.mark.parametrize("flags", [(True, 1, 1.0), (0, False), ((1, 2), (True, 2))])
def test_static_values_that_are_equal_but_of_other_types(flags: tuple[Any, ...]) -> None:
    from flax import nnx

    class Flagged(nnx.Module):
        def __init__(self, flag: Any) -> None:
            self.scale = nnx.Param(jnp.full(8, 3.0), note=flag)
            self.flag = flag

        def __call__(self, x: jax.Array) -> Any:
            return x * self.scale, type(self.flag).__name__, str(self.flag), str(self.scale.note)

    compiled = on(lambda model, x: jnp.full(4, len(str(model(x)[1:]))))
    for flag in flags:
        model = Flagged(flag)
        close(compiled(model, X), len(str(model(X)[1:])))


def test_a_saved_plan_of_a_step(tmp_path: Any) -> None:
    losses, _, _, step = trained(on, donate_argnums=(0, 1))
    step.plans[0].save(tmp_path / "plan.json")
    loaded = autopar.Plan.load(tmp_path / "plan.json")
    again, *_ = trained(lambda fn, **_: loaded.compile(fn))
    close(again, losses)


def test_under_transformations() -> None:
    from flax import nnx

    compiled = on(lambda model, x: (model(x) ** 2).mean())
    model = tied()
    loss, gradients = nnx.value_and_grad(compiled)(model, X)
    wanted, wanted_gradients = nnx.value_and_grad(lambda model, x: (model(x) ** 2).mean())(model, X)
    close(loss, wanted)
    jax.tree.map(close, nnx.to_pure_dict(gradients), nnx.to_pure_dict(wanted_gradients))

    @on
    def count(model: Any, x: Any) -> Any:
        model.idle[...] += x.mean(0)
        return x * 2

    @nnx.jit
    def outer(model: Any, x: Any) -> Any:
        return count(model, x) + 1

    close(outer(model, X), X * 2 + 1)
    close(model.idle[...], 1 + X.mean(0))


def test_constraints_name_what_objects_hold() -> None:
    pin = autopar.pin("model.first.kernel", PartitionSpec(None, "a"))
    losses, model, _, _ = trained(on, constraints=(pin,))
    close(losses, trained(lambda fn: on(fn))[0])
    assert tuple(model.first.kernel[...].sharding.spec) == (None, "a")
    _, _, _, parallel = trained(on, mode="data_parallel")
    placements = parallel.plans[0].placements
    assert not any(placements[name].split_axes for name in placements if name != "x")
    assert str(placements["x"]) == "[a, -]"


# equinox --------------------------------------------------------------------------------------------------------------


def network() -> Any:
    import equinox as eqx

    class Network(eqx.Module):
        layers: list[Any]
        scale: float
        name: str

        def __call__(self, x: Any, *, key: Any = None) -> Any:
            for layer in self.layers:
                x = layer(x, key=key) if isinstance(layer, eqx.nn.Dropout) else layer(x)
            return x * self.scale

        def twice(self, x: Any) -> Any:
            return 2 * self(x)

    layers = [
        eqx.nn.Linear(8, 16, key=jax.random.key(0)),
        jax.nn.relu,
        eqx.nn.Dropout(0.5, inference=True),
    ]
    return Network(layers, 2.0, "net")


def test_what_is_no_array_is_static() -> None:
    import equinox as eqx

    def mapped(model: Any, x: Any, names: Any, count: int) -> Any:
        return jax.vmap(model)(x), {
            "model": model,
            "count": count,
            **dict.fromkeys(names, len(model.name)),
        }

    model, compiled = network(), on(mapped)
    for names, count in ((("a",), 2), (("a",), 2), (("b",), 2), (("b",), True)):
        found, wanted = (
            compiled(model, X, names, count),
            eqx.filter_jit(mapped)(model, X, names, count),
        )
        close(found[0], wanted[0])
        assert found[1]["count"] is count
        assert jax.tree.structure(found[1]) == jax.tree.structure(wanted[1])
    assert len(compiled.plans) == 3
    assert list(compiled.plans[0].placements) == [
        "model.layers[0].weight",
        "model.layers[0].bias",
        "x",
    ]
    with pytest.raises(SignatureMismatch, match="neither an array nor hashable"):
        compiled(model, X, {1, 2}, 3)


def test_a_module_and_its_method_are_functions() -> None:
    model = network()
    row = X[0]
    for fn in (model, model.twice):
        compiled = on(fn)
        close(compiled(row), fn(row))
        (plan,) = compiled.plans
        assert not plan.bound.traced.constants
    close(on(jax.tree_util.Partial(lambda model, x: model(x), model))(row), model(row))


def test_filtered_gradients_of_a_compiled_function() -> None:
    import equinox as eqx

    def loss(model: Any, x: Any) -> Any:
        return (jax.vmap(model)(x) ** 2).mean()

    compiled, model = on(loss), network()
    gradients = eqx.filter_grad(compiled)(model, X)
    wanted = eqx.filter_grad(loss)(model, X)
    jax.tree.map(close, eqx.filter(gradients, eqx.is_array), eqx.filter(wanted, eqx.is_array))
    assert [plan.summary.function for plan in compiled.plans] == ["gradient of loss"]


# flax.linen -----------------------------------------------------------------------------------------------------------


def test_a_bound_module_is_a_function_of_its_variables() -> None:
    from flax import linen as nn

    class Net(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(16)

        def __call__(self, x: Any) -> Any:
            return nn.relu(self.dense(x))

        def twice(self, x: Any) -> Any:
            return 2 * self(x)

    net = Net()
    variables = net.init(jax.random.key(0), X)
    bound = net.bind(variables)
    for fn in (bound, bound.twice):
        compiled = on(fn)
        close(compiled(X), fn(X))
        (plan,) = compiled.plans
        assert not plan.bound.traced.constants
        assert "variables['params']['dense']['kernel']" in plan.placements
    close(on(net.apply)(variables, X), bound(X))
    with pytest.raises(
        TraceError, match=r"Net is bound with collections that it may change, \['params'\]"
    ):
        on(net.bind(variables, mutable=["params"]))


# Keras ----------------------------------------------------------------------------------------------------------------


def keras_model() -> Any:
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Dense(16, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.1),
    ]
    return keras, keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(8)])


def test_layers_and_metrics_are_changed() -> None:
    def step(model: Any, metric: Any, x: Any) -> Any:
        out = model(x, training=True)
        metric.update_state(out.sum())
        return out.shape

    keras, model = keras_model()
    _, plain = keras_model()
    metric, plain_metric = keras.metrics.Mean(), keras.metrics.Mean()
    compiled = on(step)
    for _ in range(2):
        compiled(model, metric, X)
        step(plain, plain_metric, X)
    both = (*model.variables, *metric.variables), (*plain.variables, *plain_metric.variables)
    for variable, wanted in zip(*both, strict=True):
        np.testing.assert_allclose(variable.value, wanted.value, rtol=1e-4, atol=1e-5)
    (plan,) = compiled.plans
    names = [name for name in plan.placements if name.startswith(("model[", "metric["))]
    assert len(names) == len(both[0])
    # Statistics of the batch norm, the seed of the dropout, the metric's sum and count: what a call changes.
    assert len(plan.bound.traced.graph.carry) == 5


def test_a_model_of_keras_is_an_argument_of_its_call() -> None:
    _, model = keras_model()
    compiled = on(model)
    close(compiled(X), model(X))
    model.layers[0].kernel.assign(model.layers[0].kernel * 2)
    close(compiled(X), model(X))
    assert not compiled.plans[0].bound.traced.constants
    assert model.layers[0].kernel.value.sharding.device_set == set(jax.devices())


def test_variables_of_keras_are_arrays() -> None:
    _, model = keras_model()
    compiled = on(lambda trainable, other, x: model.stateless_call(trainable, other, x)[0])
    close(compiled(model.trainable_variables, model.non_trainable_variables, X), model(X))
