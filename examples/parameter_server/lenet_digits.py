"""LeNet-5 on handwritten digits through parameter servers: 1 scheduler, 2 servers, 3 workers.

    autopar parameter-server examples/parameter_server/lenet_digits.py:training       # all of them by one command

or each by hand, as a process of its own, in any order:

    python examples/parameter_server/scheduler.py 127.0.0.1:6390     # prints the loss, and the accuracy at the end
    python examples/parameter_server/server.py 127.0.0.1:6390        # twice
    python examples/parameter_server/worker.py 127.0.0.1:6390        # three times

The digits are the 1,797 that scikit-learn brings along (8x8 pixels), enlarged to 24x24 and padded to 32x32.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from autopar import parameter_server as ps

SIDE = 32
CLASSES = 10
TRAINING_IMAGES = 1440  # the other 357 images are the test set
BATCH = 96
STEPS = 60
LEARNING_RATE = 2e-3
WORKER_DEVICES = 2


def training() -> tuple[ps.Job, Any, Any, dict[str, Any]]:
    """The job, the loss, the batches, and how workers are started."""
    return job(), loss, batch_of, {"devices": WORKER_DEVICES}


def job(steps: int = STEPS, **changes: Any) -> ps.Job:
    """LeNet's job: 2 servers and 3 workers, synchronous."""
    given = {"servers": 2, "workers": 3, "save_every": 20, **changes}
    return ps.Job(initial_params(), optax.adam(LEARNING_RATE), steps, **given)


def initial_params(seed: int = 0) -> dict[str, Any]:
    """Two convolutions and three layers: LeNet-5 (LeCun et al. 1998) with ReLU."""
    draw = np.random.default_rng(seed)

    def layer(*shape: int) -> dict[str, Any]:
        fan_in = int(np.prod(shape[:-1]))
        return {
            "w": (draw.normal(size=shape) * (2 / fan_in) ** 0.5).astype(np.float32),
            "b": np.zeros(shape[-1], np.float32),
        }

    return {
        "conv1": layer(5, 5, 1, 6),
        "conv2": layer(5, 5, 6, 16),
        "fc1": layer(5 * 5 * 16, 120),
        "fc2": layer(120, 84),
        "fc3": layer(84, CLASSES),
    }


def predict(params: Any, images: jax.Array) -> jax.Array:
    """Logits[batch, class] of images[batch, row, column]."""
    x = images[..., None]
    for name in ("conv1", "conv2"):
        x = jax.lax.conv_general_dilated(
            x, params[name]["w"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = _halved(jax.nn.relu(x + params[name]["b"]))
    x = x.reshape(len(x), -1)
    for name in ("fc1", "fc2"):
        x = jax.nn.relu(x @ params[name]["w"] + params[name]["b"])
    return x @ params["fc3"]["w"] + params["fc3"]["b"]


def _halved(x: jax.Array) -> jax.Array:
    """The mean of every 2 x 2 pixels."""
    batch, rows, columns, channels = x.shape
    return x.reshape(batch, rows // 2, 2, columns // 2, 2, channels).mean((2, 4))


def loss(params: Any, batch: Any) -> jax.Array:
    """Mean cross-entropy over a batch: images[example, row, column], labels[example]."""
    images, labels = batch
    target = jax.nn.one_hot(labels, CLASSES)
    return -jnp.mean(jnp.sum(target * jax.nn.log_softmax(predict(params, images)), axis=-1))


def digits() -> tuple[np.ndarray, np.ndarray]:
    """All images[1797, 32, 32] with values in 0..1, and their labels[1797], in a fixed random order.

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
    large = np.kron(data.images / 16, np.ones((3, 3)))
    images = np.pad(large, ((0, 0), (4, 4), (4, 4))).astype(np.float32)
    return images[order], data.target.astype(np.int32)[order]


_DIGITS = digits()


def batch_of(step: int, index: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Part `index` of `count` of the batch of a step: training images drawn anew for each."""
    images, labels = _DIGITS
    rows = np.random.default_rng(step).choice(TRAINING_IMAGES, BATCH, replace=False)
    mine = rows[BATCH * index // count : BATCH * (index + 1) // count]
    return images[mine], labels[mine]


def accuracy(params: Any) -> float:
    """The part of the test images that is classified right."""
    images, labels = (part[TRAINING_IMAGES:] for part in _DIGITS)
    return float(np.mean(np.argmax(jax.jit(predict)(params, images), axis=-1) == labels))
