"""What is measured inside a host is what the clusters of both searches say of it; the link stays as it is."""

from __future__ import annotations

import pytest

from benchmarks import hosts
from benchmarks.collectives import Row
from benchmarks.slow_links import with_inside
from cost_models import collective_time_s, group, load_cluster


def row(size_bytes: int, mean_s: float) -> Row:
    return Row("any", ("device",), "all_gather", size_bytes, 0.9 * mean_s, mean_s, 1.0)


def test_means_inside_a_host_are_what_the_model_says_there() -> None:
    rows = [row(4096, 3e-3), row(2**20, 2e-3), row(2**22, 4e-3), row(2**24, 13e-3)]
    before = hosts.linked_cluster(1e9)
    cluster = with_inside(before, rows)
    inside, across = (group(cluster.topology, (2, 2), axes) for axes in ((1,), (0,)))
    for one in rows[2:]:
        assert collective_time_s("all_gather", one.size_bytes, inside) == pytest.approx(one.mean_s)
    # no less than of fewer bytes
    assert collective_time_s("all_gather", 2**20, inside) == pytest.approx(3e-3)
    assert collective_time_s("all_gather", 2**25, inside) == pytest.approx(
        13e-3 + 2**24 * 9e-3 / (2**24 - 2**22)
    )
    was = group(before.topology, (2, 2), (0,))
    assert collective_time_s("all_gather", 2**20, across) == collective_time_s(
        "all_gather", 2**20, was
    )


def test_four_devices_on_two_hosts_share_one_machine() -> None:
    assert hosts.linked_cluster(1e9).device == load_cluster("cpu-gloo4").device
    assert hosts.linked_cluster(1e9).device_count == 4
