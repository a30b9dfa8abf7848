"""autopar: finds the fastest way to split a JAX function over a cluster, proves how good it is, and runs it so.

Names are imported when they are first used: to import the package takes no longer than to import JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autopar import checkpoint, data, distributed, operators, parameter_server
    from autopar.api.calibrate import Calibration, calibrate
    from autopar.api.compiled import Compiled, compile, plan
    from autopar.api.constraints import (
        at,
        data_parallel,
        forbid,
        manual,
        pin,
        replicate,
        semi_auto,
        tie,
    )
    from autopar.api.explore import Session, explore
    from autopar.api.front import Front, front
    from autopar.api.lint import lint
    from autopar.api.options import PlanOptions
    from autopar.api.plan import Plan, compare
    from autopar.api.verify import verify
    from autopar.core.mesh import DeviceMesh
    from autopar.core.placement import Placement
    from autopar.errors import AutoparError
    from autopar.microbatch.accumulate import accumulate
    from autopar.microbatch.layers import scan_layers
    from autopar.operators import operator
    from autopar.ops.rules.user import register_rule, whole_along
    from autopar.report.findings import Finding, Findings
    from autopar.report.verification import Verification
    from autopar.search.progress import SearchProgress
    from autopar.search.task import SearchOptions
    from autopar.solve import SolveOptions
    from autopar.trainer import Trainer
    from cost_models import Cluster, load_cluster

__all__ = [
    "AutoparError",
    "Calibration",
    "Cluster",
    "Compiled",
    "DeviceMesh",
    "Finding",
    "Findings",
    "Front",
    "Placement",
    "Plan",
    "PlanOptions",
    "SearchOptions",
    "SearchProgress",
    "Session",
    "SolveOptions",
    "Trainer",
    "Verification",
    "accumulate",
    "at",
    "calibrate",
    "checkpoint",
    "compare",
    "compile",
    "data",
    "data_parallel",
    "distributed",
    "explore",
    "forbid",
    "front",
    "lint",
    "load_cluster",
    "manual",
    "operator",
    "operators",
    "parameter_server",
    "pin",
    "plan",
    "register_rule",
    "replicate",
    "scan_layers",
    "semi_auto",
    "tie",
    "verify",
    "whole_along",
]
__version__ = "0.1.0"

_HOMES = {
    "autopar.api.calibrate": "Calibration calibrate",
    "autopar.api.compiled": "Compiled compile plan",
    "autopar.api.constraints": "at data_parallel forbid manual pin replicate semi_auto tie",
    "autopar.api.explore": "Session explore",
    "autopar.api.front": "Front front",
    "autopar.api.lint": "lint",
    "autopar.api.options": "PlanOptions",
    "autopar.api.plan": "Plan compare",
    "autopar.api.verify": "verify",
    "autopar.core.mesh": "DeviceMesh",
    "autopar.core.placement": "Placement",
    "autopar.errors": "AutoparError",
    "autopar.microbatch.accumulate": "accumulate",
    "autopar.microbatch.layers": "scan_layers",
    "autopar.operators": "operator",
    "autopar.ops.rules.user": "register_rule whole_along",
    "autopar.report.findings": "Finding Findings",
    "autopar.report.verification": "Verification",
    "autopar.search.progress": "SearchProgress",
    "autopar.search.task": "SearchOptions",
    "autopar.solve": "SolveOptions",
    "autopar.trainer": "Trainer",
    "cost_models": "Cluster load_cluster",
}
_ROOMS = ("checkpoint", "data", "distributed", "operators", "parameter_server")
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"autopar.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'autopar' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
