"""The JAX features that differ between versions, as the runner uses them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autopar import _compat

SCRIPT = """
import jax.numpy as jnp, jax
from autopar.trace import fingerprint, trace
f = lambda x: jax.lax.scan(lambda c, r: (c + jnp.sin(r), c), x[0], x)
print(fingerprint(trace(f, (jnp.ones((3, 2)),)).graph))
"""


def test_a_mesh_keeps_the_order_of_its_devices_and_has_auto_axes() -> None:
    devices = jax.devices()[7:1:-1]
    mesh = _compat.make_mesh((2, 3), ("x", "y"), devices)
    assert list(mesh.devices.flat) == devices
    assert mesh.axis_types == (jax.sharding.AxisType.Auto,) * 2
    with pytest.raises(ValueError, match="needs 16 devices, there are 8"):
        _compat.make_mesh((16,), ("x",))


def test_varying_axes_inside_shard_map() -> None:
    mesh = _compat.make_mesh((2, 2), ("x", "y"))
    seen: list[frozenset[str]] = []

    def body(a: Any) -> Any:
        wide = _compat.pcast_varying(a, ("x", "y"))
        seen.extend([_compat.varying_axes(a), _compat.varying_axes(wide)])
        assert _compat.pcast_varying(wide, ("x",)) is wide
        return jax.lax.psum(wide, "y")

    mapped = _compat.shard_map(body, mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
    np.testing.assert_array_equal(jax.jit(mapped)(jnp.arange(4.0)), 2 * np.arange(4.0))
    assert seen == [frozenset("x"), frozenset("xy")]
    assert _compat.varying_axes(jnp.ones(2)) == frozenset()


def test_remat_and_call_can_be_bound_from_parameters() -> None:
    closed = jax.make_jaxpr(lambda x: [jnp.sin(x)])(1.0)
    jaxpr, _ = _compat.open_jaxpr(closed)
    params = {"jaxpr": jaxpr, "prevent_cse": True, "differentiated": False, "policy": None}
    for primitive, given in (
        (_compat.remat_primitive(), params),
        (_compat.call_primitive(), {"call_jaxpr": closed}),
    ):
        (result,) = jax.jit(lambda x, p=primitive, g=given: p.bind(x, **_compat.bind_params(p, g)))(
            1.0
        )
        np.testing.assert_allclose(result, np.sin(1.0), rtol=1e-6)


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    prints = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ
            | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.getcwd(), "JAX_PLATFORMS": "cpu"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(prints) == 1
