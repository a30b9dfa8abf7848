"""Functions and arguments that JAX, or a plan, does not take."""

from tests.provoked.programs._shared import P, autopar, devices, jax, jnp, layer, mesh, np, w, x


def a_function_that_branches_on_values():
    autopar.plan(lambda x: x if x.sum() > 0 else -x, x, cluster="cpu8")


def a_function_that_fails():
    autopar.plan(lambda x: x @ x, x, cluster="cpu8")


def a_function_with_a_side_effect():
    def counts(x):
        ref = jax.new_ref(x)
        ref[...] = x * 2
        return ref[...]

    autopar.plan(counts, x, cluster="cpu8")


def what_is_no_function():
    autopar.plan(3, x, cluster="cpu8")


def an_argument_that_is_text():
    autopar.plan(layer, w, "text", cluster="cpu8")


def an_argument_too_large_for_its_type():
    autopar.plan(layer, w, 2**40, cluster="cpu8")


def an_argument_that_is_a_reference():
    autopar.plan(lambda r: r[...] * 2, jax.new_ref(jnp.ones(8)), cluster="cpu8")


def a_function_that_closes_over_a_traced_value():
    def outer(x):
        return autopar.plan(lambda y: y * x, np.ones(8, np.float32), cluster="cpu8")

    jax.jit(outer)(np.ones(8, np.float32))


def lint_of_what_jax_cannot_lower():
    odd = jax.jit(layer, in_shardings=jax.NamedSharding(jax.make_mesh((8,), ("a",)), jax.P("a")))
    autopar.lint(odd, w[:9], x[:, :9])


def a_function_that_fails_on_arrays_of_an_explicit_mesh():
    typed = jax.device_put(x, jax.NamedSharding(jax.make_mesh((8,), ("a",)), jax.P("a")))
    autopar.plan(lambda x: x @ x, typed, cluster="cpu8")


def a_collective_in_a_shard_map_over_one_device():
    one = jax.sharding.Mesh(devices[:1], ("a",))
    zeros, rows = np.zeros(1, np.int32), np.full(1, 8, np.int32)

    def exchanged(x):
        return jax.lax.ragged_all_to_all(x, x, zeros, rows, zeros, rows, axis_name="a")

    options = {"mesh": one, "in_specs": P("a"), "out_specs": P("a"), "check_vma": False}
    autopar.plan(jax.shard_map(exchanged, **options), x, cluster="cpu8", mesh={"a": 8})


def a_compiled_function_inside_a_shard_map():
    compiled = autopar.compile(lambda x: 2 * x, cluster="cpu8")
    jax.shard_map(compiled, mesh=mesh, in_specs=P(("a", "b")), out_specs=P(("a", "b")))(x)


def a_shard_map_that_leaves_axes_to_the_compiler():
    def summed(x):
        return jax.lax.psum(x, "a", axis_index_groups=[[0], [1]])

    options = {"in_specs": P("a"), "out_specs": P("a"), "axis_names": {"a"}, "check_vma": False}
    autopar.plan(lambda x: jax.shard_map(summed, mesh=mesh, **options)(x), x, cluster="cpu8")


def a_batch_held_in_two_ways():
    def turned(w, x):
        x = jax.lax.cond(w.sum() > 0, lambda: x, lambda: x.T)
        return w - 0.1 * jax.grad(lambda w: jnp.tanh(x @ w).sum())(w)

    square = np.ones((16, 16), np.float32)
    autopar.plan(autopar.accumulate(turned, 4), w, square, cluster="cpu8", mesh={"a": 8})
