"""Plans as modules: where autopar is not, they give plain JAX's values, by the plan's collectives."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import autopar
from autopar.errors import SourceError
from autopar.inspect.hlo import UNMERGED_PASSES, HloCollective, collectives_in, compile_unmerged
from tests import small_models
from tests.quick_compile import QUICK

ALONE = Path(__file__).with_name("alone.py")
OPTIONS = {"xla_disable_hlo_passes": UNMERGED_PASSES, **QUICK}
TABLE = np.linspace(-1, 1, 16 * 32, dtype=np.float32).reshape(16, 32)


@dataclass(frozen=True)
class Exported:
    """A function, its arguments, and how it is planned."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]


def stacked(params: Any, x: Any) -> Any:
    """Gradients of layers in a scan, each recomputed, with a table that is a constant."""

    def loss(params: Any) -> Any:
        def layer(h: Any, w: Any) -> Any:
            return jnp.tanh(h @ w) + h, h.sum()

        h, sums = lax.scan(jax.checkpoint(layer), x + TABLE, params)
        return (h**2).mean() + sums.sum()

    return jax.value_and_grad(loss)(params)


def uneven(w: Any, x: Any) -> Any:
    """A step on dims that nothing divides."""

    def loss(w: Any) -> Any:
        return -jax.nn.log_softmax(jnp.tanh(x @ w["in"]) @ w["out"])[:, 0].mean()

    return jax.tree.map(lambda p, g: p - 0.1 * g, w, jax.grad(loss)(w))


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def exported() -> dict[str, Exported]:
    mesh = {"x": 2, "y": 4}
    data = {"mode": "data_parallel"}
    step, args = small_models.mlp()
    state, gpt_args = small_models.gpt(layers=1)
    cnn, cnn_args = small_models.cnn()
    weights = {"in": draw(61, 63), "out": draw(63, 61)}
    return {
        "mlp": Exported(step, args, {"mesh": mesh, "donate_argnums": 0}),
        "data_parallel": Exported(step, args, {"mesh": {"x": 8}, **data}),
        "gpt": Exported(state, gpt_args, {"mesh": mesh}),
        "cnn": Exported(cnn, cnn_args, {"mesh": mesh}),
        "stacked": Exported(stacked, (draw(3, 32, 32), draw(16, 32)), {"mesh": mesh, **data}),
        "uneven": Exported(uneven, (weights, draw(125, 61)), {"mesh": mesh}),
    }


