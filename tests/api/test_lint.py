"""Lint: what is planted in a program sharded by hand is found, at its line and with its price; else nothing is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import autopar
from autopar.errors import InvalidMesh, InvalidOption, SignatureMismatch, TraceError
from autopar.inspect.lines import located_collectives

HERE = Path(__file__)


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "model"))


def placed(*spec: Any) -> NamedSharding:
    return NamedSharding(mesh(), P(*spec))


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


PARAMS = {"up": struct(512, 2048), "down": struct(2048, 512)}
BATCH = (struct(256, 512), struct(256, 512))


def step_with(held: Callable[[Any], Any]) -> Callable[..., Any]:
    """A step of gradient descent of two layers, whose hidden values are `held` somewhere."""

    def step(params: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            h = held(jax.nn.relu(x @ p["up"]))
            return jnp.mean((h @ p["down"] - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value

    return step


def gathered(h: Any) -> Any:
    return jax.lax.with_sharding_constraint(h, placed("data", None))  # the planted line


def jitted(held: Callable[[Any], Any]) -> Any:
    params = {"up": placed(None, "model"), "down": placed("model", None)}
    data = placed("data")
    return jax.jit(
        step_with(held), in_shardings=(params, data, data), out_shardings=(params, placed())
    )


def test_a_constraint_that_forces_a_gather_is_found_at_its_line() -> None:
    found = autopar.lint(jitted(gathered), PARAMS, *BATCH, cluster="cpu8")
    lines = HERE.read_text(encoding="utf-8").splitlines()
    planted = next(n for n, line in enumerate(lines, 1) if line.endswith("# the planted line"))
    here = [one for one in found.findings if one.line == planted]
    assert [one.kind for one in here] == ["redistribution"]
    (finding,) = here
    assert Path(finding.file).name == HERE.name
    assert "the constraint at test_lint.py" in finding.message
    assert "[data, -]" in finding.message
    assert finding.size_bytes == 128 * 2048 * 4
    assert finding.time_s > finding.plan_time_s
    assert not found.is_clean


def test_what_all_collectives_cost_beyond_the_plan_is_one_finding() -> None:
    """Also where each of them is too small to be one."""
    step = jitted(gathered)
    found = autopar.lint(step, PARAMS, *BATCH, cluster="cpu8", least_share=1.0)
    (finding,) = [one for one in found.findings if not one.line and one.kind == "communication"]
    assert finding.time_s == found.communication_time_s
    assert finding.plan_time_s == found.plan_communication_time_s
    assert finding.time_s - finding.plan_time_s > 0.1 * found.plan_step_time_s


def test_without_it_it_is_gone() -> None:
    found = autopar.lint(jitted(lambda h: h), PARAMS, *BATCH, cluster="cpu8")
    assert not [one for one in found.findings if "constraint" in one.message]


def test_prices_are_those_of_the_cluster() -> None:
    found = autopar.lint(jitted(gathered), PARAMS, *BATCH, cluster="cpu8")
    again = autopar.lint(jitted(gathered), PARAMS, *BATCH, cluster="8xh100")
    assert found.communication_time_s > 10 * again.communication_time_s
    assert again.cluster == "8xh100"


def test_what_lies_as_in_a_plan_is_clean() -> None:
    """A product split along its rows needs nothing of others."""

    def project(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w)

    rows = placed(("data", "model"))
    own = jax.jit(project, in_shardings=(rows, placed()), out_shardings=rows)
    found = autopar.lint(own, struct(4096, 256), struct(256, 256), cluster="cpu8")
    assert found.is_clean
    assert found.collectives == 0
    assert "Nothing found" in str(found)
    assert found.annotations() == ""


def test_a_state_that_is_whole_on_every_device_is_found() -> None:
    def step(state: Any, x: Any, y: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.mean((x @ w - y) ** 2)

        grads = jax.grad(loss)(state["w"])
        m = 0.9 * state["m"] + grads
        v = 0.99 * state["v"] + grads**2
        return {"w": state["w"] - 0.1 * m / (jnp.sqrt(v) + 1e-8), "m": m, "v": v}

    w = struct(2048, 2048)
    data = placed(("data", "model"))
    own = jax.jit(step, in_shardings=(placed(), data, data), out_shardings=placed())
    state = {"w": w, "m": w, "v": w}
    found = autopar.lint(own, state, struct(512, 2048), struct(512, 2048), cluster="cpu8")
    held = {one.message.split(" ")[0]: one for one in found.findings if one.kind == "replicated"}
    assert {"state['m']", "state['v']"} <= set(held)
    assert held["state['m']"].size_bytes == 2048 * 2048 * 4
    assert held["state['m']"].plan_size_bytes <= 2048 * 2048 * 4 // 2
    few = autopar.lint(
        own, state, struct(512, 2048), struct(512, 2048), cluster="cpu8", least_bytes=2**30
    )
    assert not [one for one in few.findings if one.kind == "replicated"]


def test_a_plain_function_takes_shardings_as_options() -> None:
    data = placed("data")
    params = {"up": placed(None, "model"), "down": placed("model", None)}
    found = autopar.lint(
        step_with(gathered),
        PARAMS,
        *BATCH,
        cluster="cpu8",
        in_shardings=(params, data, data),
        out_shardings=(params, placed()),
    )
    assert any("constraint" in one.message for one in found.findings)


def test_arguments_may_say_how_they_lie() -> None:
    def lying(tensor: Any, sharding: Any) -> Any:
        return jax.ShapeDtypeStruct(tensor.shape, tensor.dtype, sharding=sharding)

    params = {
        "up": lying(PARAMS["up"], placed(None, "model")),
        "down": lying(PARAMS["down"], placed("model", None)),
    }
    batch = [lying(one, placed("data")) for one in BATCH]
    found = autopar.lint(step_with(gathered), params, *batch, cluster="cpu8")
    assert any("constraint" in one.message for one in found.findings)
    assert found.mesh == (("data", 2), ("model", 4))


def test_a_users_own_shard_map_is_no_finding() -> None:
    """What its author sends in there the plan sends too."""

    def body(x: Any, w: Any) -> Any:
        return jax.lax.psum(x @ jax.lax.all_gather(w, "model", axis=1, tiled=True), "data")

    specs = (P(None, "data"), P("data", "model"))
    mapped = jax.shard_map(body, mesh=mesh(), in_specs=specs, out_specs=P(), check_vma=False)
    own = jax.jit(mapped, in_shardings=tuple(NamedSharding(mesh(), s) for s in specs))
    found = autopar.lint(own, struct(256, 512), struct(512, 1024), cluster="cpu8")
    assert found.collectives >= 2
    assert not [one for one in found.findings if one.kind == "redistribution"]


def test_a_shard_map_is_compared_with_the_plan_of_the_same_function_without() -> None:
    def body(x: Any, w: Any) -> Any:
        return x @ jax.lax.all_gather(w, ("data", "model"), axis=1, tiled=True)

    rows = P(("data", "model"))
    specs = rows, P(None, ("data", "model"))
    mapped = jax.shard_map(body, mesh=mesh(), in_specs=specs, out_specs=rows)
    shapes = struct(4096, 64), struct(64, 512)
    alike = autopar.lint(jax.jit(mapped), *shapes, cluster="cpu8")
    assert not [one for one in alike.findings if one.kind == "redistribution"]
    found = autopar.lint(jax.jit(mapped), *shapes, plain=jnp.matmul, cluster="cpu8")
    (one,) = [one for one in found.findings if one.kind == "redistribution"]
    assert (one.plan_size_bytes, one.size_bytes) == (0, 64 * 512 * 4)
    assert "it is written so by hand" in one.message
    with pytest.raises(
        SignatureMismatch, match=r"plain gives float32\[64, 512\].*float32\[4096, 5"
    ):
        autopar.lint(jax.jit(mapped), *shapes, plain=lambda _, w: w, cluster="cpu8")


def test_loops_count_as_often_as_they_go_round() -> None:
    def stack(x: Any, w: Any) -> Any:
        def layer(h: Any, w: Any) -> Any:
            held = jax.lax.with_sharding_constraint(jnp.tanh(h @ w), placed("data", None))
            return held, None

        return jax.lax.scan(layer, x, w)[0]

    own = jax.jit(stack, in_shardings=(placed("data"), placed(None, None, "model")))
    found = autopar.lint(own, struct(512, 1024), struct(6, 1024, 1024), cluster="cpu8")
    (one,) = [one for one in found.findings if "constraint" in one.message]
    assert "6 times" in one.message
    assert one.size_bytes == 6 * 256 * 1024 * 4


def test_outputs_for_machines() -> None:
    found = autopar.lint(jitted(gathered), PARAMS, *BATCH, cluster="cpu8")
    data = json.loads(found.to_json())
    assert data["findings"][0]["time_s"] == found.findings[0].time_s
    assert data["mesh"] == [["data", 2], ["model", 4]]
    lines = found.annotations().splitlines()
    assert len(lines) == len(found.findings)
    assert all(line.startswith("::warning ") for line in lines)
    named = next(line for line in lines if "constraint" in line)
    assert "file=" in named
    assert "test_lint.py,line=" in named


def test_what_is_not_sharded_is_refused() -> None:
    with pytest.raises(InvalidOption, match="nothing is sharded"):
        autopar.lint(jax.jit(step_with(lambda h: h)), PARAMS, *BATCH, cluster="cpu8")


def test_another_mesh_than_the_functions_own_is_refused() -> None:
    with pytest.raises(InvalidMesh, match=r"own shardings are for \(data=2, model=4\)"):
        autopar.lint(jitted(gathered), PARAMS, *BATCH, cluster="cpu8", mesh={"x": 8})


def test_what_jax_refuses_is_told_in_a_line() -> None:
    own = jax.jit(lambda x: x * 2, in_shardings=placed(("data", "model")))
    with pytest.raises(TraceError, match=r"cannot lower .* IndivisibleError"):
        autopar.lint(own, struct(13, 4), cluster="cpu8")


def test_frames_of_libraries_are_passed_over() -> None:
    text = """HloModule m, num_partitions=2
