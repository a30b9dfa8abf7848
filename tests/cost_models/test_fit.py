"""Fitting: planted constants come out of noisy times, and the profile that is written says what was measured."""

from dataclasses import replace
from datetime import date

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import ProfileError, figures_of, group, load_cluster
from cost_models.curves import CONVOLUTIONS, Curve, Packing, convolution_elements, product_dims
from cost_models.fit import (
    Sample,
    fit_collectives,
    fit_convolutions,
    fit_fresh,
    fit_moving,
    fit_products,
    fit_runs,
    fit_work,
    predicted_s,
    residuals_of,
)
from cost_models.fitted_profile import Machine, fitted_cluster, fitted_profile
from cost_models.profile_text import profile_text
from cost_models.terms import wire_bytes

PEAK, LAUNCH = 2e11, 3e-6
HALF = (16.0, 4.0, 32.0)
MEMORY = Curve((1e4, 1e6), (1e-7, 5e-5), 1e-10)
MACHINE = Machine("made up", "toy", (("device", 8),), 1e9, True, "made up", date(2026, 1, 31))
PLACES = replace(MACHINE, levels=(("process", 2), ("device", 2)), shared=False)


def noisy(seconds, seed, spread=0.03, outliers=0.0):
    """Times with some percent of noise, of which a share is far too long."""
    rng = np.random.default_rng(seed)
    late = rng.uniform(size=len(seconds)) < outliers
    return (
        np.array(seconds) * np.exp(rng.normal(0, spread, len(seconds))) * np.where(late, 4.0, 1.0)
    )


def moving_samples(seed=0, spread=0.0):
    sizes = [10.0**e for e in (2, 3, 4, 5, 6, 7, 8, 9)]
    times = noisy([MEMORY.time_s(size) + LAUNCH for size in sizes], seed, spread)
    return [
        Sample("moving", "axpy", "float32", size, float(t))
        for size, t in zip(sizes, times, strict=True)
    ]


def product_samples(seed=0, spread=0.03, outliers=0.0, dtype="float32"):
    sides = (8, 32, 128, 512, 1024)
    dims = [(m, n, k) for m in sides for n in sides for k in sides]
    moved = [4.0 * (m * k + k * n + m * n) for m, n, k in dims]
    times = [
        max(2 * (m + HALF[0]) * (n + HALF[1]) * (k + HALF[2]) / PEAK, MEMORY.time_s(size)) + LAUNCH
        for (m, n, k), size in zip(dims, moved, strict=True)
    ]
    return [
        Sample(
            "product", "dot_general", dtype, size, float(t), 2.0 * m * n * k, (m * k, k * n, m * n)
        )
        for (m, n, k), size, t in zip(
            dims, moved, noisy(times, seed, spread, outliers), strict=True
        )
    ]


def collective_samples(machine, terms, meshes, sizes=(1e3, 1e5, 1e6, 1e7)):
    """Times by `terms`: kind -> (alpha, gamma, beta)."""
    made = []
    for kind, (alpha, gamma, beta) in terms.items():
        for mesh, axes in meshes:
            members = group(machine.topology, mesh, axes)
            span = next(span for span in members.spans if span.sharing)
            for size in sizes:
                time_s = alpha + gamma * size + beta * wire_bytes(kind, size, members.size, span)
                made.append(
                    Sample("collective", kind, "float32", size, time_s, mesh=mesh, axes=axes)
                )
    return made


@given(st.integers(0, 1000))
@settings(max_examples=5, deadline=None)
def test_products_give_back_peak_and_half_sizes(seed):
    half, curve = fit_products(product_samples(seed, outliers=0.05), LAUNCH, MEMORY)
    # of all 1,001 seeds the worst is 6.2 % off
    assert 1 / curve.slope == pytest.approx(PEAK, rel=0.065)
    assert curve.time_s(1e9) == pytest.approx(1e9 / PEAK, rel=0.065)  # 6.4 %
    assert half.sizes == pytest.approx(HALF, rel=0.12, abs=2.8)  # 2.8, 2.1 and 3.7


def test_outliers_would_spoil_a_fit_that_is_not_robust():
    samples = product_samples(1, outliers=0.15)
    peak = 1 / fit_products(samples, LAUNCH, MEMORY)[1].slope
    mean_peak = float(np.mean([s.operations / s.time_s for s in samples if s.operations > 1e8]))
    assert abs(peak / PEAK - 1) < 0.05 < abs(mean_peak / PEAK - 1)


@pytest.mark.parametrize("count", [1, 3, 7, 9, 30])
def test_few_products_are_fitted_too(count):
    samples = product_samples(spread=0.0)
    half, curve = fit_products(samples[-count:], LAUNCH, MEMORY)
    large = samples[-1]
    busy_s = curve.time_s(large.operations) * half.stretch(1024.0, 1024.0, 1024.0)
    assert busy_s + LAUNCH == pytest.approx(large.time_s, rel=0.1)
    assert curve.time_s(1e6) < busy_s / 100


