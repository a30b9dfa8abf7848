"""Hardware and numbers only: how long computing and communicating take on a given cluster. No autopar, no JAX."""

from cost_models.catalogue import (
    UnknownClusterError,
    cluster_of_devices,
    figures_of,
    known_clusters,
    load_cluster,
)
from cost_models.cluster import Cluster, replace_link, slowest_cluster
from cost_models.collective import CollectiveKind, best_algorithm, collective_time_s
from cost_models.compute import (
    Device,
    compute_time_s,
    compute_times_s,
    peak_flops_per_s,
    slowest_device,
)
from cost_models.curves import Curve, Efficiency, HalfSizes
from cost_models.errors import RELATIVE_ERRORS, formula_error, slower_cluster, uncertain_figures
from cost_models.groups import group
from cost_models.kernels import (
    attention_time_s,
    convolution_time_s,
    elementwise_time_s,
    matmul_time_s,
)
from cost_models.links import link_graph
from cost_models.overlap import Overlap
from cost_models.profile import Figure
from cost_models.profile_file import ProfileError
from cost_models.spans import Group, Span
from cost_models.streams import Item, Timing, simulate
from cost_models.terms import Terms
from cost_models.topology import Level, Link, Topology

__all__ = [
    "RELATIVE_ERRORS",
    "Cluster",
    "CollectiveKind",
    "Curve",
    "Device",
    "Efficiency",
    "Figure",
    "Group",
    "HalfSizes",
    "Item",
    "Level",
    "Link",
    "Overlap",
    "ProfileError",
    "Span",
    "Terms",
    "Timing",
    "Topology",
    "UnknownClusterError",
    "attention_time_s",
    "best_algorithm",
    "cluster_of_devices",
    "collective_time_s",
    "compute_time_s",
    "compute_times_s",
    "convolution_time_s",
    "elementwise_time_s",
    "figures_of",
    "formula_error",
    "group",
    "known_clusters",
    "link_graph",
    "load_cluster",
    "matmul_time_s",
    "peak_flops_per_s",
    "replace_link",
    "simulate",
    "slower_cluster",
    "slowest_cluster",
    "slowest_device",
    "uncertain_figures",
]
