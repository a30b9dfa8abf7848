"""Functions treated as one operator: the decorator, and operators that ship. JAX stands here, for they are functions.

A function comes in, and a call of it goes into the trace as one equation.
"""

from autopar.operators.decorator import operator
from autopar.operators.dot_product_attention import attention
from autopar.operators.normalisation import l2_normalize, layer_norm, rms_norm, softmax
from autopar.operators.primitive import KEEP

__all__ = ["KEEP", "attention", "l2_normalize", "layer_norm", "operator", "rms_norm", "softmax"]
