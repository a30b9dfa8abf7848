"""The demo: two examples planned for eight virtual devices, trained there, and held against plain JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

import autopar
from autopar.emit.measure import (
    Step,
    Training,
    data_parallel,
    describe_devices,
    plain,
    train,
    use_virtual_devices,
)
from autopar.errors import AutoparError
from autopar.inspect.compare import ProgramComparison, compare
from autopar.inspect.hlo import collectives_of, compile_unmerged
from autopar.report.brief import brief
from autopar.report.render import rich_sections
from autopar.report.sections import Section, tensor_section
from autopar.report.summary import Report
from autopar.report.units import format_quantity

DEVICES = 8
_ROWS = 10
"""Of the table of losses, at most."""

RELU = (
    "They differ by rounding, unless a unit's input comes so close to 0 that it falls on different sides of ReLU's "
    "kink: one image's gradient then passes in one of the two only, and they drift apart by as much."
)


@dataclass(frozen=True)
class Example:
    """An example to train: a file with `training_step()` and `batches(...)`.

    `block` steps are timed together; data parallelism runs `timed_blocks` of them after the first. `note` says what
    there is to know about the difference between planned and plain.
    """

    file: str
    title: str
    batches: dict[str, int]
    block: int
    timed_blocks: int = 4
    note: str = ""


@dataclass(frozen=True)
class DemoOutcome:
    """What one example gave."""

    report: Report
    planned: Training
    plain: Training
    data_parallel: Training
    emitted: ProgramComparison
    merged: ProgramComparison


EXAMPLES = (
    Example(
        "digits_mlp.py",
        "A 784-512-512-10 classifier of handwritten digits, 10 epochs",
        {"epochs": 10},
        30,
        note=RELU,
    ),
    Example(
        "gpt_text.py",
        "A GPT of 4 layers on Python's own manual, with dropout and Adam",
        {"steps": 60},
        5,
    ),
)


def run(console: Console, examples: Sequence[Example] = EXAMPLES) -> None:
    """Plans and trains `examples` on eight virtual devices and prints, for each, what was planned and what came of it.

    Raises:
      AutoparError: if JAX has started with fewer devices, or an example is missing.
    """
    use_virtual_devices(DEVICES)
    console.print(
        f"On {describe_devices()}. A step is timed with all that calling it takes.\n",
        highlight=False,
    )
    for example in examples:
        console.rule(example.title)
        show(console, example, measure(console, example))


def load_example(file: str) -> ModuleType:
    """The example `file`, from the folder `examples` inside the package or, in a checkout, beside it.

    Raises:
      AutoparError: if it is in neither.
    """
    package = Path(__file__).parent
    places = [package / "examples" / file, package.parent / "examples" / file]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise AutoparError(
            f"the example {file} is missing: looked for {' and '.join(map(str, places))}"
        )

    spec = spec_from_file_location(path.stem, path)
    assert spec is not None, "its name ends in .py"
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(console: Console, example: Example) -> DemoOutcome:
    """Plans `example`, trains it planned and plain, and times data parallelism, with progress on `console`."""
    module = load_example(example.file)
    step: Step
    step, args = module.training_step()
    batches = list(module.batches(**example.batches))
    compiled = autopar.compile(step)

    with Progress(*_columns(), console=console) as progress:
        plan = _watched(progress, "planning", lambda: compiled.plan(*args))
        emitted, merged = _watched(
            progress, "compiling, to look inside", lambda: _compare(compiled, plan, args)
        )
        trained = _training(progress, args[0], example.block)
        dp_batches = batches[: example.block * (1 + example.timed_blocks)]
        return DemoOutcome(
            plan.summary,
            trained("training, planned", compiled, batches),
            trained("training, plain", plain(step), batches),
            trained(
                "timing data parallelism", data_parallel(step, len(args) - 1, DEVICES), dp_batches
            ),
            emitted,
            merged,
        )


def _columns() -> Sequence[ProgressColumn]:
    return (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )


def _watched(progress: Progress, title: str, work: Callable[[], Any]) -> Any:
    task = progress.add_task(title, total=1)
    result = work()
    progress.update(task, completed=1)
    return result


def _training(
    progress: Progress, state: Any, block: int
) -> Callable[[str, Step, Sequence[Any]], Training]:
    def trained(title: str, step: Step, batches: Sequence[Any]) -> Training:
        task = progress.add_task(title, total=len(batches))
        return train(step, state, batches, block, lambda steps: progress.advance(task, steps))

    return trained


def _compare(
    compiled: autopar.Compiled, plan: autopar.Plan, args: tuple[Any, ...]
) -> tuple[ProgramComparison, ProgramComparison]:
    """The plan beside the program as emitted, and beside the one that XLA makes of it by default."""
    lowered = compiled.lower(*args)
    program = plan.program()
    builds = compile_unmerged(lowered), lowered.compile()
    emitted, merged = (compare(program, collectives_of(build)) for build in builds)
    return emitted, merged


def show(console: Console, example: Example, outcome: DemoOutcome) -> None:
    """Prints the plan and what came of it."""
    console.print(rich_sections(_short(outcome.report)))
    console.print(_losses(outcome))
    console.print(f"{_difference(outcome)}\n{example.note}".strip() + "\n", highlight=False)
    console.print(_collectives(outcome.emitted))
    console.print(_verdict(outcome), highlight=False)
    console.print(_times(outcome))


def _short(report: Report) -> list[Section]:
    """What a report begins with, the placements of all inputs but the optimiser's, and the collectives."""
    first, summary, *rest = brief(report)
    rows = [row for row in report.inputs if "['opt']" not in row.name]
    title = "Inputs" if len(rows) == len(report.inputs) else "Inputs, without the optimiser's"
    return [
        first,
        summary,
        tensor_section(title, rows),
        *(section for section in rest if section.title == "Collectives"),
    ]


