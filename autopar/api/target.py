"""Target: the cluster, the mesh shapes and the devices that settings ask to plan for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

from jax.sharding import Mesh

from autopar._compat import untyped_jax
from autopar._mesh import ambient_devices
from autopar.api.options import Settings
from autopar.core.mesh import DeviceMesh
from autopar.emit.several import in_order
from autopar.errors import InvalidMesh, UnknownCluster
from autopar.search.mesh_shapes import mesh_shapes
from autopar.search.pinned import own_mesh
from autopar.trace import Traced
from cost_models import Cluster, ProfileError, UnknownClusterError, cluster_of_devices, load_cluster


@dataclass(frozen=True)
class PlanningTarget:
    """Where a function is planned for: a cluster and the meshes tried, `is_asked` if the user named the only one."""

    cluster: Cluster
    meshes: tuple[DeviceMesh, ...]
    is_asked: bool

    @classmethod
    def of(cls, settings: Settings) -> PlanningTarget:
        """What `settings` ask for; where they name nothing, the devices that are present.

        Raises:
          UnknownCluster: for a name or file that describes no cluster, or devices that no profile knows.
          InvalidMesh: for a mesh whose product is not the number of devices, or devices that are none.
        """
        devices = _devices(settings)
        cluster = _cluster(settings, devices)
        count = cluster.topology.device_count
        if devices is not None and len(devices) != count:
            raise InvalidMesh(
                f"cluster {cluster.name!r} has {count} devices, but {len(devices)} are given. Give as many, or name a "
                f"cluster of {len(devices)}; cluster=None takes the one that the devices are."
            )
        return cls(cluster, _meshes(settings, cluster), settings.mesh is not None)

    def meshes_of(self, traced: Traced) -> tuple[DeviceMesh, ...]:
        """The meshes to try for a function that was traced so.

        Where none was asked for, that which the function names, else that of which types speak if it fits: results of
        other meshes are refused by what is computed from them there. If one was asked for that differs from it by axes
        of one device only, it has them too: the function may name them.

        Raises:
          InvalidMesh: if the one that the function names is not of as many devices as there are.
        """
        own = own_mesh(traced.graph)
        typed = tuple((name, size) for name, size, _ in traced.mesh)
        count = self.cluster.topology.device_count
        if own is None and typed and prod(size for _, size in typed) == count:
            own = typed
        if own is None:
            return self.meshes

        mesh = DeviceMesh(tuple(own)).searched
        if self.is_asked:
            (asked,) = self.meshes
            is_part = asked.axes == mesh.axes and set(asked.whole.axes) <= set(mesh.whole.axes)
            return (mesh,) if is_part else self.meshes

        if mesh.size != count:
            raise InvalidMesh(
                f"the function's own shardings are for mesh {mesh} of {mesh.size} devices, cluster "
                f"{self.cluster.name!r} has {count}. Name a cluster of {mesh.size}, or take the shardings out."
            )

        return (mesh,)


def _devices(settings: Settings) -> tuple[Any, ...] | None:
    """The devices that are given, or present where no cluster is named."""
    own = settings.own_devices()
    if own is not None or settings.cluster is not None:
        return own
    ambient = ambient_devices() if settings.mesh is None else ()
    return ambient if len(ambient) > 1 else in_order(untyped_jax.devices())


def _cluster(settings: Settings, devices: tuple[Any, ...] | None) -> Cluster:
    given = settings.cluster
    if isinstance(given, Cluster):
        return given

    if given is not None and not isinstance(given, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UnknownCluster(
            f"cluster is {given!r}: pass a profile's name or path, an autopar.Cluster, or None for the devices that "
            f"are present"
        )

    try:
        if given is not None:
            return load_cluster(given)
        assert devices is not None
        return cluster_of_devices(devices[0].device_kind, len(devices))
    except (UnknownClusterError, ProfileError) as error:
        raise UnknownCluster(str(error)) from error


def _meshes(settings: Settings, cluster: Cluster) -> tuple[DeviceMesh, ...]:
    count = cluster.topology.device_count
    if settings.mesh is None:
        return mesh_shapes(cluster.topology.sizes, settings.options.max_mesh_axes)

    sizes: object = settings.mesh.shape if isinstance(settings.mesh, Mesh) else settings.mesh
    if not isinstance(sizes, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidMesh(
            f"mesh is {sizes!r}: pass axis sizes by name, such as {{'data': 2, 'model': 4}}, a jax.sharding.Mesh, "
            f"or None to have them chosen"
        )

    mesh = DeviceMesh.of(
        {str(name): size for name, size in cast("Mapping[str, int]", sizes).items()}
    )
    if mesh.size != count:
        raise InvalidMesh(
            f"mesh {mesh} has {mesh.size} devices, cluster {cluster.name!r} has {count}. "
            f"Choose axis sizes whose product is {count}, or mesh=None to have them chosen."
        )

    return (mesh.searched,)
