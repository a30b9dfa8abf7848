"""What XLA fuses on GPUs beside what it does everywhere: rows, what is cheaper made anew, what products do themselves.

Each case counts passes: how often an array as large as `x` is read or written, of all that a step moves. Facts of the
compiler's own programs (`benchmarks.gpu_aot`): a softmax reads its scores and writes its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autopar.backends.known import XLA_GPU
from autopar.backends.xla_gpu import ROW_ELEMENTS
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.cost.operators.fused import moved
from autopar.cost.pricing import Roofline
from autopar.ops.fusion import PLAIN, in_products, materialised
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.trace.graph import trace_function
from cost_models import load_cluster

ROWS, COLUMNS = 64, 1024
"""Rows are many enough for what is as large as a row or a column to count for little."""


def graph_of(
    function: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = jnp.bfloat16
) -> OpGraph:
    return trace_function(function, *[jax.ShapeDtypeStruct(shape, dtype) for shape in shapes])
