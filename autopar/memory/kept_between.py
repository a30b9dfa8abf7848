"""Kept between: what a compiler keeps of a function for its derivative, which computes it anew (`core.repeated`).

    function            its scores, say, are made
    ...                 they are held
    derivative          they are there

Held is what of the function the body of its derivative writes.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from autopar.core.graph import OpGraph
from autopar.core.memo import once_per_graph
from autopar.core.program import Compute, ShardedProgram
from autopar.core.repeated import repeated
from autopar.ops.fusion import Fusing, materialised
from autopar.ops.traits import traits_of


def kept_between(program: ShardedProgram, fusing: Fusing) -> NDArray[np.int64]:
    """By instruction the bytes of one device that it holds of functions whose derivatives come in the same pass."""
    found = np.zeros(len(program.instructions), dtype=np.int64)
    computes = {
        one.op.id: (n, one)
        for n, one in enumerate(program.instructions)
        if isinstance(one, Compute)
    }

    for number, function in repeated([one.op for _, one in computes.values()]).items():
        last, one = computes[number]
        first, _ = computes[function.id]
        whole = sum(tensor.size_bytes for tensor in one.op.ins)
        if function.phase == one.op.phase and one.op.body is not None and whole:
            shapes = one.in_shapes(program.mesh)
            own = sum(
                prod(shape) * tensor.itemsize
                for shape, tensor in zip(shapes, one.op.ins, strict=True)
            )
            found[first + 1 : last] += made_anew_bytes(one.op.body, fusing) * own // whole
    return found


@once_per_graph
def made_anew_bytes(body: OpGraph, fusing: Fusing) -> int:
    """The bytes of what the body of a derivative computes of its function and writes."""
    written = materialised(body, fusing)
    return sum(
        tensor.size_bytes
        for op in body.ops
        if op.phase == "forward" and not traits_of(op.kind).is_view
        for tensor in op.outs
        if tensor.id in written
    )
