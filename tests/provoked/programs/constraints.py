"""Constraints, and limits of memory that nothing keeps."""

from tests.provoked.programs._shared import P, autopar, jnp, layer, np, step, w, x


def at_that_says_nothing():
    autopar.at()


def at_of_a_result_and_an_operand():
    autopar.at("model.py:41", result=0, operand=1)


def a_tie_of_nothing():
    autopar.tie()


def a_pin_of_a_number():
    autopar.pin(3, P("a"))


def a_pin_to_an_axis_instead_of_a_spec():
    autopar.pin("w", "a")


def a_constraint_that_is_a_name():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}, constraints=["w"])


def a_pin_of_what_is_not_there():
    pins = (autopar.pin("v", P("a")),)
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}, constraints=pins)


def a_pin_to_an_axis_that_the_mesh_has_not():
    pins = (autopar.pin("w", P("model")),)
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}, constraints=pins)


def a_pin_of_more_dims_than_there_are():
    pins = (autopar.pin("w", P(None, None, "a")),)
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}, constraints=pins)


def a_pin_of_a_dim_that_does_not_divide():
    pins = (autopar.pin("x", P("a")),)
    autopar.plan(layer, w, x[:6], cluster="cpu8", mesh={"a": 8}, constraints=pins)


def a_pin_that_an_operator_cannot_keep():
    pins = (autopar.pin(autopar.at(kind="sort"), P("a")),)
    autopar.plan(lambda x: jnp.sort(x, 0).sum(), x, cluster="cpu8", mesh={"a": 8}, constraints=pins)


def pins_that_contradict_each_other():
    pins = autopar.pin("w", P("a")), autopar.replicate("w")
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}, constraints=pins)


def a_tie_of_one():
    ties = (autopar.tie("w"),)
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}, constraints=ties)


def a_tie_of_different_numbers_of_dims():
    ties = (autopar.tie("w", "b"),)
    autopar.plan(
        lambda w, b: (w + b).sum(),
        w,
        np.ones(24, np.float32),
        cluster="cpu8",
        mesh={"a": 8},
        constraints=ties,
    )


def a_tie_of_what_has_no_placement_in_common():
    held = autopar.tie("w", "x"), autopar.pin("w", P("a")), autopar.replicate("x")
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}, constraints=held)


def a_manual_mode_that_leaves_something_open():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}, mode="manual")


def a_memory_limit_that_nothing_keeps():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}, memory_limit_bytes=64)


def a_memory_limit_below_a_front():
    front = autopar.front(step, w, x, cluster="cpu8", mesh={"a": 8}, points=2)
    front.within(64)


def constraints_that_no_plan_keeps_within_the_limit():
    autopar.plan(
        step,
        w,
        x,
        cluster="cpu8",
        mesh={"a": 8},
        memory_limit_bytes=2000,
        constraints=[autopar.replicate("w")],
    )


def a_memory_limit_that_was_not_searched_to_the_end():
    at_once = autopar.SearchOptions(solve=autopar.SolveOptions(time_limit_s=0))
    options = {"cluster": "cpu8", "mesh": {"a": 8}, "options": at_once}
    autopar.plan(step, w, x, memory_limit_bytes=1000, **options)
