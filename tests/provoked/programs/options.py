"""Options of plan and compile, and the arguments that they name."""

from tests.provoked.programs._shared import (
    NamedSharding,
    P,
    Path,
    autopar,
    devices,
    jax,
    jnp,
    layer,
    mesh,
    np,
    step,
    w,
    x,
)


def an_unknown_option():
    autopar.compile(layer, memory_limit=2**30)


def an_option_of_jit():
    autopar.compile(layer, backend="gpu")


def an_argument_that_is_nearly_an_option():
    autopar.plan(layer, w, x, cluster="cpu8", meshes={"a": 8})


def an_option_where_it_means_nothing():
    autopar.front(layer, w, x, cluster="cpu8", dump="stages")


def an_unknown_mode():
    autopar.plan(layer, w, x, cluster="cpu8", mode="fast")


def a_mode_that_wants_constraints():
    autopar.plan(layer, w, x, cluster="cpu8", mode="semi_auto")


def a_memory_limit_without_a_known_unit():
    autopar.plan(layer, w, x, cluster="cpu8", memory_limit_bytes="1 gigabyte")


def shardings_that_are_neither_moved_nor_kept():
    autopar.compile(layer, shardings="stay")


def a_pricing_of_ones_own_with_a_cache():
    autopar.compile(layer, pricing=lambda mesh: None, cache="plans")


def a_cache_that_is_no_path():
    autopar.compile(layer, cache=7)


def a_cache_of_plan_that_is_no_path():
    autopar.plan(layer, w, x, cluster="cpu8", cache=7)


def options_that_say_nothing_of_the_search():
    autopar.compile(layer, options={"max_mesh_axes": 1})


def a_pricing_that_is_no_function():
    autopar.compile(layer, pricing=3)


def shapes_in_the_place_of_arrays():
    autopar.compile(layer, cluster="cpu8")(jax.ShapeDtypeStruct((16, 24), "float32"), x)


def a_cache_that_is_a_file():
    Path("plans").write_text("")
    autopar.compile(layer, cache="plans")


def in_shardings_on_two_meshes():
    other = jax.make_mesh((8,), ("c",), axis_types=(jax.sharding.AxisType.Auto,))
    autopar.compile(layer, in_shardings=(NamedSharding(mesh, P()), NamedSharding(other, P())))


def in_shardings_on_another_mesh_than_asked_for():
    autopar.compile(layer, mesh={"c": 8}, in_shardings=NamedSharding(mesh, P()))


def in_shardings_that_hold_a_name():
    autopar.compile(layer, in_shardings=("a", None))


def in_shardings_in_the_memory_of_the_host():
    autopar.compile(layer, in_shardings=NamedSharding(mesh, P(), memory_kind="pinned_host"))


def in_shardings_of_another_structure():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}, in_shardings=(P(), P(), P()))


def too_many_mesh_axes():
    options = autopar.SearchOptions(max_mesh_axes=9)
    autopar.plan(layer, w, x, cluster="cpu8", options=options)


def while_trips_below_zero():
    autopar.plan(layer, w, x, cluster="cpu8", options=autopar.SearchOptions(while_trips=-1))


def a_gap_tolerance_above_one():
    autopar.plan(layer, w, x, cluster="cpu8", options=autopar.SearchOptions(gap_tolerance=2))


def a_gap_tolerance_given_to_the_solver():
    options = autopar.SearchOptions(solve=autopar.SolveOptions(gap_tolerance=0.1))
    autopar.plan(layer, w, x, cluster="cpu8", options=options)


def a_communication_weight_below_zero():
    options = autopar.SearchOptions(communication_weight=-1)
    autopar.plan(layer, w, x, cluster="cpu8", options=options)


def a_front_gap_below_zero():
    autopar.front(layer, w, x, cluster="cpu8", options=autopar.SearchOptions(front_gap=-1))


def an_option_of_the_search_that_has_other_words():
    autopar.plan(layer, w, x, cluster="cpu8", options=autopar.SearchOptions(recompute="always"))


def on_progress_that_is_no_function():
    autopar.plan(layer, w, x, cluster="cpu8", options=autopar.SearchOptions(on_progress="print"))


def a_front_of_one_point():
    autopar.front(layer, w, x, cluster="cpu8", points=1)


def a_dump_that_cannot_be_written():
    Path("stages").write_text("")
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}, dump="stages")


def follow_that_is_no_plan():
    autopar.plan(layer, w, x, cluster="cpu8", follow="train")


def follow_of_what_was_not_planned_yet():
    autopar.plan(layer, w, x, cluster="cpu8", follow=autopar.compile(step, cluster="cpu8"))


def follow_that_knows_no_argument():
    train = autopar.plan(step, w, x, cluster="cpu8", mesh={"a": 8})
    autopar.plan(lambda v, x: x @ v.T, w.T, x.T, cluster="cpu8", follow=train)


