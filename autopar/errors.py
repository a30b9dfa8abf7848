"""The errors autopar raises on bad input, and its warnings: what, where, which value, what to do."""

import inspect
from collections.abc import Generator
from contextlib import contextmanager


class AutoparError(Exception):
    """Base of every error that autopar raises on purpose."""


class InvalidMesh(AutoparError, ValueError):
    """A mesh that does not fit the devices, or whose axes are not well formed."""


class UnknownCluster(AutoparError, ValueError):
    """A cluster name or file that describes no cluster."""


class InvalidOption(AutoparError, ValueError):
    """An option of `compile` or `plan`, or a question to a session, whose value makes no sense."""


class UnknownOption(InvalidOption, TypeError):
    """A keyword that is no option of `compile`."""


class InvalidConstraint(InvalidOption):
    """A constraint that is about nothing, cannot hold, or contradicts another."""


class DifferentValues(AutoparError, ValueError):
    """Processes hold different values of what is to be the same in all: an argument that each has whole, or a state."""


class DataError(AutoparError, ValueError):
    """A source of data, its elements or a position in it that do not fit the arguments of a plan."""


class MissingExtra(AutoparError, ImportError):
    """A library of one of autopar's extras that is not installed."""


@contextmanager
def of_extra(name: str, what: str) -> Generator[None]:
    """Imports of what the extra `name` brings; where one is missing, `what` needs it and the extra are said.

    Raises:
      MissingExtra: a module cannot be found.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"{what}, which is not installed ({error}): pip install 'autopar[{name}]'"
        ) from error


@contextmanager
def writing(what: str, path: object) -> Generator[None]:
    """Writes to a file of the user's.

    Raises:
      AutoparError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise AutoparError(
            f"the {what} cannot be written to {path}: {reason}. Choose another path."
        ) from error


class JobError(AutoparError, RuntimeError):
    """Processes of a job that cannot be started, or do not find one another."""


class TraceError(AutoparError):
    """The function cannot be traced by JAX, or contains what a plan cannot hold."""


class BatchNotCut(AutoparError, ValueError):
    """A step whose batch cannot be cut into micro-batches: something needs all examples at once."""


class UnsupportedPrimitive(AutoparError):
    """An operator without a sharding rule, under `strict=True`."""


class UnsupportedPrimitiveWarning(UserWarning):
    """An operator without a sharding rule: it is replicated, at the price stated."""


class FoundRuleWarning(UserWarning):
    """An operator without a written rule, planned by one that was found by trial."""


class ConstantsWarning(UserWarning):
    """Arrays of an object that is called, and is no pytree: they are constants of its program."""


class UnsplitDataWarning(UserWarning):
    """Data that was to be split over all devices is whole on each of them, as none of it divides evenly."""


class WholeBitsWarning(UserWarning):
    """Random bits are made whole on every device, though that takes much of a step."""


class NoStagesWarning(UserWarning):
    """Layers that cannot be stages of a pipeline, as their rows depend on one another: plans have none."""


class UnpricedWarning(UserWarning):
    """Nobody but its author can look into an operator, and what it costs is not stated."""


class PlanCacheWarning(UserWarning):
    """A plan that is kept in a cache cannot be used, or one cannot be kept there."""


class MovedWarning(UserWarning):
    """Arrays that came in sharded otherwise than planned are moved at every call."""


class NoFeasiblePlan(AutoparError):
    """Proven: no plan satisfies the memory limit and the constraints.

    `min_peak_bytes` is the smallest peak of a device's memory that was found, where memory is to blame.
    """

    def __init__(self, message: str, min_peak_bytes: int | None = None) -> None:
        super().__init__(message)
        self.min_peak_bytes = min_peak_bytes


class Unsolved(AutoparError):
    """Not known: nothing was found that satisfies all, within the limits on work, and nothing proves it impossible.

    `min_peak_bytes` as in NoFeasiblePlan.
    """

    def __init__(self, message: str, min_peak_bytes: int | None = None) -> None:
        super().__init__(message)
        self.min_peak_bytes = min_peak_bytes


class PlanFileError(AutoparError, ValueError):
    """A plan file that is corrupt, of another version, or of another function."""


class CheckpointError(AutoparError, ValueError):
    """A checkpoint that cannot be written, or read, or is of another state."""


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint that is damaged was set aside; the one before is used."""


class SignatureMismatch(AutoparError, TypeError):
    """Arguments whose structure, shapes or types are not those that were planned."""


class ProgramError(AutoparError):
    """A sharded program that breaks one of its invariants: always a bug of autopar, caught by `verify`."""


class SourceError(AutoparError):
    """A program that cannot be written as Python that imports JAX alone: it names what cannot."""


class RuleError(AutoparError, ValueError):
    """A rule that contradicts the shapes of its operator."""


class ParameterServerError(AutoparError):
    """A job on parameter servers that cannot start, or cannot go on: who is missing, where, and what to do."""


class InvalidJob(ParameterServerError, ValueError):
    """A job on parameter servers, or an address of one, that makes no sense."""


class ServerFull(ParameterServerError):
    """Parameters and the optimizer's state do not fit in what the servers may hold."""


class UnsuitableOptimizer(ParameterServerError, ValueError):
    """An optimizer that needs to see what lies on several servers, or rows that no batch touched."""


class UnknownParameter(ParameterServerError, KeyError):
    """A name, or a row, that no server holds."""

    def __str__(self) -> str:
        return str(self.args[0])


class GradientMismatch(ParameterServerError, ValueError):
    """A gradient whose shape or type is not that of its parameter."""


class BadArgument(AutoparError):
    """An argument of the command line that cannot be used: quotes what was given and says what is expected."""


def users_level() -> int:
    """The stack level, for a warning of the caller, of the first frame outside of autopar."""
    frame = inspect.currentframe()
    level = 0
    while (
        frame is not None
        and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "autopar"
    ):
        frame = frame.f_back
        level = level + 1
    return level
