"""Plan cache: plans in a directory, looked up by all that they depend on, so that a second start does not search."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from pydantic import ValidationError

from autopar._compat import jax_version
from autopar.api.packed_plan import FileRecord, PlanField, packed_text, unpacked_text
from autopar.api.plan_file import autopar_version
from autopar.core.mesh import DeviceMesh
from autopar.core.plan import Plan
from autopar.errors import PlanCacheWarning, users_level
from autopar.search.constraints.records import At, Constraint, Follow, Forbid, Pin, Replicate, Tie
from autopar.search.task import Task
from autopar.trace import Traced, fingerprint
from cost_models import Cluster

FORMAT_VERSION = 1
"""Of what is kept: part of the key, so entries of other formats are not met."""


class Entry(FileRecord):
    """What is kept: a plan, the key that it is kept under, and the mode that it was found in."""

    key: str
    plan: PlanField
    mode: str


@dataclass(frozen=True)
class Shelf:
    """The place of one plan in a cache: a file of its own, named by all that the plan depends on."""

    path: Path

    @classmethod
    def of(
        cls,
        directory: Path,
        traces: Sequence[Traced],
        tasks: Sequence[Task],
        cluster: Cluster,
        meshes: Sequence[DeviceMesh],
    ) -> Shelf:
        """The place of the best plan of `tasks`, whose graphs were traced so, on `meshes`."""
        return cls(directory / f"{_key(traces, tasks, cluster, meshes)}.json")

    def read(self) -> Entry | None:
        """What is kept there; None if there is nothing, or nothing that can be read, which is said."""
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            entry = Entry.model_validate_json(unpacked_text(document["contents"]))
            if entry.key != self.path.stem:
                raise ValueError("it was made for something else")
            return entry
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.complain(error)
            return None

    def complain(self, error: Exception) -> None:
        """Says that what is kept there cannot be used."""
        reason = (
            f"{error.error_count()} fields are wrong"
            if isinstance(error, ValidationError)
            else str(error)
        )
        warnings.warn(
            f"the plan kept in {self.path} cannot be used: {reason}. It is planned anew, and kept in its place.",
            PlanCacheWarning,
            stacklevel=users_level(),
        )

    def write(self, plan: Plan, mode: str, name: str) -> None:
        """Keeps `plan` there, of the function `name`: a reader finds all of it, or what was there before.

        A plan that was cut short by the keyboard is not kept; that nothing can be written is said.
        """
        if plan.stopped == "the keyboard":
            return

        about = f"a plan of {name} by autopar {autopar_version()}, kept by its cache"
        entry = Entry(key=self.path.stem, plan=plan, mode=mode)
        fields = {"about": about, "contents": packed_text(entry.model_dump_json())}
        try:
            _write_at_once(self.path, json.dumps(fields, indent=0) + "\n")
        except OSError as error:
            warnings.warn(
                f"the plan of {name} cannot be kept in {self.path.parent}: {error.strerror or error}. Name another "
                f"directory by cache= or AUTOPAR_CACHE.",
                PlanCacheWarning,
                stacklevel=users_level(),
            )


def _write_at_once(path: Path, text: str) -> None:
    """Writes a file that nobody sees in part, however many processes write it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem}.{uuid4().hex}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _key(
    traces: Sequence[Traced], tasks: Sequence[Task], cluster: Cluster, meshes: Sequence[DeviceMesh]
) -> str:
    """All that a plan depends on, as one number."""
    task = tasks[0]
    parts = (
        FORMAT_VERSION,
        autopar_version(),
        jax_version(),
        [_of_graph(traced, task) for traced, task in zip(traces, tasks, strict=True)],
        json.dumps(cluster.to_dict(), sort_keys=True),
        [mesh.axes for mesh in meshes],
        (task.mode, task.constraints, task.memory_limit_bytes, task.strict),
        replace(task.options, on_progress=None),
    )
    return sha256(repr(parts).encode()).hexdigest()


def _of_graph(traced: Traced, task: Task) -> tuple[object, ...]:
    """What a graph computes, how its values are called, and the lines it was written in, if constraints name such."""
    graph = task.graph
    names = [tensor.name for tensor in graph.inputs], graph.output_names
    lines = (
        [(op.source, op.scope) for op in graph.ops] if _names_lines(task.all_constraints) else []
    )
    return fingerprint(traced.graph), graph.carry, graph.batch_inputs, names, lines


def _names_lines(constraints: Sequence[Constraint]) -> bool:
    for constraint in constraints:
        match constraint:
            case Pin() | Replicate() | Forbid():
                targets = (constraint.target,)
            case Tie():
                targets = constraint.targets
            case Follow():
                targets = tuple(pin.target for pin in constraint.pins)
            case _:
                targets = ()
        if any(isinstance(target, At) for target in targets):
            return True

    return False
