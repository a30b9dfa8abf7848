"""The public API: compile a function, or plan it without having its devices."""

from autopar.api.calibrate import Calibration, calibrate
from autopar.api.compiled import Compiled, compile, plan
from autopar.api.front import Front, front
from autopar.api.plan import Plan
from autopar.api.settings import Settings

__all__ = ["Calibration", "Compiled", "Front", "Plan", "Settings", "calibrate", "compile", "front", "plan"]
