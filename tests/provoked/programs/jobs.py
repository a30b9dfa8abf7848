"""Processes of a job: started, joined, compared. The loop around a step, and its checkpoints."""

import json
import os
import warnings

from autopar.checkpoint.manifest import write_manifest
from tests.provoked.programs._shared import Path, autopar, np


def _named(**variables):
    os.environ.update(variables)
    try:
        autopar.distributed.init()
    finally:
        for name in variables:
            del os.environ[name]


def init_without_the_number_of_the_process():
    autopar.distributed.init("host:1234", num_processes=2)


def init_with_an_address_without_a_port():
    autopar.distributed.init("host", num_processes=2, process_id=0)


def init_with_a_number_of_processes_that_is_none():
    autopar.distributed.init("host:1234", num_processes="two", process_id=0)


def init_as_a_process_behind_the_last():
    autopar.distributed.init("host:1234", num_processes=2, process_id=2)


def a_job_whose_first_process_does_not_come():
    from autopar.distributed.meeting import meet

    meet(("127.0.0.1", 9), count=2, number=1, timeout_s=0.1, bind=("", 9))


def init_after_jax_was_used():
    autopar.distributed.init("host:1234", num_processes=2, process_id=1)


def init_under_a_launcher_that_jax_does_not_know():
    _named(PMI_SIZE="4")


def broadcast_from_a_process_that_is_not_there():
    autopar.distributed.broadcast(np.ones(3), source=2)


def launch_of_no_process():
    from autopar.distributed.launch import Job

    Job(Path("train.py"), processes=0)


def launch_of_no_device():
    from autopar.distributed.launch import Job

    Job(Path("train.py"), devices_per_process=0)


def launch_at_an_address_that_is_not_here():
    from autopar.distributed.ports import usable_port

    usable_port("192.0.2.1", 1234)


def checkpoints_every_zero_steps():
    autopar.checkpoint.Checkpoints("run", every=0)


def checkpoints_in_a_file():
    Path("run").write_text("")
    autopar.checkpoint.Checkpoints("run")


def checkpoints_below_a_file():
    Path("file").write_text("")
    autopar.checkpoint.Checkpoints("file/run")


def checkpoints_saved_where_they_are_read_only():
    Path("run").mkdir()
    with autopar.checkpoint.Checkpoints("run", read_only=True) as checkpoints:
        checkpoints.save(1, {"w": np.ones(3)})


def a_checkpoint_of_text():
    with autopar.checkpoint.Checkpoints("run", at_sigterm=False) as checkpoints:
        checkpoints.save(1, {"name": "mine"}, force=True)


def a_checkpoint_with_a_position_that_json_cannot_hold():
    with autopar.checkpoint.Checkpoints("run", at_sigterm=False) as checkpoints:
        checkpoints.save(1, {"w": np.ones(3)}, data={1, 2}, force=True)


def a_checkpoint_of_a_step_that_is_past():
    with autopar.checkpoint.Checkpoints("run", at_sigterm=False) as checkpoints:
        checkpoints.save(2, {"w": np.ones(3)}, force=True)
        checkpoints.save(1, {"w": np.ones(3)}, force=True)


def a_checkpoint_of_another_state():
    with autopar.checkpoint.Checkpoints("run", at_sigterm=False) as checkpoints:
        checkpoints.save(2, {"w": np.ones(3)}, force=True)
        checkpoints.restore({"w": np.ones(4)})


def a_checkpoint_that_is_damaged():
    with autopar.checkpoint.Checkpoints("run", at_sigterm=False) as checkpoints:
        checkpoints.save(1, {"w": np.ones(3)}, force=True)
        checkpoints.save(2, {"w": np.ones(3)}, force=True)
    for data in Path("run/2").rglob("manifest*"):
        data.write_text("{}")
    with autopar.checkpoint.Checkpoints("run", at_sigterm=False) as checkpoints:
        checkpoints.restore({"w": np.ones(3)})


def a_trainer_that_logs_every_zero_steps():
    autopar.Trainer(log_every=0).fit(lambda state, batch: (state, 0.0), 0, [], 1)


def a_checkpoint_of_another_format():
    with autopar.checkpoint.Checkpoints("run", at_sigterm=False) as checkpoints:
        checkpoints.save(1, {"w": np.ones(3)}, force=True)
    job = Path("run/1/job/metadata")
    job.write_text(json.dumps({**json.loads(job.read_text()), "format": 99}))
    write_manifest(Path("run/1"))
    with autopar.checkpoint.Checkpoints("run", at_sigterm=False) as checkpoints:
        checkpoints.restore({"w": np.ones(3)})


def checkpoints_that_are_all_damaged():
    with autopar.checkpoint.Checkpoints("run", at_sigterm=False) as checkpoints:
        checkpoints.save(1, {"w": np.ones(3)}, force=True)
    for data in Path("run/1").rglob("manifest*"):
        data.write_text("{}")
    warnings.simplefilter("ignore", autopar.errors.DamagedCheckpointWarning)
    with autopar.checkpoint.Checkpoints("run", at_sigterm=False) as checkpoints:
        checkpoints.restore({"w": np.ones(3)})


def a_checkpoint_of_something_else():
    Path("run/1/weights").mkdir(parents=True)
    with autopar.checkpoint.Checkpoints("run", at_sigterm=False) as checkpoints:
        checkpoints.restore({"w": np.ones(3)})


def an_extra_that_is_not_installed():
    from autopar.errors import of_extra

    with of_extra("train", "Checkpoints are written by orbax"):
        import orbax_that_is_not_installed  # noqa: F401


def more_virtual_devices_than_jax_started_with():
    from autopar.emit.measure import use_virtual_devices

    use_virtual_devices(16)
