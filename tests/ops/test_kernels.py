"""Every strategy of kernels of Pallas and of cuDNN's for attention, against the kernels run whole, here on CPU."""

from __future__ import annotations

import pytest

from autopar.core.mesh import DeviceMesh
from autopar.ops.rate_kind import rate_kind
from autopar.ops.rules import rule_of
from autopar.ops.rules.attention import slowest
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.ops.traits import work_flops
from tests.ops.build import Case, build, operator_of
from tests.ops.cases_attention import ATTENTION
from tests.ops.cases_kernels import KERNELS
from tests.ops.property import MESHES, check_rule, name_of
from tests.quick_some import diagonal

CASES = [*ATTENTION, *KERNELS]
BY_NAME = {case.name: case for case in ATTENTION}
ALL = 64
B, T, N, D = 2, 4, 8, 4
S = 6


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(("case", "mesh"), diagonal(CASES, MESHES), ids=name_of)
def test_some_strategies_compute_what_the_kernel_computes(case: Case, mesh: DeviceMesh) -> None:
    found = build(case)
    assert found.op.kind == case.kind
    assert check_rule(found, rule_of(found.op), mesh) > 1


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_strategy_computes_what_the_kernel_computes(case: Case) -> None:
    found = build(case)
    assert check_rule(found, rule_of(found.op), MESHES[0], ALL) > 1


@pytest.mark.parametrize("kind", ["dot_product_attention_fwd", "dot_product_attention_bwd"])
def test_heads_on_more_devices_than_there_are_key_heads(kind: str) -> None:
    found = build(BY_NAME[f"{kind} of few key heads"])
    assert check_rule(found, rule_of(found.op), DeviceMesh.of({"x": 8}), ALL) > 1


def places(name: str, axes: dict[str, int]) -> set[tuple[str, str, str]]:
    """Where queries, keys and the first result may lie."""
    mesh = DeviceMesh.of(axes)
    return {
        (str(s.ins[0]), str(s.ins[1]), str(s.outs[0]))
        for s in enumerate_strategies(rule_of(operator_of(BY_NAME[name])), mesh)
    }


def test_what_may_be_split() -> None:
    """Batch, heads with their key heads, heads behind whole key heads, and queries where none is counted."""
    heads = ("[-, -, x, -]", "[-, -, x, -]", "[-, -, x, -]")
    queries = ("[-, x, -, -]", "[-, -, -, -]", "[-, x, -, -]")
    found = places("dot_product_attention_fwd of few key heads", {"x": 4})
    own = (
        "[-, -, x, -]",
        "[-, -, -, -]",
        "[-, -, x, -]",
    )  # each device takes the key heads of its heads
    assert found == {("[-, -, -, -]",) * 3, heads, queries, own}
    assert own in places("dot_product_attention_fwd of few key heads", {"x": 8})
    one = places("dot_product_attention_fwd of one key head", {"x": 4})
    assert ("[-, -, x, -]", "[-, -, -, -]", "[-, -, x, -]") in one
    both = places("dot_product_attention_fwd of few key heads", {"x": 4, "y": 2})
    assert ("[-, -, x*y, -]", "[-, -, x, -]", "[-, -, x*y, -]") in both
    assert queries in places("dot_product_attention_fwd causal", {"x": 4})
    for counted in ("causal of more keys", "causal with a bias", "of a window", "with lengths"):
        assert queries not in places(f"dot_product_attention_fwd {counted}", {"x": 4})


def test_the_last_queries_of_a_causal_mask_see_most() -> None:
    op = operator_of(BY_NAME["dot_product_attention_fwd causal"])
    mesh = DeviceMesh.of({"x": 4})
    found = {str(s.ins[0]): slowest(op, s, mesh) for s in enumerate_strategies(rule_of(op), mesh)}
    assert found == {"[-, -, -, -]": 1.0, "[-, -, x, -]": 1.0, "[-, x, -, -]": 2 - 1 / 4}


def test_kernels_have_rates_of_their_own() -> None:
    found = {case.kind: rate_kind(operator_of(case)) for case in CASES}
    assert found == {
        "dot_product_attention_bwd": "attention:backward",
        "dot_product_attention_fwd": "attention",
        "pallas_kernel": "dot_general",
    }


def test_operations_are_those_of_what_is_seen() -> None:
    pairs = {"of few key heads": T * S, "causal": 1 + 2 + 3 + 4, "of a window": 1 + 2 + 2 + 2}
    for name, seen in pairs.items():
        once = 2.0 * B * N * D * seen
        assert work_flops(operator_of(BY_NAME[f"dot_product_attention_fwd {name}"])) == 2 * once
        assert work_flops(operator_of(BY_NAME[f"dot_product_attention_bwd {name}"])) == 5 * once