SLOW = ("cnn", "data_parallel", "gpt")
NAMES = [name for name in exported() if name not in SLOW]
EACH = [*NAMES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
_MADE: dict[bool, Path] = {}


@pytest.fixture
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plans' modules, what they were given and gave in a process without autopar, and their compiled programs."""
    is_slow = name in SLOW
    if is_slow not in _MADE:
        _MADE[is_slow] = made(tmp_path_factory.mktemp("modules"), SLOW if is_slow else NAMES)
    return _MADE[is_slow]


def made(folder: Path, names: Sequence[str]) -> Path:
    """`folder`, with these."""
    for name in names:
        one = exported()[name]
        plan = plan_of(name)
        plan.to_source(folder / f"{name}.py")
        inputs = [*jax.tree.leaves(one.args), *plan.bound.traced.constants]
        np.savez(folder / f"{name}_in.npz", *map(np.asarray, inputs))
    command = [sys.executable, str(ALONE), json.dumps(OPTIONS), str(folder), *names]
    subprocess.run(command, check=True, timeout=300)
    return folder


_PLANS: dict[str, autopar.Plan] = {}


def plan_of(name: str) -> autopar.Plan:
    if name not in _PLANS:
        one = exported()[name]
        _PLANS[name] = autopar.plan(one.function, *one.args, cluster="cpu8", **one.options)
    return _PLANS[name]


def counted(found: tuple[HloCollective, ...]) -> Counter[Any]:
    return Counter((one.kind, one.operand_bytes, one.groups, one.times) for one in found)


@pytest.mark.parametrize("name", EACH)
def test_without_autopar_the_values_are_those_of_plain_jax(name: str, folder: Path) -> None:
    one = exported()[name]
    given = np.load(folder / f"{name}_out.npz")
    wanted = jax.tree.leaves(jax.jit(one.function)(*one.args))
    assert len(given.files) == len(wanted)
    for n, leaf in enumerate(wanted):
        np.testing.assert_allclose(given[f"arr_{n}"], leaf, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", EACH)
def test_the_collectives_are_those_of_the_plan(name: str, folder: Path) -> None:
    plans = compile_unmerged(plan_of(name).lower(), QUICK).as_text() or ""
    alone = (folder / f"{name}.hlo").read_text(encoding="utf-8")
    wanted = counted(collectives_in(plans))
    assert wanted
    assert counted(collectives_in(alone)) == wanted


@pytest.mark.parametrize("name", EACH)
def test_the_text_is_formatted_and_has_no_fault(name: str, folder: Path) -> None:
    for check in (["format", "--check", "--line-length", "88"], ["check", "--select", "E4,E7,F,I"]):
        ruff = [sys.executable, "-m", "ruff", *check, "--isolated", str(folder / f"{name}.py")]
        done = subprocess.run(ruff, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", EACH)
def test_only_jax_and_numpy_are_imported(name: str, folder: Path) -> None:
    tree = ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    roots = {found.partition(".")[0] for found in names}
    assert roots <= {"jax", "numpy", "functools", "pathlib", "math"}


@pytest.mark.parametrize("name", EACH)
def test_every_collective_has_its_reason(name: str, folder: Path) -> None:
    text = (folder / f"{name}.py").read_text(encoding="utf-8")
    for move in plan_of(name).program().collectives:
        assert f"# {move.kind} of " in text
        assert move.reason in text


def test_the_function_is_called_as_it_was() -> None:
    one = exported()["mlp"]
    scope: dict[str, Any] = {}
    exec(plan_of("mlp").to_source(), scope)
    state, loss = scope["step"](*one.args)
    wanted = jax.jit(one.function)(*one.args)
    assert jax.tree.structure((state, loss)) == jax.tree.structure(wanted)
    for found, leaf in zip(jax.tree.leaves((state, loss)), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(found, leaf, rtol=2e-4, atol=2e-5)


def test_keys_statics_keywords_and_own_containers() -> None:
    import optax  # what it carries is of its own classes

    def noisy(state: Any, rate: float, key: Any, *, x: Any) -> Any:
        params, moments = state
        grads = jax.grad(lambda w: ((x @ w) ** 2).mean())(
            params + rate * jax.random.normal(key, ())
        )
        updates, moments = optax.adam(0.1).update(grads, moments, params)
        return {"state": (params + updates, moments), "key": jax.random.split(key)[0], "none": None}

    w = draw(16, 8)
    key = jax.random.key(3)
    args = ((w, optax.adam(0.1).init(w)), 0.5, key)
    plan = autopar.plan(
        noisy, *args, x=draw(8, 16), mesh={"x": 8}, cluster="cpu8", static_argnums=1
    )
    scope: dict[str, Any] = {}
    exec(plan.to_source(), scope)
    found = scope["noisy"](args[0], key, x=draw(8, 16))
    wanted = noisy(*args, x=draw(8, 16))
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    data = [jax.random.key_data(one["key"]) for one in (found, wanted)]
    np.testing.assert_array_equal(*data)
    np.testing.assert_allclose(found["state"][0], wanted["state"][0], rtol=1e-4, atol=1e-5)


def test_a_plan_needs_no_devices() -> None:
    shape = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    text = autopar.plan(lambda x, w: x @ w, shape, shape, cluster="8x8xh100").to_source()
    ast.parse(text)
    assert "64 devices" in text


def test_large_constants_need_a_file() -> None:
    with pytest.raises(SourceError, match="pass a path"):
        plan_of("stacked").to_source()


def test_a_result_of_an_unknown_class_is_named() -> None:
    import optax

    def made(x: Any) -> Any:
        return optax.adam(0.1).init(x * 2)

    plan = autopar.plan(made, draw(8, 8), mesh={"x": 8}, cluster="cpu8")
    with pytest.raises(SourceError, match="ScaleByAdamState"):
        plan.to_source()


def test_what_is_recomputed_reads_what_varies_alike_through_one_barrier() -> None:
    """Behind a barrier all would vary over the axes of all, and JAX 0.10 marks nothing twice."""

    def loss(w: Any, b: Any, x: Any) -> Any:
        return jax.checkpoint(lambda w, b, x: jnp.tanh(x @ w + b))(w, b, x).sum()

    args = draw(16, 16), draw(16), draw(32, 16)
    plan = autopar.plan(
        jax.grad(loss, (0, 1)), *args, mesh={"x": 8}, cluster="cpu8", mode="data_parallel"
    )
    text = plan.to_source()
    assert text.count("lax.optimization_barrier") > 1
    scope: dict[str, Any] = {}
    exec(text, scope)
    for found, wanted in zip(scope["loss"](*args), jax.grad(loss, (0, 1))(*args), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_samples_of_gamma_are_written() -> None:
    def sampled(x: Any) -> Any:
        return x + jax.random.gamma(jax.random.key(0), 2.0, x.shape)

    scope: dict[str, Any] = {}
    x = draw(16, 8)
    exec(autopar.plan(sampled, x, mesh={"x": 8}, cluster="cpu8").to_source(), scope)
    np.testing.assert_allclose(scope["sampled"](x), sampled(x), rtol=1e-5)


def test_a_module_is_written_whatever_mesh_is_set() -> None:
    plan = autopar.plan(jnp.sin, draw(16, 8), mesh={"x": 8}, cluster="cpu8")
    explicit = jax.make_mesh((8,), ("q",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(explicit):
        assert plan.to_source() == plan.to_source()


def test_a_module_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    plan = autopar.plan(jnp.sin, draw(16, 8), mesh={"x": 8}, cluster="cpu8")
    with pytest.raises(autopar.AutoparError, match=r"the module cannot be written to .*gone"):
        plan.to_source(tmp_path / "gone" / "step.py")
