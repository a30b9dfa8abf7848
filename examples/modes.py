"""Ways to train one classifier on eight devices, each planned by autopar and written by hand with `jax.shard_map`.

    python examples/modes.py      # the loss of each after ten steps, and what its plan takes

* manual: slices of the batch, an all-reduce of the loss divided by the number of devices; autopar prices and runs it.
* mean, sum: data parallel, with the mean or the sum of the devices' gradients; the rate of the sum is an eighth.
* semi-automatic: the first layer's columns and the second one's rows are split over `model`, and no more is said.
* automatic: nothing is said.

The classifier is that of digits_mlp.py, 784-512-512-10, at a batch of 32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import digits_mlp
import jax
import jax.numpy as jnp
from digits_mlp import LEARNING_RATE, loss_fn
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import autopar

DEVICES = 8
STEPS = 10
Step = Callable[[Any, Any, Any], tuple[Any, Any]]

LINE = {"data": DEVICES}
GRID = {"data": 2, "model": 4}
ROWS = {"images": P("data"), "labels": P("data")}
WHOLE = {"state": P(), "output[0]": P(), "output[1]": P()}
COLUMNS_THEN_ROWS = {
    "state['params'][0]['w']": P(None, "model"),
    "state['params'][1]['w']": P("model", None),
    "images": P("data"),
}


@dataclass(frozen=True)
class Mode:
    """One way: the step that is planned and the options of its plan, and the step that is split by hand."""

    planned: Step
    by_hand: Step
    mesh: Mapping[str, int]
    options: Mapping[str, Any] = field(default_factory=dict)

    def plan(self, cluster: str = "cpu8") -> autopar.Plan:
        """The plan of the step, with a batch of digits."""
        _, arguments = digits_mlp.training_step()
        return autopar.plan(
            self.planned, *arguments, cluster=cluster, mesh=self.mesh, **self.options
        )


# By hand --------------------------------------------------------------------------------------------------------------


def split(body: Callable[..., Any], mesh: Mapping[str, int], params: Any) -> Callable[..., Any]:
    """`body` of the parameters, which lie so, and a slice of the batch along `data`: gives loss and gradients."""
    grid = jax.make_mesh(tuple(mesh.values()), tuple(mesh), axis_types=(AxisType.Auto,) * len(mesh))
    specs = (params, P("data"), P("data"))
    return jax.shard_map(body, mesh=grid, in_specs=specs, out_specs=(P(), params))


def updated(params: Any, gradients: Any, rate: float) -> Any:
    """The state after a step of gradient descent."""
    return {"params": jax.tree.map(lambda p, g: p - rate * g, params, gradients)}


def manual(state: Any, images: Any, labels: Any) -> tuple[Any, Any]:
    """The loss is reduced; the derivative of that reduces the gradients."""

    def body(params: Any, images: Any, labels: Any) -> tuple[Any, Any]:
        def loss(params: Any) -> Any:
            return jax.lax.psum(loss_fn(params, images, labels) / DEVICES, "data")

        return jax.value_and_grad(loss)(params)

    value, gradients = split(body, LINE, P())(state["params"], images, labels)
    return updated(state["params"], gradients, LEARNING_RATE), value


def data_parallel(reduce: Callable[..., Any], rate: float) -> Step:
    """Each device has gradients of its own slice, which are reduced."""

    def body(params: Any, images: Any, labels: Any) -> tuple[Any, Any]:
        own = jax.tree.map(lambda p: jax.lax.pcast(p, "data", to="varying"), params)
        value, gradients = jax.value_and_grad(loss_fn)(own, images, labels)
        return jax.lax.pmean(value, "data"), reduce(gradients, "data")

    def step(state: Any, images: Any, labels: Any) -> tuple[Any, Any]:
        value, gradients = split(body, LINE, P())(state["params"], images, labels)
        return updated(state["params"], gradients, rate), value

    return step


def columns_then_rows(state: Any, images: Any, labels: Any) -> tuple[Any, Any]:
    """Two matrices are split over `model`, the batch over `data`: a reduction in the middle of the forward pass."""
    layers = [
        {"w": P(None, "model"), "b": P("model")},
        {"w": P("model", None), "b": P()},
        {"w": P(), "b": P()},
    ]

    def body(params: Any, images: Any, labels: Any) -> tuple[Any, Any]:
        def loss(params: Any) -> Any:
            first, second, last = params
            x = jax.nn.relu(images @ first["w"] + first["b"])
            x = jax.nn.relu(jax.lax.psum(x @ second["w"], "model") + second["b"])
            target = jax.nn.one_hot(labels, digits_mlp.WIDTHS[-1])
            logits = jax.nn.log_softmax(x @ last["w"] + last["b"])
            return jax.lax.pmean(-jnp.mean(jnp.sum(target * logits, axis=-1)), "data")

        return jax.value_and_grad(loss)(params)

    value, gradients = split(body, GRID, layers)(state["params"], images, labels)
    return updated(state["params"], gradients, LEARNING_RATE), value


def summed(state: Any, images: Any, labels: Any) -> tuple[Any, Any]:
    """The step of the sum, for one device: of the mean losses of eight slices."""

    def loss(params: Any) -> Any:
        slices = [part.reshape(DEVICES, -1, *part.shape[1:]) for part in (images, labels)]
        return jnp.sum(jax.vmap(loss_fn, (None, 0, 0))(params, *slices))

    value, gradients = jax.value_and_grad(loss)(state["params"])
    return updated(state["params"], gradients, LEARNING_RATE / DEVICES), value / DEVICES


# All of them ----------------------------------------------------------------------------------------------------------

MODES = {
    "manual": Mode(manual, manual, LINE, {"constraints": autopar.manual({**ROWS, **WHOLE})}),
    "mean": Mode(
        digits_mlp.step,
        data_parallel(jax.lax.pmean, LEARNING_RATE),
        LINE,
        {"mode": "data_parallel"},
    ),
    "sum": Mode(
        summed,
        data_parallel(jax.lax.psum, LEARNING_RATE / DEVICES),
        LINE,
        {"mode": "data_parallel"},
    ),
    "semi-automatic": Mode(
        digits_mlp.step,
        columns_then_rows,
        GRID,
        {"constraints": autopar.semi_auto(COLUMNS_THEN_ROWS)},
    ),
    "automatic": Mode(digits_mlp.step, digits_mlp.step, LINE),
}
"""By hand the last is the plain step, on one device."""


def losses(step: Step, batches: Iterable[Any]) -> list[float]:
    """The loss of each step from the initial state on."""
    state: Any = digits_mlp.initial_state()
    found: list[float] = []
    for images, labels in batches:
        state, loss = step(state, images, labels)
        found.append(float(loss))
    return found


def main() -> None:
    """Trains in each way for ten steps, and prints the last losses beside one another."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    batches = list(islice(digits_mlp.batches(), STEPS))
    print(f"one device: loss {losses(jax.jit(digits_mlp.step), batches)[-1]:.5f}")
    automatic = MODES["automatic"].plan()

    for name, mode in MODES.items():
        plan = mode.plan()
        planned = losses(plan.compile(), batches)
        by_hand = losses(jax.jit(mode.by_hand), batches)
        count = len(plan.summary.collectives)
        print(
            f"{name:14}  loss {planned[-1]:.5f} planned, {by_hand[-1]:.5f} by hand; {count} collectives; "
            f"{autopar.compare(plan, automatic)}"
        )


if __name__ == "__main__":
    main()