def follow_on_another_mesh():
    train = autopar.plan(step, w, x, cluster="cpu8", mesh={"a": 8})
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 2, "b": 4}, follow=train)


def a_static_argument_that_is_not_there():
    autopar.plan(layer, w, x, cluster="cpu8", static_argnums=5)


def a_static_argument_by_a_name_that_is_not_there():
    autopar.plan(layer, w, x, cluster="cpu8", static_argnames="y")


def donated_arguments_that_are_no_positions():
    autopar.plan(layer, w, x, cluster="cpu8", donate_argnums=(0.5,))


def a_carry_to_be_donated_that_there_is_not():
    autopar.plan(layer, w, x, cluster="cpu8", donate_argnums="carried")


def what_is_carried_donated_beside_names():
    autopar.plan(step, w, x, cluster="cpu8", donate_argnums="carried", donate_argnames="w")


def donated_arguments_that_are_no_names():
    autopar.plan(layer, w, x, cluster="cpu8", donate_argnames=("w", 3))


def an_argument_both_static_and_donated():
    autopar.plan(layer, w, x, cluster="cpu8", static_argnums=0, donate_argnums=0)


def an_argument_static_and_donated_by_its_number_from_the_end():
    options = {"cluster": "cpu8", "static_argnums": 0, "donate_argnums": -3}
    autopar.plan(lambda *args: layer(*args[1:]), "first", w, x, **options)


def donated_arguments_of_a_linted_function_that_are_no_positions():
    sharded = jax.jit(layer, in_shardings=NamedSharding(mesh, P()))
    autopar.lint(sharded, w, x, cluster="cpu8", donate_argnums=(0.5,))


def an_argument_both_static_by_name_and_donated():
    autopar.plan(layer, w, x, cluster="cpu8", static_argnames="w", donate_argnums=0)


def a_static_argument_without_a_hash():
    autopar.compile(layer, cluster="cpu8", static_argnums=1)(w, [1])


def a_carry_that_is_no_pairs():
    autopar.plan(step, w, x, cluster="cpu8", carry="yes")


def a_carry_of_an_argument_that_is_not_there():
    autopar.plan(step, w, x, cluster="cpu8", carry=[(0, 5)])


def a_carry_of_another_result_than_the_only_one():
    autopar.plan(step, w, x, cluster="cpu8", carry=[(3, 0)])


def a_carry_of_a_result_that_is_not_there():
    autopar.plan(lambda w, x: (step(w, x), x), w, x, cluster="cpu8", carry=[(3, 0)])


def a_carry_of_another_shape():
    autopar.plan(layer, w, x, cluster="cpu8", carry=[(0, 0)])


def a_carry_that_names_one_twice():
    autopar.plan(step, w, x, cluster="cpu8", carry=[(0, 0), (0, 0)])


def a_carry_of_another_structure():
    autopar.plan(lambda p: {"v": p["w"]}, {"w": w}, cluster="cpu8", carry=[("", "p")])


def a_carry_by_a_path_that_is_not_there():
    autopar.plan(step, w, x, cluster="cpu8", carry=[(0, "v")])


def init_of_what_was_not_planned_yet():
    autopar.compile(step, cluster="cpu8").init(lambda: jnp.ones((16, 24)))


def arguments_of_another_structure():
    plan = autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8})
    plan.compile()({"w": w}, x)


def arguments_of_another_shape():
    plan = autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8})
    plan.compile()(w, np.ones((4, 16), np.float32))


def an_argument_to_be_kept_that_xla_alone_says_how_it_lies():
    from jax._src.sharding_impls import GSPMDSharding

    halves = NamedSharding(mesh, P("a"))._to_xla_hlo_sharding(w.ndim)
    moved = jax.device_put(w, GSPMDSharding(tuple(devices), halves))
    autopar.compile(layer, cluster="cpu8", shardings="keep")(moved, x)


def place_of_another_shape():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}).place((w, w))


def place_of_an_argument_that_is_not_there():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8}).place(w, "v")


def micro_batches_that_are_no_number():
    autopar.accumulate(step, 0)


def micro_batches_of_no_function():
    autopar.accumulate("step", 4)


def micro_batches_that_do_not_divide_the_batch():
    autopar.plan(autopar.accumulate(step, 3, batch=1), w, x, cluster="cpu8", mesh={"a": 8})


def micro_batches_of_an_argument_that_is_not_there():
    autopar.plan(autopar.accumulate(step, 2, batch="y"), w, x, cluster="cpu8", mesh={"a": 8})


def micro_batches_of_no_batch():
    autopar.plan(autopar.accumulate(step, 2, batch=()), w, x, cluster="cpu8", mesh={"a": 8})


def a_step_that_needs_all_examples_at_once():
    ranked = autopar.accumulate(lambda x: jnp.sort(x, 0).sum(), 2, batch=0)
    autopar.plan(ranked, x, cluster="cpu8", mesh={"a": 8})


