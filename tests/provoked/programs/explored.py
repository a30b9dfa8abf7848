"""Questions of a session about a plan."""

from tests.provoked.programs._shared import autopar, jnp, step, w, x


def release_of_what_nothing_holds():
    autopar.explore(step, w, x, cluster="cpu8", mesh={"a": 8}).release("w")


def a_mesh_asked_about_that_is_a_list():
    autopar.explore(step, w, x, cluster="cpu8", mesh={"a": 8}).mesh([2, 4])


def a_batch_of_no_rows():
    autopar.explore(step, w, x, cluster="cpu8", mesh={"a": 8}).batch(0)


def a_batch_where_no_argument_is_data():
    options = {"cluster": "cpu8", "mesh": {"a": 8}, "donate_argnums": 0}
    autopar.explore(lambda w: w - 0.1 * jnp.tanh(w), w, **options).batch(16)


def undo_of_nothing():
    autopar.explore(step, w, x, cluster="cpu8", mesh={"a": 8}).undo()


def links_no_times_as_fast():
    autopar.explore(step, w, x, cluster="cpu8", mesh={"a": 8}).links(0)


def links_of_a_level_that_is_not_there():
    autopar.explore(step, w, x, cluster="8xh100", mesh={"a": 8}).links(0.5, "servers")


def a_limit_that_a_large_function_does_not_keep():
    def deep(w, x):
        for _ in range(251):
            x = 2 * jnp.tanh(x @ w) @ w.T
        return x

    autopar.explore(deep, w, x, cluster="cpu8", mesh={"a": 8}).limit(64)
