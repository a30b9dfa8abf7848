"""Bad input: a clear error that says what, where, which value and what to do, and nothing left behind."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import Mesh

import autopar
from autopar.errors import (
    AutoparError,
    InvalidMesh,
    InvalidOption,
    NoFeasiblePlan,
    SignatureMismatch,
    TraceError,
    UnknownCluster,
    UnsupportedPrimitive,
    UnsupportedPrimitiveWarning,
)
from tests.api.same import SLOW, W, X, assert_same, check, layer

DEVICES = jax.devices()

MESHES: list[tuple[Any, str]] = [
    (
        {"a": 3},
        r"mesh a=3 has 3 devices, cluster 'cpu8' has 8\. Choose axis sizes whose product is 8",
    ),
    ({"a": 2, "b": 3}, r"mesh \(a=2, b=3\) has 6 devices"),
    ({"a": 16}, r"mesh a=16 has 16 devices"),
    ({"a": 0}, r"mesh axis 'a' has size 0; sizes are >= 1"),
    ({"a": 2, "b": -4}, r"mesh axis 'b' has size -4; sizes are >= 1"),
    ({"a": 8.0}, r"mesh axis 'a' has size 8\.0; sizes are whole numbers >= 1"),
    ({"a": 2.5, "b": 4}, r"mesh axis 'a' has size 2\.5"),
    ({"a": "8"}, r"mesh axis 'a' has size '8'"),
    ({"a": None}, r"mesh axis 'a' has size None"),
    ({"a": True, "b": 8}, r"mesh axis 'a' has size True"),
    ({}, r"a mesh needs at least one axis"),
    ({"": 8}, r"mesh axes must be named and distinct, got \[''\]"),
    ([2, 4], r"mesh is \[2, 4\]: pass axis sizes by name, such as \{'data': 2, 'model': 4\}"),
    (8, r"mesh is 8: pass axis sizes by name"),
    ("8", r"mesh is '8': pass axis sizes by name"),
    (
        Mesh(np.array(DEVICES[:4]), ("a",)),
        r"cluster 'cpu8' has 8 devices, but 4 are given\. Give as many, or name",
    ),
]

DEVICE_LISTS: list[tuple[Any, str]] = [
    (DEVICES[:3], r"cluster 'cpu8' has 8 devices, but 3 are given"),
    ([], r"devices must be at least one, each given once; given are \[\]"),
    ([DEVICES[0]] * 8, r"devices must be at least one, each given once"),
    ([0, 1], r"0 is given as a device; pass JAX devices, such as jax.devices\(\)\[:4\]"),
]

CLUSTERS: list[tuple[Any, str]] = [
    (
        "8xh10",
        r"unknown cluster '8xh10'; did you mean .*'8x8xh100'.*Known are .*cpu8.*\{sizes\}xh100",
    ),
    ("nothing", r"unknown cluster 'nothing'\. Known are .*8x8xa100"),
    ("16xh100", r"level 'device' has size 16; .* at most 8 .*say '2x8xh100'"),
    ("cpu0", r"level 'device' has size 0; it must be at least 1"),
    ("gone.toml", r"gone\.toml: cannot be read"),
    (Path("gone.toml"), r"gone\.toml: cannot be read"),
    (8, r"cluster is 8: pass a profile's name or path, an autopar.Cluster, or None"),
]

LIMITS: list[Any] = [-1, 0, 2.5, "1 gigabyte", "", True, float("nan"), float("inf")]

ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    (
        {"static_argnums": 5},
        "static_argnums names argument 5, but layer takes 2 positional arguments",
    ),
    ({"static_argnums": "x"}, "static_argnums is 'x': pass the positions of arguments"),
    ({"donate_argnums": -3}, "donate_argnums names argument -3, but layer takes 2"),
    ({"donate_argnums": (0.5,)}, r"donate_argnums is \(0.5,\): pass the positions"),
    (
        {"static_argnames": "y"},
        "static_argnames names argument 'y', which layer does not take by name",
    ),
    ({"donate_argnames": ("w", 3)}, r"donate_argnames is \('w', 3\): pass the names of arguments"),
    ({"donate_argnums": "w"}, "donate_argnums is 'w': pass the positions .* or 'carried'"),
    ({"donate_argnums": "carried"}, "no result of layer takes the place of an argument"),
    (
        {"donate_argnums": "carried", "donate_argnames": "w"},
        "donate_argnums is 'carried', and donate_argnames 'w': pass one of both",
    ),
    ({"static_argnames": "w", "donate_argnums": 0}, "argument 0 is both static and donated"),
    ({"static_argnums": 0, "donate_argnums": 0}, "argument 0 is both static and donated"),
    ({"carry": "yes"}, r"carry must be 'auto', None or pairs of \(result, argument\), not 'yes'"),
    ({"carry": 3}, r"carry must be 'auto', None or pairs of \(result, argument\), not 3"),
    ({"carry": [(0, 5)]}, "there is no traced argument at position 5"),
    (
        {"carry": [(0, 0)]},
        r"carry pairs result 0 with argument 0, but .* float32\[8\] .* float32\[16,24\]",
    ),
]


@pytest.mark.parametrize(("mesh", "message"), MESHES)
def test_a_mesh_that_is_none_or_does_not_fit(mesh: Any, message: str) -> None:
    with pytest.raises(InvalidMesh, match=message):
        autopar.plan(layer, W, X, cluster="cpu8", mesh=mesh)


@pytest.mark.parametrize(("devices", "message"), DEVICE_LISTS)
def test_devices_that_are_none_or_too_few(devices: Any, message: str) -> None:
    with pytest.raises(InvalidMesh, match=message):
        autopar.compile(layer, cluster="cpu8", devices=devices)(W, X)


@pytest.mark.parametrize(("cluster", "message"), CLUSTERS)
def test_an_unknown_cluster(cluster: Any, message: str) -> None:
    with pytest.raises(UnknownCluster, match=message):
        autopar.plan(layer, W, X, cluster=cluster)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_memory_limit_that_is_none(limit: Any) -> None:
    with pytest.raises(
        InvalidOption,
        match=f"memory_limit_bytes is {limit!r}: pass the bytes that one device may use",
    ):
        autopar.plan(layer, W, X, cluster=SLOW, memory_limit_bytes=limit)


@pytest.mark.parametrize("mode", ["fast", "", None, 3])
def test_an_unknown_mode(mode: Any) -> None:
    with pytest.raises(
        InvalidOption, match=f"unknown mode {mode!r}; the modes are auto, data_parallel"
    ):
        autopar.plan(layer, W, X, cluster=SLOW, mode=mode)


@pytest.mark.parametrize(("options", "message"), ARGUMENTS)
def test_options_about_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        autopar.plan(layer, W, X, cluster=SLOW, **options)
    with pytest.raises(AutoparError):
        autopar.compile(layer, cluster=SLOW, **options)(W, X)


def test_a_static_argument_that_cannot_be_hashed() -> None:
    compiled = autopar.compile(lambda x, names: x * len(names), cluster=SLOW, static_argnums=1)
    with pytest.raises(
        SignatureMismatch, match=r"static argument 1 is a list, which is not hashable: .* tuple"
    ):
        compiled(X, ["a"])
    assert_same(compiled(X, ("a",)), jnp.asarray(X))


def branches(x: Any) -> Any:
    return x if x.sum() > 0 else -x


def stateful(x: Any) -> Any:
    ref = jax.new_ref(x)
    ref[...] = x * 2
    return ref[...]


def gives_text(x: Any) -> Any:
    return "text"


def raises(x: Any) -> Any:
    raise KeyError("of the user")


def mismatched(x: Any) -> Any:
    return x @ x


UNTRACEABLE: list[tuple[Any, Any, str]] = [
    (branches, (X,), r"JAX cannot trace branches: TracerBoolConversionError: .* at test_bad_input.py:\d+ \(branches\)"),
    (mismatched, (X,), r"JAX cannot trace mismatched: TypeError: dot_general .* at test_bad_input.py:\d+ \(mis"),
    (raises, (X,), r"JAX cannot trace raises: KeyError: 'of the user', at test_bad_input.py:\d+ \(raises\)\. Mend"),
    (gives_text, (X,), r"gives_text at .*test_bad_input.py:\d+ .*returned a value of type <class 'str'>"),
    (stateful, (X,), r"'\w+' at test_bad_input.py:\d+ \(stateful\) has a side effect"),
    (layer, (W,), r"JAX cannot trace layer: TypeError: layer\(\) missing 1 required positional argument: 'x'"),
    (layer, (W, 2**40), r"argument x: .*too large to convert to int32. Pass an array of a type that holds it."),
    (layer, (W, "text"), r"argument x is a str, not an array or a number"),
    (layer, ({"a": [W, object()]}, X), r"argument w\['a'\]\[1\] is a object, not an array or a number"),
    (3, (X,), r"3 is a int and cannot be called: pass a function"),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "args", "message"), UNTRACEABLE)
def test_a_function_that_cannot_be_traced(fn: Any, args: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        autopar.plan(fn, *args, cluster=SLOW)
    with pytest.raises(TraceError, match=message):
        autopar.compile(fn, cluster=SLOW)(*args)


# Operators without a rule ---------------------------------------------------------------------------------------------

SQUARE = np.linspace(0.1, 1, 256, dtype=np.float32).reshape(16, 16)


random_sine_p = Primitive("random_sine")  # by its name, nothing to be tried
random_sine_p.def_abstract_eval(lambda aval: aval)
mlir.register_lowering(random_sine_p, mlir.lower_fun(jnp.sin, multiple_results=False))


def random_sine(a: Any) -> Any:
    return random_sine_p.bind(a @ a.T / 16) * 2


def twice(a: Any) -> Any:
    both = jnp.stack([random_sine(a)[:1, :1], random_sine(a + 1)[1:2, 1:2]])
    return random_sine_p.bind(both)


@pytest.mark.parametrize("fn", [random_sine])
def test_an_operator_without_a_rule_is_replicated_with_a_warning(fn: Any) -> None:
    compiled = autopar.compile(fn, cluster=SLOW)
    place = rf"no sharding rule for '{fn.__name__}' \(test_bad_input.py:\d+ \({fn.__name__}\)\)"
    message = rf"{place}: it is replicated, every device computes it whole, priced at [\d.e-]+ s a step\. .*strict=True"
    with pytest.warns(UnsupportedPrimitiveWarning, match=message) as caught:
        found = compiled(SQUARE)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert_same(found, jax.jit(fn)(SQUARE))
    check(compiled, fn, SQUARE)
    with pytest.raises(
        UnsupportedPrimitive,
        match=f"{place}. Register one with autopar.register_rule, or pass strict",
    ):
        autopar.plan(fn, SQUARE, cluster=SLOW, strict=True)


def test_the_warning_names_the_price_of_all_of_them() -> None:
    with pytest.warns(UnsupportedPrimitiveWarning) as caught:
        plan = autopar.plan(twice, SQUARE, cluster=SLOW)
    lines = [str(warning.message) for warning in caught]
    assert len(lines) == 2
    repeated = next(line for line in lines if "(random_sine)" in line)
    assert "every device computes it whole 2 times" in repeated
    rows = [row for row in plan.summary.operators if row.kind == "random_sine"]
    assert all(row.split == 1 for row in rows)
    price = sum(row.time_s for row in rows if "(random_sine)" in row.source)
    assert f"priced at {price:.3g} s a step" in repeated


def test_known_operators_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        autopar.plan(layer, W, X, cluster=SLOW, strict=True)


# Nothing is left behind -----------------------------------------------------------------------------------------------


def test_a_failed_call_does_not_poison_the_next() -> None:
    failing = [True]

    def fn(w: Any, x: Any) -> Any:
        if failing[0]:
            raise RuntimeError("not yet")
        return layer(w, x)

    compiled = autopar.compile(fn, cluster=SLOW)
    for _ in range(2):
        with pytest.raises(TraceError, match="RuntimeError: not yet"):
            compiled(W, X)
    failing[0] = False
    check(compiled, layer, W, X)
    with pytest.raises(TraceError):
        compiled(W, "text")
    check(compiled, layer, W, X)


def test_a_limit_that_only_some_arguments_exceed() -> None:
    compiled = autopar.compile(layer, cluster=SLOW, mesh={"a": 8}, memory_limit_bytes=2000)
    for _ in range(2):
        with pytest.raises(NoFeasiblePlan):
            compiled(W, np.ones((800, 16), np.float32))
        check(compiled, layer, W, X)