def largest_difference(one: Training, other: Training) -> float:
    """The largest difference of two losses of the same step, as far as both were run."""
    return max(abs(a - b) for a, b in zip(one.losses, other.losses, strict=False))


def _difference(outcome: DemoOutcome) -> str:
    steps = len(outcome.data_parallel.losses)
    return (
        f"Largest difference of a loss, planned from plain: {largest_difference(outcome.planned, outcome.plain):.2g} "
        f"(data parallel from plain, first {steps} steps: "
        f"{largest_difference(outcome.data_parallel, outcome.plain):.2g})."
    )


def _losses(outcome: DemoOutcome) -> Table:
    table = _table("Loss", "step", "planned", "plain", "difference")
    last = len(outcome.planned.losses) - 1
    for n in dict.fromkeys(round(last * row / (_ROWS - 1)) for row in range(_ROWS)):
        a = outcome.planned.losses[n]
        b = outcome.plain.losses[n]
        table.add_row(str(n + 1), f"{a:.6f}", f"{b:.6f}", f"{a - b:+.1e}")
    return table


def _collectives(comparison: ProgramComparison) -> Table:
    """Planned and found side by side, by kind and axes."""
    table = _table("Collectives of a step", "kind", "axes", "predicted", "bytes", "found", "bytes")
    pairs = (*comparison.matched, *comparison.widened, *comparison.merged)
    gone = [vanished.planned for vanished in comparison.vanished]
    kinds = [(move.kind, move.axes) for move in (*(pair.planned for pair in pairs), *gone)]
    for kind, axes in dict.fromkeys(kinds):
        became = [pair for pair in pairs if (pair.planned.kind, pair.planned.axes) == (kind, axes)]
        planned = [pair.planned.size_bytes for pair in became]
        planned += [move.size_bytes for move in gone if (move.kind, move.axes) == (kind, axes)]
        found = [pair.found.size_bytes for pair in became]
        table.add_row(kind, " ".join(axes), *_count(planned), *_count(found))

    for found in comparison.unplanned:
        table.add_row(found.kind, "", *_count([]), *_count([found.size_bytes]))

    return table


def _count(sizes: list[int]) -> tuple[str, str]:
    return str(len(sizes)), format_quantity(sum(sizes), "bytes")


def _verdict(outcome: DemoOutcome) -> str:
    same = "the same" if outcome.emitted.exact else "not the same"
    lines = [
        f"Predicted and found are {same} in kind, devices and bytes, XLA's merging of collectives turned off."
    ]
    if not outcome.emitted.exact:
        lines.append(str(outcome.emitted))
    if not outcome.merged.exact:
        lines.append(f"In the program that ran, XLA being free to merge: {outcome.merged.summary}.")
    return "\n".join(lines) + "\n"


def _times(outcome: DemoOutcome) -> Table:
    table = _table("Time of a step", "program", "measured", "predicted", "of the planned")
    rows = [
        (
            f"planned, {DEVICES} devices",
            outcome.planned,
            format_quantity(outcome.report.step_time_s, "time"),
        ),
        ("plain jax.jit, 1 device", outcome.plain, ""),
        (f"data parallel jax.jit, {DEVICES} devices", outcome.data_parallel, ""),
    ]
    for name, training, predicted in rows:
        ratio = training.step_time_s / outcome.planned.step_time_s
        table.add_row(
            name, format_quantity(training.step_time_s, "time"), predicted, f"{ratio:.2f}"
        )

    table.caption = (
        "The devices share the machine's cores: compare the two programs that run on all of them."
    )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table
