"""Primitives without a rule, and why: knowledge as data. No primitive of JAX is missing in rules and here together.

`TRACED` never reach a rule: `trace` puts something else in their place. `OPAQUE` do work that nobody but their
author can look into: each is replicated with a warning unless a rule is registered for it. `INNER` stand only in
bodies that are run as they are (of `shard_map`, of kernels) or on values that a traced function cannot pass.
"""

from __future__ import annotations

from collections.abc import Mapping

_CALL = "its body is walked in place"
_LOOP = "its bodies are walked in place, between boundary operators"
_DERIVATIVE = "its body is walked in place: derivatives have been taken before"
_KEYS = "re-expressed on the words of the keys"
_NOTHING = "changes nothing: its result is its operand"
_EFFECT = "has a side effect"
_PLACEMENT = "says where its operand lies, not what it is"
_MANUAL = "a collective, or a mark for one, in the body of shard_map"
_REFERENCE = "reads, writes or makes a mutable reference"
_HIGH = "on values of a user's own type, which are lowered to arrays before"
_SYMBOLIC = "on symbolic dims, which a plan does not have"
_KERNEL = "a kernel of the vendor's library"
_KERNEL_IN_PLACE = "the kernel that it stands for is put in its place"
_TRANSFORM = "stands in the middle of a transformation and in no finished function"


def _table(*groups: tuple[str, str]) -> Mapping[str, str]:
    return {kind: reason for reason, kinds in groups for kind in kinds.split()}


TRACED = _table(
    (
        _CALL,
        "call closed_call composite core_call custom_vmap_call eval_jaxpr jit pjit xla_metadata_call",
    ),
    (_DERIVATIVE, "custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr linear_call remat_opt"),
    (
        "the function that solves is walked in place: derivatives have been taken before",
        "custom_linear_solve",
    ),
    ("a region: its body is walked in place and emitted as a whole", "checkpoint remat remat2"),
    (
        "what it is lowered to is walked in its place",
        "call_hi_primitive call_hi_primitive_linearized",
    ),
    (_LOOP, "cond scan while"),
    (_KEYS, "random_bits random_fold_in random_seed random_split"),
    (_KERNEL_IN_PLACE, "dot_product_attention_bwd_wrapper dot_product_attention_fwd_wrapper"),
    (_NOTHING, "copy_p random_clone xla_metadata_value"),
    (_EFFECT, "check dce_sink inspect_sharding"),
    (_PLACEMENT, "layout_constraint relayout with_memory_space_constraint"),
)

OPAQUE = _table(
    ("foreign code", "ffi_call"),
    ("a kernel in the user's own terms", "pallas_call core_map"),
    ("its author partitions it, by rules in XLA's terms", "custom_partitioning"),
    ("a compiled function without a jaxpr", "call_exported"),
    (
        _KERNEL,
        "cudnn_fusion dot_product_attention_fp8_bwd dot_product_attention_fp8_bwd_wrapper "
        "dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper scaled_matmul scaled_matmul_wrapper",
    ),
    (
        "the general form, which JAX differentiates by and never leaves in a function",
        "select_and_scatter",
    ),
)

INNER = _table(
    (
        _MANUAL,
        "all_gather all_gather_done all_gather_invariant all_gather_reduced all_gather_reduced_start "
        "all_gather_start all_to_all all_to_all_done all_to_all_start axis_index pbroadcast pbroadcast_done "
        "pbroadcast_dynamic pbroadcast_start ppermute ppermute_done ppermute_start precv preduced psend psum_done "
        "psum_invariant psum_invariant_start psum_start pvary ragged_all_to_all reduce_scatter reduce_scatter_done "
        "reduce_scatter_start reduced_vary_cast reduced_vary_cast_p unreduced_pmax unreduced_pmin unreduced_psum "
        "unreduced_psum_start unreduced_reduce_scatter unreduced_reduce_scatter_start vary_unreduced_cast "
        "vary_unreduced_cast_p",
    ),
    (
        _REFERENCE,
        "accum_grad_in_ref addupdate broadcast_to create_linear empty_ref free_ref freeze get new_ref pin run_state "
        "swap unpin",
    ),
    ("orders side effects", "after_all create_token"),
    (
        _HIGH,
        "box_get box_set from_edtype log_extend log_read new_box new_log to_edtype",
    ),
    (_SYMBOLIC, "dim_as_value dimension_size shape_assertion"),
    (_TRANSFORM, "custom_jvp_call_jaxpr custom_lin stage tie unreachable zeros_like"),
)


SHAPED = frozenset({"call_exported", "core_map", "custom_partitioning", "pallas_call", "shard_map"})
"""Opaque primitives whose parameters fix all shapes: they can be split only by tracing what calls them anew."""


def reason_without_rule(kind: str) -> str | None:
    """Why the primitive `kind` has no rule; None where that is not stated."""
    for table in (TRACED, OPAQUE, INNER):
        if kind in table:
            return table[kind]
    return None
