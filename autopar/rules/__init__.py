"""Knowledge: for each primitive, which dims of operands and results are the same index. Never sees a cost.

Importing this package fills the registry: one module per family of operators.
"""

from autopar.rules import (
    contraction,
    convolution,
    cumulative,
    elementwise,
    indexing,
    random,
    reduction,
    shape,
    sorting,
    windows,
)
from autopar.rules.registry import registered, rule_for, rule_of

__all__ = [
    "contraction",
    "convolution",
    "cumulative",
    "elementwise",
    "indexing",
    "random",
    "reduction",
    "registered",
    "rule_for",
    "rule_of",
    "shape",
    "sorting",
    "windows",
]
