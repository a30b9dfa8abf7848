"""The benchmark against the TPU compiler: what is read out of its texts, its models, and a compilation where it is."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autopar
from autopar.inspect.hlo import collectives_of, peak_memory_bytes
from autopar.inspect.hlo_text import parse_module
from benchmarks import tpu_programs
from benchmarks.accuracy_plans import grid_sizes
from benchmarks.ahead_of_time import Predicted, Program, Row, agreement, compiled_row
from benchmarks.compiled_collectives import Made, UnknownRounds
from benchmarks.tpu_aot import COMPILER
from benchmarks.tpu_cycles import compiled_program, estimated_cycles
from benchmarks.tpu_programs import NAMES, arguments, shard_spec, sized, tpu_devices
from cost_models import collective_time_s, load_cluster
from cost_models.groups import group

TEXT = """HloModule jit_step, is_scheduled=true, num_partitions=16

%product (a: bf16[8,128]) -> bf16[8,128] {
  %a = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %inner = bf16[8,128]{1,0:T(8,128)(2,1)} copy(%a), backend_config={"window_config":{"estimated_cycles":"7777"}}
}

%body (c: bf16[8,128]) -> bf16[8,128] {
  %c = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  %turned = bf16[8,128]{0,1:T(8,128)(2,1)} copy(%c), backend_config={"window_config":{"estimated_cycles":"30"}}
  %inside = bf16[8,128]{1,0:T(8,128)(2,1)} while(%turned), condition=%test, body=%deep, BACKEND
  ROOT %sum = bf16[8,128]{1,0:T(8,128)} all-reduce(%inside), channel_id=1, replica_groups=[4,4]<=[16], to_apply=%add
}

%deep (d: bf16[8,128]) -> bf16[8,128] {
  %d = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %made = bf16[8,128]{1,0:T(8,128)(2,1)} fusion(%d), kind=kOutput, calls=%product, \
backend_config={"window_config":{"estimated_cycles":"500"}}
}

%test (t: bf16[8,128]) -> pred[] {
  %t = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %less = pred[]{:T(512)} constant(true)
}

%add (x: bf16[], y: bf16[]) -> bf16[] {
  %x = bf16[]{:T(256)} parameter(0)
  %y = bf16[]{:T(256)} parameter(1)
  ROOT %both = bf16[]{:T(256)} add(%x, %y)
}

ENTRY %main (p: bf16[8,128]) -> bf16[8,128] {
  %p = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  %first = bf16[8,128]{1,0:T(8,128)(2,1)} fusion(%p), kind=kOutput, calls=%product, \
backend_config={"window_config":{"estimated_cycles":"1000"}}
  %sent = bf16[8,128]{1,0:T(8,128)(2,1)} collective-permute(%first), channel_id=2, \
source_target_pairs={{0,1},{1,0},{2,3},{3,2},{4,4}}
  ROOT %loop = bf16[8,128]{1,0:T(8,128)(2,1)} while(%sent), condition=%test, body=%body, \
backend_config={"known_trip_count":{"n":"3"}}
}
"""
KNOWN = TEXT.replace("BACKEND", 'backend_config={"known_trip_count":{"n":"5"}}')
CLUSTER = load_cluster("tpu-v5e-4x4")
BYTES = 8 * 128 * 2


def test_cycles_of_loops_count_for_each_round_and_those_inside_a_fusion_not_at_all() -> None:
    found = compiled_program(KNOWN, CLUSTER)
    assert found.work == 1000 + 3 * (30 + 5 * 500)
    assert found.computing_s == pytest.approx(found.work / 1.503e9, rel=1e-3)
    assert [i.name for i, _ in estimated_cycles(parse_module(KNOWN))] == ["first", "turned", "made"]


def test_the_largest_number_stands_for_no_estimate() -> None:
    found = compiled_program(KNOWN.replace('"1000"', f'"{2**63 - 1}"'), CLUSTER)
    assert found.work == 3 * (30 + 5 * 500)


def test_collectives_are_priced_by_their_links_for_each_round() -> None:
    found = compiled_program(KNOWN, CLUSTER)
    row = collective_time_s("all_reduce", BYTES, group(CLUSTER.topology, (4, 4), (1,)))
    pair = collective_time_s("permute", BYTES, group(CLUSTER.topology, (8, 2), (1,)))
    assert found.communicating_s == pytest.approx(3 * row + pair)
    assert (found.collectives, found.collective_bytes) == (4, 4 * BYTES)
    assert found.serial_s == found.computing_s + found.communicating_s


def test_a_loop_without_a_known_count_is_refused() -> None:
    with pytest.raises(ValueError, match="loop whose rounds"):
        compiled_program(TEXT.replace("BACKEND", ""), CLUSTER)


@dataclass(frozen=True)
class Text:
    """Stands for JAX's Lowered and Compiled of a program with this HLO text."""

    text: str

    def compile(self, compiler_options: Any) -> Text:
        assert compiler_options == {}
        return self

    def as_text(self) -> str:
        return self.text