ENTRY %main (p: f32[4]) -> f32[8] {
  %p = f32[4]{0} parameter(0)
  ROOT %g = f32[8]{0} all-gather(%p), replica_groups={{0,1}}, dimensions={0}, metadata={op_name="a/b" stack_frame_id=2}
}

FileNames
1 "/home/me/model.py"
2 "/venv/lib/python3.11/site-packages/flax/linen.py"

FunctionNames
1 "Model.<locals>.loss"
2 "dense"

FileLocations
1 {file_name_id=1 function_name_id=1 line=41 end_line=41 column=1 end_column=2}
2 {file_name_id=2 function_name_id=2 line=7 end_line=7 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}
"""
    (one,) = located_collectives(text)
    assert (str(one.line), one.line.file, one.operation) == (
        "model.py:41 (loss)",
        "/home/me/model.py",
        "a/b",
    )


def test_what_cpus_widen_counts_as_it_is_sent_elsewhere() -> None:
    """XLA for CPUs sends bfloat16 as float32."""

    def halved(tree: Any) -> Any:
        return jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, jnp.bfloat16), tree)

    wide = autopar.lint(jitted(gathered), PARAMS, *BATCH, cluster="8xh100", least_share=0.0)
    narrow = autopar.lint(
        jitted(gathered), halved(PARAMS), *halved(BATCH), cluster="8xh100", least_share=0.0
    )
    sizes = [
        next(one.size_bytes for one in found.findings if "constraint" in one.message)
        for found in (wide, narrow)
    ]
    assert sizes == [128 * 2048 * 4, 128 * 2048 * 2]
