"""What each of two processes does: states that are born in place, put there, and moved on, keys among them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import autopar
from benchmarks import hosts
from tests.quick_compile import QUICK, compiled_by

X = np.linspace(-1, 1, 8 * 16, dtype=np.float32).reshape(8, 16)
MESH = {"p": 2, "q": 2}
PINS = (autopar.pin("state['w']", jax.P("p", "q")), autopar.pin("x", jax.P("p")))


def make_state(key: Any) -> Any:
    first, second = jax.random.split(key)
    return {"w": jax.random.normal(first, (16, 4)), "count": jnp.int32(0), "key": second}


def step(state: Any, x: Any) -> Any:
    key, now = jax.random.split(state["key"])
    w = 0.9 * state["w"] + jax.random.uniform(now, (16, 4))
    return {"w": w, "count": state["count"] + 1, "key": key}, jnp.mean(x @ w)


def main(told: Path) -> None:
    """The losses of two steps from a state that is born in place, from one that is put there, and from host values."""
    work = hosts.join(told)
    compiled = autopar.compile(
        step, cluster="2x2xcpu-1gbit", mesh=MESH, donate_argnums=0, constraints=PINS
    )
    born = compiled.init(make_state, jax.random.key(5), others=(X,))
    plan = compiled.made[0]
    found: dict[str, Any] = {"shards": [str(shard.index) for shard in born["w"].addressable_shards]}
    found["is in place"] = jax.tree.map(lambda leaf: leaf.sharding, born) == plan.in_shardings()[0]
    found["born"] = losses(compiled, born, plan.place(X, argument="x"))
    here = jax.tree.map(lambda leaf: leaf, make_state(jax.random.key(5)))
    found["placed"] = losses(compiled, plan.place(here), X)
    found["moved"] = losses(compiled, make_state(jax.random.key(5)), X)
    hosts.answer(work, found)


def losses(run: Any, state: Any, x: Any) -> list[float]:
    """The losses of two steps."""
    found: list[float] = []
    for _ in range(2):
        state, loss = run(state, x)
        found.append(float(loss))
    return found


if __name__ == "__main__":
    with compiled_by(QUICK):
        main(Path(sys.argv[-1]))
