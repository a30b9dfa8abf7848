"""Knowledge: for each primitive, which dims of operands and results are the same index. Never sees a cost.

Importing this package fills the registry: one module per family of operators.
"""

from autopar.ops.rules import (
    approximate,
    attention,
    contraction,
    control,
    convolution,
    cumulative,
    effects,
    elementwise,
    fourier,
    indexing,
    kernels,
    linear_algebra,
    manual,
    moving,
    named_axes,
    pins,
    random,
    reduction,
    shape,
    sorting,
    windows,
)
from autopar.ops.rules.registry import registered, rule_for, rule_of

__all__ = [
    "approximate",
    "attention",
    "contraction",
    "control",
    "convolution",
    "cumulative",
    "effects",
    "elementwise",
    "fourier",
    "indexing",
    "kernels",
    "linear_algebra",
    "manual",
    "moving",
    "named_axes",
    "pins",
    "random",
    "reduction",
    "registered",
    "rule_for",
    "rule_of",
    "shape",
    "sorting",
    "windows",
]
