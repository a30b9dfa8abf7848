"""The processes of a job: joined by `jax.distributed`, numbered, and gone at once if they fail."""

from __future__ import annotations

import os
import re
from pathlib import Path

from autopar._compat import backend_is_started, detects_cluster, untyped_jax
from autopar.distributed.ending import end_at_once_if_failing
from autopar.distributed.meeting import meet
from autopar.distributed.ports import usable_port
from autopar.distributed.variables import ARRIVAL, BIND, COORDINATOR, COUNT, NUMBER
from autopar.errors import InvalidOption, JobError

_FOREVER_S = 7 * 24 * 3600
_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_RUNTIME_ERROR: type[Exception] = untyped_jax.errors.JaxRuntimeError


def init(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout_s: float = 300.0,
) -> None:
    """Joins this process to the others of its job; to be called before anything of JAX is used.

    Who they are is what the arguments say; else what the variables JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
    JAX_PROCESS_ID say, which `autopar launch` sets; else what JAX finds of SLURM, Open MPI, Kubernetes or the host of a
    TPU. Where nothing says so this process is alone, and nothing is done; nor is it at a second call.

    A process that fails later, by an exception or by `sys.exit` of anything but 0, ends at once and with its own exit
    code: JAX would let it wait five minutes for the others, which wait for it.

    Args:
      coordinator_address: host and port at which process 0 listens.
      num_processes: how many there are.
      process_id: the number of this one, from 0.
      timeout_s: how long to wait for the others. Under `autopar launch` its own option decides.

    Raises:
      InvalidOption: if one of the three is missing or is no number, or there is no process of that number.
      JobError: if JAX was used before, process 0 cannot listen at the port, or an MPI started several processes that
        JAX does not find; if others did not come in time: named where the three are given.
    """
    if untyped_jax.distributed.is_initialized():
        return

    told = _told(coordinator_address, num_processes, process_id)
    if told is None and not detects_cluster():
        _check_alone()
        return

    arrival = os.environ.get(ARRIVAL)
    if arrival is not None:
        Path(arrival).touch()
    elif told is not None and not backend_is_started():
        _meet(*told, timeout_s=timeout_s)
    limit_s = timeout_s if arrival is None else _FOREVER_S
    _join(*(told or (None, None, None)), limit_s=limit_s)
    if group_size() > 1:
        end_at_once_if_failing(blaming_others=_RUNTIME_ERROR)


def rank() -> int:
    """The number of this process, from 0."""
    return untyped_jax.process_index()


def group_size() -> int:
    """How many processes there are."""
    return untyped_jax.process_count()


Told = tuple[str, int, int]


def _told(address: str | None, count: int | None, number: int | None) -> Told | None:
    """The coordinator's address, how many processes there are, and which this is; None if neither is said.

    An address alone is left to JAX, which reads it too.
    """
    given = {
        COORDINATOR: address or os.environ.get(COORDINATOR),
        COUNT: os.environ.get(COUNT) if count is None else count,
        NUMBER: os.environ.get(NUMBER) if number is None else number,
    }
    if given[COUNT] is None and given[NUMBER] is None:
        return None

    missing = [name for name, value in given.items() if value is None]
    if missing:
        raise InvalidOption(
            f"init: {', '.join(missing)} is not given. Pass coordinator_address, num_processes and process_id, or set "
            f"{COORDINATOR}, {COUNT} and {NUMBER}, all three in every process"
        )

    where = str(given[COORDINATOR])
    if not re.fullmatch(r".+:\d+", where):
        raise InvalidOption(f"init: {COORDINATOR} is {where!r}: expected HOST:PORT")
    processes = _number(COUNT, given[COUNT])
    own = _number(NUMBER, given[NUMBER])
    if not 0 <= own < processes:
        raise InvalidOption(
            f"init: this is process {own} of {processes}: expected 0 to {processes - 1}"
        )
    return where, processes, own


def _check_alone() -> None:
    """Whether nothing says that there are others: JAX knows Open MPI 4, not 5, nor MPICH.

    Raises:
      JobError: if a launcher of MPI does: each process would train by itself.
    """
    for size in _MPI_SIZES:
        count = os.environ.get(size, "1")
        if count != "1":
            raise JobError(
                f"init: {size} says that there are {count} processes, and JAX does not find them by itself. Set "
                f"{COORDINATOR}, {COUNT} and {NUMBER} in each"
            )


def _number(name: str, value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise InvalidOption(f"init: {name} is {value!r}: expected a whole number") from None


def _join(address: str | None, count: int | None, number: int | None, *, limit_s: float) -> None:
    """`jax.distributed.initialize`; its own detection only where nothing is said."""
    if address is not None and number == 0:
        usable_port(*_bind(address))

    try:
        untyped_jax.distributed.initialize(
            address,
            count,
            number,
            cluster_detection_method=None if address is None else "deactivate",
            initialization_timeout=int(limit_s),
        )
    except _RUNTIME_ERROR as error:
        raise JobError(
            f"init: JAX cannot start ({error}). Where its port is in use, JAX_COORDINATOR_PORT names another"
        ) from error
    except ValueError as error:
        raise InvalidOption(
            f"init: JAX cannot tell the processes from what describes them: {error}"
        ) from error
    except RuntimeError as error:
        raise JobError(f"init: {error}") from error


def _meet(address: str, count: int, number: int, *, timeout_s: float) -> None:
    """All processes, before JAX starts."""
    host, _, port = address.rpartition(":")
    meet((host.strip("[]"), int(port)), count, number, timeout_s=timeout_s, bind=_bind(address))


def _bind(address: str) -> tuple[str, int]:
    """Where process 0 listens so that the others find it at `address`: at all its addresses unless told."""
    host, _, port = os.environ.get(BIND, f":{address.rpartition(':')[2]}").rpartition(":")
    return "" if ":" in host else host, _number(COORDINATOR, port)
