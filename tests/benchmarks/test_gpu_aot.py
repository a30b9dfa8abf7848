"""The benchmark against XLA's compiler for GPUs: what is read out of its texts, its models, a compilation."""

from __future__ import annotations

from importlib.util import find_spec
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autopar
from autopar.inspect.hlo import peak_memory_bytes
from autopar.inspect.hlo_text import parse_module
from benchmarks import gpu_programs
from benchmarks.ahead_of_time import Predicted, Row, agreement
from benchmarks.compiled_collectives import Made, UnknownRounds
from benchmarks.gpu_aot import guessed
from benchmarks.gpu_kernels import (
    LARGE_PRODUCTS_FLOPS_PER_S,
    compiled_program,
    kernels_in,
)
from benchmarks.gpu_programs import COMPILER_OPTIONS, MODELS, PLUGINS, gpu_devices, sized
from cost_models import collective_time_s, load_cluster
from cost_models.groups import group

SAID = '"reification_cost":[{"exec_time_us":99.5,"name":""},{"exec_time_us":MICROS,"name":"NAME"}]'
DOTS = '"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}'


def said(micros: float, name: str = "sol") -> str:
    """The compiler's own time, as it writes it."""
    return SAID.replace("MICROS", str(micros)).replace("NAME", name)


TEXT = f"""HloModule jit_step, is_scheduled=true, num_partitions=8

%inner (a: bf16[1024,4096]) -> bf16[1024,4096] {{
  %a = bf16[1024,4096]{{1,0}} parameter(0)
  ROOT %twice = bf16[1024,4096]{{1,0}} add(%a, %a)
}}

%body (c: bf16[1024,4096]) -> bf16[1024,4096] {{
  %c = bf16[1024,4096]{{1,0}} parameter(0)
  %row = bf16[1024,4096]{{1,0}} fusion(%c), kind=kCustom, calls=%inner, backend_config={{"kind":"__triton",\
"reification_cost":[{{"exec_time_us":8730004.1,"name":""}},{{"exec_time_us":7.5,"name":"indexing-cost-model"}},\
{{"exec_time_us":0.01,"name":"sol"}}]}}
  ROOT %copied = bf16[1024,4096]{{1,0}} copy(%row)
}}

%test (t: bf16[1024,4096]) -> pred[] {{
  %t = bf16[1024,4096]{{1,0}} parameter(0)
  ROOT %less = pred[] constant(true)
}}

%plus (x: bf16[], y: bf16[]) -> bf16[] {{
  %x = bf16[] parameter(0)
  %y = bf16[] parameter(1)
  ROOT %both = bf16[] add(%x, %y)
}}

ENTRY %main (p: bf16[1024,4096], w: bf16[4096,4096], i: bf16[8,32,32,64], k: bf16[3,3,64,128]) -> bf16[1024,4096] {{
  %p = bf16[1024,4096]{{1,0}} parameter(0)
  %w = bf16[4096,4096]{{1,0}} parameter(1)
  %i = bf16[8,32,32,64]{{3,2,1,0}} parameter(2)
  %k = bf16[3,3,64,128]{{3,2,1,0}} parameter(3)
  %first = bf16[1024,4096]{{1,0}} fusion(%p), kind=kLoop, calls=%inner, backend_config={{{said(4.5)}}}
  %tabled = (bf16[1024,4096]{{1,0}}, s8[4194304]{{0}}) custom-call(%first, %w), \
custom_call_target="__cublas$lt$matmul", backend_config={{{DOTS},{said(50.0)}}}
  %mixed = (f32[1024,4096]{{1,0}}, s8[4194304]{{0}}) custom-call(%first, %w), \
custom_call_target="__cublas$lt$matmul", backend_config={{{DOTS},{said(9999.0)}}}
  %conv = (bf16[8,32,32,128]{{3,2,1,0}}, u8[0]{{0}}) custom-call(%i, %k), window={{size=3x3 pad=1_1x1_1}}, \
dim_labels=b01f_01io->b01f, custom_call_target="__cudnn$convForward"
  %out = bf16[1024,4096]{{1,0}} get-tuple-element(%tabled), index=0
  %sent = bf16[1024,4096]{{1,0}} all-reduce-start(%out), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%plus
  %come = bf16[1024,4096]{{1,0}} all-reduce-done(%sent)
  ROOT %loop = bf16[1024,4096]{{1,0}} while(%come), condition=%test, body=%body, KNOWN
}}
"""
KNOWN = TEXT.replace("KNOWN", 'backend_config={"known_trip_count":{"n":"3"}}')
CLUSTER = load_cluster("8xh100-xla")
BYTES = 1024 * 4096 * 2
COPY_S = 2 * BYTES / CLUSTER.device.memory_bandwidth_bytes_per_s


