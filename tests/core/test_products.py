"""Products: how what is contracted lies in the operands."""

from __future__ import annotations

import pytest

from autopar.backends.xla_cpu.matrices import Numbers, contracted_first, merges_dims
from autopar.core.graph import OpNode, TensorInfo

NO_BATCH = ((), ())


def product(left: int, right: int, numbers: Numbers) -> OpNode:
    """A product of operands with so many dims, all of size 2."""
    tensors = tuple(
        TensorInfo(n, (2,) * ndim, "float32", 4) for n, ndim in enumerate((left, right, 1))
    )
    return OpNode(0, "dot_general", tensors[:2], tensors[2:], params={"dimension_numbers": numbers})


@pytest.mark.parametrize(("ndims", "numbers", "first", "merges"), [
    ((2, 2), (((1,), (0,)), NO_BATCH), (False, True), False),
    ((2, 2), (((0,), (0,)), NO_BATCH), (True, True), False),
    ((3, 2), (((2,), (0,)), NO_BATCH), (False, True), False),
    ((3, 3), (((0, 1), (0, 1)), NO_BATCH), (True, True), True),
    ((3, 3), (((0, 1), (1, 2)), NO_BATCH), (True, False), True),
    ((3, 3), (((1, 2), (1, 2)), NO_BATCH), (False, False), False),
    ((2, 3), (((0,), (0,)), NO_BATCH), (True, True), True),
    ((3, 3), (((1,), (1,)), ((0,), (0,))), (True, True), False),
    ((4, 4), (((1, 2), (1, 2)), ((0,), (0,))), (True, True), True),
    ((4, 3), (((1, 2), (1, 2)), ((0,), (0,))), (True, True), True),
    ((3, 3), (((1, 0), (1, 0)), NO_BATCH), None, False),
    ((3, 3), (((0, 2), (0, 1)), NO_BATCH), None, False),
    ((3, 3), (((1,), (1,)), NO_BATCH), None, False),
    ((4, 4), (((0, 1), (0, 1)), ((2,), (2,))), None, False),
    ((3, 3), (NO_BATCH, NO_BATCH), None, False),
])  # fmt: skip
def test_products_of_matrices_as_they_lie(
    ndims: tuple[int, int], numbers: Numbers, first: tuple[bool, bool] | None, merges: bool
) -> None:
    op = product(*ndims, numbers)
    assert contracted_first(op) == first
    assert merges_dims(op) == merges


def test_other_operators_merge_nothing() -> None:
    assert not merges_dims(OpNode(0, "add", (), (TensorInfo(0, (), "float32", 4),)))
