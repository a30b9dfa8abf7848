"""The clusters that are known by name: the files in `profiles/`, and the same devices and links in other numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from cost_models.cluster import Cluster
from cost_models.profile import ClusterProfile, DeviceProfile, ProfileError, build_cluster, read_profile

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
    if isinstance(name_or_path, Path) or name_or_path.endswith(".toml"):
        return _from_file(Path(name_or_path))
    profiles = _cluster_profiles()
    for profile in profiles:
        if profile.name == name_or_path:
            return build_cluster(profile.name, profile, _device_of(profile, PROFILES), profile.sizes)
    for profile in profiles:
        sizes = _sizes_in(name_or_path, profile)
        if sizes is not None:
            return _resized(name_or_path, profile, sizes)
    raise UnknownClusterError(f"unknown cluster {name_or_path!r}{_hint(name_or_path)}")


def known_clusters() -> tuple[str, ...]:
    """The names of the clusters that ship with a profile, sorted."""
    return tuple(sorted(profile.name for profile in _cluster_profiles()))


def cluster_of_devices(device_kind: str, count: int) -> Cluster:
    """The cluster of `count` devices that JAX calls `device_kind`, as such devices are usually connected.

    As many as fit into a server are one server, more are full servers. On a torus the two axes are as equal as
    they can be.

    Raises:
      UnknownClusterError: if no profile knows the kind, or that many do not make full servers or a torus.
    """
    for profile in _cluster_profiles():
        if device_kind in profile.device_kinds and profile.pattern is not None:
            sizes = _sizes_of_count(profile, count)
            return _resized(profile.pattern.format(sizes="x".join(map(str, sizes))), profile, sizes)
    kinds = sorted(kind for profile in _cluster_profiles() for kind in profile.device_kinds)
    raise UnknownClusterError(
        f"no profile for device kind {device_kind!r}; known are {', '.join(map(repr, kinds))}. "
        "Write a cluster file and pass its path."
    )


@lru_cache(maxsize=1)
def _cluster_profiles() -> tuple[ClusterProfile, ...]:
    """All cluster files that ship, in the order of their file names."""
    return tuple(read_profile(path, ClusterProfile) for path in sorted((PROFILES / "clusters").glob("*.toml")))


def _from_file(path: Path) -> Cluster:
    profile = read_profile(path, ClusterProfile)
    try:
        return build_cluster(profile.name, profile, _device_of(profile, path.parent), profile.sizes)
    except ProfileError:
        raise
    except ValueError as error:
        raise ProfileError(f"{path}: {error}") from error


def _device_of(profile: ClusterProfile, folder: Path) -> DeviceProfile:
    """The device of `profile`: inline, a file relative to `folder`, or one of those that ship."""
    if isinstance(profile.device, DeviceProfile):
        return profile.device
    if profile.device.endswith(".toml"):
        return read_profile(folder / profile.device, DeviceProfile)
    path = PROFILES / "devices" / f"{profile.device}.toml"
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.toml")))
        raise ProfileError(f"cluster {profile.name!r}: device: no device {profile.device!r}; known are {known}")
    return read_profile(path, DeviceProfile)


def _resized(name: str, profile: ClusterProfile, sizes: tuple[int, ...]) -> Cluster:
    try:
        return build_cluster(name, profile, _device_of(profile, PROFILES), sizes)
    except ValueError as error:
        raise UnknownClusterError(f"{error}{_split_hint(profile, sizes)}") from error


def _sizes_in(name: str, profile: ClusterProfile) -> tuple[int, ...] | None:
    """The sizes that `name` gives for the pattern of `profile`, or None if it does not fit."""
    if profile.pattern is None:
        return None
    before, after = profile.pattern.split("{sizes}")
    found = re.fullmatch(re.escape(before) + r"(\d+(?:x\d+)*)" + re.escape(after), name)
    return tuple(map(int, found[1].split("x"))) if found else None


def _sizes_of_count(profile: ClusterProfile, count: int) -> tuple[int, ...]:
    """The sizes of the usual cluster of `count` devices."""
    inner = profile.levels[-1]
    most = inner.max_size.value if inner.max_size is not None else count
    if inner.kind == "torus":
        fitting = [(side, count // side) for side in _divisors(count) if side <= count // side <= most]
        if len(profile.levels) != 2 or not fitting:
            raise UnknownClusterError(f"{count} devices make no torus of {profile.name!r} with axes of at most {most}")
        return max(fitting)
    if count > most and count % most == 0:
        return (count // most, most)
    return (count,)


def _divisors(count: int) -> Iterator[int]:
    return (side for side in range(1, count + 1) if count % side == 0)


def _split_hint(profile: ClusterProfile, sizes: tuple[int, ...]) -> str:
    """A name with full servers, where one size was too many for one server."""
    inner, limit = profile.levels[-1], profile.levels[-1].max_size
    if profile.pattern is None or limit is None or inner.kind == "torus" or len(sizes) >= len(profile.levels):
        return ""
    if sizes[-1] <= limit.value or sizes[-1] % limit.value:
        return ""
    split = (*sizes[:-1], sizes[-1] // limit.value, limit.value)
    return f"; for {sizes[-1]} devices in full servers say {profile.pattern.format(sizes='x'.join(map(str, split)))!r}"


def _hint(name: str) -> str:
    """What is known, the closest first."""
    known = known_clusters()
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    meant = f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
    patterns = [profile.pattern for profile in _cluster_profiles() if profile.pattern]
    return f"{meant} Known are {', '.join(known)}, with other sizes {', '.join(patterns)}, and paths of .toml files."
