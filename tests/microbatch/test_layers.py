"""Layers in pipeline stages: values and gradients of lax.scan, and plans that choose them where they pay."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autopar
from autopar.core.in_place import updates
from autopar.core.stages import Stages
from autopar.errors import BatchNotCut, InvalidOption, NoStagesWarning
from autopar.microbatch.layers import STAGES, choices_of_stages, scan_layers
from autopar.operators import KEEP
from autopar.trace import trace
from tests.quick_some import diagonal

LAYERS, ROWS, TOKENS, WIDTH = 8, 16, 3, 8
ALL = [Stages(2, 8), Stages(4, 8, 2), Stages(4, 4), Stages(2, 2, 4), Stages(4, 16), Stages(2, 8, 2)]


@pytest.fixture
def drawn():
    """Parameters and rows in double precision, so that rounding is nothing beside a wrong value."""
    with jax.enable_x64(True):
        yield _drawn()


def _drawn():
    draw = np.random.default_rng(0)
    params = {
        "w": jnp.asarray(draw.normal(size=(LAYERS, WIDTH, WIDTH)) * 0.3),
        "scale": jnp.ones((LAYERS, WIDTH)),
        "key": jax.random.split(jax.random.key(1), LAYERS),
    }
    x = jnp.asarray(draw.normal(size=(ROWS, TOKENS, WIDTH)))
    return params, x


def plain(x, p):
    return x + jnp.tanh(x @ p["w"]) * p["scale"]


def dropped(x, p):
    keep = jax.random.bernoulli(p["key"], 0.8, x.shape)
    return jnp.where(keep, plain(x, p) / 0.8, 0)


def normalised(x, p):
    centred = x - x.mean(-1, keepdims=True)
    return x + (centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)) @ p["w"]


def attending(x, p):
    q = x @ p["w"]
    causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    scores = jnp.where(causal, jnp.einsum("bqd,bkd->bqk", q, x), -1e9)
    return x + 0.3 * jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores, -1), x)


def gradients(layer, params, x, **options):
    """The loss, and its gradients by all parameters but the keys and by x."""
    floats = {name: leaf for name, leaf in params.items() if name != "key"}

    def loss(floats, x):
        return (scan_layers(layer, x, {**params, **floats}, **options) ** 2).mean()

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(floats, x)


def assert_close(found, wanted, tolerance=1e-10):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.quick_share(2)
@pytest.mark.parametrize(
    ("layer", "stages"),
    diagonal([plain, dropped, normalised, attending], ALL, quick=2),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_values_and_gradients_are_those_of_scan(layer, stages, drawn):
    wanted = gradients(layer, *drawn)
    with STAGES(stages):
        found = gradients(layer, *drawn)
    assert_close(found, wanted)


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("stages", [Stages(2, 4, 2), Stages(2, 4), None], ids=str)
def test_parameters_may_lie_in_rounds(stages, drawn):
    params, x = drawn
    wanted = gradients(dropped, params, x)
    split = {name: leaf.reshape(2, LAYERS // 2, *leaf.shape[1:]) for name, leaf in params.items()}
    with STAGES(stages):
        found = gradients(dropped, split, x, rounds=2)
    assert_close(found[0], wanted[0])
    joined = {n: g.reshape(LAYERS, *g.shape[2:]) for n, g in found[1][0].items()}
    assert_close((joined, found[1][1]), wanted[1])


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("stages", [Stages(4, 4), Stages(2, 4, 2)], ids=str)
def test_a_tied_embedding_stands_before_and_behind_the_stages(stages, drawn):
    params, _ = drawn
    draw = np.random.default_rng(2)
    table = jnp.asarray(draw.normal(size=(7, WIDTH)))
    tokens = jnp.asarray(draw.integers(0, 7, (ROWS, TOKENS)))

    def loss(table, w):
        x = scan_layers(plain, table[tokens], {**params, "w": w})
        logits = jax.nn.log_softmax(x @ table.T)
        return -jnp.take_along_axis(logits, tokens[..., None], -1).mean()

    both = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    wanted = both(table, params["w"])
    with STAGES(stages):
        found = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(table, params["w"])
    assert_close(found, wanted)


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("layer", [dropped, attending])
def test_a_checkpointed_layer_runs_in_stages(layer, drawn):
    wanted = gradients(layer, *drawn)
    with STAGES(Stages(2, 4)):
        found = gradients(jax.checkpoint(layer), *drawn)
    assert_close(found, wanted)


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("kept", [False, True])
def test_functions_that_are_operators_run_in_stages(kept, drawn):
    def layer(x, p):
        heads = (x @ p["w"])[:, :, None]
        seen = autopar.operators.attention(heads, heads, heads)[:, :, 0]
        return x + autopar.operators.rms_norm(seen, p["scale"])

    wanted = gradients(layer, *drawn)
    with STAGES(Stages(2, 4)), KEEP(kept):
        found = gradients(layer, *drawn)
    assert_close(found, wanted, 1e-6)  # JAX takes the softmax in float32


def test_what_a_layer_closes_over_and_passes_on_is_cut_with_the_rows(drawn):
    params, x = drawn
    mask = jnp.asarray(np.random.default_rng(1).integers(0, 2, (ROWS, TOKENS)), float)

    def loss(shared, x):
        def layer(carried, p):
            x, seen = carried
            return (x + jnp.tanh(x @ p["w"]) * shared * seen[..., None] * mask[..., None], seen)

        return (scan_layers(layer, (x, mask), params)[0] ** 2).mean()

    both = jax.value_and_grad(loss, argnums=(0, 1))
    wanted = jax.jit(both)(jnp.ones(WIDTH), x)
    with STAGES(Stages(4, 8)):
        found = jax.jit(both)(jnp.ones(WIDTH), x)
    assert_close(found, wanted)


def test_every_stage_runs_all_its_layers_at_once(drawn):
    params, x = drawn
    with STAGES(Stages(2, 8)):
        graph = trace(lambda p, x: scan_layers(plain, x, p), (params, x)).graph
    products = [op for op in graph.ops if op.kind == "dot_general"]
    assert [op.outs[0].shape for op in products] == [(2, ROWS // 8, TOKENS, WIDTH)]
    assert [region.trips for region in graph.regions if region.kind == "body"] == [9, LAYERS // 2]


def test_a_stage_picks_its_round_and_adds_gradients_where_they_lie(drawn):
    params, x = drawn

    def loss(w):
        return (scan_layers(plain, x, {**params, "w": w}) ** 2).mean()

    stages = Stages(2, 4, 2)
    with STAGES(stages):
        graph = trace(jax.grad(loss), (params["w"],)).graph
    assert {region.trips for region in graph.regions if region.kind == "body"} == {9, LAYERS // 4}
    picked = (LAYERS // 4, 2, WIDTH, WIDTH)
    (added,) = [op for op in graph.ops if op.kind == "scatter-add"]
    assert added.ins[2].shape == picked
    assert added.id in updates(graph)
    stacked = {op.outs[0].shape[1:] for op in graph.ops if op.kind == "scan_stack"}
    assert picked not in stacked  # what is picked is picked again, not kept for each tick


def test_layers_or_rows_that_do_not_divide_run_as_a_scan(drawn):
    params, x = drawn
    function = jax.make_jaxpr(lambda p, x: scan_layers(plain, x, p))
    whole = str(function(params, x))
    for stages in (Stages(3, 4), Stages(2, 3)):
        with STAGES(stages):
            assert str(function(params, x)) == whole


@pytest.mark.parametrize("mixing", [lambda x, p: x - x.mean(0), lambda x, p: jnp.flip(x, 0)])
def test_rows_that_depend_on_one_another_are_refused(mixing, drawn):
    params, x = drawn
    with STAGES(Stages(2, 4)), pytest.raises(BatchNotCut):
        scan_layers(mixing, x, params)


def test_a_result_without_rows_is_refused(drawn):
    params, _ = drawn
    x = jnp.ones((ROWS, ROWS))
    with STAGES(Stages(2, 4)), pytest.raises(BatchNotCut, match="result 0 of the layer"):
        scan_layers(lambda x, p: x.T, x, params)


@pytest.mark.parametrize(
    ("x", "params", "named"),
    [
        (jnp.ones(()), {"w": jnp.ones((2, 3))}, "x of scan_layers"),
        ((), {"w": jnp.ones((2, 3))}, "x of scan_layers"),
        (jnp.ones((4, 3)), {"w": jnp.ones((2, 3)), "b": jnp.ones((3, 3))}, "params of scan_layers"),
    ],
)
def test_arrays_without_a_common_first_dim_are_refused(x, params, named):
    with pytest.raises(InvalidOption, match=named):
        scan_layers(plain, x, params)


@pytest.mark.parametrize(
    ("shape", "named"), [((3, 8), "first dim is 3"), ((2,), "layers of a round")]
)
def test_parameters_of_other_rounds_are_refused(shape, named):
    with pytest.raises(InvalidOption, match=named):
        scan_layers(plain, jnp.ones((4, 3)), {"w": jnp.ones(shape)}, rounds=2)


def test_the_choices_divide_devices_layers_and_rows(drawn):
    params, x = drawn
    graph = trace(lambda p, x: scan_layers(plain, x, p), (params, x)).graph
    plain_ones = [Stages(2, 4), Stages(2, 8), Stages(2, 16)]
    in_rounds = [Stages(2, 2, 2), Stages(2, 4, 2), Stages(2, 2, 4), Stages(2, 4, 4)]
    assert choices_of_stages(graph, 6) == plain_ones + in_rounds
    found = [(choice.count, choice.rounds) for choice in choices_of_stages(graph, 8)[7:]]
    assert found == [(4, 1), (4, 1), (4, 2), (4, 2), (8, 1)]
    assert choices_of_stages(trace(lambda x: x + 1, (x,)).graph, 8) == []


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_bubble_is_the_idle_share_of_all_ticks(rounds):
    stages = Stages(4, 12, rounds)
    ticks = range(stages.ticks)
    busy = [[tick - stage in range(12 * rounds) for tick in ticks] for stage in range(4)]
    assert stages.bubble == pytest.approx(1 - np.mean(busy))


def test_micro_batches_go_round_in_groups_of_stages():
    with pytest.raises(ValueError, match="6 micro-batches are no groups of 4"):
        Stages(4, 6, 2)


# Plans ----------------------------------------------------------------------------------------------------------------


def training_step(params, x):
    def loss(w):
        return (scan_layers(plain, x, {**params, "w": w}) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(params["w"])
    return {**params, "w": params["w"] - 0.1 * grads}, value


def deep(layers, rows, width):
    """The parameters and rows of a deep perceptron, in shape only."""
    floats = {"w": (layers, width, width), "scale": (layers, width)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in floats.items()}
    return params, jax.ShapeDtypeStruct((rows, 8, width), jnp.float32)


SLOW = {"cluster": "4x2xcpu-1gbit", "mesh": {"x": 4, "y": 2}}


def test_stages_are_chosen_over_slow_links():
    plan = autopar.plan(training_step, *deep(16, 64, 1024), **SLOW)
    never = autopar.SearchOptions(stages="never")
    without = autopar.plan(training_step, *deep(16, 64, 1024), **SLOW, options=never)
    report = plan.bound.report()
    assert report.stages == Stages(4, 8)
    assert without.bound.report().stages is None
    assert plan.objective_s < without.objective_s
    assert "4 of layers, 8 micro-batches; idle in 27% of 11 ticks" in str(plan)
    assert "layers in no stages or in stages" in report.space


def step_in_rounds(params, x):
    def layer(x, p):
        return x + jnp.tanh(x @ p["up"]) @ p["down"]

    def loss(params):
        return (scan_layers(layer, x, params, rounds=2) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


@pytest.mark.slow
def test_a_plan_in_rounds_runs():
    draw = np.random.default_rng(0)
    shapes = {"up": (2, 8, 512, 2048), "down": (2, 8, 2048, 512)}
    params = {n: (draw.normal(size=s) / s[2] ** 0.5).astype(np.float32) for n, s in shapes.items()}
    x = draw.normal(size=(4, 64, 512)).astype(np.float32)

    def staged(params, x):
        with STAGES(Stages(4, 4, 2)):
            return step_in_rounds(params, x)

    step = autopar.compile(staged, cluster="4x2xv100", mesh=SLOW["mesh"])
    plan = step.plan(params, x)
    assert plan.in_shardings()[0]["up"].spec[1] == "x"
    moves = [i for i in plan.bound.planned.program.instructions if getattr(i, "exchanges", ())]
    assert {e.kind for i in moves for e in i.exchanges} == {"permute"}
    wanted = jax.jit(step_in_rounds)(params, x)
    assert_close(jax.device_get(step(params, x)), wanted, 1e-5)


@pytest.mark.slow
def test_rounds_are_chosen_for_few_rows():
    shapes = {"up": (2, 8, 4096, 16384), "down": (2, 8, 16384, 4096)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float16) for name, shape in shapes.items()}
    x = jax.ShapeDtypeStruct((4, 1024, 4096), jnp.float16)
    plan = autopar.plan(step_in_rounds, params, x, cluster="4x2xv100", mesh=SLOW["mesh"])
    report = plan.bound.report()
    assert report.stages == Stages(4, 4, 2)
    assert "4 pipeline stages in 2 rounds of 4 micro-batches" in str(report.parallelism)


@pytest.mark.slow
def test_stages_are_not_chosen_where_links_are_fast():
    plan = autopar.plan(training_step, *deep(16, 64, 1024), cluster="8xh100", mesh={"x": 8})
    assert plan.bound.report().stages is None


def test_stages_are_taken_where_that_is_said():
    always = autopar.SearchOptions(stages="always")
    setting = {"cluster": "8xh100", "mesh": {"x": 8}}
    args = deep(16, 64, 256)
    plan = autopar.plan(training_step, *args, **setting, options=always)
    assert plan.bound.report().stages is not None
    assert plan.objective_s > autopar.plan(training_step, *args, **setting).objective_s
    assert ", layers in stages (micro-batches x rounds): 2 (4, 8" in plan.summary.space
    with pytest.raises(InvalidOption, match=r"layers_of_none has no layers that 8 devices"):
        autopar.plan(layers_of_none, args[1], **setting, options=always)


def layers_of_none(x):
    return x.sum()


@pytest.mark.slow
def test_a_plan_in_stages_runs_and_is_loaded_from_its_file(tmp_path):
    draw = np.random.default_rng(0)
    params = {
        "w": (draw.normal(size=(16, 1024, 1024)) / 32).astype(np.float32),
        "scale": np.ones((16, 1024), np.float32),
    }
    x = draw.normal(size=(64, 8, 1024)).astype(np.float32)
    wanted = jax.jit(training_step)(params, x)
    step = autopar.compile(training_step, **SLOW)
    plan = step.plan(params, x)
    assert plan.bound.report().stages == Stages(4, 8)
    assert plan.in_shardings()[0]["w"].spec[0] == "x"
    assert_close(jax.device_get(step(params, x)), wanted, 1e-5)

    plan.save(tmp_path / "plan.json")
    loaded = autopar.Plan.load(tmp_path / "plan.json").compile(training_step)
    assert_close(jax.device_get(loaded(params, x)), wanted, 1e-5)


def test_layers_that_cannot_be_stages_are_planned_without_them():
    def step(params, x):
        return scan_layers(lambda x, p: (x - x.mean(0)) @ p["w"], x, params).sum()

    with pytest.warns(NoStagesWarning, match="reduce_sum"):
        plan = autopar.plan(step, *deep(4, 8, 16), cluster="4x2xcpu-1gbit")
    assert plan.bound.report().stages is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        autopar.plan(
            step,
            *deep(4, 8, 16),
            cluster="4x2xcpu-1gbit",
            options=autopar.SearchOptions(stages="never"),
        )
