"""Keras 3 on its JAX backend: stateless training steps that return every variable."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np

from tests.models.weights import Built, integers, normal

BATCH, CLASSES = 8, 8


def library() -> Any:
    """Keras, told to use JAX; that is read once, when it is imported. Weights are drawn alike in every run."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    assert keras.backend.backend() == "jax"
    keras.utils.set_random_seed(0)
    return keras


def trained(model: Any, loss: Any, inputs: np.ndarray, targets: np.ndarray) -> Built:
    """step(trainable, other, optimiser's, x, y) -> (the three after one step of SGD with momentum, loss)."""
    keras = library()
    optimiser = keras.optimizers.SGD(0.1, momentum=0.9)
    optimiser.build(model.trainable_variables)

    def value(trainable: Any, other: Any, x: jax.Array, y: jax.Array) -> Any:
        found, other = model.stateless_call(trainable, other, x, training=True)
        return loss(y, found).mean(), other

    def step(trainable: Any, other: Any, opt: Any, x: jax.Array, y: jax.Array) -> Any:
        (found, other), grads = jax.value_and_grad(value, has_aux=True)(trainable, other, x, y)
        trainable, opt = optimiser.stateless_apply(opt, grads, trainable)
        return trainable, other, opt, found

    parts = (model.trainable_variables, model.non_trainable_variables, optimiser.variables)
    return step, (*([np.asarray(v.value) for v in part] for part in parts), inputs, targets)


def classifier(model: Any, inputs: np.ndarray) -> Built:
    loss = library().losses.sparse_categorical_crossentropy
    return trained(model, loss, inputs, integers(CLASSES, (BATCH,)))


def keras_resnet() -> Built:
    """ResNet50's own stem and bottleneck blocks, two stacks of two and narrow."""
    keras = library()
    from keras.src.applications import resnet

    def stacks(x: Any) -> Any:
        x = resnet.stack_residual_blocks_v1(x, 8, 2, stride1=1, name="conv2")
        return resnet.stack_residual_blocks_v1(x, 16, 2, name="conv3")

    model = resnet.ResNet(
        stacks,
        False,
        True,
        "resnet",
        weights=None,
        input_shape=(32, 32, 3),
        classes=CLASSES,
        weights_name=None,
    )
    assert isinstance(model, keras.Model)
    return classifier(model, normal((BATCH, 32, 32, 3)))


def efficientnet() -> Built:
    """EfficientNet: inverted bottlenecks, depthwise convolutions, squeeze and excitation, stochastic depth."""
    library()
    from keras.src.applications.efficientnet import EfficientNet

    blocks = [
        {"kernel_size": 3, "repeats": 1, "filters_in": 32, "filters_out": 64, "expand_ratio": 1, "id_skip": True,
         "strides": 1, "se_ratio": 0.25},
        {"kernel_size": 5, "repeats": 2, "filters_in": 64, "filters_out": 64, "expand_ratio": 4, "id_skip": True,
         "strides": 2, "se_ratio": 0.25},
    ]  # fmt: skip
    model = EfficientNet(
        0.25, 1.0, 32, blocks_args=blocks, weights=None, input_shape=(32, 32, 3), classes=CLASSES, name="efficientnet",
        weights_name=None,
    )  # fmt: skip
    return classifier(model, normal((BATCH, 32, 32, 3), scale=50.0))


def keras_lstm() -> Built:
    """Embedding, bidirectional LSTM, LSTM, dense."""
    keras = library()
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((16,), dtype="int32"),
            layers.Embedding(64, 32),
            layers.Bidirectional(layers.LSTM(16, return_sequences=True)),
            layers.LSTM(32),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    return classifier(model, integers(64, (BATCH, 16)))


def mixtral() -> Built:
    """A decoder layer of Mixtral's kind out of Keras layers: grouped attention, two of eight experts by top_k."""
    keras = library()
    layers, ops = keras.layers, keras.ops

    class Experts(layers.Layer):
        def build(self, shape: tuple[int, ...]) -> None:
            width, hidden, count = shape[-1], 64, 8
            self.router = self.add_weight((width, count), name="router")
            self.gate = self.add_weight((count, width, hidden), name="gate")
            self.up = self.add_weight((count, width, hidden), name="up")
            self.down = self.add_weight((count, hidden, width), name="down")

        def call(self, x: Any) -> Any:
            chance = ops.softmax(ops.matmul(x, self.router))
            weights, chosen = ops.top_k(chance, 2)
            weights = weights / ops.sum(weights, axis=-1, keepdims=True)
            share = ops.sum(ops.one_hot(chosen, 8) * weights[..., None], axis=-2)
            hidden = ops.silu(ops.einsum("btd,edf->btef", x, self.gate)) * ops.einsum(
                "btd,edf->btef", x, self.up
            )
            return ops.einsum("btef,efd,bte->btd", hidden, self.down, share)

    tokens = layers.Input((16,), dtype="int32")
    x = layers.Embedding(64, 32)(tokens)
    y = layers.RMSNormalization()(x)
    x = x + layers.GroupQueryAttention(4, 8, 2)(y, y, use_causal_mask=True)
    x = x + Experts()(layers.RMSNormalization()(x))
    model = keras.Model(tokens, layers.Dense(64)(layers.RMSNormalization()(x)))

    def loss(y: Any, found: Any) -> Any:
        return keras.losses.sparse_categorical_crossentropy(y, found, from_logits=True)

    return trained(model, loss, integers(64, (BATCH, 16)), integers(64, (BATCH, 16), 1))
