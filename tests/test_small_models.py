"""The models of the equivalence tests are themselves right: types are kept, the loss falls, the variants differ."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tests import small_models as models

SMALL = {"gpt": {"layers": 1}, "tied": {"layers": 1}, "bert": {"layers": 1, "width": 32}}
STEPS = {
    "mlp": models.mlp,
    "gpt": models.gpt,
    "tied": models.tied,
    "cnn": models.cnn,
    "bert": models.bert,
}


def types(tree: object) -> object:
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def close(one: object, other: object, tolerance: float) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), one, other
    )


@pytest.mark.parametrize(
    ("name", "optimiser"),
    [
        ("mlp", "sgd"),
        ("mlp", "momentum"),
        ("mlp", "adam"),
        ("cnn", "momentum"),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in (("gpt", "adam"), ("tied", "sgd"), ("bert", "adam"))
        ),
    ],
)
def test_a_step_keeps_the_types_of_the_state_and_lowers_the_loss(name: str, optimiser: str) -> None:
    step, (state, *batch) = STEPS[name](optimiser=optimiser, **SMALL.get(name, {}))
    run = jax.jit(step)
    losses = []
    for _ in range(6):
        new_state, loss = run(state, *batch)
        losses.append(float(loss))
        assert types(new_state) == types(state)
        state = new_state
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", models.MODELS)
def test_float64_is_float64_throughout(name: str) -> None:
    with jax.enable_x64(True):
        fn, args = models.loss_and_grads(name, "float64", **SMALL.get(name, {}))
        loss, grads = jax.eval_shape(fn, *args)
    assert {leaf.dtype for leaf in jax.tree.leaves((loss, grads))} == {np.dtype("float64")}


def test_sgd_moves_by_the_gradients_of_the_same_loss() -> None:
    step, args = models.mlp()
    fn, grad_args = models.loss_and_grads("mlp")
    new_state, loss = step(*args)
    same_loss, grads = fn(*grad_args)
    assert loss == same_loss
    close(
        new_state["params"], jax.tree.map(lambda p, g: p - 0.1 * g, args[0]["params"], grads), 1e-6
    )


@pytest.mark.slow
def test_remat_and_typed_keys_change_no_value() -> None:
    plain, args = models.loss_and_grads("gpt", layers=1)
    remat, _ = models.loss_and_grads("gpt", layers=1, remat=True)
    assert "remat2" in str(jax.make_jaxpr(remat)(*args))
    close(jax.jit(plain)(*args), jax.jit(remat)(*args), 1e-5)
    typed, typed_args = models.loss_and_grads("gpt", layers=1, typed_key=True)
    raw_args = (args[0] | {"key": jax.random.key_data(typed_args[0]["key"])}, *args[1:])
    close(jax.jit(plain)(*raw_args), jax.jit(typed)(*typed_args), 1e-6)


@pytest.mark.slow
def test_dropout_drops_and_follows_its_key() -> None:
    fn, (state, *batch) = models.loss_and_grads("gpt", layers=1)
    without, quiet_args = models.loss_and_grads("gpt", layers=1, dropout=0.0)
    assert "key" not in quiet_args[0]
    run = jax.jit(fn)
    losses = {float(run(state | {"key": np.array([0, n], np.uint32)}, *batch)[0]) for n in range(3)}
    assert len(losses | {float(jax.jit(without)(*quiet_args)[0])}) == 4


def test_tied_embeddings_have_no_head() -> None:
    assert "head" not in models.tied()[1][0]["params"]
    assert "head" in models.gpt()[1][0]["params"]


def test_the_bert_case_has_the_shapes_of_its_record() -> None:
    _, (state, hidden, _, _) = models.bert()
    assert hidden.shape == (8, 8, 128)
    kernels = [
        {name: p["kernel"].shape for name, p in layer.items() if "kernel" in p}
        for layer in state["params"]
    ]
    assert (
        kernels
        == [{"qkv": (128, 384), "out": (128, 128), "fc1": (128, 512), "fc2": (512, 128)}] * 2
    )
