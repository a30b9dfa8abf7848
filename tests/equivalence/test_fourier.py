"""Fourier transforms of several dims: split along those that are not transformed, or exchanged by all-to-alls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autopar
from tests.equivalence.cases import MESHES, Case
from tests.equivalence.check import check
from tests.equivalence.test_solver_plans import plan_of
from tests.quick_some import diagonal

Function = Callable[..., Any]
_RNG = np.random.default_rng(0)


def draw(*shape: int) -> Any:
    return jnp.asarray(_RNG.uniform(-1, 1, shape), jnp.float32)


def poisson(density: Any) -> Any:
    """Forth and back, so that the layout in between is free."""
    k = [jnp.fft.fftfreq(size) ** 2 for size in density.shape]
    square = k[0][:, None, None] + k[1][None, :, None] + k[2][None, None, :]
    return jnp.fft.ifftn(jnp.fft.fftn(density) / jnp.where(square == 0, 1, square)).real


def low_pass(x: Any) -> Any:
    modes = jnp.fft.rfft2(x)
    return jnp.fft.irfft2(
        jnp.zeros_like(modes).at[..., :4, :3].set(modes[..., :4, :3]), s=x.shape[-2:]
    )


def spectral_layer(x: Any, w: Any) -> Any:
    """What Fourier neural operators do: the loss and its gradient."""

    def loss(w: Any) -> Any:
        mixed = jnp.einsum("bixy,ioxy->boxy", jnp.fft.rfft2(x)[..., :4, :3], w)
        full = jnp.zeros((*mixed.shape[:2], x.shape[2], x.shape[3] // 2 + 1), mixed.dtype)
        return jnp.mean(jnp.fft.irfft2(full.at[..., :4, :3].set(mixed), s=x.shape[-2:]) ** 2)

    return jax.value_and_grad(loss)(w)


def energy(x: Any) -> Any:
    return jax.value_and_grad(lambda x: (jnp.abs(jnp.fft.rfftn(x)) ** 2).sum())(x)


FUNCTIONS: dict[str, tuple[Function, tuple[Any, ...]]] = {
    "cube": (jnp.fft.fftn, (draw(16, 8, 8),)),
    "plane": (jnp.fft.ifft2, (draw(16, 24),)),
    "four dims": (jnp.fft.fftn, (draw(8, 4, 4, 8),)),
    "poisson": (poisson, (draw(16, 8, 8),)),
    "energy": (energy, (draw(16, 8, 6),)),
    "low pass": (low_pass, (draw(8, 16, 12),)),
    "one image": (low_pass, (draw(16, 12),)),
    "spectral layer": (
        spectral_layer,
        (draw(8, 3, 8, 8), draw(3, 5, 4, 3) + 1j * draw(3, 5, 4, 3)),
    ),
}


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(("name", "mesh"), diagonal(FUNCTIONS, MESHES))
def test_a_plan_computes_the_same_and_runs_what_it_lists(name: str, mesh: str) -> None:
    case = Case(*FUNCTIONS[name], "float32")
    program = plan_of(case, mesh).program()
    exchanged = {move.kind for move in program.collectives if move.role == "exchange"}
    assert exchanged == {"all_to_all"} or name not in ("cube", "plane", "poisson")
    check(case, program)


@pytest.mark.parametrize(
    ("function", "count"), [(jnp.fft.fftn, 1), (jnp.fft.ifftn, 1), (poisson, 2), (jnp.fft.rfftn, 1)]
)
def test_a_volume_that_fits_only_split_is_exchanged(function: Function, count: int) -> None:
    """64 GiB of complex numbers on eight devices of 80 GB: each sends what it holds, once for every transform."""
    volume = jax.ShapeDtypeStruct((2048, 2048, 2048), jnp.float32)
    plan = autopar.plan(function, volume, cluster="8xh100", mesh={"x": 8})
    assert [row.kind for row in plan.collectives] == ["all_to_all"] * count
    assert plan.peak_memory_bytes < 80e9
    assert max(row.size_bytes for row in plan.collectives) <= 1.01 * 8 * 2048**3 / 8


def test_pencils_on_two_axes_exchange_along_each_of_them() -> None:
    """Of two dims that are split one is exchanged among four devices, the other among two."""
    volume = jax.ShapeDtypeStruct((64, 64, 64), jnp.complex64)
    pins = [autopar.pin("a", jax.sharding.PartitionSpec("x", "y"))]
    plan = autopar.plan(
        jnp.fft.fftn, volume, cluster="8xh100", mesh={"x": 2, "y": 4}, constraints=pins
    )
    assert sorted((row.kind, row.axes) for row in plan.collectives) == [
        ("all_to_all", ("x",)),
        ("all_to_all", ("y",)),
    ]


def test_whole_dims_are_transformed_without_any_collective() -> None:
    images = jax.ShapeDtypeStruct((512, 8, 64, 64), jnp.float32)
    for function in (low_pass, jnp.fft.rfft2, lambda x: jnp.fft.fft(x, n=4096, axis=1)):
        assert autopar.plan(function, images, cluster="8xh100", mesh={"x": 8}).collectives == ()
