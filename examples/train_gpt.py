"""The GPT of gpt_text.py as a job: processes that find one another, rows of each, checkpoints, a loop that goes on.

    autopar launch -n 4 --devices-per-process 2 examples/train_gpt.py run --steps 40
    autopar launch -n 2 --devices-per-process 4 examples/train_gpt.py run --steps 60   # goes on from step 40

However it ends, the same command goes on from the last checkpoint, on any number of processes.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import gpt_text
import numpy as np

import autopar


class Windows:
    """Every window of the training text, and the same one byte further."""

    def __init__(self) -> None:
        self.text = gpt_text.text()[: -gpt_text.TEST_BYTES].astype(np.int32)

    def __len__(self) -> int:
        return len(self.text) - gpt_text.SEQUENCE

    def __getitem__(self, start: int) -> tuple[np.ndarray, np.ndarray]:
        taken = self.text[start : start + gpt_text.SEQUENCE + 1]
        return taken[:-1], taken[1:]


def main() -> None:
    """Trains, and prints the last loss in the first process."""
    parser = ArgumentParser()
    parser.add_argument("directory", type=Path, help="where checkpoints and figures are kept")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--every", type=int, default=10, help="steps from one checkpoint to the next"
    )
    parser.add_argument("--layers", type=int, default=gpt_text.LAYERS)
    parser.add_argument(
        "--cluster", default="cpu8", help="the profile of the devices that are there"
    )
    told = parser.parse_args()

    autopar.distributed.init()
    gpt_text.LAYERS = told.layers
    step, arguments = gpt_text.training_step()
    plan = autopar.plan(
        step, *arguments, cluster=told.cluster, mode="data_parallel", donate_argnums=0
    )

    trainer = autopar.Trainer(told.directory, log_every=1)
    with (
        autopar.data.loader(Windows(), plan, "tokens", "targets", shuffle=True) as loader,
        autopar.checkpoint.Checkpoints(
            told.directory / "checkpoints", every=told.every
        ) as checkpoints,
    ):
        fitted = trainer.fit(plan, arguments[0], loader, told.steps, checkpoint=checkpoints)

    if autopar.distributed.rank() == 0 and not fitted.preempted:
        print(f"step {fitted.step}: loss {fitted.figures.get('loss', float('nan')):.6f}")


if __name__ == "__main__":
    main()
