"""Meeting: before JAX starts, each process tells process 0 that it has come, so that those who have not are named.

JAX aborts a process that waits in vain, and does not say for whom it waited. Process 0 listens where JAX will. Each of
the others says its number there and keeps the connection, until process 0 answers: all are there, or what is wrong.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Container
from contextlib import ExitStack, suppress
from time import monotonic, sleep
from typing import Any, cast

from autopar.distributed.ports import listening
from autopar.errors import JobError

_ALL_CAME = "all came"
_LONGEST_LINE = 4096
_HELLO_S = 5.0  # who connects says at once who it is
_LATER_S = 10.0  # process 0 waits as long from when it has come, and is to be the one that says who is missing
_PAUSE_S = 0.1
_SHOWN = 5


def meet(
    coordinator: tuple[str, int],
    count: int,
    number: int,
    *,
    timeout_s: float,
    bind: tuple[str, int],
) -> None:
    """Returns in each of `count` processes once all of them have come.

    Args:
      coordinator: host and port at which the others find process 0.
      count: how many there are.
      number: which this is, from 0.
      timeout_s: how long process 0 waits for the others, and each of them for it.
      bind: host and port at which process 0 listens; "": at all addresses.

    Raises:
      JobError: some did not come in time: named in all that wait; two have the same number; or they differ in count.
    """
    if number == 0:
        said = _wait_for_others(bind, count, timeout_s)
    else:
        said = _wait_for_first(coordinator, count, number, timeout_s)
    if said != _ALL_CAME:
        raise JobError(f"init: {said}")


# In process 0 ---------------------------------------------------------------------------------------------------------


def _wait_for_others(bind: tuple[str, int], count: int, timeout_s: float) -> str:
    """What the others were told in the end."""
    end_s = monotonic() + timeout_s

    with ExitStack() as closing:
        server = closing.enter_context(listening(*bind, waiting=count))
        came: dict[int, socket.socket] = {}
        said = _ALL_CAME

        while len(came) < count - 1:
            server.settimeout(max(end_s - monotonic(), 1e-3))
            try:
                connection = closing.enter_context(server.accept()[0])
            except TimeoutError:
                said = _missing(came, count, timeout_s)
                break
            _take_in(connection, count, came)

        for connection in came.values():
            _say(connection, {"said": said})
        return said


def _take_in(connection: socket.socket, count: int, came: dict[int, socket.socket]) -> None:
    """Takes note of who connects; what is no process of a job is left alone.

    The last to say a number has it, as it may be one that was started again.
    """
    hello = _heard(connection, _HELLO_S)
    number = hello.get("number")
    others = hello.get("count")
    if not (isinstance(number, int) and 0 < number < count):
        if others is not None:
            _say(connection, {"said": _disagreement(number, others, count)})
        return
    if others != count:
        _say(connection, {"said": _disagreement(number, others, count)})
        return

    if number in came:
        _say(came[number], {"said": f"another process came as process {number} too"})
    came[number] = connection


def _disagreement(number: object, others: object, count: int) -> str:
    return (
        f"this is process {number} of {others}, and process 0 says that there are {count}: give all of them the same "
        f"number of processes"
    )


def _missing(came: Container[int], count: int, timeout_s: float) -> str:
    missing = [number for number in range(count) if number and number not in came]
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return (
        f"process {', '.join(map(str, missing[:_SHOWN]))}{more} of {count} did not come within {timeout_s:g} s: start "
        f"it, or look at why it has not reached autopar.distributed.init()"
    )


# In the others --------------------------------------------------------------------------------------------------------


def _wait_for_first(coordinator: tuple[str, int], count: int, number: int, timeout_s: float) -> str:
    """What process 0 says."""
    end_s = monotonic() + timeout_s
    reason = ""
    while monotonic() < end_s:
        try:
            with socket.create_connection(coordinator, timeout=_HELLO_S) as connection:
                _say(connection, {"number": number, "count": count})
                said = _heard(connection, timeout_s + _LATER_S).get("said")
        except OSError as error:
            reason = str(error.strerror or error)
        else:
            if said is not None:
                return str(said)
            reason = "the connection was closed"
        sleep(_PAUSE_S)

    host, port = coordinator
    return (
        f"process 0 of {count} did not come within {timeout_s:g} s: nothing answers at {host}:{port} ({reason}). Start "
        f"it, or give all of them its address"
    )


# Lines ----------------------------------------------------------------------------------------------------------------


def _say(connection: socket.socket, told: dict[str, Any]) -> None:
    with suppress(OSError):  # it has gone: it is missed when JAX starts
        connection.sendall(json.dumps(told).encode() + b"\n")


def _heard(connection: socket.socket, limit_s: float) -> dict[str, Any]:
    """A line of another process; {} if it says none, or another kind of thing."""
    connection.settimeout(limit_s)
    try:
        with connection.makefile("rb") as lines:
            told: Any = json.loads(lines.readline(_LONGEST_LINE))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", told) if isinstance(told, dict) else {}
