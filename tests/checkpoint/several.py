"""What each of two processes does: goes on from a checkpoint of one, leaves some, is told to end, finds damage."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from time import sleep
from typing import Any

import jax

import autopar
from autopar.checkpoint import Checkpoints
from autopar.emit import several
from benchmarks import hosts
from tests.checkpoint.states import X, make_state, run, step
from tests.quick_compile import QUICK, compiled_by

CLUSTER = "2x2xcpu-1gbit"
PIN = (autopar.pin("state['params']['up']", jax.P(None, ("p", "q"))),)


def main(told: Path) -> None:
    work = hosts.join(told)
    devices = hosts.devices_in_order()
    directory = Path(work.task["directory"])
    plan = autopar.plan(
        step, jax.eval_shape(make_state), X, cluster=CLUSTER, mesh={"p": 2, "q": 2}, constraints=PIN
    )
    compiled = plan.compile()
    found: dict[str, Any] = {}

    with Checkpoints(directory) as checkpoints:
        restored = checkpoints.restore(plan)
        assert restored is not None
        found["step"] = restored.step
        found["shards"] = [
            list(shard.data.shape) for shard in restored.state["params"]["up"].addressable_shards
        ]
        state, found["losses"] = run(compiled, restored.state, 2)
        found["preempted at"] = preempted(checkpoints, work.number, state, plan)

    harm(directory, work.number, devices)
    with Checkpoints(directory) as checkpoints, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        restored = checkpoints.restore(plan)
        assert restored is not None
        told_of = [str(one.message) for one in caught if "damaged" in str(one.message)]
        found["told"] = [
            row.decode() for row in several.gathered("|".join(told_of).encode(), devices)
        ]
        found["behind damage"] = restored.step
    hosts.answer(work, found)


def preempted(checkpoints: Checkpoints, number: int, state: Any, plan: Any) -> int:
    """The step at which all processes saved, after one of them got SIGTERM; 0 if none did."""
    for n in range(3, 400):
        checkpoints.save(n, state, plan=plan, force=n == 3)
        if checkpoints.preempted:
            return n
        if n == 5 and number == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        sleep(0.02)
    return 0


def harm(directory: Path, number: int, devices: Any) -> None:
    """Flips a bit of an array in the last checkpoint."""
    last = max(int(path.name) for path in directory.iterdir() if path.name.isdigit())
    if number == 0:
        largest = max((directory / str(last)).rglob("ocdbt.process_1/d/*"), key=os.path.getsize)
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)
    several.gathered(b"done", devices)


if __name__ == "__main__":
    with compiled_by(QUICK):
        main(Path(sys.argv[-1]))