def test_small_products_on_fewer_cores():
    """Half of the peak below 1e7 operations: a curve without steps is near it on both sides."""
    halved = [
        replace(s, time_s=s.time_s * (2 if s.operations < 1e7 else 1))
        for s in product_samples(spread=0.0)
    ]
    half, curve = fit_products(halved, LAUNCH, MEMORY)
    assert half.sizes == pytest.approx(HALF, rel=0.5)
    assert curve.time_s(2e6) == pytest.approx(4e6 / PEAK, rel=0.25)
    assert curve.time_s(1e10) == pytest.approx(1e10 / PEAK, rel=0.1)


def test_products_with_vectors_hide_nothing_of_thin_matrices():
    """They take what moving their operands does; alone they have to do."""
    vectors = [
        Sample(
            "product",
            "dot_general",
            "float32",
            4.0 * n * n,
            MEMORY.time_s(4.0 * n * n),
            2.0 * n * n,
            dims,
        )
        for n in (256, 1024)
        for dims in ((n, n * n, n), (n * n, n, n))
    ]
    without, beside = (
        fit_products(product_samples(), LAUNCH, MEMORY),
        fit_products([*product_samples(), *vectors], LAUNCH, MEMORY),
    )
    assert beside == without
    assert fit_products(vectors, LAUNCH, MEMORY)[1].slope > 0


PACKING = Packing(2.0, 3.0, 300.0, 40.0)


def convolution_samples(seed=0, spread=0.03, outliers=0.0, kind=CONVOLUTIONS[0]):
    """Of few and of many places, channels in and channels out."""
    shapes = [
        (m, n, 9 * c_in) for m in (2, 16, 4096) for n in (2, 4, 16, 64) for c_in in (2, 8, 64, 512)
    ]
    operations = [2.0 * m * n * k for m, n, k in shapes]
    times = [
        2 * (m * n * k + 2 * m * k + 3 * n * k + 300 * m + 40 * k) / (PEAK / 2) + LAUNCH
        for m, n, k in shapes
    ]
    return [
        Sample(
            "work",
            kind,
            "float32",
            4.0,
            float(t),
            ops,
            convolution_elements(float(n * k), float(m * n), n, ops),
        )
        for (m, n, k), ops, t in zip(
            shapes, operations, noisy(times, seed, spread, outliers), strict=True
        )
    ]


@pytest.mark.parametrize("seed", range(3))
def test_convolutions_give_back_their_rate_and_what_they_pack(seed):
    packing, curve = fit_convolutions(convolution_samples(seed, outliers=0.05), LAUNCH, MEMORY)
    assert curve.time_s(1e9) == pytest.approx(2e9 / PEAK, rel=0.1)
    assert packing.parts == pytest.approx(PACKING.parts, rel=0.5)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_few_convolutions_are_fitted_too(count):
    samples = convolution_samples(spread=0.0)[-count:]
    packing, curve = fit_convolutions(samples, LAUNCH, MEMORY)
    for sample in samples:
        dims = product_dims(*sample.elements, sample.operations)
        busy_s = curve.time_s(sample.operations) * packing.stretch(*dims)
        assert busy_s + LAUNCH == pytest.approx(sample.time_s, rel=0.1)


def test_a_profile_says_what_convolutions_pack(tmp_path):
    gradient = convolution_samples(1, kind=CONVOLUTIONS[2])
    samples = [*moving_samples(), *product_samples(), *convolution_samples(), *gradient]
    profile = fitted_profile(samples, MACHINE)
    path = tmp_path / "made.toml"
    path.write_text(profile_text(profile), encoding="utf-8")
    for sample in (
        *convolution_samples(spread=0.0),
        *convolution_samples(spread=0.0, kind=CONVOLUTIONS[2]),
    ):
        assert predicted_s(sample, load_cluster(path)) == pytest.approx(sample.time_s, rel=0.25)
    assert set(profile.device.convolutions) == {CONVOLUTIONS[0], CONVOLUTIONS[2]}


RUNS = Curve((4.0, 256.0, 4096.0), (2e-8, 9e-7, 6e-6), 6e-6 / 4096)


def run_samples(kind="gather", seed=0, spread=0.0):
    runs = [(4e4, 4.0), (2e4, 256.0), (3e4, 256.0), (4e3, 4096.0)]
    times = noisy([count * RUNS.time_s(size) + LAUNCH for count, size in runs], seed, spread)
    return [
        Sample("picking", kind, "float32", 2 * count * size, float(t), count, run_bytes=size)
        for (count, size), t in zip(runs, times, strict=True)
    ]


