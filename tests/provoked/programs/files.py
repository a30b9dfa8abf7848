"""Plan files, caches, sources of plans."""

import json
from enum import Enum

from tests.provoked.programs._shared import P, Path, autopar, jax, jnp, layer, np, step, w, x


def _edited(change, fn=layer, **options):
    """A plan is saved, what stands in its file is changed, and it is loaded and run."""
    from autopar.api.packed_plan import packed_text, unpacked_text

    autopar.plan(fn, w, x, cluster="cpu8", mesh={"a": 8}, **options).save("plan.json")
    fields = json.loads(Path("plan.json").read_text())
    contents = json.loads(unpacked_text(fields["contents"]))
    change(contents)
    fields["contents"] = packed_text(json.dumps(contents))
    Path("plan.json").write_text(json.dumps(fields))
    autopar.Plan.load("plan.json").compile(fn)(w, x)


def a_plan_that_cannot_be_written():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}).save("gone/plan.json")


def a_plan_file_that_is_not_there():
    autopar.Plan.load("gone.json")


def a_plan_file_that_is_no_json():
    Path("plan.json").write_text("a plan")
    autopar.Plan.load("plan.json")


def a_plan_file_of_something_else():
    Path("plan.json").write_text("{}")
    autopar.Plan.load("plan.json")


def a_plan_file_of_another_version():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}).save("plan.json")
    fields = json.loads(Path("plan.json").read_text())
    Path("plan.json").write_text(json.dumps({**fields, "format_version": 999}))
    autopar.Plan.load("plan.json")


def a_plan_file_that_lost_a_field():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}).save("plan.json")
    version = json.loads(Path("plan.json").read_text())["format_version"]
    Path("plan.json").write_text(json.dumps({"format_version": version}))
    autopar.Plan.load("plan.json")


def a_plan_file_of_loops_that_are_not_there():
    _edited(lambda file: file["plan"].update(double_buffered=[[0, 1, 0]]))


def a_plan_file_with_a_bound_above_the_cost():
    _edited(lambda file: file["plan"].update(lower_bound_s=1.0))


def a_plan_file_without_an_operator():
    _edited(lambda file: file["plan"]["stages"][0]["operators"].pop())


def a_plan_file_with_strategies_of_other_operators():
    _edited(lambda file: file["plan"]["stages"][0]["strategies"].reverse())


def a_plan_file_that_recomputes_an_operator_that_is_not_there():
    _edited(lambda file: file["plan"].update(recomputed=[[99, 0]]))


def a_plan_file_that_breaks_its_own_constraint():
    def unpin(file):
        file["signature"]["constraints"][0]["layout"]["dims"] = [[]]

    _edited(unpin, constraints=[autopar.pin("w", P("a"))])


def a_plan_file_whose_steps_do_not_lead_from_one_placement_to_another():
    def forget(file):
        file["plan"]["step_kinds"] = ["permute"]

    _edited(forget, step, constraints=[autopar.pin("w", P("a")), autopar.pin("x", P("a"))])


def a_plan_of_another_function():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}).save("plan.json")
    other = autopar.Plan.load("plan.json").compile(lambda w, x: jnp.sin(x @ w).sum(-1))
    other(w, x)


def a_plan_of_other_arguments():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}).save("plan.json")
    autopar.Plan.load("plan.json").compile(layer)(w, np.ones((4, 16), np.float32))


def a_loaded_plan_run_without_its_function():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}).save("plan.json")
    autopar.Plan.load("plan.json").compile()


def a_loaded_plan_resolved():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}).save("plan.json")
    autopar.Plan.load("plan.json").resolve(memory_limit_bytes="1GiB")


def a_loaded_plan_verified():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}).save("plan.json")
    autopar.Plan.load("plan.json").compile(layer).plan(w, x).verify()


def a_plan_in_the_cache_that_is_damaged():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}, cache="plans")
    for kept in Path("plans").rglob("*.json"):
        kept.write_text("{")
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}, cache="plans")


