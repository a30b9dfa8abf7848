"""What plans are called: by hand the facts of the layouts that the field knows, and of those between them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.core.stages import Stages
from autopar.report.parallelism import Facts, Product, State, parallelism

MESH = (("x", 4), ("y", 16))
BOTH = ("x", "y")


def facts(*products: Product, **changes: object) -> Facts:
    """Of a step with two weights of equal size and their moments, which lie whole on every device."""
    state = (
        State("p['attention']['q']", 100, ()),
        State("p['mlp']['up']", 100, ()),
        State("m['attention']['q']", 100, (), is_parameter=False),
        State("m['mlp']['up']", 100, (), is_parameter=False),
    )
    return replace(Facts(MESH, products, state), **changes)


def products(**axes: tuple[str, ...]) -> tuple[Product, ...]:
    return (
        Product(1.0, "p['attention']['q']", **axes),
        Product(1.0, "p['mlp']['up']", **axes),
    )


def lying(parameters: tuple[str, ...], moments: tuple[str, ...], gathered: tuple[str, ...] = ()):
    return (
        State("p['attention']['q']", 100, parameters, gathered),
        State("p['mlp']['up']", 100, parameters, gathered),
        State("m['attention']['q']", 100, moments, is_parameter=False),
        State("m['mlp']['up']", 100, moments, is_parameter=False),
    )


def said(made: Facts) -> str:
    return str(parallelism(made))


def test_data_parallel() -> None:
    assert said(facts(*products(batch=BOTH))) == "batch over 64: data parallel"


@pytest.mark.parametrize(
    ("scattered", "stage"), [((), "ZeRO-1"), (("y",), "ZeRO-2"), (("x",), "ZeRO-1")]
)
def test_the_first_stages_of_zero(scattered: tuple[str, ...], stage: str) -> None:
    made = facts(*products(batch=BOTH), state=lying((), ("y",)), scattered=scattered)
    assert said(made) == f"batch over 64: {stage} in groups of 16"


def test_a_parameter_that_lies_split_hides_no_stage_of_zero() -> None:
    bias = State("p['bias']", 2, ("y",))
    made = facts(*products(batch=BOTH), state=(bias, *lying((), ("y",))), scattered=("y",))
    assert said(made) == "batch over 64: ZeRO-2 in groups of 16"
    made = facts(*products(batch=("x",)), state=lying(("y",), ("y",)))
    assert said(made) == "batch over 4, parameters over 16: data parallel"


def test_fsdp_over_all_devices_and_in_groups() -> None:
    made = facts(*products(batch=BOTH), state=lying(BOTH, BOTH, BOTH))
    assert said(made) == "batch over 64, parameters over 64: ZeRO-3 (FSDP)"
    made = facts(*products(batch=BOTH), state=lying(("y",), ("y",), ("y",)))
    assert said(made) == "batch over 64, parameters over 16: ZeRO-3 (FSDP) in groups of 16"


def test_a_part_of_the_parameters_is_gathered() -> None:
    first, *rest = lying((), ())
    made = facts(
        *products(batch=BOTH),
        state=(replace(first, axes=BOTH, gathered=BOTH), *rest),
    )
    assert (
        said(made) == "batch over 64, parameters over 1 and 64: ZeRO-3 (FSDP) for 50% of parameters"
    )


def test_megatron_and_its_sequence_parallelism() -> None:
    made = facts(*products(batch=("x",), tensor=("y",)), state=lying(("y",), ("y",)))
    words = "batch over 4, parameters over 16: data parallel, tensor parallel 16"
    assert said(made) == words
    assert said(replace(made, between=((9.0, ("y",)), (1.0, ())))) == (
        f"{words}, sequence parallel between"
    )
    assert said(replace(made, between=((1.0, ("y",)), (9.0, ())))) == words
    assert said(replace(made, between=((9.0, ("x",)),))) == words


def test_tensor_parallel_in_some_weights_names_them() -> None:
    attention, mlp = products(batch=BOTH)
    made = facts(
        attention,
        replace(mlp, batch=("y",), tensor=("x",)),
        state=lying(("y",), ("y",), ("y",)),
    )
    expected = "batch over 16 and 64, parameters over 16: ZeRO-3 (FSDP) in groups of 16, "
    assert said(made) == f"{expected}tensor parallel 4 in mlp"
    other = replace(mlp, weight="p['attention']['o']", tensor=("x",))
    assert said(facts(attention, other)).endswith("tensor parallel 4 in o")


def test_context_and_expert_parallelism() -> None:
    made = facts(*products(batch=("x",), sequence=("y",)))
    assert said(made) == "batch over 4: data parallel, context parallel 16"
    made = facts(*products(batch=BOTH, expert=("y",)))
    assert said(made) == "batch over 64: data parallel, expert parallel 16"


def test_pipeline_stages() -> None:
    made = facts(*products(batch=("y",)), stages=Stages(4, 16))
    expected = "batch over 16: data parallel, 4 pipeline stages of 16 micro-batches"
    assert said(made) == expected


def test_what_does_not_train_gathers_weights() -> None:
    made = facts(*products(batch=BOTH), state=lying(BOTH, BOTH, BOTH)[:2], is_training=False)
    assert said(made) == "batch over 64, parameters over 64: weights gathered"
    made = facts(*products(batch=BOTH), state=lying((), BOTH), is_training=False)
    assert said(made) == "batch over 64: data parallel"


def test_what_concerns_little_is_not_told() -> None:
    large, small = products(batch=BOTH)
    made = facts(large, replace(small, flops=0.01, tensor=("x",)))
    assert said(made) == "batch over 64: data parallel"


def test_nothing_is_split() -> None:
    assert said(facts(*products())) == "the same on every device"
    assert said(Facts((("x", 1),), products(), ())) == "one device"


def test_what_is_split_without_products_is_told_apart_from_what_is_not() -> None:
    alone = facts(*products())
    assert said(replace(alone, is_split=True)) == "split where no product is"
    assert said(replace(alone, state=lying(BOTH, BOTH)[:1], is_split=True)) == "parameters over 64"
