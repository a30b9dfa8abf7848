"""Parameter servers."""

import optax

from autopar.parameter_server import Job
from autopar.parameter_server.cluster import split_address
from autopar.parameter_server.layout import Layout
from autopar.parameter_server.optimizers import check_dense, check_sparse
from autopar.parameter_server.records import Part
from autopar.parameter_server.sharding import Leaf, Shard, place
from autopar.parameter_server.store import Store
from tests.provoked.programs._shared import Path, jax, np, w


def a_job_of_no_server():
    Job({"w": w}, optax.sgd(0.1), steps=10, servers=0)


def a_job_with_a_staleness_below_zero():
    Job({"w": w}, optax.sgd(0.1), steps=10, staleness=-1)


def a_job_without_parameters():
    Job({}, optax.sgd(0.1), steps=10)


def a_job_with_a_table_that_is_no_parameter():
    Job({"w": w}, optax.sgd(0.1), steps=10, tables={"words": "ids"})


def a_job_with_a_table_that_is_a_scalar():
    Job({"w": np.float32(1)}, optax.sgd(0.1), steps=10, tables={"w": "ids"})


def an_optimizer_that_clips_by_the_global_norm():
    check_dense(optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)))


def an_optimizer_that_looks_at_names():
    check_dense(
        optax.GradientTransformation(lambda params: params["kernel"], optax.sgd(0.1).update)
    )


def a_table_under_an_optimizer_that_sees_other_rows():
    check_sparse(optax.lamb(0.1))


def a_table_under_an_optimizer_with_momentum():
    check_sparse(optax.adam(0.1))


def parameters_that_no_server_has_room_for():
    place([Leaf("table", (100, 4), "float32", 1600)], [100, 100])


def an_address_that_is_none():
    split_address("host")


_WORDS = Layout(
    {"table": "table"},
    {"table": jax.ShapeDtypeStruct((100, 4), np.float32)},
    ((Shard("table", 0, 100),),),
    {"table": ("words",)},
    10.0,
)


def a_batch_that_names_rows_that_are_not_there():
    _WORDS.touched({"words": np.array([0, 100])})


def a_batch_without_the_numbers_of_rows():
    _WORDS.touched({"ids": np.array([0])})


def a_gradient_of_rows_that_the_batch_does_not_name():
    touched = _WORDS.touched({"words": np.array([1, 2])})
    _WORDS.split({"table": np.ones((3, 4), np.float32)}, touched)


def a_gradient_of_no_parameter():
    _WORDS.split({"weights": np.ones((100, 4), np.float32)}, {})


def a_gradient_of_another_type():
    from autopar.parameter_server.store import check_alike

    check_alike("table", np.ones((100, 4), np.float32), np.ones((100, 4)))


def a_server_at_a_scheduler_that_is_not_there():
    from autopar.parameter_server import run_server

    run_server("127.0.0.1:1", timeout_s=0.1)


def a_checkpoint_of_servers_that_cannot_be_read():
    from autopar.parameter_server.checkpoints import read_arrays

    read_arrays(Path("00000100/server.npz"))


def a_checkpoint_of_servers_that_cannot_be_written():
    from autopar.parameter_server.checkpoints import write_arrays

    Path("run").write_text("")
    write_arrays(Path("run/server.npz"), {"table": np.ones(3)})


def a_scheduler_where_something_listens():
    import socket

    from autopar.parameter_server import run_scheduler

    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        run_scheduler(Job({"w": w}, optax.sgd(0.1), steps=1), address)


def a_scheduler_that_is_no_ray():
    import socket

    from autopar.parameter_server import run_server

    with socket.create_server(("127.0.0.1", 0)) as listening:
        run_server(f"127.0.0.1:{listening.getsockname()[1]}", timeout_s=1)


def checkpoints_of_other_servers():
    from autopar.parameter_server.checkpoints import Manifest, Saved

    Manifest(Path("run"), [[Shard("w", 0, 16)]]).add(Saved(0, {0: 0}))
    Manifest(Path("run"), [[Shard("w", 0, 8)], [Shard("w", 8, 16)]]).versions()


_OF_W = Part((Shard("w", 0, 16),), frozenset(), optax.sgd(0.1), optax.sgd(0.1))
_OF_TABLE = Part((Shard("t", 0, 16),), frozenset({"t"}), optax.sgd(0.1), optax.sgd(0.1))


def gradients_of_another_server():
    Store(_OF_W, {"w[0:16]": w}).check({"v[0:16]": w})


def a_shard_of_another_server():
    Store(_OF_W, {"w[0:16]": w}).read({"v[0:16]": None})


def rows_of_a_table_that_are_on_another_server():
    Store(_OF_TABLE, {"t[0:16]": w}).read({"t[0:16]": np.array([16])})


def a_checkpoint_of_another_optimizer():
    Store(_OF_W, {"w[0:16]": w}).restore({"value w[0:16]": w, "state 0": w})


def a_batch_that_is_no_arrays():
    from autopar.parameter_server.worker import _examples

    _examples({})
