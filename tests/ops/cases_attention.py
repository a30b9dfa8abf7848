"""Cases of cuDNN's kernels of attention: every layout, mask and bias, few key heads, forwards and backwards."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from tests.ops.build import Arg, Case
from tests.ops.cudnn import BACKWARD, FORWARD, PARAMS, cudnn

MASKS = cudnn.MaskType
QUERY, KEY = (2, 4, 8, 4), (2, 6, 4, 4)
LENGTHS = Arg((2,), "int32", 2, 6)


def _unused(_given: Any = None) -> Any:
    return jnp.zeros((0,), "float32")


def _case(
    name: str,
    query: tuple[int, ...] = QUERY,
    key: tuple[int, ...] = KEY,
    bias: tuple[int, ...] | None = None,
    padded: bool = False,
    **changed: Any,
) -> list[Case]:
    """The kernel forwards and backwards, on arrays of these shapes."""
    params = {**PARAMS, "variadic_args": (bias is not None, bias is not None), **changed}
    more = [*([Arg(bias)] if bias else []), *([LENGTHS, LENGTHS] if padded else [])]

    def operands(q: Any, k: Any, v: Any, *given: Any) -> list[Any]:
        rest = iter(given)
        biased = next(rest) if bias else _unused()
        lengths = (next(rest), next(rest)) if padded else (_unused(), _unused())
        return [q, k, v, biased, *lengths, *(_unused() for _ in range(4))]

    def forward(*given: Any) -> Any:
        return FORWARD.bind(*operands(*given), **params, is_training=True)

    def backward(dy: Any, *given: Any) -> Any:
        known = operands(*given)
        out, sums = FORWARD.bind(*known, **params, is_training=True)
        return BACKWARD.bind(*known, sums, out, dy, **params)

    args = (Arg(query), Arg(key), Arg(key), *more)
    return [
        Case("dot_product_attention_fwd", f"dot_product_attention_fwd {name}", forward, args),
        Case(
            "dot_product_attention_bwd",
            f"dot_product_attention_bwd {name}",
            backward,
            (Arg(query), *args),
        ),
    ]


ATTENTION = [
    *_case("of few key heads"),
    *_case("of one key head", key=(2, 6, 1, 4)),
    *_case("causal", key=(2, 4, 4, 4), mask_type=MASKS.CAUSAL),
    *_case("round a ring", query=(2, 8, 8, 4), key=(2, 8, 2, 4)),
    *_case("causal round a ring", (2, 8, 8, 4), (2, 8, 2, 4), mask_type=MASKS.CAUSAL),
    *_case("causal of more keys", mask_type=MASKS.CAUSAL),
    *_case("causal with a bias", key=(2, 4, 4, 4), bias=(1, 8, 4, 4), mask_type=MASKS.CAUSAL),
    *_case(
        "causal, heads first",
        query=(2, 8, 4, 4),
        key=(2, 4, 4, 4),
        layout=1,
        mask_type=MASKS.CAUSAL,
    ),
    *_case("of a window", mask_type=MASKS.CAUSAL, sliding_window_length=2),
    *_case("with lengths", padded=True, mask_type=MASKS.PADDING),
    *_case("with one bias of all rows", bias=(1, 8, 4, 6)),
    *_case("with one bias of all heads", bias=(2, 1, 4, 6)),
    *_case("heads first", query=(2, 8, 4, 4), key=(2, 4, 6, 4), layout=1),
]
