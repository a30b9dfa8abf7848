"""autopar: finds the fastest way to split a JAX function over a cluster, proves how good it is, and runs it so."""

from autopar import operators
from autopar.api import Calibration, Compiled, Front, Plan, calibrate, compile, front, plan
from autopar.api.constraints import at, data_parallel, forbid, manual, pin, replicate, semi_auto, tie
from autopar.api.plan import compare
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.errors import AutoparError
from autopar.operators import operator
from autopar.rules.user import register_rule, whole_along
from autopar.search.progress import SearchProgress
from autopar.search.task import SearchOptions
from autopar.solve import SolveOptions
from cost_models import Cluster, load_cluster

__all__ = [
    "AutoparError",
    "Calibration",
    "Cluster",
    "Compiled",
    "DeviceMesh",
    "Front",
    "Placement",
    "Plan",
    "SearchOptions",
    "SearchProgress",
    "SolveOptions",
    "at",
    "calibrate",
    "compare",
    "compile",
    "data_parallel",
    "forbid",
    "front",
    "load_cluster",
    "manual",
    "operator",
    "operators",
    "pin",
    "plan",
    "register_rule",
    "replicate",
    "semi_auto",
    "tie",
    "whole_along",
]
__version__ = "0.1.0"
