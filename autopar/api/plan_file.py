"""Plan files: a plan with its costs, its cluster and the signature of its function, as validated JSON.

A plan comes in and a file goes out, or the other way round. Nothing in a file is executed. Most of a plan says the same
again and again, so a file holds its text compressed (`packed_plan`); one that holds the text as it is can be read too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import from_json

from autopar.api.packed_plan import FileRecord, PlanField, packed_text, unpacked_text
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.plan import Plan
from autopar.core.regions import WHILE_TRIPS
from autopar.errors import PlanFileError
from autopar.report.summary import Report
from autopar.search.constraints.records import Constraint
from cost_models import Cluster

FORMAT_VERSION = 1
"""Of the text of a plan."""
PACKED_VERSION = 2
"""Of a file that holds such a text compressed."""
_SHOWN_ERRORS = 3
_SHOWN_CHARACTERS = 60

Size = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class PlanSignature:
    """What a plan's function takes and gives: (path, shape, dtype) of every flat input, (shape, dtype) of outputs.

    Inputs are those of the graph: the flattened arguments, then the hoisted constants. The rest says how it is
    called, as in `autopar.compile`, how often its while loops were held to go round, to which constraints the plan is
    held, those of its mode included, which inputs are `data`, the gap at which the search was to end, and which
    arguments were of weak types, as Python's numbers are. Of the last two older files say nothing: None.
    """

    inputs: tuple[tuple[str, tuple[Size, ...], str], ...]
    outputs: tuple[tuple[tuple[Size, ...], str], ...]
    static_argnums: tuple[int, ...] = ()
    donate_argnums: tuple[int, ...] | Literal["carried"] = ()
    carry: Literal["auto"] | tuple[tuple[int | str, int | str], ...] | None = "auto"
    while_trips: Annotated[float, Field(gt=0)] = WHILE_TRIPS
    constraints: tuple[Constraint, ...] = ()
    data: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    donate_argnames: tuple[str, ...] = ()
    gap_tolerance: Annotated[float, Field(ge=0, lt=1)] | None = None
    weak: tuple[int, ...] | None = None


class PlanFile(FileRecord):
    """All that is known of a plan without its function. `cluster` is what `Cluster.to_dict` gave.

    Invariants: the plan has one stage; plan, signature and report speak of the same mesh, inputs, outputs and costs;
    every placement divides its tensor evenly; the lower bound is not above the objective; the cluster has as many
    devices as the mesh, or more.
    """

    format_version: Literal[1] = FORMAT_VERSION
    autopar_version: str
    signature: PlanSignature
    plan: PlanField
    report: Report
    cluster: dict[str, Any]

    @field_validator("cluster")
    @classmethod
    def _check_cluster(cls, cluster: dict[str, Any]) -> dict[str, Any]:
        """Whether it is one.

        Raises:
          ValueError: naming what is wrong with it.
        """
        try:
            Cluster.from_dict(cluster)
        except ValidationError as error:
            raise ValueError(_describe(error)) from error
        return cluster

    @model_validator(mode="after")
    def _check(self) -> PlanFile:
        plan = self.plan
        report = self.report
        if len(plan.stages) != 1:
            raise ValueError(
                f"the plan has {len(plan.stages)} stages; this version of autopar runs plans of one"
            )

        if plan.lower_bound_s > plan.objective_s:
            raise ValueError(
                f"the lower bound {plan.lower_bound_s} is above the objective {plan.objective_s}"
            )

        if report.mesh != plan.stage.mesh.whole.axes:
            raise ValueError(
                f"the report is for mesh {DeviceMesh(report.mesh)}, the plan for {plan.stage.mesh}"
            )

        devices = Cluster.from_dict(self.cluster).topology.device_count
        if plan.stage.mesh.size > devices:
            raise ValueError(
                f"the plan is for mesh {plan.stage.mesh}, the cluster has {devices} devices"
            )

        if (report.objective_s, report.lower_bound_s) != (plan.objective_s, plan.lower_bound_s):
            raise ValueError("the report's objective and lower bound are not those of the plan")

        if report.stopped != plan.stopped:
            raise ValueError(
                f"the report says the search was ended by {report.stopped!r}, the plan {plan.stopped!r}"
            )

        rows = [(row.name, row.shape, row.dtype, row.placement) for row in report.inputs]
        _check_tensors("input", self.signature.inputs, plan.stage.inputs, rows, plan.stage.mesh)
        rows = [(row.shape, row.dtype, row.placement) for row in report.outputs]
        _check_tensors("output", self.signature.outputs, plan.stage.outputs, rows, plan.stage.mesh)
        return self


def plan_file(
    plan: Plan, report: Report, cluster: Mapping[str, Any], signature: PlanSignature
) -> PlanFile:
    """The file of `plan`: `report` is its summary, `cluster` what `Cluster.to_dict` gives."""
    return PlanFile(
        autopar_version=autopar_version(),
        signature=signature,
        plan=plan,
        report=report,
        cluster=dict(cluster),
    )


def dump(file: PlanFile, path: Path) -> None:
    """Writes `file` to `path`: JSON whose "contents" are compressed, the same bytes for the same plan.

    Raises:
      PlanFileError: if `path` cannot be written.
    """
    lines = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(value)}" for key, value in packed_fields(file).items()
    )

    try:
        path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    except OSError as error:
        raise PlanFileError(
            f"the plan cannot be written to {path}: {_reason(error)}. Choose another path."
        ) from error


def packed_fields(file: PlanFile) -> dict[str, Any]:
    """What is written of `file`, a JSON object."""
    report = file.report
    about = f"{report.function} on mesh {file.plan.stage.mesh} of {report.cluster}: `autopar report FILE` shows it"
    return {
        "about": about,
        "autopar_version": file.autopar_version,
        "format_version": PACKED_VERSION,
        "contents": packed_text(to_json(file)),
    }


def to_json(file: PlanFile) -> str:
    """The text of a plan: JSON with sorted keys, one line a field."""
    fields = file.model_dump(mode="json")
    for name in ("recomputation", "stopped", "errors", "carried", "carry_time_s", "donation"):
        if not fields["report"][name]:
            del fields["report"][name]
    lines = (
        f"{json.dumps(key)}: {json.dumps(fields[key], sort_keys=True, allow_nan=False)}"
        for key in sorted(fields)
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def load(path: Path) -> PlanFile:
    """The plan file at `path`, validated.

    Raises:
      PlanFileError: if it is missing, no JSON, of another format, or breaks an invariant: says which field and what
        to do.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PlanFileError(
            f"no plan can be read from {path}: {_reason(error)}. Check the path."
        ) from error

    document = _document(path, content)
    if document["format_version"] == PACKED_VERSION:
        content = _unpacked(path, document.get("contents"))
        _document(path, content)

    try:
        return PlanFile.model_validate_json(content)
    except ValidationError as error:
        raise PlanFileError(
            f"{path} is a damaged plan file: {_describe(error)}. Save the plan again, or plan again."
        ) from error


