"""What does the compiler for TPUs say of the plans, and of what is predicted for them?

    python -m benchmarks.tpu_aot [--json FILE] [--resume FILE] [--record] [--models mlp gpt cnn experts]
                                 [--clusters tpu-v5e-4x4 tpu-v5e-16x16]

Needs libtpu (the extra `tpu-aot`) and no TPU. Training steps in shape only, bfloat16, are compiled ahead of time for
slices of TPU v5e: under plans (the solver's own on a line and on a grid of chips, data and tensor parallel ones, random
ones: `benchmarks.accuracy_plans`), and with shardings by hand that XLA completes (data parallelism, FSDP, Megatron).
Beside what is predicted for a plan stand the compiler's own estimates: the cycles of what it computes, and the memory
that it sets aside. It has no estimate for collectives: those that it made are priced by the links of the profile.
Nothing runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.metadata import version

from autopar.core.graph import OpGraph
from autopar.core.program import ShardedProgram
from benchmarks.accuracy import predicted
from benchmarks.accuracy_plans import drawn_plans
from benchmarks.ahead_of_time import (
    Compiler,
    Predicted,
    Program,
    Result,
    Session,
    planned,
    resuming_parser_of,
    show,
    show_agreement,
)
from benchmarks.models import Model
from benchmarks.tpu_cycles import compiled_program
from benchmarks.tpu_programs import NAMES, arguments, by_hand, sized, tpu_devices
from cost_models import Cluster, load_cluster

PLANS = {"tpu-v5e-4x4": 6, "tpu-v5e-16x16": 4}


def main(arguments_: Sequence[str] | None = None) -> None:
    """Compiles, prints the tables, and writes JSON if asked to, after every model."""
    parser = resuming_parser_of(__doc__)
    parser.add_argument("--models", nargs="+", choices=NAMES, default=NAMES[:3])
    parser.add_argument("--clusters", nargs="+", choices=tuple(PLANS), default=tuple(PLANS))
    options = parser.parse_args(arguments_)
    session = Session(__file__, options, COMPILER.version())
    for name in options.clusters:
        cluster = load_cluster(name)
        for wanted in options.models:
            model = sized(wanted, cluster.device_count)
            show(session, model, cluster, partial(measure, model, cluster))

    show_agreement(session.console, session.results)
    session.end()


def measure(model: Model, cluster: Cluster) -> Result:
    """All programs of a model, compiled."""
    args = arguments(model)
    devices = tpu_devices(cluster.name)
    drawn = drawn_plans(model, cluster, PLANS[cluster.name], args)
    different = {(d.kind, d.plan.objective_s): d for d in drawn}.values()
    programs = planned([*different], COMPILER, cluster, devices)
    hand = by_hand(model, args, devices)
    programs += [Program(kind, "", None, lower()) for kind, lower in hand.items()]
    return Result.of(model, programs, COMPILER, cluster)


def guessed(graph: OpGraph, program: ShardedProgram, cluster: Cluster) -> Predicted:
    """What is predicted for a program."""
    spent = predicted(graph, program, cluster)
    return Predicted(spent.compute_time_s, spent.communication_time_s, spent.peak_memory_bytes)


COMPILER = Compiler(
    tpu_devices,
    {},
    compiled_program,
    guessed,
    "cycles",
    lambda: f"libtpu {version('libtpu')}",
)


if __name__ == "__main__":
    main()
