"""Profile files: the TOML in which devices and clusters are written down, every number with its source and date."""

from __future__ import annotations

import tomllib
from datetime import date
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cost_models.cluster import Cluster
from cost_models.compute import Device
from cost_models.topology import Level, LevelKind, Link, Topology

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]
AnyFile = TypeVar("AnyFile", bound=BaseModel)


class ProfileError(ValueError):
    """A profile file that cannot be read, or a field in it that is wrong: names file, field and value."""


class Strict(BaseModel):
    """Base of all parts of a profile: no unknown fields, no conversions."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Figure(Strict):
    """A number > 0 in base units, where it is from, and when that source was read or the measurement made."""

    value: PositiveFloat
    source: Name
    date: date


class Count(Strict):
    """A whole number >= 1, with source and date."""

    value: Annotated[int, Field(ge=1)]
    source: Name
    date: date


class DeviceProfile(Strict):
    """A device file. See `Device` for the meaning of the numbers.

    `shared_by_all`: memory, memory bandwidth and peaks are those of one machine, which all devices of the cluster
    share: each gets its part.
    """

    name: Name
    memory_bytes: Figure
    memory_bandwidth_bytes_per_s: Figure
    launch_s: Figure
    peak_flops_per_s: dict[Name, Figure]
    shared_by_all: bool = False

    def device(self, device_count: int) -> Device:
        """The device, as one of `device_count`."""
        part = device_count if self.shared_by_all else 1
        return Device(
            name=self.name,
            memory_bytes=self.memory_bytes.value / part,
            memory_bandwidth_bytes_per_s=self.memory_bandwidth_bytes_per_s.value / part,
            peak_flops_per_s={dtype: peak.value / part for dtype, peak in self.peak_flops_per_s.items()},
            launch_s=self.launch_s.value,
        )


class LevelProfile(Strict):
    """A level of a cluster file. See `Level` for the meaning of kind, latency and bandwidth.

    `bandwidth_of`: "unit": the bandwidth of one unit, whatever is in it; "device": of each device in a unit, which
    has a port of its own (a server of 8 sends 8 times as much); "all": of all devices of the cluster together.
    A torus axis wraps if its size is `wraps_at`.
    """

    name: Name
    size: Annotated[int, Field(ge=1)]
    kind: LevelKind = "switch"
    latency_s: Figure
    bandwidth_bytes_per_s: Figure
    bandwidth_of: Literal["unit", "device", "all"] = "unit"
    max_size: Count | None = None
    wraps_at: Count | None = None

    def level(self, size: int, devices_inside: int, device_count: int) -> Level:
        """The level, with `size` units of `devices_inside` devices each, in a cluster of `device_count`."""
        factor = {"unit": 1.0, "device": float(devices_inside), "all": devices_inside / device_count}
        bandwidth = self.bandwidth_bytes_per_s.value * factor[self.bandwidth_of]
        wrap = self.wraps_at is not None and size == self.wraps_at.value
        return Level(self.name, size, Link(self.latency_s.value, bandwidth), self.kind, wrap)


class ClusterProfile(Strict):
    """A cluster file: a device (its name, a file beside this one, or a table) and levels, outermost first.

    `pattern` says which names mean the same devices and links with other sizes: "{sizes}xh100" stands for 8xh100,
    4x8xh100, ... Fewer sizes than levels leave out the outermost switch levels. `device_kinds` are the names that
    JAX gives such devices.
    """

    name: Name
    device: str | DeviceProfile
    levels: Annotated[list[LevelProfile], Field(min_length=1)]
    pattern: Annotated[str, Field(pattern=r"\{sizes\}")] | None = None
    device_kinds: list[Name] = []

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the levels as written."""
        return tuple(level.size for level in self.levels)


def build_cluster(name: str, profile: ClusterProfile, device: DeviceProfile, sizes: tuple[int, ...]) -> Cluster:
    """The cluster with these sizes of the innermost levels of `profile`.

    Raises:
      ValueError: if there are more sizes than levels, a torus axis is left out, or a level is too large.
    """
    kept = profile.levels[len(profile.levels) - len(sizes) :]
    left_out = profile.levels[: len(profile.levels) - len(sizes)]
    if len(sizes) > len(profile.levels) or any(level.kind == "torus" for level in left_out):
        names = " x ".join(level.name for level in profile.levels)
        raise ValueError(f"{name!r} has {len(sizes)} sizes; {profile.name!r} is {names}")
    for level, size in zip(kept, sizes, strict=True):
        if size < 1 or (level.max_size is not None and size > level.max_size.value):
            most = "" if level.max_size is None else f" and at most {level.max_size.value} ({level.max_size.source})"
            raise ValueError(f"{name!r}: level {level.name!r} has size {size}; it must be at least 1{most}")
    count = prod(sizes)
    levels = [level.level(sizes[i], prod(sizes[i + 1 :]), count) for i, level in enumerate(kept)]
    return Cluster(name, device.device(count), Topology(tuple(levels)))


def read_profile(path: Path, model: type[AnyFile]) -> AnyFile:
    """The file at `path`, checked against `model`.

    Raises:
      ProfileError: naming the file and each wrong field with its value.
    """
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read as TOML: {error}") from error
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ProfileError("\n".join(_lines(path, error))) from error


def _lines(path: Path, error: ValidationError) -> list[str]:
    """One line for each wrong field: file, field, message, value."""
    lines: list[str] = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"])
        lines.append(f"{path}: {where}: {item['msg']}, got {item['input']!r}")
    return lines
