"""A process in which operators are tried: what an operator does to it, it does to nothing else.

Run as a script, by `process.Process`. It reads requests from its standard input and answers each, in order, to its
standard output: programs of StableHLO to be compiled, and operands to run them on. It ends, with 0, when it has had
nothing to do for a while or its standard input is closed, be it in the middle of a run.

A message is a header, JSON, that says what it is and the types and shapes of its arrays; then their bytes.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, Queue
from typing import IO, Any, NamedTuple

import numpy as np

_LENGTHS = struct.Struct("<QQ")

Array = np.ndarray[Any, Any]
Program = Callable[[Sequence[Array]], list[Array]]


class Message(NamedTuple):
    """`what` is asked or answered, of the program with this `number`; its `text`; arrays, of so many `runs`."""

    what: str
    number: int = 0
    text: str = ""
    arrays: tuple[Array, ...] = ()
    runs: int = 1


def write(stream: IO[bytes], message: Message) -> None:
    """Writes one message.

    Raises:
      OSError: if nobody reads.
    """
    tensors = [(array.dtype.name, array.shape) for array in message.arrays]
    header = json.dumps(
        [message.what, message.number, message.text, tensors, message.runs]
    ).encode()
    body = b"".join(array.tobytes() for array in message.arrays)
    stream.write(_LENGTHS.pack(len(header), len(body)) + header + body)
    stream.flush()


def read(stream: IO[bytes]) -> Message | None:
    """The next message; None where the stream ends before its end."""
    lengths = stream.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None

    header_size, body_size = _LENGTHS.unpack(lengths)
    header = stream.read(header_size)
    body = stream.read(body_size)
    if len(header) < header_size or len(body) < body_size:
        return None

    what, number, text, tensors, runs = json.loads(header)
    arrays: list[Array] = []
    start = 0
    for dtype, shape in tensors:
        array = np.frombuffer(
            body, np.dtype(dtype), int(np.prod(shape, dtype=np.int64)), start
        ).reshape(shape)
        arrays.append(array)
        start += array.nbytes

    return Message(what, number, text, tuple(arrays), runs)


def by_run(message: Message) -> list[tuple[Array, ...]]:
    """The arrays of each run."""
    size = len(message.arrays) // message.runs
    return [message.arrays[n * size : (n + 1) * size] for n in range(message.runs)]


def main(idle_s: float) -> None:
    """Answers requests until there are none for `idle_s` seconds."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what an operator prints is no answer
    requests: Queue[Message] = Queue()
    threading.Thread(target=_receive, args=(requests,), daemon=True).start()
    compat = _compat()
    programs: dict[int, Program] = {}
    while True:
        try:
            request = requests.get(timeout=idle_s)
        except Empty:
            os._exit(0)  # at once: the thread that reads holds what an orderly end would wait for
        write(answers, _answer(request, programs, compat))


def _receive(requests: Queue[Message]) -> None:
    """Takes requests in beside the runs; ends the process when nobody is there to make any."""
    while (request := read(sys.stdin.buffer)) is not None:
        requests.put(request)
    os._exit(0)


def _answer(request: Message, programs: dict[int, Program], compat: Any) -> Message:
    try:
        if request.what == "import":
            importlib.import_module(request.text)
            return Message("done")
        if request.what == "compile":
            programs[request.number] = compat.run_text(request.text)
            return Message("done")
        run = programs[request.number]
        results = [result for operands in by_run(request) for result in run(operands)]
        return Message("done", arrays=tuple(results), runs=request.runs)
    except (
        Exception
    ) as error:  # by whatever error an operator refuses: the other process asked whether it does
        return Message("refused", text=f"{type(error).__name__}: {error}")


def _compat() -> Any:
    """`autopar._compat`, without all of autopar, which takes seconds to import."""
    spec = importlib.util.spec_from_file_location(
        "autopar_compat", Path(__file__).parents[1] / "_compat.py"
    )
    if spec is None or spec.loader is None:
        raise ImportError("autopar/_compat.py is not where it was")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(float(sys.argv[1]))
