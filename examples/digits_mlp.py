"""A 784-512-512-10 classifier of handwritten digits, in plain JAX: nothing here knows of devices or shardings.

    python examples/digits_mlp.py                                             # trains it on one device
    autopar report examples/digits_mlp.py:training_step --cluster 8xh100      # how to split it

The digits are the 1,797 that scikit-learn brings along (8x8 pixels), padded to 28x28.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Batch = tuple[np.ndarray, np.ndarray]
State = dict[str, Any]

WIDTHS = (784, 512, 512, 10)
BATCH = 32
EPOCHS = 10
TRAINING_IMAGES = 1440  # 45 batches; the other 357 images are the test set
LEARNING_RATE = 0.05


def training_step() -> tuple[Any, tuple[Any, ...]]:
    """The step, and arguments to plan it with: an initial state, and the shapes of a batch."""
    images = jax.ShapeDtypeStruct((BATCH, WIDTHS[0]), np.float32)
    labels = jax.ShapeDtypeStruct((BATCH,), np.int32)
    return step, (initial_state(), images, labels)


def step(state: State, images: jax.Array, labels: jax.Array) -> tuple[State, jax.Array]:
    """One step of stochastic gradient descent: state, images[batch, pixel], labels[batch] -> new state, loss."""
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], images, labels)
    params = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, state["params"], grads)
    return {"params": params}, loss


def loss_fn(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy over the batch."""
    target = jax.nn.one_hot(labels, WIDTHS[-1])
    return -jnp.mean(jnp.sum(target * jax.nn.log_softmax(predict(params, images)), axis=-1))


def predict(params: Any, images: jax.Array) -> jax.Array:
    """Logits[batch, class]."""
    x = images
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def initial_state(seed: int = 0) -> State:
    """Random parameters; plain SGD keeps nothing else."""
    draw = np.random.default_rng(seed)
    params = [
        {
            "w": (draw.normal(size=(m, n)) * (2 / m) ** 0.5).astype(np.float32),
            "b": np.zeros(n, np.float32),
        }
        for m, n in pairwise(WIDTHS)
    ]
    return {"params": params}


def digits() -> tuple[np.ndarray, np.ndarray]:
    """All images[1797, 784] with values in 0..1, and their labels[1797], in a fixed random order.

    Raises:
      ImportError: if scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "the digits come with scikit-learn, which is missing: pip install autopar[examples]"
        ) from error
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = np.pad(data.images / 16, ((0, 0), (10, 10), (10, 10))).astype(np.float32)
    return images.reshape(len(images), -1)[order], data.target.astype(np.int32)[order]


def batches(epochs: int = EPOCHS, seed: int = 0) -> Iterator[Batch]:
    """Batches of the training images, shuffled anew in each epoch."""
    images, labels = (part[:TRAINING_IMAGES] for part in digits())
    draw = np.random.default_rng(seed)
    for _ in range(epochs):
        for rows in draw.permutation(TRAINING_IMAGES).reshape(-1, BATCH):
            yield images[rows], labels[rows]


def accuracy(params: Any) -> float:
    """The part of the test images that is classified right."""
    images, labels = (part[TRAINING_IMAGES:] for part in digits())
    return float(np.mean(np.argmax(predict(params, images), axis=-1) == labels))


def main() -> None:
    """Trains on one device and prints loss and accuracy by epoch."""
    run, (state, *_) = jax.jit(step), training_step()[1]
    per_epoch = TRAINING_IMAGES // BATCH
    losses: list[float] = []
    for images, labels in batches():
        state, loss = run(state, images, labels)
        losses.append(float(loss))
        if len(losses) % per_epoch == 0:
            mean = np.mean(losses[-per_epoch:])
            print(
                f"epoch {len(losses) // per_epoch:2}  loss {mean:.4f}  accuracy {accuracy(state['params']):.3f}"
            )


if __name__ == "__main__":
    main()
