"""States that are objects of other libraries: born where a plan has them, put there, and followed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autopar
from autopar.errors import SignatureMismatch
from tests.api.same import SLOW

pytestmark = pytest.mark.models

MESH = {"a": 2, "b": 4}
X = np.linspace(-1, 1, 16 * 64, dtype=np.float32).reshape(16, 64)


@dataclass(frozen=True)
class Case:
    """A state of a library: what makes it, another one, a step, an evaluation, its arrays; whether it changes."""

    make: Any
    other: Any
    step: Any
    evaluate: Any
    arrays: Any
    changes: bool


def of_nnx() -> Case:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, width: int, seed: int) -> None:
            rngs = nnx.Rngs(seed)
            self.up, self.down = nnx.Linear(64, width, rngs=rngs), nnx.Linear(width, 64, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.down(jnp.tanh(self.up(x)))

    def evaluate(net: Any, x: Any) -> Any:
        return ((net(x) - x) ** 2).mean()

    def step(net: Any, x: Any) -> Any:
        loss, gradient = nnx.value_and_grad(evaluate)(net, x)
        nnx.update(net, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(net), gradient))
        return loss

    return Case(lambda: Net(256, 3), lambda: Net(128, 3), step, evaluate, nnx.state, changes=True)


def of_equinox() -> Case:
    import equinox as eqx

    def make(width: int = 256) -> Any:
        return eqx.nn.MLP(64, 64, width, 1, activation=jnp.tanh, key=jax.random.key(3))

    def evaluate(net: Any, x: Any) -> Any:
        return ((jax.vmap(net)(x) - x) ** 2).mean()

    def step(net: Any, x: Any) -> Any:
        loss, gradient = eqx.filter_value_and_grad(evaluate)(net, x)
        return eqx.apply_updates(net, jax.tree.map(lambda g: -0.1 * g, gradient)), loss

    return Case(
        make,
        lambda: make(128),
        step,
        evaluate,
        lambda net: eqx.filter(net, eqx.is_array),
        changes=False,
    )


def of_linen() -> Case:
    import flax.linen as nn
    import optax
    from flax.training.train_state import TrainState

    net = nn.Sequential([nn.Dense(256), jnp.tanh, nn.Dense(64)])
    optimizer = optax.sgd(0.1)

    def make(size: int = 64) -> Any:
        params = net.init(jax.random.key(3), jnp.ones((1, size)))["params"]
        return TrainState.create(apply_fn=net.apply, params=params, tx=optimizer)

    def evaluate(state: Any, x: Any) -> Any:
        return ((state.apply_fn({"params": state.params}, x) - x) ** 2).mean()

    def step(state: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda p: evaluate(state.replace(params=p), x))(
            state.params
        )
        return state.apply_gradients(grads=gradient), loss

    return Case(make, lambda: make(32), step, evaluate, lambda state: state.params, changes=False)


CASES = [pytest.param(case, id=case.__name__) for case in (of_nnx, of_equinox, of_linen)]


def assert_in_place(case: Case, state: Any, plan: autopar.Plan) -> None:
    """Every matrix is split as the plan has it: no device holds one whole."""
    leaves = [leaf for leaf in jax.tree.leaves(case.arrays(state)) if leaf.ndim == 2]
    planned = [
        plan.placements[name]
        for name, shape in plan.argument_inputs
        if len(shape) == 2 and name != "x"
    ]
    assert len(leaves) == len(planned) == 2
    for leaf, placement in zip(leaves, planned, strict=True):
        assert leaf.sharding.shard_shape(leaf.shape) == placement.local_shape(leaf.shape, plan.mesh)
        assert leaf.sharding.num_devices == 8
        assert not leaf.sharding.is_fully_replicated


@pytest.mark.parametrize("build", CASES)
def test_a_state_is_born_and_put_in_place(build: Any) -> None:
    case: Case = build()
    step = autopar.compile(case.step, cluster=SLOW, mesh=MESH)
    born = step.init(case.make, others=(X,))
    (plan,) = step.made
    assert_in_place(case, born, plan)
    wanted = case.make()
    assert type(born) is type(wanted)
    jax.tree.map(np.testing.assert_array_equal, case.arrays(born), case.arrays(wanted))
    placed = plan.place(case.make())
    assert_in_place(case, placed, plan)
    jax.tree.map(np.testing.assert_array_equal, case.arrays(placed), case.arrays(wanted))
    with pytest.raises(SignatureMismatch, match="the plan has float32"):
        plan.place(case.other())
    with pytest.raises(SignatureMismatch, match="the plan has float32"):
        step.init(case.other)


@pytest.mark.parametrize("build", CASES)
def test_training_and_evaluating_move_nothing(build: Any) -> None:
    case: Case = build()
    step = autopar.compile(case.step, cluster=SLOW, mesh=MESH)
    state, plain = step.init(case.make, others=(X,)), case.make()
    evaluate = autopar.compile(case.evaluate, follow=step)
    x = step.made[0].place(X, argument="x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            if case.changes:
                loss, wanted = step(state, x), case.step(plain, X)
            else:
                (state, loss), (plain, wanted) = step(state, x), case.step(plain, X)
            np.testing.assert_allclose(loss, wanted, rtol=1e-5)
            assert_in_place(case, state, step.made[0])
            np.testing.assert_allclose(evaluate(state, X), case.evaluate(plain, X), rtol=1e-5)
    assert len(step.made) == 1
    assert "arrays" in str(evaluate.made[0].constraints[0])
