"""One placement for the life of a state: plans that follow others, or take arrays where they lie."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import autopar
from autopar.core.placement import Placement
from autopar.errors import InvalidConstraint, InvalidMesh, InvalidOption, MovedWarning
from tests.api.same import SLOW, assert_same

PARAMS = {"down": np.ones((128, 64), np.float32) / 128, "up": np.ones((64, 128), np.float32) / 64}
STATE = {"m": PARAMS, "params": PARAMS, "count": np.int32(0)}
X = np.linspace(-1, 1, 32 * 64, dtype=np.float32).reshape(32, 64)
MESH = {"a": 2, "b": 4}
# The state of training lies so that following it costs something.
TRAINED = (
    autopar.pin("state['params']['up']", P("a", "b")),
    autopar.pin("state['params']['down']", P("b", "a")),
    autopar.replicate("state['m']"),
)


def forward(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["up"]) @ params["down"]


def train(state: Any, x: Any) -> Any:
    gradient = jax.grad(lambda p: (forward(p, x) ** 2).mean())(state["params"])
    m = jax.tree.map(lambda m, g: 0.9 * m + g, state["m"], gradient)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], m)
    return {"m": m, "params": params, "count": state["count"] + 1}


def trained(**options: Any) -> autopar.Plan:
    return autopar.plan(train, STATE, X, cluster=SLOW, mesh=MESH, constraints=TRAINED, **options)


def evaluate(params: Any, x: Any) -> Any:
    return (forward(params, x) ** 2).mean()


def test_arguments_of_the_state_lie_as_there(tmp_path: Path) -> None:
    leader = trained()
    leader.save(tmp_path / "plan.json")
    loaded = autopar.Plan.load(tmp_path / "plan.json")
    for follow in (leader, loaded):
        plan = autopar.plan(evaluate, PARAMS, X[:16], follow=follow)
        assert plan.mesh == leader.mesh
        assert plan.summary.cluster == leader.summary.cluster
        for name in ("up", "down"):
            assert (
                plan.placements[f"params['{name}']"]
                == leader.placements[f"state['params']['{name}']"]
            )
        assert str(plan.constraints[0]) == "follow(train): 2 arrays"


def test_the_report_says_what_following_costs() -> None:
    apart = P(("a", "b"), None), P(None, ("a", "b"))
    pins = (
        autopar.pin("state['params']['up']", apart[0]),
        autopar.pin("state['params']['down']", apart[1]),
    )
    leader = autopar.plan(train, STATE, X, cluster=SLOW, mesh=MESH, constraints=pins)
    free = autopar.plan(evaluate, PARAMS, X, cluster=SLOW, mesh=MESH)
    plan = autopar.plan(evaluate, PARAMS, X, follow=leader)
    (price,) = plan.follow_prices()
    assert plan.objective_s > free.objective_s
    assert price.at_least_s == price.at_most_s == pytest.approx(plan.objective_s - free.objective_s)
    assert "follow(train): 2 arrays" in plan.report().partition("What the constraints cost")[2]
    assert plan.constraint_prices() == (price,)
    assert free.follow_prices() == ()
    assert "cost" not in free.report().partition("Collectives")[2]


def test_a_compiled_function_follows_another_without_moving_anything() -> None:
    step = autopar.compile(train, cluster=SLOW, mesh=MESH, constraints=TRAINED, donate_argnums=0)
    loss = autopar.compile(evaluate, follow=step)
    with pytest.raises(InvalidOption, match="follow=train was not planned yet: call it first"):
        loss(PARAMS, X)
    state = step(jax.tree.map(np.copy, STATE), X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = loss(state["params"], X)
    assert_same(found, jax.jit(evaluate)(jax.tree.map(np.asarray, state["params"]), X))
    ours = loss.plan(state["params"], X)
    assert ours.in_shardings()[0] == step.plan(STATE, X).in_shardings()[0]["params"]


def test_devices_are_followed_too() -> None:
    devices = jax.devices()[4:]
    step = autopar.compile(train, devices=devices, mode="data_parallel", donate_argnums=0)
    state = step(jax.tree.map(np.copy, STATE), X)
    follower = autopar.compile(evaluate, follow=step)
    for call in (follower, jax.jit(follower), jax.jit(jax.grad(follower))):
        found = call(state["params"], X)
        assert all(leaf.sharding.device_set == set(devices) for leaf in jax.tree.leaves(found))
    assert [
        str(c)
        for c in autopar.front(evaluate, PARAMS, X, points=2, follow=step).fastest.constraints
    ] == ["follow(train): 2 arrays"]


def renamed(weights: Any, x: Any) -> Any:
    return forward(weights, x)


def bare(up: Any, x: Any) -> Any:
    return x @ up


def whole(state: Any, batch: Any) -> Any:
    return forward(state["params"], batch)


@pytest.mark.parametrize(
    ("fn", "args", "wanted"),
    [
        (whole, (STATE, X), {"state['params']['up']": "params", "state['m']['up']": "m"}),
        (
            whole,
            ({**STATE, "new": X}, X),
            {"state['params']['up']": "params", "state['m']['up']": "m"},
        ),
        (lambda m, x: forward(m, x), (PARAMS, X), {"m['up']": "m"}),
    ],
)
def test_what_is_of_the_state(fn: Any, args: Any, wanted: dict[str, str]) -> None:
    leader = trained()
    plan = autopar.plan(fn, *args, follow=leader)
    for name, part in wanted.items():
        assert plan.placements[name] == leader.placements[f"state['{part}']['up']"]


def test_the_shorter_path_is_taken_and_data_is_not() -> None:
    def start(params: Any, teacher: Any, x: Any) -> Any:
        return jax.tree.map(lambda p, t: p + t + x.sum(), params, teacher["params"])

    pins = (
        autopar.pin("params", P("a")),
        autopar.pin("teacher", P(None, "b")),
        autopar.pin("x", P("b")),
    )
    leader = autopar.plan(
        start, PARAMS, {"params": PARAMS}, X, cluster=SLOW, mesh=MESH, constraints=pins
    )
    plan = autopar.plan(lambda params, x: forward(params, x), PARAMS, X, follow=leader)
    assert plan.placements["params['up']"] == Placement((("a",), ()))
    (follow,) = plan.constraints
    assert [str(pin.target) for pin in follow.pins] == ["\"params['down']\"", "\"params['up']\""]  # type: ignore[union-attr]


def test_an_argument_that_may_be_several_parts_is_refused() -> None:
    with pytest.raises(
        InvalidOption,
        match=r"argument 'weights' may be state\.m or state\.params, which lie differ",
    ):
        autopar.plan(renamed, PARAMS, X, follow=trained())
    with pytest.raises(
        InvalidOption, match=r"argument 'up' may be state\.m\.up or state\.params\.up"
    ):
        autopar.plan(bare, PARAMS["up"], X, follow=trained())
    alike = autopar.plan(
        train,
        STATE,
        X,
        cluster=SLOW,
        mesh=MESH,
        constraints=(autopar.pin("state*']['up']", P("b")),),
    )
    plan = autopar.plan(
        renamed,
        {"up": PARAMS["up"], "down": PARAMS["down"]},
        X,
        follow=autopar.plan(
            train, STATE, X, cluster=SLOW, mesh=MESH, constraints=(autopar.replicate("state"),)
        ),
    )
    assert plan.placements["weights['up']"] == Placement(((), ()))
    assert alike.placements["state['m']['up']"] == Placement((("b",), ()))


def test_what_cannot_be_followed_is_refused() -> None:
    leader = trained()
    with pytest.raises(
        InvalidOption, match=r"none of y, x has the path and shape of a part of its state, state"
    ):
        autopar.plan(lambda y, x: x + y, X, X, follow=leader)
    with pytest.raises(InvalidMesh, match=r"is on mesh \(a=2, b=4\), and mesh q=8 is asked for"):
        autopar.plan(evaluate, PARAMS, X, follow=leader, mesh={"q": 8})
    with pytest.raises(
        InvalidOption, match="follow is 'train': pass a plan, or a function compiled"
    ):
        autopar.plan(evaluate, PARAMS, X, follow="train")
    pinned = (autopar.pin("params['up']", P("b", "a")),)
    with pytest.raises(
        InvalidConstraint, match=r"follow\(train\): 2 arrays: pin.* contradicts pin"
    ):
        autopar.plan(evaluate, PARAMS, X, follow=leader, constraints=pinned)


# Arrays that come in sharded ------------------------------------------------------------------------------------------


def on(mesh: Mesh, value: Any, *spec: Any) -> Any:
    return jax.device_put(value, NamedSharding(mesh, P(*spec)))


def mesh_of(**axes: int) -> Mesh:
    return jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=(jax.sharding.AxisType.Auto,) * len(axes)
    )


def test_that_arrays_are_moved_is_said_once_with_bytes() -> None:
    mesh = mesh_of(a=2, b=4)
    compiled = autopar.compile(
        evaluate, cluster=SLOW, mesh=MESH, constraints=(autopar.pin("params['up']", P("b")),)
    )
    params = {"up": on(mesh, PARAMS["up"], None, "b"), "down": PARAMS["down"]}
    wanted = jax.jit(evaluate)(PARAMS, X)
    with pytest.warns(
        MovedWarning,
        match=r"evaluate: an array of 32 KiB .*\(params\['up'\] from P\(None, 'b'",
    ) as told:
        assert_same(compiled(params, X), wanted)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(compiled(params, X), wanted)


@pytest.mark.parametrize(
    "put",
    [
        np.asarray,
        jnp.asarray,
        lambda x: jax.device_put(x, SingleDeviceSharding(jax.devices()[2])),
        lambda x: on(mesh_of(q=8), x),
        lambda x: on(mesh_of(q=2, r=4), x, "r"),
    ],
)
def test_what_is_whole_or_lies_alike_is_nothing_to_tell(put: Any) -> None:
    compiled = autopar.compile(
        evaluate, cluster=SLOW, mesh=MESH, constraints=(autopar.pin("params['up']", P("b")),)
    )
    params = {"up": put(PARAMS["up"]), "down": PARAMS["down"]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(compiled(params, X), jax.jit(evaluate)(PARAMS, X))


def test_arrays_that_are_kept_are_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = mesh_of(data=2, model=4)
    compiled = autopar.compile(evaluate, cluster=SLOW, shardings="keep")
    wanted = jax.jit(evaluate)(PARAMS, X)
    for spec in (P(None, "model"), P(("data", "model")), P("model", None)):
        params = {
            "up": jax.device_put(PARAMS["up"], NamedSharding(mesh, spec)),
            "down": PARAMS["down"],
        }
        with monkeypatch.context() as patched:
            patched.setattr(jax, "device_put", None)
            assert_same(compiled(params, X), wanted)
            assert_same(compiled(params, X), wanted)
        plan = compiled.plan(params, X)
        assert plan.in_shardings()[0]["up"].is_equivalent_to(NamedSharding(mesh, spec), 2)
        assert plan.mesh.names == ("data", "model")
        assert "shardings='keep': 1 array" in plan.report()
    assert len(compiled.made) == 3
    assert compiled.plan(PARAMS, X).constraints == ()


def test_shapes_may_say_where_arrays_lie() -> None:
    mesh = mesh_of(data=2, model=4)
    up = jax.ShapeDtypeStruct(
        (64, 128), jnp.float32, sharding=NamedSharding(mesh, P("model", "data"))
    )
    plan = autopar.plan(evaluate, {**PARAMS, "up": up}, X, cluster=SLOW, shardings="keep")
    assert plan.placements["params['up']"] == Placement((("model",), ("data",)))
    assert (
        autopar.plan(evaluate, {**PARAMS, "up": up}, X, cluster=SLOW, mesh=MESH).constraints == ()
    )


def test_what_cannot_be_kept_is_refused() -> None:
    up, down = on(mesh_of(a=8), PARAMS["up"], "a"), on(mesh_of(a=2, b=4), PARAMS["down"], "a")
    keep: Any = {"cluster": SLOW, "shardings": "keep"}
    both = r"params\['down'\] lies on mesh \(a=2, b=4\) over .* params\['up'\] on mesh a=8"
    with pytest.raises(InvalidMesh, match=both):
        autopar.plan(evaluate, {"up": up, "down": down}, X, **keep)
    with pytest.raises(
        InvalidMesh, match=r"params\['up'\] lies on mesh a=8 over .*, and mesh b=8 is asked for"
    ):
        autopar.plan(evaluate, {**PARAMS, "up": up}, X, mesh={"b": 8}, **keep)
    turned = Mesh(np.array(jax.devices()[::-1]), ("a",))
    with pytest.raises(InvalidMesh, match="lies on mesh a=8"):
        autopar.plan(evaluate, {**PARAMS, "up": up}, X, mesh=turned, **keep)
    with pytest.raises(InvalidOption, match="shardings is 'stay': pass 'move'"):
        autopar.plan(evaluate, PARAMS, X, shardings="stay")
