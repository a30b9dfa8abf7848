"""Functions and arguments that JAX, or a plan, does not take."""

from tests.provoked.programs._shared import autopar, jax, jnp, layer, np, w, x


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
