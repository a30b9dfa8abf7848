"""The port of process 0, tried before JAX takes it: a port in use is named here, and may end the process there."""

from __future__ import annotations

import os
import socket

from autopar.errors import JobError


def usable_port(host: str, port: int) -> int:
    """`port` of this machine, at which process 0 can listen; 0: one that is free. `host` is an address, "": all.

    Raises:
      JobError: if it is in use.
    """
    with listening(host, port) as server:
        return server.getsockname()[1]


def listening(host: str, port: int, waiting: int = 1) -> socket.socket:
    """A socket that listens there, as process 0 will; `waiting` connections wait to be accepted.

    Raises:
      JobError: if the port is in use.
    """
    at_all = host == "" and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if at_all else socket.AF_INET
    try:
        return socket.create_server(
            (host, port), family=family, backlog=waiting, dualstack_ipv6=at_all
        )
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise JobError(
            f"process 0 cannot listen at {host}:{port} ({reason}): name another port. `autopar launch` takes a free "
            f"one where none is named"
        ) from error