def test_picked_runs_give_back_what_one_takes():
    assert fit_runs(run_samples(), LAUNCH).seconds == pytest.approx(RUNS.seconds)
    fitted = fit_runs(run_samples(spread=0.05, seed=2), LAUNCH)
    assert fitted.sizes == RUNS.sizes
    assert fitted.seconds == pytest.approx(RUNS.seconds, rel=0.2)
    with pytest.raises(ValueError, match="no run"):
        fit_runs([], LAUNCH)


def test_a_profile_says_what_picking_takes(tmp_path):
    """Of eight devices that share a machine, each picks one of eight runs that it picks."""
    samples = [*moving_samples(), *product_samples(), *run_samples(), *run_samples("scatter-add")]
    for machine, part in ((MACHINE, 8), (PLACES, 1)):
        path = tmp_path / "made.toml"
        profile = fitted_profile(samples, machine)
        path.write_text(profile_text(profile), encoding="utf-8")
        written = [point.seconds.value for point in profile.device.runs["gather"]]
        assert written == pytest.approx([seconds / part for seconds in RUNS.seconds])
        for sample in samples[-8:]:
            assert predicted_s(sample, load_cluster(path)) == pytest.approx(sample.time_s, rel=0.01)
    path.write_text(
        profile_text(profile).replace("device.runs.gather", "device.runs.sort"), encoding="utf-8"
    )
    with pytest.raises(ProfileError, match=r"runs\.sort"):
        load_cluster(path)


def test_moving_gives_back_launch_and_curve():
    launch_s, curve = fit_moving(moving_samples())
    assert launch_s == pytest.approx(LAUNCH, rel=0.01)
    for size in (1e4, 1e6, 1e8, 1e10):
        assert curve.time_s(size) == pytest.approx(MEMORY.time_s(size), rel=0.02)
    _, noisy_curve = fit_moving(moving_samples(3, 0.2))
    assert list(noisy_curve.seconds) == sorted(noisy_curve.seconds)
    with pytest.raises(ValueError, match="no bandwidth"):
        fit_moving([])


def test_work_gives_back_rates_and_curves():
    rate = [Sample("work", "exp", "float32", 8.0 * n, n * 1e-9 + LAUNCH, n) for n in (1e5,)]
    assert fit_work(rate, LAUNCH).time_s(1e7) == pytest.approx(1e-2)
    slower = [
        Sample("work", "transpose", "float32", 8 * n, t, n)
        for n, t in ((1e3, 1e-5), (1e5, 4e-4), (1e6, 9e-2))
    ]
    curve = fit_work(slower, 0.0)
    assert [curve.time_s(n) for n in (1e3, 1e5, 1e6, 2e6)] == pytest.approx(
        [1e-5, 4e-4, 9e-2, 18e-2]
    )
    falling = [
        Sample("work", "sort", "float32", n, t, n) for n, t in ((1.0, 4.0), (2.0, 1.0), (3.0, 9.0))
    ]
    # the mean of those that fall, in logarithms
    assert fit_work(falling, 0.0).seconds == pytest.approx((2.0, 2.0, 9.0))
    assert fit_fresh([]) is None
    assert fit_fresh([Sample("fresh", "scale", "float32", 1e6, 1e-3)]).time_s(2e6) == pytest.approx(
        2e-3
    )


def test_collectives_give_back_what_was_planted():
    terms = {"all_reduce": (1e-4, 2e-9, 0.0), "permute": (5e-5, 1e-9, 0.0)}
    samples = collective_samples(MACHINE, terms, [((4, 2), (1,)), ((2, 4), (1,))])
    for fitted in fit_collectives(samples, MACHINE.topology):
        alpha, gamma, _ = terms[fitted.kind]
        assert fitted.alpha_s == pytest.approx(alpha)
        assert fitted.local.time_s(1e8) == pytest.approx(gamma * 1e8, rel=1e-3)
        assert fitted.beta_s_per_byte == 0


@pytest.mark.parametrize("disturbed", [2, 4, 6, 10, 13, 15, 20, 21, 23])
def test_a_time_that_was_disturbed_is_told_from_those_of_other_groups(disturbed):
    """Of groups of 2, 4 and 8, which differ by a factor; it took twice as long as it does, at all but small sizes."""
    sizes = (1e3, *(2.0**n for n in (16, 17, 18, 19, 20, 22, 24)))
    meshes = [((4, 2), (1,)), ((2, 4), (1,)), ((8,), (0,))]
    samples = []
    for factor, mesh in zip((1.0, 1.2, 1.5), meshes, strict=True):
        terms = {"all_reduce": (3e-5 * factor, 1e-9 * factor, 0.0)}
        samples += collective_samples(MACHINE, terms, [mesh], sizes)
    twice = [
        replace(s, time_s=2 * s.time_s) if n == disturbed else s for n, s in enumerate(samples)
    ]
    found = {fitted.members: fitted for fitted in fit_collectives(twice, MACHINE.topology)}
    for sample in samples:
        fitted = found[int(np.prod([sample.mesh[axis] for axis in sample.axes]))]
        assert fitted.alpha_s + fitted.local.time_s(sample.size_bytes) == pytest.approx(
            sample.time_s, rel=0.1
        )


