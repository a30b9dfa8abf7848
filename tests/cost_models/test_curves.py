"""What a device reaches of its peaks, and measured collectives: monotone, continuous, and absent as before."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import (
    Cluster,
    Curve,
    Device,
    Efficiency,
    HalfSizes,
    Level,
    Link,
    Terms,
    Topology,
    best_algorithm,
    collective_time_s,
    compute_time_s,
    compute_times_s,
    convolution_time_s,
    group,
    load_cluster,
    matmul_time_s,
    replace_link,
    slowest_cluster,
    slowest_device,
)
from cost_models.compute import fresh_time_s, moving_time_s, peak_flops_per_s
from cost_models.curves import (
    PICKING,
    Packing,
    Rates,
    Reach,
    convolution_elements,
    product_dims,
    slowest_curve,
)

PLAIN = Device("plain", 1e9, 1e10, {"float32": 1e12, "bfloat16": 2e12}, 1e-6)
POSITIVE = st.floats(1e-3, 1e6)
CONVOLVED = ["conv_general_dilated", "conv_general_dilated:window"]
KINDS = ["", "dot_general", "exp", "transpose", "add", *CONVOLVED]


@st.composite
def curves(draw):
    steps = draw(st.lists(st.tuples(POSITIVE, st.floats(0, 1e3)), max_size=5))
    sizes = np.cumsum([size for size, _ in steps]).tolist()
    seconds = np.cumsum([time for _, time in steps]).tolist()
    return Curve(tuple(sizes), tuple(seconds), draw(st.floats(1e-6, 1e3)))


@st.composite
def devices(draw):
    half = st.builds(HalfSizes, *[st.floats(0, 100)] * 3)
    work = st.dictionaries(
        st.sampled_from(["exp", "transpose", "other"]), st.fixed_dictionaries({"float32": curves()})
    )
    memory = st.none() | curves()
    products = st.dictionaries(st.sampled_from(["float32", "bfloat16"]), half)
    packing = st.builds(Packing, *[st.floats(0, 100)] * 4)
    convolutions = st.dictionaries(st.sampled_from(CONVOLVED), packing)
    runs = st.dictionaries(st.sampled_from(PICKING), curves())
    made = st.none() | st.builds(Efficiency, products, work, memory, memory, convolutions, runs)
    return replace(PLAIN, efficiency=draw(made))


@given(curves(), st.floats(0, 1e8), st.floats(0, 1e8))
@settings(deadline=None)
def test_a_curve_ascends(curve, a, b):
    assert curve.time_s(0) == 0
    assert curve.time_s(min(a, b)) <= curve.time_s(max(a, b)) * (1 + 1e-9)
    assert curve.times_s(np.array([a, b])) == pytest.approx([curve.time_s(a), curve.time_s(b)])


@given(curves())
@settings(deadline=None)
def test_a_curve_is_continuous_at_its_points(curve):
    for size, seconds in zip(curve.sizes, curve.seconds, strict=True):
        assert curve.time_s(size) == pytest.approx(seconds)
        steepest = max(
            curve.slope,
            *np.diff((0, *curve.seconds)) / np.diff((0, *curve.sizes)),
        )
        for near in (size * (1 - 1e-9), size * (1 + 1e-9)):
            assert abs(curve.time_s(near) - seconds) <= steepest * size * 1e-8 + 1e-9 * seconds


def test_impossible_curves_are_refused():
    for sizes, seconds, slope, why in [
        ((1.0,), (), 1.0, "1 sizes and 0 seconds"),
        ((2.0, 1.0), (1.0, 2.0), 1.0, "sizes must"),
        ((0.0, 1.0), (1.0, 2.0), 1.0, "sizes must"),
        ((1.0, 2.0), (2.0, 1.0), 1.0, "seconds must"),
        ((1.0,), (float("nan"),), 1.0, "seconds must"),
        ((), (), float("inf"), "slope"),
    ]:
        with pytest.raises(ValueError, match=why):
            Curve(sizes, seconds, slope)
    with pytest.raises(ValueError, match="half sizes"):
        HalfSizes(-1, 0, 0)
    with pytest.raises(ValueError, match="packing"):
        Packing(0, 0, float("inf"), 0)
    with pytest.raises(ValueError, match="none for float32"):
        Efficiency(work={"exp": {"bfloat16": Curve((), (), 1.0)}})
    with pytest.raises(ValueError, match="take time"):
        Efficiency(work={"exp": {"float32": Curve((), (), 0.0)}})
    with pytest.raises(ValueError, match="at least 2"):
        Terms("permute", 1, 0.0, Curve((), (), 1.0), 0.0)
    with pytest.raises(ValueError, match="alpha_s"):
        Terms("permute", 2, -1.0, Curve((), (), 1.0), 0.0)


@given(devices(), *[st.integers(1, 3000)] * 4, st.sampled_from(["float32", "bfloat16"]))
@settings(deadline=None)
def test_a_product_takes_longer_the_larger_it_is(device, m, n, k, more, dtype):
    time_s = matmul_time_s(m, n, k, dtype, device)
    for larger in ((m + more, n, k), (m, n + more, k), (m, n, k + more)):
        assert matmul_time_s(*larger, dtype, device) >= time_s * (1 - 1e-9)
    assert time_s >= matmul_time_s(m, n, k, dtype, replace(device, efficiency=None)) * (
        1 - 1e-9
    ) or (device.efficiency.memory is not None)


@given(
    devices(),
    st.sampled_from(KINDS),
    st.lists(st.floats(1, 1e12), min_size=1, max_size=4),
    st.floats(0, 1e9),
)
@settings(deadline=None)
def test_many_at_once_are_as_one_by_one(device, kind, operations, size):
    flops, sizes = np.array(operations), np.full(len(operations), size)
    elements = (flops / 7, flops / 5, flops / 3) if kind == "dot_general" else None
    found = compute_times_s(flops, sizes, "float32", device, kind=kind, elements=elements)
    for n, each in enumerate(operations):
        mine = (each / 7, each / 5, each / 3) if kind == "dot_general" else None
        assert found[n] == pytest.approx(
            compute_time_s(each, size, "float32", device, kind=kind, elements=mine)
        )


@given(devices(), st.sampled_from(KINDS), st.floats(0, 1e12), st.floats(0, 1e9), st.floats(1, 3))
@settings(deadline=None)
def test_any_kernel_takes_longer_the_larger_it_is(device, kind, flops, size, factor):
    time_s = compute_time_s(flops, size, "float32", device, kind=kind)
    assert compute_time_s(flops * factor, size, "float32", device, kind=kind) >= time_s * (1 - 1e-9)
    assert compute_time_s(flops, size * factor, "float32", device, kind=kind) >= time_s * (1 - 1e-9)


@given(st.floats(0, 1e15), st.floats(0, 1e12), st.sampled_from(KINDS))
@settings(deadline=None)
def test_a_device_that_says_nothing_reaches_its_peaks(flops, size, kind):
    time_s = compute_time_s(flops, size, "float32", PLAIN)
    assert time_s == max(flops / 1e12, size / 1e10) + 1e-6
    assert (
        compute_time_s(flops, size, "float32", PLAIN, kind=kind, elements=(1.0, 1.0, 1.0)) == time_s
    )
    assert fresh_time_s(size, PLAIN) == 0
    empty = replace(PLAIN, efficiency=Efficiency())
    assert compute_time_s(flops, size, "float32", empty, kind=kind) == time_s


def test_dims_are_told_from_counts():
    b, m, n, k = 3, 5, 7, 11
    assert product_dims(b * m * k, b * k * n, b * m * n, 2 * b * m * n * k) == (m, n, k)
    half = HalfSizes(5.0, 0.0, 0.0)
    device = replace(
        PLAIN, efficiency=Efficiency({"float32": half}), memory_bandwidth_bytes_per_s=1e15
    )
    assert matmul_time_s(5, 4096, 4096, "float32", device) == pytest.approx(
        4 * 5 * 4096**2 / 1e12 + 1e-6
    )
    # the half sizes of float32
    assert matmul_time_s(5, 4096, 4096, "float16", device) > 4 * 5 * 4096**2 / 2e12


def test_kinds_without_work_of_their_own():
    work = {"exp": {"float32": Curve((), (), 1e-9)}, "other": {"float32": Curve((), (), 1e-10)}}
    device = replace(PLAIN, efficiency=Efficiency(work=work), launch_s=0.0)
    assert compute_time_s(1e9, 0, "float32", device, kind="exp") == pytest.approx(1.0)
    assert compute_time_s(1e9, 0, "bfloat16", device, kind="exp") == pytest.approx(1.0)
    assert compute_time_s(1e9, 0, "float32", device, kind="add") == pytest.approx(0.1)
    assert compute_time_s(1e9, 0, "float32", device, kind="dot_general") == pytest.approx(1e-3)
    convolved = convolution_time_s(1, (8, 8), (1, 1), (4, 4), "float32", device)
    assert convolved == pytest.approx(max(2 * 64 * 16 / 1e12, 4 * (64 * 8 + 16) / 1e10))


@given(
    st.lists(devices(), min_size=1, max_size=3),
    st.sampled_from(KINDS),
    st.floats(0, 1e9, allow_subnormal=False),
    st.floats(0, 1e9, allow_subnormal=False),
)
@settings(deadline=None)
def test_no_device_is_slower_than_the_slowest(several, kind, flops, size):
    together = slowest_device(tuple(several))
    for device in several:
        mine = compute_time_s(flops, size, "float32", device, kind=kind)
        assert compute_time_s(flops, size, "float32", together, kind=kind) >= mine * (1 - 1e-9)
        assert moving_time_s(size, together) >= moving_time_s(size, device) * (1 - 1e-9)
    if (
        len(several) == 1
        and several[0].efficiency is not None
        and several[0].efficiency.memory is not None
    ):
        assert together.efficiency == several[0].efficiency


@given(st.lists(curves(), min_size=1, max_size=3), st.floats(0, 1e7, allow_subnormal=False))
@settings(deadline=None)
def test_the_slowest_curve_is_above_all(several, size):
    assert slowest_curve(tuple(several)).time_s(size) >= max(c.time_s(size) for c in several) * (
        1 - 1e-9
    )


# Measured collectives -------------------------------------------------------------------------------------------------


def cluster_with(*terms):
    levels = (Level("host", 2, Link(1e-4, 1e8), terms=terms), Level("device", 2, Link(1e-5, 1e9)))
    return Cluster("c", PLAIN, Topology(levels))


@given(curves(), st.floats(0, 1e-2), st.floats(0, 1e-6), st.floats(0, 1e8), st.floats(0, 1e8))
@settings(deadline=None)
def test_measured_collectives_ascend(local, alpha, beta, a, b):
    cluster = cluster_with(Terms("permute", 2, alpha, local, beta))
    across = group(cluster.topology, (2, 2), (0,))
    times = [collective_time_s("permute", size, across) for size in sorted((a, b))]
    assert times[0] <= times[1] * (1 + 1e-9)
    # two groups share a link
    assert times[0] == pytest.approx(alpha + local.time_s(min(a, b)) + beta * 2 * min(a, b))


def test_measured_collectives_stand_for_their_level_and_kind():
    line = Curve((), (), 1e-9)
    cluster = cluster_with(
        Terms("all_reduce", 2, 1e-3, line, 0.0), Terms("all_reduce", 4, 2e-3, line, 0.0)
    )
    across, inside, flat = (group(cluster.topology, (2, 2), axes) for axes in ((0,), (1,), (0, 1)))
    assert best_algorithm("all_reduce", 1e6, across) == ("measured", pytest.approx(2e-3))
    assert best_algorithm("all_reduce", 1e6, flat) == ("measured", pytest.approx(3e-3))
    assert best_algorithm("all_reduce", 1e6, inside)[0] != "measured"
    assert best_algorithm("all_gather", 1e6, across)[0] != "measured"
    slower = replace_link(cluster, "host", bandwidth_bytes_per_s=1e7)
    assert best_algorithm("all_reduce", 1e6, group(slower.topology, (2, 2), (0,)))[0] != "measured"


@pytest.mark.parametrize(
    ("kind", "wire"),
    [
        ("all_reduce", 2.0),
        ("all_gather", 1.0),
        ("reduce_scatter", 1.0),
        ("all_to_all", 1.0),
        ("permute", 2.0),
    ],
)
def test_bytes_on_the_wire(kind, wire):
    """Two groups of two leave a host at once; of S bytes each sends (n - 1) / n, twice, or all to its partner."""
    cluster = cluster_with(Terms(kind, 2, 0.0, Curve((), (), 0.0), 1.0))
    assert collective_time_s(kind, 1000.0, group(cluster.topology, (2, 2), (0,))) == pytest.approx(
        wire * 1000
    )


def test_the_slowest_cluster_of_measured_ones():
    fast, slow = (
        cluster_with(Terms("permute", 2, a, Curve((1.0,), (a,), a), a)) for a in (1e-3, 2e-3)
    )
    levels = slowest_cluster("both", (fast, slow)).topology.levels
    assert levels[0].terms == slow.topology.levels[0].terms
    assert slowest_cluster("both", (fast, cluster_with())).topology.levels[0].terms == ()


def test_json_holds_what_was_measured():
    efficiency = Efficiency(
        {"float32": HalfSizes(1, 2, 3)}, {"exp": {"float32": Curve((1.0,), (2.0,), 3.0)}}
    )
    cluster = cluster_with(Terms("permute", 2, 1e-3, Curve((1.0,), (1e-3,), 1e-3), 1e-9))
    cluster = replace(cluster, device=replace(PLAIN, efficiency=efficiency))
    assert Cluster.from_dict(cluster.to_dict()) == cluster
    before = load_cluster("8xa100")
    old = before.to_dict()
    del old["device"]["efficiency"]
    for level in old["topology"]["levels"]:
        del level["terms"], level["start_s"]
    assert Cluster.from_dict(old) == before  # as it was written before there were these fields


def test_a_kind_without_a_curve_is_as_its_family() -> None:
    one, two, other = (Curve((), (), slope) for slope in (1e-9, 2e-9, 3e-9))
    work = {"conv": {"float32": one}, "conv:window": {"float32": two}, "other": {"float32": other}}
    found = Efficiency(work=work)
    assert [found.of(kind, "float32") for kind in ("conv:image", "conv:window", "sin")] == [
        one,
        two,
        other,
    ]
    unstated = Efficiency(work={"other": {"float32": other}})
    assert unstated.of("conv_general_dilated:window", "float32") is None


SHAPES = st.tuples(*[st.integers(1, 64)] * 5)  # batch, image, window, channels in and out


@given(st.builds(Packing, *[st.floats(0, 100)] * 4), SHAPES, st.integers(0, 4))
@settings(deadline=None)
def test_a_convolution_packs_more_of_few_channels_and_never_takes_less_for_more(
    packing, shape, grown
):
    device = replace(PLAIN, efficiency=Efficiency(convolutions={"conv_general_dilated": packing}))

    def time_s(device, batch, image, window, c_in, c_out):
        return convolution_time_s(
            batch, (image, image), (window, window), (c_in, c_out), "float32", device
        )

    more = [size + (n == grown) for n, size in enumerate(shape)]
    assert time_s(PLAIN, *shape) <= time_s(device, *shape) <= time_s(device, *more) * (1 + 1e-12)
    batch, image, window, c_in, c_out = shape
    m, n, k = batch * image**2, c_out, window**2 * c_in
    adds = (
        packing.patches * m * k + packing.windows * n * k + packing.places * m + packing.depth * k
    )
    moved = 4.0 * (batch * image**2 * (c_in + c_out) + k * n) / 1e10
    assert time_s(device, *shape) == pytest.approx(max(2 * (m * n * k + adds) / 1e12, moved) + 1e-6)


def test_a_convolution_in_groups_packs_as_each_of_them_does():
    device = replace(
        PLAIN, efficiency=Efficiency(convolutions={"conv_general_dilated": Packing(3, 0, 50, 0)})
    )
    one = convolution_time_s(4, (16, 16), (3, 3), (8, 2), "float32", device)
    all_of_them = convolution_time_s(4, (16, 16), (3, 3), (64, 16), "float32", device, groups=8)
    assert all_of_them - device.launch_s == pytest.approx(8 * (one - device.launch_s))


def test_a_kind_of_convolution_without_packing_is_as_its_family():
    efficiency = Efficiency(convolutions={"conv_general_dilated": Packing(1, 2, 3, 4)})
    assert efficiency.packing("conv_general_dilated:image") == Packing(1, 2, 3, 4)
    assert Efficiency().packing("conv_general_dilated") is None
    assert convolution_elements(36.0, 50.0, 4.0, 3600.0) == (450.0, 36.0, 50.0)


@given(
    devices(),
    st.sampled_from(["gather", "scatter-add", "scatter-max"]),
    *[st.integers(1, 10**6)] * 4,
)
@settings(deadline=None)
def test_picking_takes_longer_the_more_and_the_longer_runs_are(
    device, kind, count, size, more, longer
):
    """And no less than moving the bytes; arrays say the same."""

    def time_s(count, size):
        return compute_time_s(
            0.0, 2.0 * count * size, "float32", device, kind=kind, runs=(float(count), float(size))
        )

    once = time_s(count, size)
    assert once >= moving_time_s(2.0 * count * size, device)
    assert min(time_s(count + more, size), time_s(count, size + longer)) >= once * (1 - 1e-9)
    counts, sizes = np.array([count, count + more], float), np.array([size, size], float)
    both = compute_times_s(
        np.zeros(2), 2 * counts * sizes, "float32", device, kind=kind, runs=(counts, sizes)
    )
    assert both == pytest.approx([once, time_s(count + more, size)])


def test_the_slowest_device_picks_as_the_slowest_does():
    quick, slow = Curve((4.0,), (1e-9,), 1e-9), Curve((4.0,), (2e-9,), 1e-10)
    devices = [
        replace(PLAIN, efficiency=Efficiency(runs={"gather": curve})) for curve in (quick, slow)
    ]
    found = slowest_device((*devices, PLAIN)).efficiency
    assert found.run("gather").time_s(4) == 2e-9
    assert found.run("gather").time_s(1000) == pytest.approx(quick.time_s(1000), rel=0.01)
    assert found.run("scatter-add") is None


@given(st.floats(0.1, 1), st.floats(0, 1e-5), st.floats(1e6, 1e15))
def test_products_reach_a_share_of_their_peak_after_a_start(
    share: float, start_s: float, flops: float
) -> None:
    """Of any type, one at a time as many at once; what is no product is not held up."""
    device = replace(PLAIN, efficiency=Efficiency(reach=Reach(share, start_s)))
    for dtype in ("bfloat16", "float32"):
        expected = start_s + flops / (share * peak_flops_per_s(device, dtype))
        one = compute_time_s(flops, 0.0, dtype, device, kind="dot_general") - device.launch_s
        assert one == pytest.approx(expected)
        many = compute_times_s(
            np.array([flops, 0.0]), np.zeros(2), dtype, device, kind="dot_general"
        )
        assert many - device.launch_s == pytest.approx(np.array([expected, 0.0]))
        other = compute_time_s(flops, 0.0, dtype, device, kind="tanh") - device.launch_s
        assert other == pytest.approx(flops / peak_flops_per_s(device, dtype))


@pytest.mark.parametrize(("share", "start_s"), [(0.0, 0.0), (1.1, 0.0), (0.5, -1.0)])
def test_what_no_product_reaches_is_refused(share: float, start_s: float) -> None:
    with pytest.raises(ValueError, match=r"share|start_s"):
        Reach(share, start_s)


RATES = Rates(("bfloat16",), 256.0, ((0.1, 0.2), (0.2, 0.4), (0.3, 0.6), (0.4, 0.8), (0.5, 1.0)))
"""Of 256 and 512 rows, columns and terms, of up to four products at a time."""


@pytest.mark.parametrize(
    ("dims", "share"),
    [
        ((1, 256, 256, 256), 0.1),
        ((1, 256, 512, 512), 0.4),
        ((1, 512, 256, 512), 0.4),
        ((2, 256, 256, 512), 0.4),
        ((4, 512, 512, 256), 0.5),
        ((64, 4096, 4096, 4096), 1.0),
        ((1, 64, 64, 64), 0.1),
        ((1, 4096, 64, 512), 0.4),
        ((1, 256, 256, 256 * 2**0.5), (0.1 * 0.2) ** 0.5),
        ((2**0.5, 256, 256, 256), (0.1 * 0.2) ** 0.5),
    ],
)
def test_products_reach_what_those_of_their_shape_do(
    dims: tuple[float, float, float, float], share: float
) -> None:
    """As the table has it, between its entries by logarithms, beyond them as at its end; of its types alone."""
    batch, m, n, k = dims
    flops = 2.0 * batch * m * n * k
    elements = batch * m * k, batch * k * n, batch * m * n
    device = replace(PLAIN, efficiency=Efficiency(reach=Reach(0.5, 1e-6, RATES)))
    expected = flops / (share * peak_flops_per_s(device, "bfloat16"))
    options = {"kind": "dot_general", "elements": elements}
    one = compute_time_s(flops, 0.0, "bfloat16", device, **options) - device.launch_s
    assert one == pytest.approx(expected)
    arrays = tuple(np.array([size, size]) for size in elements)
    many = compute_times_s(
        np.array([flops, flops]),
        np.zeros(2),
        "bfloat16",
        device,
        kind="dot_general",
        elements=arrays,
    )
    assert many - device.launch_s == pytest.approx(np.array([expected, expected]))
    for other in (
        compute_time_s(flops, 0.0, "float32", device, **options),
        compute_time_s(flops, 0.0, "float32", device, kind="dot_general"),
    ):
        flat = 1e-6 + flops / (0.5 * peak_flops_per_s(device, "float32"))
        assert other - device.launch_s == pytest.approx(flat)


@pytest.mark.parametrize(
    ("least", "shares"),
    [
        (256.0, ((0.1, 0.2),)),
        (256.0, ((0.1,), (0.2,))),
        (256.0, ((0.1, 0.2), (0.3,))),
        (256.0, ((0.1, 0.2), (0.3, 1.1))),
        (256.0, ((0.1, 0.2), (0.3, 0.0))),
        (0.0, ((0.1, 0.2), (0.3, 0.4))),
    ],
)
def test_rates_that_are_no_table_are_refused(
    least: float, shares: tuple[tuple[float, ...], ...]
) -> None:
    with pytest.raises(ValueError, match=r"rates|shares|least"):
        Rates(("bfloat16",), least, shares)


@pytest.mark.parametrize(
    ("dims", "expected_us"),
    [
        ((1, 8192, 32768, 1024), 802.3),
        ((1, 8192, 1024, 32768), 731.4),
        ((1, 8192, 4096, 1024), 100.3),
        ((1, 8192, 1024, 1024), 34.5),
        ((1, 8192, 3072, 1024), 79.9),
        ((64, 1024, 1024, 128), 79.2),
        ((64, 1024, 128, 1024), 76.0),
        ((1, 8192, 5632, 2048), 256.9),
        ((1, 768, 3072, 768), 11.7),
        ((1, 1024, 1024, 1024), 8.5),
    ],
)
def test_products_take_what_the_compiler_says_of_them(
    dims: tuple[int, int, int, int], expected_us: float
) -> None:
    """XLA's own times of products on the H100 that a GPT, a Llama and others have."""
    batch, m, n, k = dims
    elements = float(batch * m * k), float(batch * k * n), float(batch * m * n)
    device = load_cluster("8xh100-xla").device
    options = {"kind": "dot_general", "elements": elements}
    found = compute_time_s(2.0 * batch * m * n * k, 0.0, "bfloat16", device, **options)
    assert 1e6 * (found - device.launch_s) == pytest.approx(expected_us, rel=0.08)


