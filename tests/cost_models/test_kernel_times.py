"""Kernels by shape: against counts element by element, and their limits."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import (
    Device,
    attention_time_s,
    convolution_time_s,
    elementwise_time_s,
    load_cluster,
    matmul_time_s,
)
from cost_models.kernels import item_bytes

COUNTING = Device("counts operations", 1e9, 1e30, {"float32": 1.0}, 0.0)
MOVING = Device("counts bytes", 1e9, 1.0, {"float32": 1e30}, 0.0)
H100 = load_cluster("1xh100").device


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float32", 4),
        ("bfloat16", 2),
        ("float8_e4m3fn", 1),
        ("float4_e2m1fn", 0.5),
        ("int4", 0.5),
        ("uint8", 1),
        ("bool", 1),
    ],
)
def test_bytes_of_an_element(dtype, size):
    assert item_bytes(dtype) == size


@given(*[st.integers(1, 6)] * 4)
@settings(max_examples=30, deadline=None)
def test_a_matmul_multiplies_and_adds_each_pair(m, n, k, batch):
    pairs = sum(1 for _ in product(range(batch), range(m), range(n), range(k)))
    assert matmul_time_s(m, n, k, "float32", COUNTING, batch=batch) == 2 * pairs
    assert matmul_time_s(m, n, k, "float32", MOVING, batch=batch) == 4 * batch * (
        m * k + k * n + m * n
    )


@given(
    st.integers(1, 3),
    st.integers(1, 7),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([1, 2]),
)
@settings(max_examples=40, deadline=None)
def test_a_convolution_visits_its_window_at_each_place(batch, image, window, stride, groups):
    c_in, c_out = 2 * groups, 3 * groups
    out = len(range(0, image, stride))
    visits = sum(
        1
        for _ in product(
            range(batch), range(out), range(c_out), range(window), range(c_in // groups)
        )
    )
    given_ = (
        (batch, (image,), (window,), (c_in, c_out), "float32"),
        {"stride": stride, "groups": groups},
    )
    assert convolution_time_s(*given_[0], COUNTING, **given_[1]) == 2 * visits
    moved = batch * image * c_in + window * c_in // groups * c_out + batch * out * c_out
    assert convolution_time_s(*given_[0], MOVING, **given_[1]) == 4 * moved


@given(st.integers(1, 5), st.integers(-4, 5), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_causal_attention_computes_what_is_seen(queries, more, width, groups):
    more = max(more, 1 - queries)
    keys = queries + more
    seen = sum(key <= more + query for query, key in product(range(queries), range(keys)))
    heads = (2 * groups, 2)
    time_s = attention_time_s(heads, (queries, keys), width, "float32", COUNTING, causal=True)
    assert time_s == pytest.approx(4 * 2 * groups * seen * width)
    moved = attention_time_s(heads, (queries, keys), width, "float32", MOVING, causal=True)
    assert moved == 4 * 2 * (heads[0] * queries + heads[1] * keys) * width


def test_fusing_saves_the_scores():
    fused, not_fused = (
        attention_time_s((32, 8), (8192, 8192), 128, "bfloat16", H100, fused=f)
        for f in (True, False)
    )
    assert fused < not_fused
    scores = 32 * 8192 * 8192 * 2 / H100.memory_bandwidth_bytes_per_s
    assert not_fused > 2 * scores
    moved = attention_time_s((4, 2), (3, 5), 8, "float32", MOVING, batch=2, fused=False)
    # ends, and scores and weights written and read
    assert moved == 4 * 2 * (2 * (4 * 3 + 2 * 5) * 8 + 4 * 4 * 3 * 5)
    chain = elementwise_time_s(1e9, 1e9, H100, operations=5)
    assert chain == pytest.approx(elementwise_time_s(1e9, 1e9, H100))


def test_a_matmul_is_faster_in_fewer_bits():
    times = [
        matmul_time_s(8192, 8192, 8192, dtype, H100)
        for dtype in ("float32", "bfloat16", "float8_e4m3fn")
    ]
    assert times[0] == pytest.approx(2 * times[1], rel=0.01)
    assert times[1] == pytest.approx(2 * times[2], rel=0.02)


def test_impossible_shapes_are_refused():
    with pytest.raises(ValueError, match="k is 0"):
        matmul_time_s(1, 1, 0, "float32", H100)
    with pytest.raises(ValueError, match="no multiples of groups 3"):
        convolution_time_s(1, (4,), (3,), (4, 6), "float32", H100, groups=3)
    with pytest.raises(ValueError, match="3 heads are no multiple of 2"):
        attention_time_s((3, 2), (4, 4), 8, "float32", H100)
    with pytest.raises(ValueError, match="'key<fry>' says no size"):
        matmul_time_s(1, 1, 1, "key<fry>", H100)
    with pytest.raises(ValueError, match="operations is 0"):
        elementwise_time_s(1, 1, H100, operations=0)
