"""What each of two processes with two devices does: starts alike, tells the others what it read, finds what differs."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from autopar import distributed

distributed.init()

import jax  # noqa: E402 - only now, as a script would
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import autopar  # noqa: E402
from autopar.emit.several import gathered  # noqa: E402
from tests.quick_compile import QUICK, compiled_by  # noqa: E402

CLUSTER = "2x2xcpu-1gbit"
X = jax.ShapeDtypeStruct((8, 16), jnp.float32)


class Read(NamedTuple):
    """What one process read."""

    words: list[str]
    weights: Any
    key: Any


def make_state(key: Any) -> Any:
    return {"w": jax.random.normal(key, (16, 4)), "b": jnp.zeros(4)}


def step(state: Any, x: Any) -> Any:
    return jax.tree.map(lambda p: 0.9 * p, state), jnp.mean(x @ state["w"] + state["b"])


def main() -> None:
    """What was found, as one line of JSON on the standard output of process 0."""
    number = distributed.rank()
    found: dict[str, Any] = {"group": distributed.group_size(), "devices": len(jax.devices())}
    distributed.init()  # a second call changes nothing
    found |= states(number) | {"read": read(number), "refused": refusals(number)}
    if number == 0:
        print(json.dumps(found))


def states(number: int) -> dict[str, Any]:
    """What the check says of a state that is born in place, and of some that differ."""
    pins = (autopar.pin("state['w']", jax.P("p", "q")), autopar.replicate("state['b']"))
    compiled = autopar.compile(step, cluster=CLUSTER, mesh={"p": 2, "q": 2}, constraints=pins)
    born = compiled.init(make_state, jax.random.key(5), others=(X,))
    plan = compiled.made[0]
    drifted = jax.make_array_from_callback(
        (4,), plan.in_shardings()[0]["b"], lambda _: np.full(4, number, np.float32)
    )
    split = jax.make_array_from_callback(
        (16, 4), plan.in_shardings()[0]["w"], lambda _: np.full((8, 2), number, np.float32)
    )
    return {
        "in place": jax.tree.map(lambda leaf: leaf.sharding, born) == plan.in_shardings()[0],
        "born": differences(born),
        "keys": differences(jax.random.key(number)),
        "drifted": differences({**born, "b": drifted}),
        "split": differences({**born, "w": split}),
        "host": differences({"same": 1, "w": np.ones(3), "x": np.float32(number)}),
        "missing": differences({"a": 1} if number else {"a": 1, "b": 2}),
    }


def read(number: int) -> list[bool]:
    """Whether each process has got what process 1 read, which alone had it."""
    whole = Read(["ä", "b"], {"w": jnp.array([-0.0, jnp.nan, 1e-45])}, jax.random.key(3))
    large = np.arange(3 * 2**17, dtype=np.uint8)
    got = distributed.broadcast((whole, large) if number == 1 else None, source=1)
    bits = [
        np.asarray(w).view(np.uint32).tolist() for w in (got[0].weights["w"], whole.weights["w"])
    ]
    own = (
        isinstance(got[0], Read)
        and got[0].words == whole.words
        and bits[0] == bits[1]
        and bool(jax.random.key_data(got[0].key)[1] == 3)
        and np.array_equal(got[1], large)
    )
    return [text == b"True" for text in gathered(str(own).encode(), jax.devices())]


def refusals(number: int) -> list[str]:
    """What is said where nothing can be sent."""
    mesh = jax.make_mesh((4,), ("x",))
    sharding = jax.NamedSharding(mesh, jax.P("x"))
    split = jax.make_array_from_callback((4,), sharding, lambda _: np.ones(1, np.float32))
    found: list[str] = []
    for tree, source in ((split, number), (None, 2)):
        try:
            distributed.broadcast({"w": tree}, source)
        except autopar.AutoparError as error:
            found.append(str(error))
    return found


def differences(tree: Any) -> str:
    """What the check says, the same in all processes; "" if nothing."""
    try:
        distributed.check_same(tree, "state")
    except autopar.AutoparError as error:
        said = str(error)
    else:
        said = ""
    told = gathered(said.encode(), jax.devices())
    return said if len(set(told)) == 1 else f"not all say the same: {told}"


if __name__ == "__main__":
    with compiled_by(QUICK):
        main()