def test_of_several_devices_products_reach_what_they_do_on_the_slowest() -> None:
    """As in the table of XLA for H100: 780 TFLOP/s at most, a product of 1024^3 in 8.1 us beside its launch."""
    new, old = load_cluster("8xh100-xla").device, load_cluster("8xa100").device
    assert slowest_device((new, old)).efficiency.reach is None
    assert slowest_device((new, new)).efficiency.reach == new.efficiency.reach
    small_s = compute_time_s(2 * 1024**3, 0.0, "bfloat16", new, kind="") - new.launch_s
    assert small_s == pytest.approx(8.1e-6, rel=0.01)
    large = 2 * 8192**3
    assert large / compute_time_s(large, 0.0, "bfloat16", new) == pytest.approx(780e12, rel=0.01)


def test_a_collective_begins_with_the_longest_start_of_what_it_crosses() -> None:
    cluster = load_cluster("8x8xh100")
    levels = tuple(replace(level, start_s=0.0) for level in cluster.topology.levels)
    without = replace(cluster, topology=Topology(levels))
    for axes, start_s in (((0,), 20e-6), ((1,), 15e-6), ((0, 1), 20e-6)):
        starting = (replace(levels[0], start_s=20e-6), replace(levels[1], start_s=15e-6))
        with_start = replace(cluster, topology=Topology(starting))
        for kind in ("all_reduce", "permute", "broadcast"):
            slow, quick = (
                collective_time_s(kind, 1 << 20, group(c.topology, (8, 8), axes))
                for c in (with_start, without)
            )
            assert slow - quick == pytest.approx(start_s)
    with pytest.raises(ValueError, match="start_s must be"):
        replace(levels[0], start_s=-1.0)
