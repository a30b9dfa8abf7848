"""contract: the tangent of a scalar from its gradients, the sum of <gradient, tangent>; transposed, scaled gradients.

A scalar's gradient is all that its derivative needs. So the derivative of a compiled loss is this primitive on
gradients that were planned with the loss. A sum of products of JAX's own would be transposed to a broadcast, which is
as large as a parameter and whole on one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from autopar import _compat
from autopar._compat import untyped_jax
from autopar._mesh import typed_as

untyped_ad: Any = ad
untyped_batching: Any = batching
untyped_mlir: Any = mlir

contract_p: Any = Primitive("autopar_contract")


def contract(gradients: Sequence[Any], tangents: Sequence[Any], dtype: Any) -> Any:
    """The sum over all pairs of the sum of the products of their elements, a scalar of type `dtype`."""
    return contract_p.bind(*gradients, *tangents, dtype=dtype)


def _contract(*operands: Any, dtype: Any) -> Any:
    pairs = zip(*_halves(operands), strict=True)
    parts = [jnp.sum(gradient * tangent, dtype=dtype) for gradient, tangent in pairs]
    return sum(parts[1:], parts[0])


def _abstract(*operands: Any, dtype: Any) -> Any:
    return untyped_jax.core.ShapedArray((), dtype)


def _differentiate(primals: Sequence[Any], tangents: Sequence[Any], *, dtype: Any) -> Any:
    """Linear in the gradients, and in the tangents."""
    (gradients, given) = _halves(primals)
    (of_gradients, of_given) = _halves(tangents)
    parts: list[Any] = []
    for moved, fixed in ((of_gradients, given), (of_given, gradients)):
        pairs = [(m, f) for m, f in zip(moved, fixed, strict=True) if type(m) is not ad.Zero]
        parts += [contract([f for _, f in pairs], [m for m, _ in pairs], dtype)] if pairs else []
    return contract(gradients, given, dtype), sum(parts[1:], parts[0])


def _transpose(cotangent: Any, *operands: Any, dtype: Any) -> list[Any]:
    """To the tangents: the gradients, scaled; to the gradients, which are linear as well: the tangents."""
    gradients, tangents = _halves(operands)
    linear = [untyped_ad.is_undefined_primal(operand) for operand in operands]
    others = [*tangents, *gradients]
    return [
        typed_as(_scaled(cotangent, other), operand.aval) if is_linear else None
        for operand, is_linear, other in zip(operands, linear, others, strict=True)
    ]


def _scaled(factor: Any, value: Any) -> Any:
    """`value` times a scalar; `value` itself for a one that is known, as that of `jax.grad` is."""
    if not _compat.is_tracer(factor) and np.ndim(factor) == 0 and np.asarray(factor) == 1:
        return value
    return _times(factor, value)


@untyped_jax.jit
def _times(factor: Any, value: Any) -> Any:
    return (factor * value).astype(value.dtype)


def _batch(operands: Sequence[Any], dims: Sequence[int | None], *, dtype: Any) -> tuple[Any, int]:
    return untyped_jax.vmap(partial(_contract, dtype=dtype), in_axes=tuple(dims))(*operands), 0


def _halves(values: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    half = len(values) // 2
    return values[:half], values[half:]


contract_p.def_impl(untyped_jax.jit(_contract, static_argnames="dtype"))
contract_p.def_abstract_eval(_abstract)
untyped_mlir.register_lowering(
    contract_p, untyped_mlir.lower_fun(_contract, multiple_results=False)
)
untyped_ad.primitive_jvps[contract_p] = _differentiate
untyped_ad.primitive_transposes[contract_p] = _transpose
untyped_batching.primitive_batchers[contract_p] = _batch
