"""Binding: a plan from a file finds its function again, and is refused for any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autopar.api.make import Function, alternatives, name_of, signature_of, task_of
from autopar.api.plan import Plan
from autopar.api.runner import Bound
from autopar.api.settings import Settings
from autopar.errors import PlanFileError, SignatureMismatch
from autopar.search.search import restore
from autopar.trace import CONSTANT, fingerprint, input_signature
from cost_models import Cluster


def bind(given: Plan, fn: Function, settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
    """`given` bound to `fn` as traced with these arguments; refused if it is another function."""
    signature = given.file.signature
    passed = input_signature(fn, args, kwargs, settings.static_argnums)
    wanted, rest = signature.inputs[: len(passed)], signature.inputs[len(passed) :]
    if wanted != passed or not all(name.startswith(CONSTANT) for name, _, _ in rest):
        raise SignatureMismatch(_mismatch(signature.inputs, passed))
    cluster = Cluster.from_dict(given.file.cluster)
    traces, expected = alternatives(fn, settings, args, kwargs, cluster), given.file.plan.fingerprint
    traced = next((t for t in traces if fingerprint(t.graph) == expected), traces[0])
    if signature.inputs != signature_of(traced, settings).inputs:
        raise PlanFileError(
            f"the plan was made for another function than {name_of(fn)}: its constants differ. Plan again."
        )
    if fingerprint(traced.graph) != expected:
        raise PlanFileError(
            f"the plan was made for another function than {name_of(fn)}: inputs agree, but the traced operators do not "
            f"(plan {expected[:12]}, function {fingerprint(traced.graph)[:12]}). Plan it again."
        )
    planned = restore(task_of(traced, settings, cluster), given.record)
    return Plan(
        given.record, lambda: given.summary, lambda _: given.file, Bound(fn, settings, traced, planned, cluster)
    )


def _mismatch(wanted: Sequence[Any], found: Sequence[Any]) -> str:
    differing = [(*w, f) for w, f in zip(wanted, found, strict=False) if w != f]
    if not differing:
        names = [", ".join(row[0] for row in rows) for rows in (wanted, found)]
        return (
            f"the plan is for {len(wanted)} input arrays ({names[0]}), given are {len(found)} ({names[1]}). "
            f"Pass what was planned, or plan again for these arguments."
        )
    name, shape, dtype, other = differing[0]
    return (
        f"the plan is for {name}: {dtype}{list(shape)}, given is {other[0]}: {other[2]}{list(other[1])}. "
        f"Pass what was planned, or plan again for these arguments."
    )