def a_cache_that_cannot_be_made():
    Path("file").write_text("")
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}, cache="file/plans")


def a_timeline_that_cannot_be_written():
    plan = autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8})
    plan.timeline().save("gone/trace.json")


def an_explanation_of_what_is_not_there():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}).explain("v")


def a_source_with_large_constants():
    table = np.ones((512, 512), np.float32)
    plan = autopar.plan(lambda x: (x @ table).sum(), np.ones((8, 512), np.float32), cluster="cpu8")
    plan.to_source()


def a_source_of_a_container_of_ones_own():
    from optax import ScaleByAdamState

    autopar.plan(lambda x: ScaleByAdamState(x.sum(), x, x), x, cluster="cpu8").to_source()


def a_source_of_results_by_members_of_an_enum():
    class Metric(Enum):
        LOSS = "loss"

    plan = autopar.plan(lambda x: {Metric.LOSS: x.sum()}, x, cluster="cpu8", mesh={"a": 8})
    plan.to_source()


def a_source_of_results_by_sets():
    plan = autopar.plan(lambda x: {frozenset({1}): x.sum()}, x, cluster="cpu8", mesh={"a": 8})
    plan.to_source()


def a_source_that_calls_the_host():
    def told(x):
        jax.debug.callback(print, x.sum())
        return x * 2

    autopar.plan(told, x, cluster="cpu8", mesh={"a": 8}).to_source()


def a_change_of_the_cluster_under_a_pricing_of_ones_own():
    from autopar.cost.pricing import Roofline
    from cost_models import load_cluster

    prices = load_cluster("cpu8")
    plan = autopar.plan(
        step,
        w,
        x,
        cluster="cpu8",
        mesh={"a": 8},
        pricing=lambda graph, mesh: Roofline(graph, mesh, prices),
    )
    plan.resolve(cluster="8xh100")


def a_plan_file_whose_contents_are_damaged():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}).save("plan.json")
    fields = json.loads(Path("plan.json").read_text())
    fields["contents"] = fields["contents"][:-40]
    Path("plan.json").write_text(json.dumps(fields))
    autopar.Plan.load("plan.json")


def a_source_of_a_primitive_of_ones_own():
    from jax.extend.core import Primitive

    tripled_p = Primitive("tripled")
    tripled_p.def_impl(lambda x: 3 * x)
    tripled_p.def_abstract_eval(lambda aval: aval)
    autopar.register_rule("tripled", "... -> ...", replace=True)
    autopar.plan(lambda x: tripled_p.bind(x).sum(), x, cluster="cpu8", mesh={"a": 8}).to_source()


def a_comparison_with_prices_of_ones_own():
    from autopar.cost.alpa import alpa_pricing

    options = {"cluster": "cpu8", "mesh": {"a": 8}}
    theirs = autopar.plan(layer, w, x, pricing=alpa_pricing((1.0,), (1.0,)), **options)
    autopar.compare(theirs, autopar.plan(layer, w, x, **options))


def a_page_that_cannot_be_written():
    plan = autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8})
    plan.to_html("gone/plan.html", compare=False)


def a_page_of_a_front_without_points():
    autopar.Front(()).to_html()


def a_plan_of_a_function_with_other_constants():
    plan = autopar.plan(lambda x: x + np.ones((8, 16), np.float32), x, cluster="cpu8")
    plan.save("plan.json")
    autopar.Plan.load("plan.json").compile(lambda x: x + np.ones((1, 16), np.float32))(x)


def the_source_of_more_random_numbers_than_a_word_numbers():
    options = {"cluster": "1xh100", "memory_limit_bytes": "1TiB"}
    plan = autopar.plan(
        lambda key: jax.random.uniform(key, (1 << 17, 1 << 16)).sum(), jax.random.key(0), **options
    )
    plan.to_source()


def an_example_that_is_missing():
    from autopar.demo import load_example

    load_example("gone.py")