def test_models_by_hand_are_left_out_and_plans_are_not() -> None:
    unknown = Text(TEXT.replace("BACKEND", ""))
    reason = compiled_row(Program("Megatron", "", None, unknown), COMPILER, CLUSTER)
    assert isinstance(reason, str)
    assert reason.startswith("Megatron: ")
    with pytest.raises(UnknownRounds):
        compiled_row(Program("planned", "", Predicted(1.0, 0.0, 1), unknown), COMPILER, CLUSTER)


def test_only_plans_count_for_the_agreement() -> None:
    def row(kind: str, made_s: float, peak: int, guess: Predicted | None) -> Row:
        return Row(kind, "", guess, Made(made_s, 1, 0.0, 0, 0), peak)

    rows = [
        row("planned", 1.0, 100, Predicted(1.1, 0.0, 90)),
        row("data parallel", 2.0, 100, Predicted(3.0, 0.0, 120)),
        row("by hand", 0.1, 1, None),
    ]
    found = agreement(rows)
    assert (found.steps.plans, found.steps.kendall_tau, found.steps.regret) == (
        2,
        pytest.approx(1.0),
        0.0,
    )
    assert found.peaks.worst_under == pytest.approx(0.1)


@pytest.mark.quick_share(4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("devices", [16, 256])
def test_models_are_shapes_that_divide(name: str, devices: int) -> None:
    model = sized(name, devices)
    leaves: list[Any] = jax.tree.leaves(arguments(model))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    assert not any(leaf.dtype == np.float32 for leaf in leaves)
    assert max(leaf.size for leaf in leaves) >= 2**20
    assert all(leaf.shape[0] % devices == 0 for leaf in arguments(model)[1:])
    jax.eval_shape(model.step(), *arguments(model))


def test_the_largest_dim_that_divides_is_split() -> None:
    assert shard_spec((32, 64), 16) == P(None, "data")
    assert shard_spec((32, 63), 16) == P("data", None)
    assert shard_spec((3, 5), 16) == P()
    assert shard_spec((), 16) == P()
    assert [grid_sizes(n) for n in (8, 16, 256)] == [(2, 4), (4, 4), (16, 16)]


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_programs, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"pip install '\.\[tpu-aot\]'"):
        tpu_devices("tpu-v5e-4x4")


@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu, the extra tpu-aot")
def test_a_plan_is_compiled_for_chips_that_are_not_there() -> None:
    """Numbered along the torus; the gradients of a bucket are one all-reduce, which the compiler has joined itself."""
    chips = tpu_devices("tpu-v5e-4x4")
    assert [tuple(chip.coords[:2]) for chip in chips[:5]] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (3, 0),
        (0, 1),
    ]

    def step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            return (jnp.tanh(x @ params["a"]) @ params["b"]).sum()

        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))

    def spec(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    args = ({"a": spec(256, 512), "b": spec(512, 128)}, spec(1024, 256))
    cluster = load_cluster("tpu-v5e-4x4")
    plan = autopar.plan(step, *args, cluster=cluster, mesh={"data": 16}, mode="data_parallel")
    compiled = plan.lower(chips).compile()
    (joined,) = collectives_of(compiled)
    assert (joined.kind, joined.operand_count) == ("all_reduce", 2)
    assert compiled_program(compiled.as_text(), cluster).work > 0
    assert peak_memory_bytes(compiled) >= 2 * prod((256, 512))
