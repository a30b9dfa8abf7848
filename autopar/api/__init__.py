"""The public API: compile a function, or plan it without having its devices."""

from autopar.api.compiled import Compiled, compile, plan
from autopar.api.plan import Plan
from autopar.api.settings import Settings

__all__ = ["Compiled", "Plan", "Settings", "compile", "plan"]