def test_kernels_take_what_the_compiler_says_and_what_it_cannot_say_is_priced() -> None:
    found = {k.instruction.name: k for k in kernels_in(parse_module(KNOWN), CLUSTER.device)}
    flops = 2 * 1024 * 4096 * 4096
    taps = 2 * (8 * 32 * 32 * 128) * 9 * 64
    assert {name: kernel.times for name, kernel in found.items()} == {
        "first": 1,
        "tabled": 1,
        "mixed": 1,
        "conv": 1,
        "row": 3,
        "copied": 3,
    }
    assert found["first"].seconds == pytest.approx(4.5e-6)
    assert found["tabled"].seconds == pytest.approx(50e-6)
    assert found["mixed"].seconds == pytest.approx(flops / LARGE_PRODUCTS_FLOPS_PER_S)
    assert found["conv"].seconds == pytest.approx(taps / LARGE_PRODUCTS_FLOPS_PER_S)
    assert found["row"].seconds == pytest.approx(7.5e-6)
    assert found["copied"].seconds == pytest.approx(COPY_S)


def test_a_program_is_its_kernels_and_its_collectives() -> None:
    found = compiled_program(KNOWN, CLUSTER)
    kernels = list(kernels_in(parse_module(KNOWN), CLUSTER.device))
    assert found.computing_s == pytest.approx(sum(k.times * k.seconds for k in kernels))
    assert found.work == 4 + 3 * 2
    four = group(CLUSTER.topology, (2, 4), (1,))
    assert found.communicating_s == pytest.approx(collective_time_s("all_reduce", BYTES, four))
    assert (found.collectives, found.collective_bytes) == (1, BYTES)
    whole = found.computing_s + found.communicating_s
    assert found.serial_s == pytest.approx(whole + 10 * CLUSTER.device.launch_s)


@pytest.mark.parametrize(("first", "dim", "micros"), [(3, 1, 2.5), (32, 1, 40.0), (3, 0, 40.0)])
def test_what_keeps_concatenations_from_being_fused_is_no_time(
    first: int, dim: int, micros: float
) -> None:
    shape = f"[{first},64]" if dim == 0 else f"[64,{first}]"
    text = f"""HloModule jit_f, num_partitions=8

%joined (a: f32{shape}, b: f32[64,64]) -> f32[64,64] {{
  %a = f32{shape} parameter(0)
  %b = f32[64,64] parameter(1)
  ROOT %c = f32[64,64] concatenate(%a, %b), dimensions={{{dim}}}
}}

ENTRY %main (x: f32{shape}, y: f32[64,64]) -> f32[64,64] {{
  %x = f32{shape} parameter(0)
  %y = f32[64,64] parameter(1)
  ROOT %f = f32[64,64] fusion(%x, %y), kind=kInput, calls=%joined, backend_config={{"reification_cost":[\
{{"exec_time_us":40.0,"compute_time_us":39,"memory_access_time_us":2.5,"name":""}},\
{{"exec_time_us":40.0,"compute_time_us":0,"memory_access_time_us":0,"name":"sol"}}]}}
}}
"""
    (kernel,) = kernels_in(parse_module(text), CLUSTER.device)
    assert kernel.seconds == pytest.approx(1e-6 * micros)


@pytest.mark.parametrize("gradient", ["convBackwardInput", "convBackwardFilter"])
def test_gradients_of_a_convolution_multiply_as_often_as_it_does(gradient: str) -> None:
    image, window, out = "bf16[8,32,32,64]", "bf16[3,3,64,128]", "bf16[8,32,32,128]"
    given = {"convBackwardInput": (out, window, image), "convBackwardFilter": (image, out, window)}
    first, second, result = given[gradient]
    text = f"""HloModule m, num_partitions=8

ENTRY %main (a: {first}, b: {second}) -> {result} {{
  %a = {first}{{3,2,1,0}} parameter(0)
  %b = {second}{{3,2,1,0}} parameter(1)
  ROOT %g = ({result}{{3,2,1,0}}, u8[0]{{0}}) custom-call(%a, %b), dim_labels=b01f_01io->b01f, \
custom_call_target="__cudnn${gradient}"
}}
"""
    taps = 2 * (8 * 32 * 32 * 128) * 9 * 64
    assert compiled_program(text, CLUSTER).computing_s == pytest.approx(
        taps / LARGE_PRODUCTS_FLOPS_PER_S
    )


