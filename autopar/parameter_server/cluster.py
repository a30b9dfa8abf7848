"""Ray: started here, joined at an address, and asked; what goes wrong is said in autopar's words."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from time import monotonic, sleep
from typing import Any

from autopar.errors import AutoparError, InvalidJob, ParameterServerError, of_extra

NAMESPACE = "autopar"
SCHEDULER = "parameter-server-scheduler"
OBJECT_STORE_BYTES = 256 * 1024 * 1024
"""Of a Ray that is started here. What travels is freed at once; Ray spills to disk what does not fit."""
LOOPBACK = ("127.0.0.1", "localhost")
"""Ray takes them for the address that this machine has among others, and listens at all."""
_SETTINGS_FRAME = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Of HTTP/2, without any: length 0, type 4, no flags, stream 0."""
_RAY = (sys.executable, "-m", "ray.scripts.scripts")
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # a head that is started asks for the token in ~/.ray/auth_token, and who joins must be told to show it
    "RAY_AUTH_MODE": "token",
    # servers and the scheduler take no accelerator; without it Ray warns that this default will change
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def ray() -> Any:
    """The library.

    Raises:
      MissingExtra: it is not installed.
    """
    if "ray" not in sys.modules:  # it reads them once
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
    with of_extra("ps", "parameter servers run on Ray"):
        return import_module("ray")


@contextmanager
def local() -> Generator[None]:
    """Ray on this machine: the one that this process has joined already, or one that ends with the context."""
    library = ray()
    if library.is_initialized():
        yield
        return

    library.init(
        address="local",
        namespace=NAMESPACE,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
        logging_level="error",
    )
    try:
        yield
    finally:
        library.shutdown()


@contextmanager
def head(address: str, timeout_s: float) -> Generator[None]:
    """The first node of a Ray cluster, which listens at `host:port` of this machine until the context ends.

    Raises:
      InvalidJob: no address of this form, or something listens there already.
      ParameterServerError: Ray does not start.
    """
    host, port = split_address(address)
    ray()
    if _answers(host, port):
        raise InvalidJob(f"{address}: something listens there already; take another port")

    _make_token()
    options = [f"--port={port}", "--include-dashboard=false", "--disable-usage-stats"]
    options += [f"--object-store-memory={OBJECT_STORE_BYTES}"]
    if host not in LOOPBACK:
        options.append(f"--node-ip-address={host}")

    command = [*_RAY, "start", "--head", "--block", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as started:
        try:
            _wait_for_head(started, host, port, timeout_s)
            with joined(address, timeout_s):
                yield
        finally:
            started.terminate()


@contextmanager
def joined(address: str, timeout_s: float) -> Generator[None]:
    """While the context lasts this process is part of the Ray cluster at `host:port`.

    Raises:
      InvalidJob: no address of this form.
      ParameterServerError: nothing answers there, or no Ray.
    """
    host, port = split_address(address)
    library = ray()
    end = monotonic() + timeout_s
    while not _is_grpc(host, port):
        if monotonic() > end:
            raise ParameterServerError(
                f"what answers at {address} is no Ray: give the address of the scheduler"
                if _answers(host, port)
                else f"nothing answers at {address} within {timeout_s:g} s: start the scheduler there first, and give "
                "servers and workers its address"
            )
        sleep(0.2)

    try:
        library.init(
            address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="error"
        )
    except (ConnectionError, RuntimeError, ValueError, library.exceptions.RayError) as error:
        raise ParameterServerError(
            f"the Ray at {address} cannot be joined: {error}. Other hosts need its ~/.ray/auth_token; where ray is "
            "imported before autopar.parameter_server, set RAY_AUTH_MODE=token"
        ) from error
    try:
        yield
    finally:
        library.shutdown()


def scheduler_at(address: str, timeout_s: float) -> Any:
    """The scheduler's actor in the cluster that this process has joined.

    Raises:
      ParameterServerError: none has come within `timeout_s`.
    """
    library = ray()
    end = monotonic() + timeout_s
    while True:
        try:
            return library.get_actor(SCHEDULER, namespace=NAMESPACE)
        except ValueError as error:
            if monotonic() > end:
                raise ParameterServerError(
                    f"Ray answers at {address}, and no scheduler is there within {timeout_s:g} s: start it first"
                ) from error
        sleep(0.2)


def answer(reference: Any) -> Any:
    """What an actor answers; of autopar's errors there, the error itself."""
    library = ray()
    try:
        return library.get(reference)
    except library.exceptions.RayTaskError as error:
        if isinstance(error.cause, AutoparError):
            raise error.cause from None
        raise


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port".

    Raises:
      InvalidJob: another form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidJob(
            f"{address!r} is no address; expected HOST:PORT, for example 127.0.0.1:6390"
        )
    return host, int(port)


def _make_token() -> None:
    """A token in ~/.ray/auth_token, if there is none yet."""
    done = subprocess.run(
        [*_RAY, "get-auth-token", "--generate"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ParameterServerError(f"Ray makes no token for its cluster:\n{done.stderr[-2000:]}")


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def _is_grpc(host: str, port: int) -> bool:
    """Whether a server of HTTP/2 is there, as Ray's is: it answers the preface with its settings (RFC 9113, 3.4)."""
    try:
        with socket.create_connection((host, port), timeout=1.0) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS_FRAME)
            head = connection.recv(9, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(head) == 9 and head[3] == _SETTINGS_FRAME[3]


def _wait_for_head(started: subprocess.Popen[str], host: str, port: int, timeout_s: float) -> None:
    end = monotonic() + timeout_s
    while not _is_grpc(host, port):
        if started.poll() is not None:
            said = started.communicate()[0]
            raise ParameterServerError(f"Ray does not start at {host}:{port}:\n{said[-2000:]}")
        if monotonic() > end:
            raise ParameterServerError(
                f"Ray does not listen at {host}:{port} after {timeout_s:g} s"
            )
        sleep(0.1)
