"""The command line: parses, calls the API, prints. Whatever is wrong with the input is one line and exit code 2."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console

from autopar.api.user_file import (
    STANDARD_OUTPUT,
    blamed_on,
    check_writable,
    load_layout,
    load_task,
    parse_mesh,
    parse_size,
    parse_target,
    run_file,
)
from autopar.commands.arguments import (
    ClusterName,
    MemoryLimit,
    MeshSizes,
    Target,
    TargetOrPlan,
)
from autopar.commands.lint import add_lint
from autopar.commands.source import add_source
from autopar.commands.tools import Tools
from autopar.commands.verify import add_verify
from autopar.core.sizes import exact_bytes
from autopar.errors import AutoparError, BadArgument

if TYPE_CHECKING:
    from autopar.api.plan import Plan
    from autopar.parameter_server.records import Result
    from autopar.search.progress import SearchProgress

app = typer.Typer(
    help="Finds the fastest way to split a JAX function over a cluster, and proves how good it is.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_TIME_HELP = "seconds of searching, then the best so far: another run may differ; default: no limit"
_DEFAULTS = {
    "cluster": None,
    "mesh": None,
    "memory_limit_bytes": None,
    "mode": "auto",
    "dump": None,
}
_JOB_FORM = (
    "(job, loss, batch_of) or (job, loss, batch_of, options) with an autopar.parameter_server.Job"
)
_WIDE = 120
"""Columns of a table whose cells are long: sources of numbers."""
_LINES = 10
"""Of losses that are printed, about."""


def _tell_version(is_asked: bool) -> None:
    if is_asked:
        from autopar.api.plan_file import autopar_version

        typer.echo(f"autopar {autopar_version()}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", help="print the version", callback=_tell_version, is_eager=True),
    ] = False,
) -> None:
    """Finds the fastest way to split a JAX function over a cluster, and proves how good it is."""


@app.command()
def report(
    target: TargetOrPlan,
    cluster: ClusterName = None,
    mesh: MeshSizes = None,
    memory_limit: MemoryLimit = None,
    mode: Annotated[str | None, typer.Option(help="auto (the default) or data_parallel")] = None,
    json: Annotated[
        Path | None, typer.Option(help="write the report as JSON; - is standard output")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="write the report as an HTML page; - is standard output")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="write the plan, for autopar.Plan.load")] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="write the step as a trace, for ui.perfetto.dev")
    ] = None,
    dump: Annotated[
        Path | None, typer.Option(help="directory for every stage of the program")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="prove the lower bound anew, by other code")
    ] = False,
    prices: Annotated[
        bool, typer.Option("--prices", help="what constraints and carry cost, planned for each")
    ] = False,
    time_limit: Annotated[float | None, typer.Option(help=_TIME_HELP, min=0)] = None,
    ops: Annotated[bool, typer.Option("--ops", help="all operators")] = False,
    collectives: Annotated[
        bool, typer.Option("--collectives", help="collectives by source line")
    ] = False,
    memory: Annotated[bool, typer.Option("--memory", help="what is held at the peak")] = False,
    why: Annotated[
        list[str] | None, typer.Option(help="explain an input or a source line; may be repeated")
    ] = None,
    compare: Annotated[
        bool | None,
        typer.Option(
            help="data parallelism, FSDP and Megatron beside the plan, or nothing of them"
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="a layout of your own beside them: the function returns constraints",
        ),
    ] = None,
) -> None:
    """Plan a function, or read a saved plan, and print what the plan says."""
    with _one_line_errors():
        for path in (json, html, save, timeline):
            check_writable(path)
        given = _given(
            cluster=cluster,
            mesh=None if mesh is None else parse_mesh(mesh),
            memory_limit_bytes=None if memory_limit is None else parse_size(memory_limit),
            mode=mode,
            dump=dump,
            time_limit_s=time_limit,
        )
        shown = {"ops": ops, "collectives": collectives, "memory": memory, "compare": compare}
        details = [name for name, is_shown in shown.items() if is_shown]
        layouts = dict(map(load_layout, against or ()))
        wanted = _Wanted(details, tuple(why or ()), compare, layouts, prices, verify)
        made = _plan_of(target, given, save, timeline, wanted)
        _print_report(made, wanted, json, html)


@app.command()
def explain(
    target: TargetOrPlan,
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="paths of inputs, source lines, files"),
    ],
    cluster: ClusterName = None,
    mesh: MeshSizes = None,
    memory_limit: MemoryLimit = None,
) -> None:
    """Say what a plan does with inputs or at source lines, and why."""
    with _one_line_errors():
        given = _given(
            cluster=cluster,
            mesh=None if mesh is None else parse_mesh(mesh),
            memory_limit_bytes=None if memory_limit is None else parse_size(memory_limit),
        )
        made = _plan_of(target, given, None, None, _Wanted())
        _print("\n".join(made.explain(name) for name in names))


@app.command()
def diff(
    this: Annotated[Path, typer.Argument(metavar="PLAN.json", help="a saved plan")],
    other: Annotated[Path, typer.Argument(metavar="PLAN.json", help="another")],
) -> None:
    """List what differs between two saved plans, and whether the model can tell which is faster."""
    with _one_line_errors():
        from autopar.api.plan import Plan

        _print(Plan.load(this).diff(Plan.load(other)))


@app.command()
def front(
    target: Target,
    cluster: ClusterName = None,
    mesh: MeshSizes = None,
    points: Annotated[int, typer.Option(help="how many memory limits are searched")] = 10,
    time_limit: Annotated[float | None, typer.Option(help=_TIME_HELP, min=0)] = None,
    save: Annotated[
        Path | None, typer.Option(help="directory for the plans, for autopar.Plan.load")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="write the page of the fastest plan, with the front")
    ] = None,
) -> None:
    """Plan a function for one memory limit after another, and print the fastest plan for each."""
    with _one_line_errors():
        check_writable(html)
        if save is not None and not save.is_dir():
            raise BadArgument(f"cannot write into {str(save)!r}: there is no such directory")
        given = {
            "cluster": cluster,
            "mesh": None if mesh is None else parse_mesh(mesh),
            "time_limit_s": time_limit,
        }
        task = load_task(*parse_target(target))
        from autopar.api.front import front as search_front

        keywords: dict[str, Any] = {"cluster": None, "mesh": None, **task.options}
        keywords |= {name: value for name, value in given.items() if value is not None}
        with _status(target, _timed(keywords)) as keywords, _one_line_warnings():
            made = search_front(task.fn, *task.args, points=points, **keywords)
        for number, plan in enumerate(made if save is not None else ()):
            plan.save(Path(save or "") / f"plan_{number:02d}.json")
        if html is not None:
            made.to_html(html)
        _print(made.report())


@app.command()
def calibrate(
    cluster_name: Annotated[
        str | None, typer.Option(help="name of the cluster; default: of its devices")
    ] = None,
    output: Annotated[Path, typer.Option(help="the cluster file, for --cluster")] = Path(
        "calibrated.toml"
    ),
    plot: Annotated[
        Path | None, typer.Option(help="measured against predicted times as an image")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="fewer sizes and types")] = False,
    time_limit: Annotated[
        float, typer.Option(help="seconds, then what is measured until then", min=1)
    ] = 240.0,
) -> None:
    """Measure the devices present, and write a cluster file; Ctrl-C keeps what was measured until then."""
    with _one_line_errors():
        for path in (output, plot):
            check_writable(path)
        from autopar.api.calibrate import calibrate as measure

        with Console(stderr=True).status("calibrating") as status:
            made = measure(
                name=cluster_name,
                quick=quick,
                time_limit_s=time_limit,
                on_case=lambda text: status.update(f"calibrating {text}"),
            )
        made.write(output)
        _print(made.report())
        if plot is not None:
            made.plot().figure.savefig(plot)
        typer.echo(f"written: {output}")


@app.command("parameter-server")
def parameter_server(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="FILE.py:FUNCTION, which returns (job, loss, batch_of) or these and options",
        ),
    ],
    servers: Annotated[int | None, typer.Option(help="instead of the job's")] = None,
    workers: Annotated[int | None, typer.Option(help="instead of the job's")] = None,
    steps: Annotated[int | None, typer.Option(help="instead of the job's")] = None,
    staleness: Annotated[
        int | None, typer.Option(help="asynchronous: steps that a worker may be ahead", min=0)
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="where checkpoints lie; continues what lies there")
    ] = None,
) -> None:
    """Train through a scheduler, servers and workers on this machine, and print the loss."""
    with _one_line_errors():
        given = {
            "servers": servers,
            "workers": workers,
            "steps": steps,
            "staleness": staleness,
            "folder": folder,
        }
        from autopar.parameter_server.launch import train

        job, loss, batch_of, options = _job_of(*parse_target(target))
        job = replace(job, **{name: value for name, value in given.items() if value is not None})
        with Console(stderr=True).status(f"training {target}"):
            result = train(job, loss, batch_of, **options)
        for update in result.updates[:: max(1, len(result.updates) // _LINES)]:
            typer.echo(f"update {update.version:6}  loss {update.loss:.4f}")
        _print_last(result)


@app.command()
def demo() -> None:
    """Plan two small models, train them on 8 virtual devices, and compare with the plain programs."""
    with _one_line_errors():
        from autopar.demo import run
        from autopar.report.render import WIDTH

        run(Console() if Console().is_terminal else Console(width=WIDTH))


@app.command()
def clusters(
    name: Annotated[
        str | None, typer.Argument(help="a cluster or its file: the numbers it rests on")
    ] = None,
) -> None:
    """List the clusters that are known by name, or the numbers of one, where they are from and how obtained."""
    with _one_line_errors():
        from autopar.report.clusters import cluster_section, figure_section
        from autopar.report.render import plain, rich_sections

        section = cluster_section() if name is None else figure_section(name)
        _print(plain(rich_sections((section,)), width=_WIDE))


@app.command(context_settings={"allow_interspersed_args": False})
def launch(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.py", help="what each process runs")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="...", help="those of the script")
    ] = None,
    processes: Annotated[
        int, typer.Option("--processes", "-n", help="how many processes", min=1)
    ] = 1,
    devices_per_process: Annotated[
        int | None,
        typer.Option(help="of each, virtual ones on a CPU; default: as JAX finds them", min=1),
    ] = None,
    log_dir: Annotated[
        Path, typer.Option(help="rank.N/stdout and rank.N/stderr go in there")
    ] = Path("log_output"),
    port: Annotated[
        int | None, typer.Option(help="of process 0; default: a free one", min=1, max=65535)
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="seconds after the first until all have to be there", min=0)
    ] = 300.0,
    grace: Annotated[
        float, typer.Option(help="seconds to save in after Ctrl-C or SIGTERM", min=0)
    ] = 30.0,
) -> None:
    """Run a script in several processes of this machine, which find one another by autopar.distributed.init()."""
    with _one_line_errors():
        from autopar.distributed.launch import Job
        from autopar.distributed.launch import launch as run

        given = tuple(arguments or ())
        job = Job(script, given, processes, devices_per_process, log_dir, port, timeout, grace)
        code = run(job, sys.stdout.buffer, sys.stderr.buffer)

    raise typer.Exit(code)


def _job_of(path: Path, name: str) -> tuple[Any, Any, Any, Mapping[str, Any]]:
    """The job, loss, batches and options that a function of the user's file returns, for other processes too.

    Raises:
      BadArgument: as `load_task`.
    """
    from autopar.parameter_server.cluster import ray
    from autopar.parameter_server.records import Job

    function = getattr(module := run_file(path), name, None)
    if not callable(function):
        raise BadArgument(f"{path} has no function {name!r}")
    with blamed_on(path, f"{name}()"):
        result: object = function()
    kind = type(result).__name__
    parts: list[Any] = [*cast("tuple[Any, ...]", result)] if isinstance(result, tuple) else []
    if len(parts) not in (3, 4) or not isinstance(parts[0], Job):
        kinds = ", ".join(type(part).__name__ for part in parts)
        found = f"({kinds})" if parts else kind
        raise BadArgument(f"{path}:{name} must return {_JOB_FORM}, it returned {found}")

    ray().cloudpickle.register_pickle_by_value(module)  # no other process can import it by its name
    job, loss, batch_of, *rest = parts
    return job, loss, batch_of, rest[0] if rest else {}


def _print_last(result: Result) -> None:
    for update in result.updates[-1:]:
        typer.echo(f"update {update.version:6}  loss {update.loss:.4f}, the last")
    moved = result.traffic
    pulled = exact_bytes(moved.pulled_bytes)
    typer.echo(f"pulled {pulled}, pushed {exact_bytes(moved.pushed_bytes)}")
    for restore in result.restores:
        typer.echo(f"a server was lost at update {restore.lost_at}; restored {restore.version}")


@dataclass(frozen=True)
class _Wanted:
    """What is to be told of a plan beside its first page."""

    details: Sequence[Any] = ()
    why: tuple[str, ...] = ()
    compare: bool | None = None
    layouts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    prices: bool = False
    verify: bool = False

    @property
    def needs_function(self) -> bool:
        """Whether a saved plan cannot tell it."""
        return self.prices or self.verify or bool(self.compare) or bool(self.layouts)


def _given(**options: object) -> dict[str, object]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _plan_of(
    target: str,
    given: Mapping[str, object],
    save: Path | None,
    timeline: Path | None,
    wanted: _Wanted,
) -> Plan:
    """A saved plan, or that of a function planned now: saved, its timeline saved, its bound verified."""
    if target.endswith(".json"):
        if given or wanted.needs_function or save is not None or timeline is not None:
            raise BadArgument(
                f"{target!r} is planned already: only --json, --html, --ops, --collectives, --memory and --why go "
                "with a saved plan"
            )
        from autopar.api.plan import Plan

        return Plan.load(Path(target))

    task = load_task(*parse_target(target))
    from autopar.api.compiled import plan

    keywords = _timed({**_DEFAULTS, **task.options, **given})
    with _status(target, keywords) as keywords, _one_line_warnings():
        made = plan(task.fn, *task.args, **keywords)

    if save is not None:
        made.save(save)
    if timeline is not None:
        made.timeline().save(timeline)
    if wanted.verify:
        _print(f"{made.verify()}\n\n")

    return made


@contextmanager
def _status(target: str, keywords: Mapping[str, Any]) -> Generator[dict[str, Any]]:
    """`keywords` for planning `target`, during which a line on stderr shows how far the search is, on a terminal."""
    from autopar.search.task import SearchOptions

    options: SearchOptions = keywords.get("options") or SearchOptions()
    told = options.on_progress
    with Console(stderr=True).status(f"planning {target}") as status:

        def show(progress: SearchProgress) -> None:
            status.update(f"planning {target}: {progress}")
            if told is not None:
                told(progress)

        yield {**keywords, "options": replace(options, on_progress=show)}


def _timed(keywords: dict[str, Any]) -> dict[str, Any]:
    """`keywords` with their time limit, if there is one, in the options of the search."""
    limit_s = keywords.pop("time_limit_s", None)
    if limit_s is None:
        return keywords
    from autopar.search.task import SearchOptions

    options: SearchOptions = keywords.get("options") or SearchOptions()
    return {
        **keywords,
        "options": replace(options, solve=replace(options.solve, time_limit_s=limit_s)),
    }


def _print_report(made: Plan, wanted: _Wanted, json: Path | None, html: Path | None) -> None:
    """Writes the files that are asked for, and prints the report unless one of them is standard output."""
    from autopar.report import render
    from autopar.report.data import to_json
    from autopar.report.page import html as to_html

    with _one_line_warnings():
        rivals = made.told_rivals(wanted.compare, wanted.details, wanted.layouts)
        prices = made.prices(every=wanted.prices)
        explained = [made.explain(name) for name in wanted.why]

    writers = ((json, to_json), (html, to_html))
    for path, write in writers:
        if path is not None and path != STANDARD_OUTPUT:
            path.write_text(write(made.detailed, rivals), encoding="utf-8")

    printed = [write for path, write in writers if path == STANDARD_OUTPUT]
    for write in printed:
        _print(write(made.detailed, rivals))
    if printed:
        return

    console = Console()
    if console.is_terminal:
        console.print(render.rich_report(made.summary, prices, rivals, wanted.details))
    else:
        _print(render.text(made.summary, prices, rivals, wanted.details))
    for text in explained:
        _print(f"\n{text}")


@contextmanager
def _one_line_errors() -> Generator[None]:
    """Ends the program with exit code 2 and one line on stderr where the input is to blame."""
    from cost_models import ProfileError, UnknownClusterError

    try:
        yield
    except (AutoparError, ProfileError, UnknownClusterError, OSError) as error:
        kind = "" if isinstance(error, BadArgument) else f"{type(error).__name__}: "
        typer.echo(f"error: {kind}{' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from error


@contextmanager
def _one_line_warnings() -> Generator[None]:
    """Prints each of autopar's warnings as one line on stderr, without the line of its own source that gave it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", UserWarning)
        try:
            yield
        finally:
            for warning in caught:
                typer.echo(f"warning: {' '.join(str(warning.message).split())}", err=True)


def _print(text: str) -> None:
    typer.echo(text, nl=False)


_TOOLS = Tools(
    load=lambda text: load_task(*parse_target(text)),
    mesh=parse_mesh,
    errors=_one_line_errors,
    warnings=_one_line_warnings,
    status=_status,
    check_writable=check_writable,
    show=_print,
)
add_lint(app, _TOOLS)
add_source(app, _TOOLS)
add_verify(app, _TOOLS)
