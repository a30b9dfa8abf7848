"""Training loops as the documentation of their libraries writes them; the step is compiled by what is passed.

Each gives the losses of its steps, and what it is asked for behind them. Data is random, models are small.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

Compile = Callable[[Any], Any]
Found = tuple[list[float], Any]
STEPS, BATCH, SIDE, CLASSES = 3, 16, 8, 8


def batches() -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        images = rng.normal(size=(BATCH, SIDE, SIDE, 1)).astype(np.float32)
        yield {"image": images, "label": rng.integers(0, CLASSES, (BATCH,)).astype(np.int32)}


def nnx_loop(compile_step: Compile) -> Found:
    """Flax's first tutorial: a CNN with batch norm and dropout, nnx.Optimizer, nnx.MultiMetric."""
    from flax import nnx

    class CNN(nnx.Module):
        def __init__(self, *, rngs: nnx.Rngs) -> None:
            self.conv1 = nnx.Conv(1, 8, kernel_size=(3, 3), rngs=rngs)
            self.batch_norm1 = nnx.BatchNorm(8, rngs=rngs)
            self.dropout1 = nnx.Dropout(rate=0.025)
            self.linear1 = nnx.Linear(SIDE * SIDE // 4 * 8, 32, rngs=rngs)
            self.dropout2 = nnx.Dropout(rate=0.025)
            self.linear2 = nnx.Linear(32, CLASSES, rngs=rngs)

        def __call__(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
            x = nnx.relu(self.batch_norm1(self.dropout1(self.conv1(x), rngs=rngs)))
            x = nnx.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
            x = x.reshape(x.shape[0], -1)
            x = nnx.relu(self.dropout2(self.linear1(x), rngs=rngs))
            return self.linear2(x)

    def loss_fn(model: CNN, rngs: nnx.Rngs, batch: Any) -> Any:
        logits = model(batch["image"], rngs)
        loss = optax.softmax_cross_entropy_with_integer_labels(
            logits=logits, labels=batch["label"]
        ).mean()
        return loss, logits

    @compile_step
    def train_step(
        model: CNN, optimizer: Any, metrics: Any, rngs: nnx.Rngs, batch: Any
    ) -> jax.Array:
        """Train for a single step."""
        grad_fn = nnx.value_and_grad(loss_fn, has_aux=True)
        (loss, logits), grads = grad_fn(model, rngs, batch)
        metrics.update(loss=loss, logits=logits, labels=batch["label"])
        optimizer.update(model, grads)
        return loss

    @compile_step
    def eval_step(model: CNN, metrics: Any, batch: Any) -> None:
        _, logits = loss_fn(model, nnx.Rngs(0), batch)
        metrics.update(loss=0.0, logits=logits, labels=batch["label"])

    model = CNN(rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(0.005, 0.9), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    rngs = nnx.Rngs(0)
    losses: list[float] = []
    for batch in batches():
        model.train()
        losses.append(float(train_step(model, optimizer, metrics, rngs, batch)))
    trained = metrics.compute()
    metrics.reset()
    model.eval()
    eval_step(model, metrics, batch)
    return losses, (trained, metrics.compute(), rngs.default.count[...], optimizer.step[...])


def equinox_loop(compile_step: Compile) -> Found:
    """Equinox's MNIST example: a CNN in a list with functions, optax on its inexact arrays, a filtered step."""
    import equinox as eqx

    class CNN(eqx.Module):
        layers: list[Any]

        def __init__(self, key: jax.Array) -> None:
            key1, key2, key3 = jax.random.split(key, 3)
            self.layers = [
                eqx.nn.Conv2d(1, 3, kernel_size=3, key=key1),
                eqx.nn.MaxPool2d(kernel_size=2),
                jax.nn.relu,
                jnp.ravel,
                eqx.nn.Linear(75, 32, key=key2),
                jax.nn.sigmoid,
                eqx.nn.Linear(32, CLASSES, key=key3),
                jax.nn.log_softmax,
            ]

        def __call__(self, x: jax.Array) -> jax.Array:
            for layer in self.layers:
                x = layer(x)
            return x

    def loss(model: CNN, x: jax.Array, y: jax.Array) -> jax.Array:
        predicted = jax.vmap(model)(x)
        return -jnp.take_along_axis(predicted, jnp.expand_dims(y, 1), axis=1).mean()

    @compile_step
    def make_step(model: CNN, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        loss_value, grads = eqx.filter_value_and_grad(loss)(model, x, y)
        updates, opt_state = optim.update(grads, opt_state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), opt_state, loss_value

    model = CNN(jax.random.key(0))
    optim = optax.adamw(3e-4)
    opt_state = optim.init(eqx.filter(model, eqx.is_array))
    losses: list[float] = []
    for batch in batches():
        x, y = batch["image"].transpose(0, 3, 1, 2), batch["label"]
        model, opt_state, value = make_step(model, opt_state, x, y)
        losses.append(float(value))
    return losses, compile_step(loss)(model, x, y)


def linen_loop(compile_step: Compile) -> Found:
    """Flax linen's MNIST example: a TrainState, gradients applied in a step of its own."""
    from flax import linen as nn
    from flax.training import train_state

    class CNN(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = nn.relu(nn.Conv(features=8, kernel_size=(3, 3))(x))
            x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
            x = x.reshape((x.shape[0], -1))
            return nn.Dense(features=CLASSES)(nn.relu(nn.Dense(features=32)(x)))

    @compile_step
    def apply_model(state: Any, images: jax.Array, labels: jax.Array) -> Any:
        """Computes gradients, loss and accuracy for a single batch."""

        def loss_fn(params: Any) -> Any:
            logits = state.apply_fn({"params": params}, images)
            return jnp.mean(
                optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, CLASSES))
            ), logits

        (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        return grads, loss, jnp.mean(jnp.argmax(logits, -1) == labels)

    @compile_step
    def update_model(state: Any, grads: Any) -> Any:
        return state.apply_gradients(grads=grads)

    cnn = CNN()
    params = cnn.init(jax.random.key(0), jnp.ones([1, SIDE, SIDE, 1]))["params"]
    state = train_state.TrainState.create(apply_fn=cnn.apply, params=params, tx=optax.sgd(0.1, 0.9))
    losses: list[float] = []
    for batch in batches():
        grads, loss, accuracy = apply_model(state, batch["image"], batch["label"])
        state = update_model(state, grads)
        losses.append(float(loss))
    return losses, (accuracy, state.step)


def keras_loop(compile_step: Compile) -> Found:
    """Keras' guide to training loops in JAX: a stateless step over the variables of model, optimizer and metric."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    keras.utils.set_random_seed(0)
    inputs = keras.Input(shape=(SIDE, SIDE, 1))
    x = keras.layers.Flatten()(inputs)
    x = keras.layers.Dense(32, activation="relu")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Dropout(0.1)(x)
    model = keras.Model(inputs=inputs, outputs=keras.layers.Dense(CLASSES)(x))
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(learning_rate=1e-3)
    train_acc_metric = keras.metrics.SparseCategoricalAccuracy()

    def compute_loss_and_updates(
        trainable_variables: Any,
        non_trainable_variables: Any,
        metric_variables: Any,
        x: Any,
        y: Any,
    ) -> Any:
        y_pred, non_trainable_variables = model.stateless_call(
            trainable_variables, non_trainable_variables, x, training=True
        )
        loss = loss_fn(y, y_pred)
        metric_variables = train_acc_metric.stateless_update_state(metric_variables, y, y_pred)
        return loss, (non_trainable_variables, metric_variables)

    grad_fn = jax.value_and_grad(compute_loss_and_updates, has_aux=True)

    @compile_step
    def train_step(state: Any, data: Any) -> Any:
        trainable_variables, non_trainable_variables, optimizer_variables, metric_variables = state
        x, y = data
        (loss, (non_trainable_variables, metric_variables)), grads = grad_fn(
            trainable_variables, non_trainable_variables, metric_variables, x, y
        )
        trainable_variables, optimizer_variables = optimizer.stateless_apply(
            optimizer_variables, grads, trainable_variables
        )
        return loss, (
            trainable_variables,
            non_trainable_variables,
            optimizer_variables,
            metric_variables,
        )

    optimizer.build(model.trainable_variables)
    variables = (
        model.trainable_variables,
        model.non_trainable_variables,
        optimizer.variables,
        train_acc_metric.variables,
    )
    state: Any = (
        jax.tree.map(lambda variable: variable.value, variables)
        if compile_step is jax.jit
        else variables
    )
    losses: list[float] = []
    for batch in batches():
        loss, state = train_step(state, (batch["image"], batch["label"]))
        losses.append(float(loss))
    for variable, value in zip(train_acc_metric.variables, state[3], strict=True):
        variable.assign(value)
    return losses, train_acc_metric.result()
