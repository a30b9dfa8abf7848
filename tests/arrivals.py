"""What it takes to write the arguments that come anew with every call: a part of the objective, of no step's time."""

from __future__ import annotations

import autopar


def arrival_s(plan: autopar.Plan, cluster: autopar.Cluster) -> float:
    """The bytes of a device's inputs that are no state, at the bandwidth of its memory."""
    graph, stage = plan.bound.planned.graph, plan.record.stage
    state = {position for _, position in graph.carry}
    anew = [
        n
        for n, tensor in enumerate(graph.inputs)
        if n not in state and not tensor.name.startswith("constant[")
    ]
    sizes = [
        stage.inputs[n].local_size(graph.inputs[n].shape, stage.mesh) * graph.inputs[n].itemsize
        for n in anew
    ]
    return sum(sizes) / cluster.device.memory_bandwidth_bytes_per_s