def test_wires_are_told_from_devices_where_groups_cross_a_level_in_two_ways():
    terms = {"all_reduce": (1e-4, 2e-9, 8e-9), "all_gather": (1e-4, 1e-9, 16e-9)}
    meshes = [((2, 2), (0,)), ((2, 2), (0, 1))]
    found = fit_collectives(collective_samples(PLACES, terms, meshes), PLACES.topology)
    assert {(f.level, f.kind, f.members) for f in found} == {
        ("process", kind, members) for kind in terms for members in (2, 4)
    }
    for fitted in found:
        assert fitted.beta_s_per_byte == pytest.approx(terms[fitted.kind][2], rel=0.1)


@given(st.integers(0, 1000))
@settings(max_examples=5, deadline=None)
def test_a_written_profile_says_what_was_measured(tmp_path_factory, seed):
    collectives = {"all_reduce": (1e-4, 2e-9, 0.0), "all_to_all": (2e-4, 4e-9, 0.0)}
    samples = [
        *moving_samples(),
        *product_samples(seed),
        *product_samples(seed + 1, dtype="bfloat16"),
    ]
    samples += [
        Sample("work", "exp", "float32", 8e5, 1e-3, 1e5),
        Sample("fresh", "scale", "float32", 1e6, 1e-3),
    ]
    samples += collective_samples(MACHINE, collectives, [((4, 2), (1,)), ((8,), (0,))])
    profile = fitted_profile(samples, MACHINE)
    path = tmp_path_factory.mktemp("written") / "made.toml"
    path.write_text(profile_text(profile, ("a comment",)), encoding="utf-8")
    cluster = load_cluster(path)
    assert cluster == fitted_cluster(profile)
    errors = [abs(residual.error) for residual in residuals_of(samples, cluster)]
    assert np.mean(errors) < 0.03
    assert max(errors) < 0.2
    assert all(
        f.source and f.date == MACHINE.day and f.obtained in ("fitted", "measured")
        for _, f in figures_of(path)
    )


def test_an_error_that_is_known_is_written(tmp_path):
    profile = fitted_profile([*moving_samples(), *product_samples(0)], MACHINE)
    knows = profile.device.launch_s.model_copy(update={"relative_error": 0.03})
    device = profile.device.model_copy(update={"launch_s": knows})
    path = tmp_path / "made.toml"
    path.write_text(profile_text(profile.model_copy(update={"device": device})), encoding="utf-8")
    assert load_cluster(path).errors["device.launch_s"] == 0.03


def test_one_device_alone_has_no_collectives():
    machine = replace(MACHINE, levels=(("device", 1),), shared=False)
    cluster = fitted_cluster(fitted_profile([*moving_samples(), *product_samples()], machine))
    assert cluster.device_count == 1
    assert cluster.device.peak_flops_per_s["float32"] == pytest.approx(PEAK, rel=0.05)


def test_shared_devices_have_their_part_whatever_the_number():
    """What is written is the whole machine; one of eight has the times that were measured with eight."""
    profile = fitted_profile([*moving_samples(), *product_samples()], MACHINE)
    assert profile.device.peak_flops_per_s["float32"].value == pytest.approx(8 * PEAK, rel=0.05)
    sample = product_samples(spread=0.0)[-1]
    assert predicted_s(sample, fitted_cluster(profile)) == pytest.approx(sample.time_s, rel=0.05)


def test_a_profile_needs_products_and_moving():
    with pytest.raises(ValueError, match="no bandwidth"):
        fitted_profile(product_samples(), MACHINE)
    with pytest.raises(ValueError, match="float32"):
        fitted_profile([*moving_samples(), *product_samples(dtype="bfloat16")], MACHINE)


def test_what_is_wrong_in_a_file_is_told(tmp_path):
    profile = fitted_profile([*moving_samples(), *product_samples()], MACHINE)
    path = tmp_path / "made.toml"
    good = profile_text(profile)
    path.write_text(
        good.replace("[device.half_sizes.float32]", "[device.half_size.float32]"), encoding="utf-8"
    )
    with pytest.raises(ProfileError, match="half_sizes"):
        load_cluster(path)
    first, second = (f"size_bytes = {size}" for size in ("8000.0", "80000.0"))
    assert first in good
    path.write_text(good.replace(first, "size_bytes = 90000.0"), encoding="utf-8")
    with pytest.raises(ProfileError, match="sizes must"):
        load_cluster(path)
    assert second in good
