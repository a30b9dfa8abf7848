"""Meshes, devices and clusters."""

from tests.provoked.programs._shared import (
    NamedSharding,
    P,
    autopar,
    devices,
    jax,
    jnp,
    layer,
    mesh,
    w,
    x,
)


def an_unknown_cluster():
    autopar.plan(layer, w, x, cluster="8xh10")


def a_cluster_in_other_case():
    autopar.plan(layer, w, x, cluster="8xH100")


def a_cluster_that_is_no_name():
    autopar.plan(layer, w, x, cluster=8)


def a_cluster_file_that_is_not_there():
    autopar.plan(layer, w, x, cluster="gone.toml")


def a_mesh_of_another_number_of_devices():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 3})


def a_mesh_that_is_a_list():
    autopar.plan(layer, w, x, cluster="cpu8", mesh=[2, 4])


def a_mesh_without_axes():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={})


def a_mesh_whose_axis_has_no_name():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"": 8})


def a_mesh_axis_of_size_zero():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 0})


def a_mesh_axis_of_a_size_that_is_not_whole():
    autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 2.5, "b": 4})


def devices_that_are_numbers():
    autopar.compile(layer, cluster="cpu8", devices=[0, 1])(w, x)


def no_devices():
    autopar.compile(layer, cluster="cpu8", devices=[])(w, x)


def fewer_devices_than_the_cluster_has():
    autopar.compile(layer, cluster="cpu8", devices=devices[:3])(w, x)


def a_plan_on_fewer_devices_than_it_is_for():
    plan = autopar.plan(layer, w, x, cluster="cpu8", mesh={"a": 8})
    plan.compile(devices=devices[:4])


def a_function_on_a_mesh_of_its_own_that_does_not_fit():
    def own(w, x):
        return jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, P("a", "b"))).sum()

    autopar.plan(own, w, x, cluster="8x8xh100")


def a_function_that_names_axes_that_the_mesh_has_not():
    def own(w, x):
        return jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, P("a", "b"))).sum()

    autopar.plan(own, w, x, cluster="cpu8", mesh={"c": 8})


def a_function_whose_own_sharding_does_not_divide():
    def own(x):
        return jax.lax.with_sharding_constraint(x[:, :6], NamedSharding(mesh, P(None, "b"))).sum()

    autopar.plan(own, x, cluster="cpu8")


def a_function_with_shardings_on_two_meshes():
    other = jax.make_mesh((8,), ("c",), axis_types=(jax.sharding.AxisType.Auto,))

    def own(x):
        one = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("a")))
        return jax.lax.with_sharding_constraint(one * 2, NamedSharding(other, P("c"))).sum()

    autopar.plan(own, x, cluster="cpu8")


def a_shard_map_on_another_mesh():
    def own(x):
        return jax.shard_map(jnp.tanh, mesh=mesh, in_specs=P("a"), out_specs=P("a"))(x).sum()

    autopar.plan(own, x, cluster="cpu8", mesh={"b": 4, "a": 2})


def kept_arguments_on_another_mesh():
    placed = jax.device_put(x, NamedSharding(mesh, P("a")))
    autopar.plan(layer, w, placed, cluster="cpu8", mesh={"c": 8}, shardings="keep")


def kept_arguments_on_two_meshes():
    other = jax.make_mesh((8,), ("c",), axis_types=(jax.sharding.AxisType.Auto,))
    one = jax.device_put(w, NamedSharding(mesh, P("a")))
    two = jax.device_put(x, NamedSharding(other, P("c")))
    autopar.plan(layer, one, two, cluster="cpu8", shardings="keep")
