"""The clusters that are known by name: the files in `profiles/`, and the same devices and links in other numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from math import prod
from operator import le
from pathlib import Path

from cost_models.cluster import Cluster
from cost_models.errors import FORMULA, relative_errors
from cost_models.profile import (
    Amount,
    ClusterProfile,
    Count,
    DeviceProfile,
    Figure,
    build_around,
    build_cluster,
    figures_in,
)
from cost_models.profile_file import ProfileError, read_profile

PROFILES = Path(__file__).parent / "profiles"


class UnknownClusterError(ValueError):
    """A cluster name that stands for no cluster: lists those that are known and what comes close."""


def load_cluster(name_or_path: str | Path) -> Cluster:
    """The cluster of that name, or in that TOML file.

    Names are those of `known_clusters` and the same with other sizes, outermost first: "4x8xh100" (servers x
    devices), "2xh100", "cpu64", "tpu-v5e-8x16".

    Raises:
      UnknownClusterError: if the name stands for no cluster, or for one that cannot be built.
      ProfileError: if the file cannot be read or a field of it is wrong.
    """
    return replace(
        _load(name_or_path, PROFILES, ()), errors=_errors(*_found(name_or_path, PROFILES)[:2])
    )


def figures_of(name_or_path: str | Path) -> tuple[tuple[str, Figure | Amount | Count], ...]:
    """Every number that the cluster rests on: its field, and the number with source, date and how it was obtained.

    Those of the device come first, then those of the levels, outermost first.

    Raises:
      UnknownClusterError: if the name stands for no cluster, or for one that cannot be built.
      ProfileError: if the file cannot be read or a field of it is wrong.
    """
    load_cluster(name_or_path)
    return _figures(*_found(name_or_path, PROFILES)[:2])


def known_clusters() -> tuple[str, ...]:
    """The names of the clusters that ship with a profile, sorted."""
    return tuple(sorted(profile.name for profile in _cluster_profiles()))


def cluster_of_devices(device_kind: str, count: int) -> Cluster:
    """The cluster of `count` devices that JAX calls `device_kind`, as such devices are usually connected.

    As many as fit into a server are one server, more are full servers. On a torus the axes are as equal as they can
    be.

    Raises:
      UnknownClusterError: if no profile knows so many of the kind, or that many do not make full servers or a torus.
    """
    for profile in _cluster_profiles():
        if device_kind not in profile.device_kinds:
            continue
        if profile.pattern is not None:
            return load_cluster(
                profile.pattern.format(sizes="x".join(map(str, _sizes_of_count(profile, count))))
            )
        if prod(profile.sizes) == count:
            return load_cluster(profile.name)

    kinds = sorted(kind for profile in _cluster_profiles() for kind in profile.device_kinds)
    raise UnknownClusterError(
        f"no profile for {count} devices of kind {device_kind!r}; known are {', '.join(map(repr, kinds))}. "
        "Write a cluster file and pass its path."
    )


@lru_cache(maxsize=1)
def _cluster_profiles() -> tuple[ClusterProfile, ...]:
    """All cluster files that ship, in the order of their file names."""
    return tuple(
        read_profile(path, ClusterProfile)
        for path in sorted((PROFILES / "clusters").glob("*.toml"))
    )


def _figures(
    profile: ClusterProfile, folder: Path
) -> tuple[tuple[str, Figure | Amount | Count], ...]:
    """The numbers of the profile, whose files are relative to `folder`, and of all that is inside."""
    if profile.device is not None:
        device = figures_in(_device_of(profile, folder), "device.")
        return (
            *device,
            *((path, n) for path, n in figures_in(profile) if not path.startswith("device.")),
        )
    parts = [_figures(*found) for found in _inside(profile, folder)]
    return (*figures_in(profile), *(figure for part in parts for figure in part))


def _inside(profile: ClusterProfile, folder: Path) -> list[tuple[ClusterProfile, Path]]:
    """The profiles of the clusters inside, each once."""
    inside = [profile.inside] if isinstance(profile.inside, str) else profile.inside or []
    return [_found(_beside(name, folder), PROFILES)[:2] for name in dict.fromkeys(inside)]


def _errors(profile: ClusterProfile, folder: Path) -> dict[str, float]:
    """The relative errors of all numbers, and of the formulas where a profile says any; of several the largest."""
    own = figures_in(profile) if profile.device is None else _figures(profile, folder)
    stated = profile.relative_errors
    said = {FORMULA: stated[FORMULA]} if FORMULA in stated else {}
    parts = [relative_errors(own, stated) | said]
    parts += [_errors(*found) for found in _inside(profile, folder)]
    return {
        path: max(part[path] for part in parts if path in part) for part in parts for path in part
    }


def _load(name_or_path: str | Path, folder: Path, around: tuple[str, ...]) -> Cluster:
    """The cluster; files are relative to `folder`, and it stands inside of those of `around`."""
    profile, folder, sizes = _found(name_or_path, folder)
    name = profile.name if _is_file(name_or_path) else str(name_or_path)
    if str(name_or_path) in around:
        raise ProfileError(
            f"{name_or_path}: inside: {' in '.join((str(name_or_path), *around))}: it contains itself"
        )

    try:
        return _built(name, profile, folder, sizes, (str(name_or_path), *around))
    except ProfileError:
        raise
    except ValueError as error:
        if _is_file(name_or_path):
            what = "inside: " if isinstance(error, UnknownClusterError) else ""
            raise ProfileError(f"{name_or_path}: {what}{error}") from error
        if isinstance(error, UnknownClusterError):
            raise
        raise UnknownClusterError(f"{error}{_split_hint(profile, sizes)}") from error


def _found(name_or_path: str | Path, folder: Path) -> tuple[ClusterProfile, Path, tuple[int, ...]]:
    """The profile that the name stands for, the folder to which its files are relative, and the sizes."""
    if _is_file(name_or_path):
        path = Path(name_or_path) if folder == PROFILES else folder / name_or_path
        profile = read_profile(path, ClusterProfile)
        return profile, path.parent, profile.sizes

    profiles = _cluster_profiles()
    name = str(name_or_path)
    for profile in profiles:
        if profile.name == name:
            return profile, PROFILES, profile.sizes

    for profile in profiles:
        sizes = _sizes_in(name, profile)
        if sizes is not None:
            return profile, PROFILES, sizes

    raise UnknownClusterError(f"unknown cluster {name!r}{_hint(name)}")


def _is_name(name: str) -> bool:
    """Whether a cluster is called so, whatever its size."""
    profiles = _cluster_profiles()
    return any(p.name == name or _sizes_in(name, p) is not None for p in profiles)


def _built(
    name: str,
    profile: ClusterProfile,
    folder: Path,
    sizes: tuple[int, ...],
    around: tuple[str, ...],
) -> Cluster:
    """The cluster of `profile` with these sizes: of its own levels, then of those inside."""
    if profile.inside is None:
        return build_cluster(name, profile, _device_of(profile, folder), sizes)
    own = len(profile.levels)
    if len(sizes) < own:
        names = " x ".join(level.name for level in profile.levels)
        raise ValueError(
            f"{name!r} has {len(sizes)} sizes; {profile.name!r} is {names} x {profile.inside}"
        )
    inside = [profile.inside] if isinstance(profile.inside, str) else profile.inside
    clusters = tuple(_load(_in_sizes(part, sizes[own:], folder), folder, around) for part in inside)
    return build_around(name, profile, sizes[:own], clusters)


def _in_sizes(name: str, sizes: tuple[int, ...], folder: Path) -> str:
    """The name of the same cluster in these sizes; none: as it is."""
    if not sizes:
        return name
    profile, _, usual = _found(name, folder)
    if profile.pattern is None or _is_file(name):
        raise ValueError(
            f"{name!r} comes in one size, {'x'.join(map(str, sizes))} were given for it"
        )
    if len(sizes) != len(usual):
        raise ValueError(
            f"{name!r} has {len(usual)} sizes, but {'x'.join(map(str, sizes))} was given for it"
        )
    return profile.pattern.format(sizes="x".join(map(str, sizes)))


def _is_file(name_or_path: str | Path) -> bool:
    return isinstance(name_or_path, Path) or name_or_path.endswith(".toml")


def _beside(name: str, folder: Path) -> str | Path:
    """A file beside the one that names it, or the name."""
    return folder / name if _is_file(name) and folder != PROFILES else name


def _device_of(profile: ClusterProfile, folder: Path) -> DeviceProfile:
    """The device of `profile`: inline, a file relative to `folder`, or one of those that ship."""
    assert profile.device is not None
    if isinstance(profile.device, DeviceProfile):
        return profile.device
    if profile.device.endswith(".toml"):
        return read_profile(folder / profile.device, DeviceProfile)
    path = PROFILES / "devices" / f"{profile.device}.toml"
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.toml")))
        raise ProfileError(
            f"cluster {profile.name!r}: device: no device {profile.device!r}; known are {known}"
        )
    return read_profile(path, DeviceProfile)


def _sizes_in(name: str, profile: ClusterProfile) -> tuple[int, ...] | None:
    """The sizes that `name` gives for the pattern of `profile`, or None if it does not fit."""
    if profile.pattern is None:
        return None
    before, after = profile.pattern.split("{sizes}")
    found = re.fullmatch(re.escape(before) + r"(\d+(?:x\d+)*)" + re.escape(after), name)
    return tuple(map(int, found[1].split("x"))) if found else None


def _sizes_of_count(profile: ClusterProfile, count: int) -> tuple[int, ...]:
    """The sizes of the usual cluster of `count` devices: levels are filled from the inside out."""
    if profile.levels[-1].kind == "torus":
        return _torus_of_count(profile, count)
    sizes: tuple[int, ...] = ()
    for level in reversed(profile.levels):
        most = count if level.max_size is None else level.max_size.value
        if count <= most or count % most:
            return (count, *sizes)
        sizes = (most, *sizes)
        count = count // most
    return (count, *sizes)


def _torus_of_count(profile: ClusterProfile, count: int) -> tuple[int, ...]:
    """The sizes of the torus whose largest axis is the smallest, ascending."""
    most = [count if level.max_size is None else level.max_size.value for level in profile.levels]
    fitting = [axes for axes in _factors(count, len(most)) if all(map(le, axes, most))]
    if not fitting:
        raise UnknownClusterError(
            f"{count} devices make no torus of {profile.name!r} with axes of at most {max(most)}"
        )
    return min(fitting, key=lambda axes: axes[::-1])


def _factors(count: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ascending tuples of `parts` numbers whose product is `count`."""
    if parts == 1:
        yield from [(count,)] if count else []
        return
    for first in range(1, count + 1):
        if first**parts > count:
            return
        if count % first == 0:
            yield from (
                (first, *rest) for rest in _factors(count // first, parts - 1) if rest[0] >= first
            )


def _split_hint(profile: ClusterProfile, sizes: tuple[int, ...]) -> str:
    """A name with full servers, where one size alone was too many for one server."""
    if (
        profile.pattern is None
        or profile.inside is not None
        or profile.levels[-1].kind == "torus"
        or len(sizes) != 1
    ):
        return ""

    split = _sizes_of_count(profile, sizes[0])
    limits = [level.max_size for level in profile.levels[len(profile.levels) - len(split) :]]
    fits = len(split) <= len(limits) and all(
        m is None or s <= m.value for m, s in zip(limits, split, strict=True)
    )
    if len(split) == 1 or not fits:
        return ""

    return f"; for {sizes[0]} devices in full servers say {profile.pattern.format(sizes='x'.join(map(str, split)))!r}"


def _hint(name: str) -> str:
    """What is known, the closest first."""
    known = known_clusters()
    lower = name.lower()
    close = [lower] if _is_name(lower) else get_close_matches(lower, known, n=3, cutoff=0.5)
    meant = f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
    patterns = [profile.pattern for profile in _cluster_profiles() if profile.pattern]
    return f"{meant} Known are {', '.join(known)}, with other sizes {', '.join(patterns)}, and paths of .toml files."
