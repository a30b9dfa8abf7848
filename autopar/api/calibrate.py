"""calibrate: measures the devices present, and makes a cluster file of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from time import monotonic
from typing import Any

from autopar._compat import untyped_jax, without_mesh
from autopar.calibration.cases import cases_of
from autopar.calibration.clock import JaxClock, NoDifference, agreement, sorted_devices
from autopar.calibration.machine import extent_of, machine_of
from autopar.calibration.session import Clock, Measured, Stop, Told, measure, stopped_by_interrupt
from autopar.errors import AutoparError
from autopar.report.axes import axes_or_new
from autopar.report.calibration import draw_residuals, missing_section, residual_section
from autopar.report.render import plain, rich_sections
from cost_models import Cluster
from cost_models.fit import Residual, Sample, residuals_of
from cost_models.fitted_profile import fitted_cluster, fitted_profile
from cost_models.profile import ClusterProfile
from cost_models.profile_text import profile_text


class NothingMeasured(AutoparError):
    """A calibration that ended before what a profile cannot do without was measured."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """What was measured on the devices present, the profile fitted to it, and how far the two are apart.

    `missing` are the cases that were not measured, and why. `seconds` is how long measuring took.
    """

    profile: ClusterProfile
    samples: tuple[Sample, ...]
    missing: tuple[tuple[str, str], ...]
    seconds: float

    @property
    def cluster(self) -> Cluster:
        """The cluster, for `autopar.plan` and `cost_models`."""
        return fitted_cluster(self.profile)

    @property
    def residuals(self) -> tuple[Residual, ...]:
        """What the fitted model says of each sample."""
        return residuals_of(self.samples, self.cluster)

    def text(self) -> str:
        """The cluster file, as TOML; what is missing stands at its head."""
        lines = [
            f"Made by autopar calibrate in {self.seconds:.0f} s from {len(self.samples)} measured times."
        ]
        if self.missing:
            lines.append(
                f"{len(self.missing)} cases are missing: {self.missing[0][0]} and more ({self.missing[0][1]})."
            )
        return profile_text(self.profile, tuple(lines))

    def write(self, path: str | Path) -> None:
        """Writes the cluster file, for `autopar.load_cluster` and `--cluster`."""
        Path(path).write_text(self.text(), encoding="utf-8")

    def report(self) -> str:
        """Residuals of every kind, and what is missing, as text."""
        sections = [residual_section(self.residuals, self.seconds, self.profile.name)]
        if self.missing:
            sections.append(missing_section(self.missing))
        return plain(rich_sections(tuple(sections)))

    def __str__(self) -> str:
        return self.report()

    def plot(self, axes: Any = None) -> Any:
        """Draws measured against predicted times; returns the matplotlib axes.

        Args:
          axes: where to draw; None: new ones.

        Raises:
          MissingExtra: matplotlib is not installed.
        """
        return draw_residuals(self.residuals, axes_or_new(axes, figsize=(7, 6)))


def calibrate(
    *,
    name: str | None = None,
    quick: bool = False,
    time_limit_s: float = 240.0,
    devices: Sequence[Any] | None = None,
    clock: Clock | None = None,
    on_case: Callable[[str], None] | None = None,
) -> Calibration:
    """Measures products of matrices, kernels that move memory, other operators and collectives on the devices present.

    In one process, or in all processes of `jax.distributed`, which have to call it alike. Ctrl-C or the time limit end
    it after the case at hand: the profile is made of what was measured until then.

    Args:
      name: of the cluster; None: made of the kind and number of the devices.
      quick: fewer sizes and types.
      time_limit_s: after so many seconds no further case is begun.
      devices: None: all that JAX has, of all processes.
      clock: the seconds of a case; None: they are measured.
      on_case: hears of every case before it is measured, as "3 of 120: dot_general 1x64x64x64 float32".

    Raises:
      NothingMeasured: if it ended before any float32 product, or any kernel that moves memory, was measured.
      ValueError: if processes have different numbers of devices.
    """
    start = monotonic()
    present = sorted_devices(devices)
    agree = agreement()
    machine = machine_of(present, name, agree, date.today())
    extent = extent_of(machine, quick)
    processes = len({device.process_index for device in present})
    cases = cases_of(extent, processes, len(present) // processes)
    used = clock or JaxClock(present, agree, 0.015 if quick else 0.03, 3 if quick else 5)
    stop = Stop(start + time_limit_s)
    failures = (NoDifference, untyped_jax.errors.JaxRuntimeError, TypeError, NotImplementedError)
    told: Told | None = (
        None if on_case is None else lambda n, of, case: on_case(f"{n + 1} of {of}: {case}")
    )
    with without_mesh(), stopped_by_interrupt(stop):
        measured = measure(cases, used, stop, agree=agree, failures=failures, told=told)

    missing = tuple((str(case), reason) for case, reason in measured.missing)
    return Calibration(_profile(measured, machine), measured.samples, missing, monotonic() - start)


def _profile(measured: Measured, machine: Any) -> ClusterProfile:
    try:
        return fitted_profile(measured.samples, machine)
    except ValueError as error:
        reason = f" ({measured.missing[0][1]})" if measured.missing else ""
        raise NothingMeasured(
            f"no profile can be made of {len(measured.samples)} measured times{reason}: {error}. "
            "Let the calibration run for longer."
        ) from error
