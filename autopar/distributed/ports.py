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
    try:
        with socket.create_server((host, port)) as listening:
            return listening.getsockname()[1]
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise JobError(
            f"process 0 cannot listen at {host}:{port} ({reason}): name another port. `autopar launch` takes a free "
            f"one where none is named"
        ) from error
