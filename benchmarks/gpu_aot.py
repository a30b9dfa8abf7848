"""What does XLA's compiler for GPUs say of the plans, and of what is predicted for them?

    python -m benchmarks.gpu_aot [--json FILE] [--resume FILE] [--record]
                                 [--models mlp gpt llama cnn experts attention]
                                 [--clusters 8xh100-xla 8x8xh100-xla]

Needs JAX's plugin for CUDA (the extra `gpu-aot`), and neither a GPU nor a driver. Training steps in shape only, in
bfloat16, are compiled ahead of time for H100s under plans: the solver's own on a line and on a grid of devices, data
and tensor parallel ones, pinned and perturbed ones (`benchmarks.accuracy_plans`); a few of them for 64 H100s too.

Beside what is predicted for a plan stands what the compiler made of it:
* computing: its own times of its kernels, without launches. Its times of products of bfloat16 to float32 and of mixed
  types are 60 times too long, and of convolutions and copies it has none: these are priced by operations or bytes
  (`benchmarks.gpu_kernels` has the rules). What is predicted is without launches too.
* kernels: how many it launches, and how many are predicted.
* steps: both and the collectives that it made, by the links of the profile; a launch takes what the profile says.
* peaks: the memory that it sets aside.
Nothing runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from autopar.core.graph import OpGraph
from autopar.core.program import ShardedProgram
from benchmarks.accuracy import predicted
from benchmarks.accuracy_plans import drawn_plans
from benchmarks.ahead_of_time import (
    Compiler,
    Predicted,
    Result,
    Session,
    planned,
    resuming_parser_of,
    show,
    show_agreement,
)
from benchmarks.gpu_kernels import compiled_program
from benchmarks.gpu_programs import COMPILER_OPTIONS, MODELS, gpu_devices, sized
from benchmarks.models import Model
from cost_models import Cluster, load_cluster

PLANS = {"8xh100-xla": 8, "8x8xh100-xla": 3}
FEW = ("mlp", "llama")
"""The models that are compiled for 64 H100s too."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Compiles, prints the tables, and writes JSON if asked to, after every model."""
    parser = resuming_parser_of(__doc__)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--clusters", nargs="+", choices=tuple(PLANS), default=tuple(PLANS))
    options = parser.parse_args(arguments)
    session = Session(__file__, options, COMPILER.version())
    for name in options.clusters:
        cluster = load_cluster(name)
        for wanted in options.models:
            if name == "8xh100-xla" or wanted in FEW:
                model, args = sized(wanted, cluster.device_count)
                show(session, model, cluster, partial(measure, model, args, cluster))

    show_agreement(session.console, session.results)
    session.end()


def measure(model: Model, args: tuple[Any, ...], cluster: Cluster) -> Result:
    """All plans of a model, compiled."""
    drawn = drawn_plans(model, cluster, PLANS[cluster.name], args)
    programs = planned(drawn, COMPILER, cluster, gpu_devices(cluster.name))
    return Result.of(model, programs, COMPILER, cluster)


def plugin_version() -> str:
    """The version of JAX's plugin for CUDA, of whichever is installed."""
    for name in ("jax-cuda12-plugin", "jax-cuda13-plugin"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "unknown"


def guessed(graph: OpGraph, program: ShardedProgram, cluster: Cluster) -> Predicted:
    """What is predicted for a program. Copies beside collectives count as computing: kernels are made of them.

    Launches are what everything takes less on a device that has none.
    """
    device = cluster.device
    spent = predicted(graph, program, cluster)
    unlaunched = replace(cluster, device=replace(device, launch_s=0.0))
    without_launches = predicted(graph, program, unlaunched)
    without_copies = predicted(graph, program, unlaunched, copies=False)
    communicating_s = without_copies.communication_time_s
    launching_s = spent.serial_time_s - without_launches.serial_time_s
    return Predicted(
        without_launches.serial_time_s - communicating_s,
        communicating_s,
        spent.set_aside_bytes or spent.peak_memory_bytes,
        launching_s / device.launch_s,
        launching_s,
    )


COMPILER = Compiler(
    gpu_devices, COMPILER_OPTIONS, compiled_program, guessed, "kernels", plugin_version
)


if __name__ == "__main__":
    main()
