"""Settings: what a user asked for; resolved, the cluster, the mesh shapes and the devices to plan for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from jax.sharding import Mesh

from autopar._compat import untyped_jax
from autopar._mesh import ambient_devices
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.emit.several import in_order
from autopar.errors import InvalidMesh, UnknownCluster
from autopar.price.pricing import MakePricing, Pricing, Roofline
from autopar.search.constraints.records import Constraint
from autopar.search.mesh_shapes import mesh_shapes
from autopar.search.task import SearchOptions
from cost_models import Cluster, ProfileError, UnknownClusterError, cluster_of_devices, load_cluster

MeshLike = Mapping[str, int] | Mesh | None
ClusterLike = str | Path | Cluster | None


@dataclass(frozen=True)
class Target:
    """Where a function is planned for: a cluster and the meshes tried; `devices` if they are given or present."""

    cluster: Cluster
    meshes: tuple[DeviceMesh, ...]
    devices: tuple[Any, ...] | None


@dataclass(frozen=True)
class Settings:
    """What was asked of `autopar.compile` or `autopar.plan`, checked, with the defaults; see `api.options`."""

    cluster: ClusterLike = None
    mesh: MeshLike = None
    mode: str = "auto"
    memory_limit_bytes: int | None = None
    static_argnums: int | Sequence[int] = ()
    static_argnames: str | Iterable[str] = ()
    donate_argnums: int | Sequence[int] = ()
    donate_argnames: str | Iterable[str] = ()
    in_shardings: Any = None
    out_shardings: Any = None
    carry: Any = "auto"
    strict: bool = False
    options: SearchOptions = field(default_factory=SearchOptions)
    dump: str | Path | None = None
    devices: tuple[Any, ...] | None = None
    pricing: MakePricing | None = None
    constraints: tuple[Constraint, ...] = ()
    follow: Any = None
    shardings: Literal["move", "keep"] = "move"
    cache: Path | None = None

    def target(self) -> Target:
        """The cluster, mesh shapes and devices.

        Raises:
          UnknownCluster: for a name or file that describes no cluster, or devices that no profile knows.
          InvalidMesh: for a mesh whose product is not the number of devices, or devices that are none.
        """
        devices = self._devices()
        cluster = self._cluster(devices)
        count = cluster.topology.device_count
        if devices is not None and len(devices) != count:
            raise InvalidMesh(
                f"cluster {cluster.name!r} has {count} devices, but {len(devices)} are given. Give as many, or name a "
                f"cluster of {len(devices)}; cluster=None takes the one that the devices are."
            )
        return Target(cluster, self._meshes(cluster, count), devices)

    def counted_as(self, static: int | Sequence[int], donated: int | Sequence[int]) -> Settings:
        """The same, with other positions of arguments."""
        return replace(self, static_argnums=static, donate_argnums=donated)

    def limit_bytes(self, cluster: Cluster) -> int:
        """The memory limit of a device: the user's, else all that the device has."""
        return int(cluster.device.memory_bytes) if self.memory_limit_bytes is None else self.memory_limit_bytes

    def make_pricing(self, cluster: Cluster) -> MakePricing:
        """The pricing: the user's, else the roofline of `cluster`."""

        def roofline(graph: OpGraph, mesh: DeviceMesh) -> Pricing:
            return Roofline(graph, mesh, cluster)

        return self.pricing or roofline

    def own_devices(self) -> tuple[Any, ...] | None:
        """The devices that the user named, by a list or by a mesh of JAX; None where there are none."""
        if isinstance(self.mesh, Mesh):
            return tuple(self.mesh.devices.flat)
        return None if self.devices is None else checked_devices(self.devices)

    def _devices(self) -> tuple[Any, ...] | None:
        own = self.own_devices()
        if own is not None or self.cluster is not None:
            return own
        ambient = ambient_devices() if self.mesh is None else ()
        return ambient if len(ambient) > 1 else in_order(untyped_jax.devices())

    def _cluster(self, devices: tuple[Any, ...] | None) -> Cluster:
        if isinstance(self.cluster, Cluster):
            return self.cluster
        if self.cluster is not None and not isinstance(self.cluster, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UnknownCluster(
                f"cluster is {self.cluster!r}: pass a profile's name or path, an autopar.Cluster, or None for the "
                f"devices that are present"
            )
        try:
            if self.cluster is not None:
                return load_cluster(self.cluster)
            assert devices is not None
            return cluster_of_devices(devices[0].device_kind, len(devices))
        except (UnknownClusterError, ProfileError) as error:
            raise UnknownCluster(str(error)) from error

    def meshes(self, target: Target, own: Sequence[tuple[str, int]] | None) -> tuple[DeviceMesh, ...]:
        """The meshes to try: those of `target`, but where none was asked for that which the function names itself.

        If one was asked for that differs from it by axes of one device only, it has them too: the function may name
        them.

        Raises:
          InvalidMesh: if that one is not of as many devices as there are.
        """
        if own is None:
            return target.meshes
        mesh, count = DeviceMesh(tuple(own)).searched, target.cluster.topology.device_count
        if self.mesh is not None:
            (asked,) = target.meshes
            is_part = asked.axes == mesh.axes and set(asked.whole.axes) <= set(mesh.whole.axes)
            return (mesh,) if is_part else target.meshes
        if mesh.size != count:
            raise InvalidMesh(
                f"the function's own shardings are for mesh {mesh} of {mesh.size} devices, cluster "
                f"{target.cluster.name!r} has {count}. Name a cluster of {mesh.size}, or take the shardings out."
            )
        return (mesh,)

    def _meshes(self, cluster: Cluster, count: int) -> tuple[DeviceMesh, ...]:
        if self.mesh is None:
            return mesh_shapes(cluster.topology.sizes, self.options.max_mesh_axes)
        sizes: object = self.mesh.shape if isinstance(self.mesh, Mesh) else self.mesh
        if not isinstance(sizes, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidMesh(
                f"mesh is {sizes!r}: pass axis sizes by name, such as {{'data': 2, 'model': 4}}, a jax.sharding.Mesh, "
                f"or None to have them chosen"
            )
        mesh = DeviceMesh.of({str(name): size for name, size in cast("Mapping[str, int]", sizes).items()})
        if mesh.size != count:
            raise InvalidMesh(
                f"mesh {mesh} has {mesh.size} devices, cluster {cluster.name!r} has {count}. "
                f"Choose axis sizes whose product is {count}, or mesh=None to have them chosen."
            )
        return (mesh.searched,)


def checked_devices(devices: Sequence[Any]) -> tuple[Any, ...]:
    """`devices` as a tuple.

    Raises:
      InvalidMesh: if there is none, one is given twice, or one is no JAX device.
    """
    given = tuple(devices)
    for device in given:
        if not isinstance(device, untyped_jax.Device):
            raise InvalidMesh(f"{device!r} is given as a device; pass JAX devices, such as jax.devices()[:4]")
    if not given or len(set(given)) != len(given):
        raise InvalidMesh(f"devices must be at least one, each given once; given are {list(given)}")
    return given
