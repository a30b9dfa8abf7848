"""Processes that meet before JAX starts, as threads: they come in any order, and those who do not are named to all."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest

from autopar.distributed.meeting import meet
from autopar.distributed.ports import usable_port
from autopar.errors import JobError


@pytest.fixture
def port() -> int:
    return usable_port("127.0.0.1", 0)


def connected(port: int) -> socket.socket:
    """A connection to process 0, once it listens."""
    for _ in range(2000):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            sleep(0.01)
    raise AssertionError("nothing listens")


def came(port: int, number: int, count: int, *, timeout_s: float = 20, after_s: float = 0) -> str:
    """What a process is told; "" if all came."""
    sleep(after_s)
    try:
        meet(("127.0.0.1", port), count, number, timeout_s=timeout_s, bind=("127.0.0.1", port))
    except JobError as error:
        return str(error)
    return ""


def told(port: int, numbers: Sequence[int], count: int, **options: float) -> list[str]:
    """What processes with these numbers are told that start at once."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda number: came(port, number, count, **options), numbers))


@pytest.mark.parametrize("late", [0, 2])
def test_all_go_on_once_the_last_has_come(late: int, port: int) -> None:
    """And the port is free again, for JAX."""
    with ThreadPoolExecutor() as pool:
        found = [
            pool.submit(came, port, number, 4, after_s=0.3 * (number == late))
            for number in range(4)
        ]
    assert [one.result() for one in found] == [""] * 4
    assert usable_port("127.0.0.1", port) == port


def test_who_did_not_come_is_named_to_all(port: int) -> None:
    said = told(port, [0, 2], 4, timeout_s=2)
    assert said[0] == said[1]
    assert said[0].startswith("init: process 1, 3 of 4 did not come within 2 s: start it")
    said = told(port, [0], 9, timeout_s=0.1)
    assert "process 1, 2, 3, 4, 5 and 3 more of 9 did not come" in said[0]


def test_process_0_is_named_where_it_does_not_come(port: int) -> None:
    said = told(port, [1, 2], 3, timeout_s=0.5)
    named = f"init: process 0 of 3 did not come within 0.5 s: nothing answers at 127.0.0.1:{port} ("
    assert all(one.startswith(named) for one in said)


def test_processes_that_differ_in_their_number_are_told(port: int) -> None:
    with ThreadPoolExecutor() as pool:
        first = pool.submit(came, port, 0, 3, timeout_s=2)
        others = [pool.submit(came, port, number, 5) for number in (1, 4)]
    for number, other in zip((1, 4), others, strict=True):
        assert (
            f"this is process {number} of 5, and process 0 says that there are 3" in other.result()
        )
    assert "process 1, 2 of 3 did not come" in first.result()


def test_of_two_that_have_one_number_the_last_has_it(port: int) -> None:
    """As it may have been started again; the other is told."""
    with ThreadPoolExecutor() as pool:
        zero = pool.submit(came, port, 0, 3)
        with connected(port) as first:
            first.sendall(b'{"number": 1, "count": 3}\n')
            again = pool.submit(came, port, 1, 3)
            told = first.makefile("r").readline()
        last = pool.submit(came, port, 2, 3)
    assert json.loads(told) == {"said": "another process came as process 1 too"}
    assert [one.result() for one in (zero, again, last)] == [""] * 3


def test_what_speaks_otherwise_is_left_alone(port: int) -> None:
    with ThreadPoolExecutor() as pool:
        zero = pool.submit(came, port, 0, 2)
        for line in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"[1]\n",
            b"{}\n",
            b'{"number": true}\n',
            b'{"number": 0, "count": 2}\n',
        ):
            with connected(port) as other:
                other.sendall(line)
                other.shutdown(socket.SHUT_WR)
        assert came(port, 1, 2) == ""
    assert zero.result() == ""
