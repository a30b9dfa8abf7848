"""What is said while something takes its time."""

from tests.provoked.programs._shared import autopar, jax, np, step, w, x


def a_search():
    told = autopar.SearchOptions(on_progress=print)
    autopar.plan(step, w, x, cluster="cpu8", mesh={"a": 8}, options=told)


def the_loop_around_a_step():
    plain = jax.jit(lambda w, x: (step(w, x), x.sum()))
    batches = [np.ones((8, 16), np.float32)] * 4
    autopar.Trainer(log_every=2).fit(plain, w, batches, steps=4)
