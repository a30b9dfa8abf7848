"""Several JAX processes on one machine: side by side, or as hosts in network namespaces that a slow link joins.

The starting process holds no JAX backend. It starts `python -m MODULE --worker FILE` once for each host; FILE says who
the worker is and what it shall do. Each worker calls `join`, and number 0 leaves what was found with `answer`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import jax
import numpy as np

from benchmarks.kept_memory import KEEPING
from cost_models import Cluster, Topology, load_cluster

MOST_WAITING_BYTES = 100_000_000
FILES, PREFIX = Path("/etc/netns"), "autopar-"
BURST_BYTES = 256 * 1024
SHARED = "cpu-gloo4"
"""As many devices on one host."""
_NUMBERS = count()


@dataclass(frozen=True)
class Host:
    """Where a process runs: what its command starts with, and the address that the others reach it by."""

    prefix: tuple[str, ...]
    address: str


@dataclass(frozen=True)
class Work:
    """What one worker is told: who it is of how many, where the first one listens, its devices, and what to do."""

    number: int
    processes: int
    coordinator: str
    local_devices: int
    answer: str
    task: dict[str, Any]


class HostsError(RuntimeError):
    """Namespaces could not be made, or a worker failed: says which command, and what it wrote."""


# In the process that starts the others -------------------------------------------------------------------------------


def same_host(processes: int) -> tuple[Host, ...]:
    """Processes side by side, which talk over loopback."""
    return (Host((), "127.0.0.1"),) * processes


@contextmanager
def linked_hosts(bits_per_s: float | None) -> Iterator[tuple[Host, Host]]:
    """Two hosts as network namespaces, joined by one link of `bits_per_s` in each direction; None: as fast as it goes.

    Each sends through a token bucket (tc tbf) that drops nothing. gloo listens at the address of the host's own name,
    so each namespace has a hosts file. All is removed at the end, whatever happens.

    Raises:
      HostsError: if a namespace cannot be made; `why_not` says so before.
    """
    _remove(_left_behind())
    names = [f"{PREFIX}{os.getpid()}-{next(_NUMBERS)}" for _ in range(2)]
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        _run(
            "ip",
            "link",
            "add",
            "veth0",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "veth1",
            "netns",
            names[1],
        )
        for number, name in enumerate(names):
            _furnish(name, number, bits_per_s)
        yield tuple(
            Host(("ip", "netns", "exec", name), _address(n)) for n, name in enumerate(names)
        )  # pyright: ignore[reportReturnType]
    finally:
        _remove(names)


def linked_cluster(bits_per_s: float) -> Cluster:
    """What the model has of `linked_hosts` with two devices each: the profile of 1 Gbit/s, its link scaled.

    The profile's hosts are machines of their own. These are one machine, whose cores and memory all four devices share.
    """
    profile, shared, times = load_cluster("2x2xcpu-1gbit"), load_cluster(SHARED), bits_per_s / 1e9
    outer, *inside = profile.topology.levels
    link = replace(outer.link, bandwidth_bytes_per_s=outer.link.bandwidth_bytes_per_s * times)
    terms = tuple(replace(one, beta_s_per_byte=one.beta_s_per_byte / times) for one in outer.terms)
    levels = (replace(outer, link=link, terms=terms), *inside)
    name = f"2x2xcpu at {bits_per_s / 1e6:g} Mbit/s"
    return replace(profile, name=name, device=shared.device, topology=Topology(levels))


def why_not() -> str:
    """Why two linked hosts cannot be made on this machine; "" where they can, which is tried."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"there is no {tool} (iproute2) on this machine"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with linked_hosts(1e9):
            return ""
    except (HostsError, OSError) as error:
        return f"network namespaces cannot be made here: {error}"