def test_a_loop_without_a_known_count_is_refused() -> None:
    with pytest.raises(UnknownRounds):
        compiled_program(TEXT.replace(", KNOWN", ""), CLUSTER)


def test_agreement_is_of_computing_kernels_steps_and_peaks() -> None:
    def row(guess: Predicted, made: Made) -> Row:
        return Row("planned", "", guess, made, 100)

    rows = [
        row(Predicted(1.1, 1.0, 90, 20, 2.0), Made(1.0, 10, 1.0, 1, 1, 1.0)),
        row(Predicted(1.9, 0.0, 120, 10, 1.0), Made(2.0, 20, 0.0, 1, 1, 2.0)),
    ]
    found = agreement(rows)
    assert found.computing.mean_error == pytest.approx(0.075)
    assert found.kernels_error == pytest.approx(0.75)
    assert found.steps.max_error == pytest.approx(4.1 / 3.0 - 1)
    assert found.peaks.worst_under == pytest.approx(0.1)


@pytest.mark.quick_share(4)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("devices", [8, 64])
def test_models_are_shapes_that_divide(name: str, devices: int) -> None:
    model, args = sized(name, devices)
    leaves: list[Any] = jax.tree.leaves(args)
    assert max(prod(np.shape(leaf)) for leaf in leaves) >= 2**20
    assert all(leaf.shape[0] % devices == 0 for leaf in args[1:])
    state, _ = jax.eval_shape(model.step(), *args)
    assert jax.tree.map(np.shape, state) == jax.tree.map(np.shape, args[0])
    specs = jax.tree.leaves(model.state_specs(), is_leaf=lambda leaf: isinstance(leaf, P))
    assert len(specs) == len(jax.tree.leaves(args[0]))


def test_what_is_predicted_counts_launches_apart() -> None:
    """A sum is one kernel; the copy in another order beside an all_to_all is computing, and one kernel more."""
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    size = 4096 * 4096 * 2 / 8
    bandwidth = CLUSTER.device.memory_bandwidth_bytes_per_s

    def guess(first: P, second: P) -> Predicted:
        pins = (autopar.pin("x", first), autopar.pin("y", second))
        plan = autopar.plan(
            lambda x, y: x + y, x, x, cluster=CLUSTER, mesh={"x": 8}, constraints=pins
        )
        return guessed(plan.bound.planned.graph, plan.program(), CLUSTER)

    alone, turned = guess(P("x"), P("x")), guess(P("x"), P(None, "x"))
    assert (round(alone.kernels), alone.communicating_s) == (1, 0.0)
    assert alone.computing_s == pytest.approx(3 * size / bandwidth)
    assert round(turned.kernels) == 2
    assert turned.computing_s == pytest.approx((3 + 2) * size / bandwidth)
    eight = group(CLUSTER.topology, (8,), (0,))
    assert turned.communicating_s == pytest.approx(collective_time_s("all_to_all", size, eight))


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_programs, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"jax-cuda12-plugin==.*\.\[gpu-aot\]"):
        gpu_devices("8xh100-xla")


@pytest.mark.skipif(not any(map(find_spec, PLUGINS)), reason="needs the extra gpu-aot")
def test_a_plan_is_compiled_for_gpus_that_are_not_there() -> None:
    """A softmax and its mask are one Triton kernel between two products, as they are priced."""
    devices = gpu_devices("8xh100-xla")
    assert {device.process_index for device in devices} == {0}
    assert len({device.process_index for device in gpu_devices("8x8xh100-xla")}) == 8

    def step(x: Any, w: Any) -> Any:
        scores = x @ w
        return jax.nn.softmax(jnp.where(scores > 0, scores, -1e9), axis=-1) @ w

    x, w = (jax.ShapeDtypeStruct((rows, 2048), jnp.bfloat16) for rows in (65536, 2048))
    cluster = load_cluster("8xh100-xla")
    pins = (autopar.pin("x", P("data")), autopar.pin("output", P("data")))
    plan = autopar.plan(step, x, w, cluster=cluster, mesh={"data": 8}, constraints=pins)
    lowered: Any = plan.lower(devices)
    compiled = lowered.compile(compiler_options=COMPILER_OPTIONS)
    made = compiled_program(compiled.as_text(), cluster)
    guess = guessed(plan.bound.planned.graph, plan.program(), cluster)
    assert made.work == round(guess.kernels) == 3
    assert guess.computing_s == pytest.approx(made.computing_s, rel=0.1)
    assert peak_memory_bytes(compiled) >= 2 * prod((2048, 2048))
