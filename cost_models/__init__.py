"""Hardware and numbers only: how long computing and communicating take on a given cluster. No autopar, no JAX."""

from cost_models.catalogue import UnknownClusterError, cluster_of_devices, known_clusters, load_cluster
from cost_models.cluster import Cluster, replace_link
from cost_models.collective import CollectiveKind, best_algorithm, collective_time_s
from cost_models.compute import Device, compute_time_s, peak_flops_per_s
from cost_models.groups import Group, Span, group
from cost_models.profile import ProfileError
from cost_models.topology import Level, Link, Topology

__all__ = [
    "Cluster",
    "CollectiveKind",
    "Device",
    "Group",
    "Level",
    "Link",
    "ProfileError",
    "Span",
    "Topology",
    "UnknownClusterError",
    "best_algorithm",
    "cluster_of_devices",
    "collective_time_s",
    "compute_time_s",
    "group",
    "known_clusters",
    "load_cluster",
    "peak_flops_per_s",
    "replace_link",
]