def run_everywhere(
    hosts: Sequence[Host],
    module: str,
    task: dict[str, Any],
    *,
    local_devices: int,
    timeout_s: float,
) -> Any:
    """What worker 0 answered to `task`, after `module` has run as a worker on each of `hosts`.

    Raises:
      HostsError: if a worker fails or takes longer than `timeout_s`; with the end of what it wrote.
    """
    with tempfile.TemporaryDirectory(prefix="autopar-hosts-") as folder:
        before = signal.signal(signal.SIGTERM, _leave)
        answer = Path(folder) / "answer.json"
        coordinator = f"{hosts[0].address}:{_free_port() if not hosts[0].prefix else 12355}"
        started: list[subprocess.Popen[bytes]] = []
        try:
            for number, host in enumerate(hosts):
                work = Work(number, len(hosts), coordinator, local_devices, str(answer), task)
                started.append(_started(host, module, work, Path(folder)))
            for number, process in enumerate(started):
                _finished(
                    process, Path(folder) / f"{number}.log", f"{module} on host {number}", timeout_s
                )
        finally:
            for process in started:
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                process.wait()
            signal.signal(signal.SIGTERM, before)
        return json.loads(answer.read_text())


def _leave(_signal: int, _frame: object) -> None:
    """Ends this process as an exception would, so that workers end and namespaces go."""
    sys.exit(128 + signal.SIGTERM)


def _remove(names: Iterable[str]) -> None:
    for name in names:
        subprocess.run(("ip", "netns", "del", name), capture_output=True, check=False)
        shutil.rmtree(FILES / name, ignore_errors=True)


def _left_behind() -> list[str]:
    """The namespaces of processes that were killed before they could remove theirs."""
    made = [path.name for path in FILES.glob(f"{PREFIX}*")]
    return [
        name for name in made if not Path("/proc", name.removeprefix(PREFIX).split("-")[0]).exists()
    ]


def _furnish(name: str, number: int, bits_per_s: float | None) -> None:
    """Address, link, rate and hosts file of the namespace `name`."""
    device = f"veth{number}"
    _run("ip", "-n", name, "addr", "add", f"{_address(number)}/24", "dev", device)
    _run("ip", "-n", name, "link", "set", "lo", "up")
    _run("ip", "-n", name, "link", "set", device, "up")
    if bits_per_s is not None:
        bucket = (
            "rate",
            f"{round(bits_per_s)}bit",
            "burst",
            str(BURST_BYTES),
            "limit",
            str(MOST_WAITING_BYTES),
        )
        _run(
            "ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", device, "root", "tbf", *bucket
        )
    folder = FILES / name
    folder.mkdir(parents=True)
    (folder / "hosts").write_text(
        f"{_address(number)} {socket.gethostname()}\n127.0.0.1 localhost\n"
    )


def _address(number: int) -> str:
    return f"10.99.0.{number + 1}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostsError(
            f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}"
        )


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def _started(host: Host, module: str, work: Work, folder: Path) -> subprocess.Popen[bytes]:
    told = folder / f"{work.number}.json"
    told.write_text(json.dumps(asdict(work)))
    command = (*host.prefix, sys.executable, "-m", module, "--worker", str(told))
    with (folder / f"{work.number}.log").open("wb") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | KEEPING
        )


def _finished(process: subprocess.Popen[bytes], log: Path, what: str, timeout_s: float) -> None:
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        raise HostsError(
            f"{what} had not ended after {timeout_s:.0f} s:\n{_end_of(log)}"
        ) from error
    if code:
        raise HostsError(f"{what} ended with {code}:\n{_end_of(log)}")


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]


# In a worker ----------------------------------------------------------------------------------------------------------


def join(told: Path) -> Work:
    """The work in the file `told`, after this process has joined the others: CPU devices, gloo, jax.distributed."""
    work = Work(**json.loads(told.read_text()))
    Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_num_cpu_devices", work.local_devices)
    jax.distributed.initialize(work.coordinator, work.processes, work.number)
    return work


def _end_with_parent(parent: int) -> None:
    """Ends this process once the one that started it is gone: the others may wait for each other for ever."""
    while os.getppid() == parent:
        sleep(1.0)
    os._exit(1)


def answer(work: Work, found: Any) -> None:
    """Leaves `found` for the process that started this one, if it is number 0."""
    if work.number == 0:
        Path(work.answer).write_text(json.dumps(found))


def devices_in_order() -> list[Any]:
    """All devices of all processes: those of one process beside each other."""
    return sorted(jax.devices(), key=lambda device: (device.process_index, device.id))


def agreed_least(number: float) -> float:
    """The least of the `number` that each process gives, the same in all of them."""
    from jax.experimental import multihost_utils

    return float(np.min(multihost_utils.process_allgather(np.float32(number))))