def layers_of_different_numbers():
    params = {"w": jnp.ones((4, 8, 8)), "b": jnp.ones((3, 8))}
    autopar.scan_layers(lambda p, h: h @ p["w"] + p["b"], params, jnp.ones((2, 8)))


def layers_in_other_rounds():
    autopar.scan_layers(lambda h, w: h @ w, jnp.ones((2, 8)), jnp.ones((4, 2, 8, 8)), rounds=2)


def lint_of_what_is_not_sharded():
    autopar.lint(layer, w, x, cluster="cpu8")


def lint_on_another_mesh_than_the_functions_own():
    sharded = jax.jit(layer, in_shardings=NamedSharding(mesh, P()))
    autopar.lint(sharded, w, x, mesh={"a": 8}, cluster="cpu8")


def lint_beside_a_function_that_gives_something_else():
    sharded = jax.jit(layer, in_shardings=NamedSharding(mesh, P()))
    autopar.lint(sharded, w, x, plain=lambda w, x: x @ w, cluster="cpu8")


def verify_on_fewer_devices():
    autopar.verify(layer, w, x, cluster="2x8xh100", mesh={"a": 16})


def a_step_that_counts_over_the_batch():
    counted = autopar.accumulate(lambda x: jnp.cumsum(x, 0).sum(), 2, batch=0)
    autopar.plan(counted, x, cluster="cpu8", mesh={"a": 8})


def a_step_that_normalises_over_the_batch():
    def normed(w, x):
        y = x @ w
        return jnp.tanh((y - y.mean(0)) @ w.T).sum()

    autopar.plan(autopar.accumulate(normed, 2, batch=1), w, x, cluster="cpu8", mesh={"a": 8})


def a_step_that_calls_the_host():
    def told(w, x):
        jax.debug.print("{}", x.sum())
        return (x @ w).sum()

    autopar.plan(autopar.accumulate(told, 2, batch=1), w, x, cluster="cpu8", mesh={"a": 8})


def a_step_that_is_split_by_hand():
    def by_hand(x):
        return jax.shard_map(jnp.tanh, mesh=mesh, in_specs=P("a"), out_specs=P("a"))(x).sum()

    autopar.plan(autopar.accumulate(by_hand, 2, batch=0), x, cluster="cpu8")


def a_front_that_has_constraints_of_another_type():
    autopar.front(layer, w, x, cluster="cpu8", constraints=["w"])


def a_vmap_over_a_constraint_of_an_operator():
    pins = (autopar.pin(autopar.at(kind="tanh"), P("a")),)
    compiled = autopar.compile(layer, cluster="cpu8", mesh={"a": 8}, constraints=pins)
    jax.vmap(compiled, in_axes=(None, 0))(w, np.ones((4, 8, 16), np.float32))


def follow_with_an_argument_that_may_be_several_parts():
    def train(state, x):
        one = jax.tree.map(lambda w: w - x.mean(), state)
        return one, x.sum()

    parts = {"old": {"p": w}, "new": {"p": w}}
    pins = autopar.pin("state['old']", P("a")), autopar.pin("state['new']", P(None, "a"))
    leader = autopar.plan(train, parts, x, cluster="cpu8", mesh={"a": 8}, constraints=pins)
    autopar.plan(lambda q, x: (x @ q["p"]).sum(), {"p": w}, x, cluster="cpu8", follow=leader)


def follow_beside_a_pin_that_contradicts_it():
    pins = (autopar.pin("w", P("a")),)
    leader = autopar.plan(step, w, x, cluster="cpu8", mesh={"a": 8}, constraints=pins)
    held = (autopar.replicate("w"),)
    autopar.plan(layer, w, x, cluster="cpu8", constraints=held, follow=leader)


def layers_whose_result_has_its_rows_in_another_dim():
    def deep(params, x):
        return autopar.scan_layers(lambda x, p: x.T @ p, x, params).sum()

    shapes = [jax.ShapeDtypeStruct(dims, np.float32) for dims in ((4, 8, 8), (8, 8))]
    autopar.plan(deep, *shapes, cluster="4x2xcpu-1gbit")


def stages_of_a_function_without_layers():
    options = autopar.SearchOptions(stages="always")
    autopar.plan(layer, w, x, cluster="cpu8", options=options)


def place_of_a_list_for_a_tuple():
    plan = autopar.plan(lambda pair: pair[0] @ pair[1], (x, w), cluster="cpu8", mesh={"a": 8})
    plan.place([x, w])


def a_solver_that_may_not_work():
    autopar.SolveOptions(max_sweeps=0)


def a_time_limit_below_zero():
    autopar.SolveOptions(time_limit_s=-1)


def a_technique_that_there_is_not():
    autopar.SolveOptions().without("trws.magic")
