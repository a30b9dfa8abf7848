"""Normalisations along axes, each one operator that is split everywhere but along them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from autopar._compat import untyped_jax
from autopar.operators.decorator import operator
from autopar.ops.rules.user import whole_along

Array = jax.Array
Axis = int | tuple[int, ...]
lax: Any = untyped_jax.lax


@operator(whole_along("axis"), static=("axis", "eps"))
def l2_normalize(x: Array, axis: Axis = -1, eps: float = 1e-12) -> Array:
    """X divided by its Euclidean norm along `axis`.

        y = x / sqrt(max(sum over axis of x^2, eps))

    Args:
      x: [..., d, ...], real.
      axis: the dims that are normalised together.
      eps: what the sum of squares is at least, so that zeros stay zeros.

    Reference: MindSpore's L2Normalize, TensorFlow's l2_normalize.
    """
    return x * lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=axis, keepdims=True), eps))


@operator(whole_along("axis"), static="axis")
def softmax(x: Array, axis: Axis = -1) -> Array:
    """exp(x) divided by its sum along `axis`, computed from x less its maximum there.

        y = exp(x - m) / sum over axis of exp(x - m)          m = max over axis of x

    Args:
      x: [..., d, ...], real.
      axis: the dims that sum to 1 together.
    """
    shifted = jnp.exp(x - lax.stop_gradient(jnp.max(x, axis=axis, keepdims=True)))
    return shifted / jnp.sum(shifted, axis=axis, keepdims=True)


@operator(whole_along("axis"), static=("axis", "eps"))
def layer_norm(
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    axis: Axis = -1,
    eps: float = 1e-6,
) -> Array:
    """X less its mean along `axis`, divided by its standard deviation there, times `scale`, plus `bias`.

        y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * scale + bias

    Args:
      x: [..., d, ...], real.
      scale: broadcast against x, such as [d] for the last dim; None: 1.
      bias: the same; None: 0.
      axis: the dims that are normalised together.
      eps: added to the variance.

    Reference: Ba, Kiros and Hinton 2016.
    """
    centred = x - jnp.mean(x, axis=axis, keepdims=True)
    y = centred * lax.rsqrt(jnp.mean(centred * centred, axis=axis, keepdims=True) + eps)
    y = y if scale is None else y * scale
    return y if bias is None else y + bias


@operator(whole_along("axis"), static=("axis", "eps"))
def rms_norm(x: Array, scale: Array | None = None, axis: Axis = -1, eps: float = 1e-6) -> Array:
    """X divided by the root of its mean square along `axis`, times `scale`.

        y = x / sqrt(mean(x^2) + eps) * scale

    Args:
      x: [..., d, ...], real.
      scale: broadcast against x, such as [d] for the last dim; None: 1.
      axis: the dims that are normalised together.
      eps: added to the mean square.

    Reference: Zhang and Sennrich 2019.
    """
    y = x * lax.rsqrt(jnp.mean(x * x, axis=axis, keepdims=True) + eps)
    return y if scale is None else y * scale
