"""Knowledge: for each primitive, which dims of operands and results are the same index. Never sees a cost.

Importing this package fills the registry: one module per family of operators.
"""

from autopar.rules import (
    contraction,
    control,
    convolution,
    cumulative,
    effects,
    elementwise,
    indexing,
    random,
    reduction,
    shape,
    sorting,
    windows,
)
from autopar.rules.registry import register_rule, registered, rule_of

__all__ = [
    "contraction",
    "control",
    "convolution",
    "cumulative",
    "effects",
    "elementwise",
    "indexing",
    "random",
    "reduction",
    "register_rule",
    "registered",
    "rule_of",
    "shape",
    "sorting",
    "windows",
]