def _unpacked(path: Path, contents: object) -> bytes:
    try:
        if not isinstance(contents, str):
            raise ValueError("it has no contents")
        return unpacked_text(contents).encode()
    except ValueError as error:
        raise PlanFileError(
            f"{path} is a damaged plan file: {error}. Save the plan again, or plan again."
        ) from error


def _document(path: Path, content: bytes) -> dict[str, object]:
    """The fields of a file of a format that this version reads."""
    try:
        document: object = from_json(content)
    except ValueError as error:
        what = str(error) if content.strip() else "it is empty"
        raise PlanFileError(
            f"{path} is not JSON: {what}. Pass a file that Plan.save wrote."
        ) from error

    fields = cast("dict[str, object]", document) if isinstance(document, dict) else {}
    if "format_version" not in fields:
        raise PlanFileError(
            f"{path} is JSON but no plan file: it has no field 'format_version'. Pass a file that Plan.save wrote."
        )

    found = fields["format_version"]
    if isinstance(found, bool) or found not in (FORMAT_VERSION, PACKED_VERSION):
        raise PlanFileError(
            f"{path} is a plan file of format {found!r}; this version of autopar ({autopar_version()}) reads formats "
            f"{FORMAT_VERSION} and {PACKED_VERSION}. Plan again, or use the version that wrote it: "
            f"{fields.get('autopar_version')!r}."
        )

    return fields


def _describe(error: ValidationError) -> str:
    """The first errors, each with where it stands, what is there and what is wrong with it."""
    errors = error.errors(include_url=False)
    shown = [
        _describe_one(item["loc"], item["msg"], item["input"]) for item in errors[:_SHOWN_ERRORS]
    ]
    more = len(errors) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _describe_one(location: Sequence[int | str], message: str, value: object) -> str:
    where = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in location
    ).lstrip(".")
    text = message.removeprefix("Value error, ")
    given = repr(value)
    shown = f" (given {given})" if len(given) <= _SHOWN_CHARACTERS else ""
    return f"{where}: {text}{shown}" if where else f"{text}{shown}"


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _check_tensors(
    what: str,
    signature: Sequence[tuple[Any, ...]],
    placements: Sequence[Placement],
    rows: Sequence[tuple[Any, ...]],
    mesh: DeviceMesh,
) -> None:
    """Whether signature, plan and report agree on their inputs or outputs, and these divide evenly."""
    if not len(signature) == len(placements) == len(rows):
        raise ValueError(
            f"the signature has {len(signature)} {what}s, the plan {len(placements)}, the report {len(rows)}"
        )

    for position, (entry, placement, row) in enumerate(
        zip(signature, placements, rows, strict=True)
    ):
        shape = entry[-2]
        if (*entry, str(placement)) != row:
            raise ValueError(
                f"{what} {position}: the report says {row}, the plan {(*entry, str(placement))}"
            )
        if len(placement.dims) != len(shape) or not placement.fits(shape, mesh):
            raise ValueError(
                f"{what} {position} of shape {shape} cannot be placed {placement} on mesh {mesh}"
            )


def autopar_version() -> str:
    """The installed version; "unknown" where autopar runs from its sources without being installed."""
    try:
        return version("autopar")
    except PackageNotFoundError:
        return "unknown"
