"""DeviceMesh and Placement: the invariants they check and the numbers they give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.errors import InvalidMesh

MESH = DeviceMesh.of({"x": 2, "y": 4, "z": 3})


def test_a_mesh_knows_its_sizes_and_order() -> None:
    assert (MESH.names, MESH.sizes, MESH.size) == (("x", "y", "z"), (2, 4, 3), 24)
    assert MESH.product(("z", "x")) == 6
    assert MESH.product(()) == 1
    assert MESH.sort(("z", "x")) == ("x", "z")
    assert str(MESH) == "(x=2, y=4, z=3)"
    assert DeviceMesh.of({"x": np.int64(2)}).axes == (("x", 2),)


@pytest.mark.parametrize(
    "axes", [{}, {"": 2}, {"x": 0}, {"x": -1}, {"x": 2.0}, {"x": "2"}, {"x": None}, {"x": True}]
)
def test_a_malformed_mesh_is_refused(axes: Any) -> None:
    with pytest.raises(InvalidMesh):
        DeviceMesh.of(axes)


def test_two_axes_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidMesh, match=r"named and distinct, got \['x', 'x'\]"):
        DeviceMesh((("x", 2), ("x", 4)))


def test_a_placement_names_an_axis_once_and_forgets_an_idle_kind() -> None:
    for dims, unreduced in (((("x",), ("x",)), ()), ((("x", "x"),), ()), ((("x",),), ("x",))):
        with pytest.raises(ValueError, match="named twice"):
            Placement(dims, unreduced)
    assert Placement(((),), (), "max") == Placement(((),))
    assert Placement(((),), ("y", "x"), "max") == Placement(((),), ("x", "y"), "max")
    assert str(Placement((("x", "y"), ()), ("z",), "max")) == "[x*y, -] max(z)"


def test_swapping_two_dims_makes_another_placement() -> None:
    rows, columns = Placement((("x",), ())), Placement(((), ("x",)))
    assert rows != columns
    assert rows.fits((4, 3), MESH)
    assert not columns.fits((4, 3), MESH)


@given(
    dims=st.permutations(["x", "y", "z"]).flatmap(
        lambda axes: st.lists(st.integers(0, 3), min_size=3, max_size=3).map(
            lambda roles: (axes, roles)
        )
    ),
    parts=st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
def test_shards_tile_the_tensor(dims: Any, parts: tuple[int, int]) -> None:
    """Roles 0 and 1 split that dim, 2 leaves unreduced, 3 replicates."""
    axes, roles = dims
    split = tuple(
        tuple(a for a, role in zip(axes, roles, strict=True) if role == d) for d in (0, 1)
    )
    unreduced = tuple(a for a, role in zip(axes, roles, strict=True) if role == 2)
    placement = Placement(split, unreduced)
    shape = tuple(n * MESH.product(s) for n, s in zip(parts, split, strict=True))
    assert placement.fits(shape, MESH)
    assert placement.local_shape(shape, MESH) == parts
    replicas = MESH.size // MESH.product(placement.split_axes)
    assert placement.local_size(shape, MESH) * MESH.size == shape[0] * shape[1] * replicas
    assert placement.varying_axes == {a for a, role in zip(axes, roles, strict=True) if role < 3}
    for d in (0, 1):
        odd = tuple(size + (e == d) for e, size in enumerate(shape))
        assert placement.fits(odd, MESH) == (MESH.product(split[d]) == 1)
