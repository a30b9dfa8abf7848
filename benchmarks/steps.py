"""How far from the shortest step is the step of a plan, communicating beside computing?

    python -m benchmarks.steps [--models NAME ...] [--json FILE] [--record]

Training steps by Adam in shape only, the state donated, planned for H100s over all mesh shapes: by the objective, which
knows nothing of overlap, and with `SearchOptions(overlap="compared")`, which proves how long every step takes at least;
beside data parallelism, where that fits. Times are predictions; nothing is run. "planned in" are seconds of CPU of the
first two. Ends within five minutes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import process_time
from typing import Any

from rich.table import Table

import autopar
from autopar.errors import NoFeasiblePlan, Unsolved
from benchmarks import record
from benchmarks.end_to_end import describe_machine
from benchmarks.record import Screen, parser_of
from benchmarks.shapes import Shapes, encoder_decoder, gpt, llama

CLUSTERS = {"8xh100": 8, "8x8xh100": 64}
MODELS: dict[str, Callable[[int], Shapes]] = {
    "GPT, 12 layers": lambda _devices: gpt(12),
    "T5 large": lambda _devices: encoder_decoder(),
    "Llama 3 8B, 4,096 words a device": lambda devices: llama(32, 4096, 14336, 32, batch=devices),
}


@dataclass(frozen=True)
class Row:
    """A step of one model: seconds by the objective, compared and of data parallelism, and those it takes at least.

    `data_parallel_s` is None where that does not fit. `exposed_s` are those in which the compared one waits for what
    is communicated.
    """

    model: str
    cluster: str
    mesh: str
    objective_s: float
    compared_s: float
    data_parallel_s: float | None
    bound_s: float
    exposed_s: float
    cpu_s: tuple[float, float]


def measure(name: str, cluster: str) -> Row:
    """Plans a model three times."""
    model = MODELS[name](CLUSTERS[cluster])

    def planned(**more: Any) -> tuple[autopar.Plan, float]:
        began = process_time()
        plan = autopar.plan(model.step, *model.args, cluster=cluster, donate_argnums=0, **more)
        return plan, process_time() - began

    alone, alone_s = planned()
    compared, compared_s = planned(options=autopar.SearchOptions(overlap="compared"))
    try:
        data_parallel_s = planned(mode="data_parallel")[0].step_time_s
    except (NoFeasiblePlan, Unsolved):
        data_parallel_s = None

    return Row(
        name,
        cluster,
        str(compared.mesh),
        alone.step_time_s,
        compared.step_time_s,
        data_parallel_s,
        compared.step_bound_s,
        compared.step_time_s - compared.compute_time_s,
        (alone_s, compared_s),
    )


def table(rows: Sequence[Row]) -> Table:
    """The rows, to be read."""
    words = ("model", "cluster", "mesh")
    figures = ("objective", "compared", "data parallel", "at least", "gap", "exposed", "planned in")
    found = record.table("Steps, communicating beside computing", (*words, *figures), len(words))
    for row in rows:
        times = (row.objective_s, row.compared_s, row.data_parallel_s, row.bound_s)
        found.add_row(
            row.model,
            row.cluster,
            row.mesh,
            *("does not fit" if t is None else f"{t * 1e3:.1f} ms" for t in times),
            f"{1 - row.bound_s / row.compared_s:.1%}",
            f"{row.exposed_s * 1e3:.1f} ms",
            " / ".join(f"{s:.1f} s" for s in row.cpu_s),
        )
    return found


def main() -> None:
    """Plans all, prints the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    options = parser.parse_args()

    rows = [measure(name, cluster) for name in options.models for cluster in CLUSTERS]
    console = Screen(width=140)
    console.print(describe_machine())
    console.print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    record.record(__file__, options.record, console.tables)


if __name__ == "__main__":
    main()
