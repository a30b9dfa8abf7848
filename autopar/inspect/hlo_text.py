"""HLO text in, its computations and instructions as records out: as much of the format as collectives need."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

Groups = tuple[tuple[int, ...], ...]

_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.*)$")
_ARRAY = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<dims>[\d,]*)\]")
_COMMENT = re.compile(r"/\*.*?\*/")
_QUOTED = re.compile(r'"[^"]*"')
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation|branch_computations|called_computations)="
    r"(?:%?(?P<one>[\w.\-]+)|\{(?P<many>[^}]*)\})"
)
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_INDEX = re.compile(r"\bindex=(\d+)")
_LESS = re.compile(r"\bdirection=LT\b")
_DEVICES = re.compile(r"\b(?:num_partitions|replica_count)=(\d+)")
_IOTA = re.compile(r"\[(?P<shape>[\d,]+)\]<=\[(?P<dims>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?")
_MESH = re.compile(
    r"mesh\[(?P<axes>[^\]]*)\](?:, device_ids=\((?P<ids>[^{]*)\))? \{(?P<over>[^}]*)\}"
)
_MESH_AXIS = re.compile(r"'(?P<name>[^']*)'=(?P<size>\d+)")
_OVER_AXIS = re.compile(r"'(?P<name>[^']*)'(?::\((?P<before>\d+)\)(?P<size>\d+))?")
_BITS = re.compile(r"\d+")
_INTEGER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class HloArray:
    """An array type as HLO writes it: `f32`, `pred`, ... and its dims on one device."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of one such array; types of less than a byte are rounded up as a whole."""
        return -(-prod(self.dims) * dtype_bits(self.dtype) // 8)


@dataclass(frozen=True)
class HloInstruction:
    """One instruction: the arrays of its result (a tuple flattened), the names of its operands, the rest as text."""

    name: str
    opcode: str
    result: tuple[HloArray, ...]
    operands: tuple[str, ...]
    attributes: str

    @property
    def called(self) -> tuple[str, ...]:
        """The names of the computations that the instruction calls."""
        names: list[str] = []
        for match in _CALLED.finditer(_QUOTED.sub("", self.attributes)):
            names += [match["one"]] if match["one"] else re.findall(r"[\w.\-]+", match["many"])
        return tuple(names)


@dataclass(frozen=True)
class HloModule:
    """The computations of a module, by name; `entry` is the one that runs; `devices` run it together."""

    computations: dict[str, tuple[HloInstruction, ...]]
    entry: str
    devices: int

    def trip_count(self, loop: HloInstruction, computation: str) -> int | None:
        """How often a while loop of a computation runs, where XLA says so, or where one of its values is counted up.

        while value < stop: value = value + step           ceil((stop - start) / step) rounds
        """
        match = _TRIP_COUNT.search(loop.attributes)
        return int(match[1]) if match else self._counted(loop, computation)

    def _counted(self, loop: HloInstruction, computation: str) -> int | None:
        condition, body = (
            self.computations[_attribute(loop, key)] for key in ("condition", "body")
        )
        test = condition[-1]
        if test.opcode != "compare" or not _LESS.search(test.attributes):
            return None

        position = _position(condition, test.operands[0])
        stop = _constant(condition, test.operands[1])
        if position is None or stop is None:
            return None

        start = _constant(self.computations[computation], loop.operands[0], position)
        step = _step(body, position)
        return None if start is None or not step else max(0, -(-(stop - start) // step))


def parse_module(text: str) -> HloModule:
    """The module that `text`, of a compiled program, describes.

    Raises:
      ValueError: if there is no entry computation.
    """
    header, *lines = text.splitlines() or [""]
    computations: dict[str, list[HloInstruction]] = {}
    current: list[HloInstruction] = []
    entry = ""
    for line in lines:
        if start := _COMPUTATION.match(line):
            current = computations.setdefault(start["name"], [])
            entry = start["name"] if start["entry"] else entry
        elif found := _INSTRUCTION.match(line):
            current.append(_instruction(found["name"], _COMMENT.sub("", found["rest"])))

    if not entry:
        raise ValueError(f"HLO text without an entry computation: {header[:80]!r}")

    devices = prod(int(count) for count in _DEVICES.findall(header))
    return HloModule({name: tuple(found) for name, found in computations.items()}, entry, devices)


def _attribute(instruction: HloInstruction, key: str) -> str:
    """The name that an instruction has for a computation under this key."""
    found = re.search(rf"\b{key}=%?([\w.\-]+)", instruction.attributes)
    if found is None:
        raise ValueError(f"{instruction.opcode} {instruction.name} has no {key}")
    return found[1]


def _made(computation: Sequence[HloInstruction], name: str) -> HloInstruction:
    """What makes a value, copies aside."""
    found = {instruction.name: instruction for instruction in computation}
    made = found[name]
    while made.opcode.startswith("copy"):
        made = found[made.operands[0]]
    return made


def _position(computation: Sequence[HloInstruction], name: str) -> int | None:
    """The position of a value in the tuple that it comes out of."""
    made = _made(computation, name)
    found = _INDEX.search(made.attributes)
    return int(found[1]) if made.opcode == "get-tuple-element" and found else None


def _constant(
    computation: Sequence[HloInstruction], name: str, position: int | None = None
) -> int | None:
    """The integer that a value is, or the one at this position of a tuple; None: it is no constant."""
    made = _made(computation, name)
    if position is not None and made.opcode == "tuple":
        made = _made(computation, made.operands[position])
    is_number = made.opcode == "constant" and _INTEGER.fullmatch(made.operands[0])
    return int(made.operands[0]) if is_number else None


def _step(body: Sequence[HloInstruction], position: int) -> int | None:
    """What a loop's body adds to the value at this position of its tuple; None: it does anything else to it."""
    if body[-1].opcode != "tuple":
        return None
    made = _made(body, body[-1].operands[position])
    if made.opcode != "add" or _position(body, made.operands[0]) != position:
        return None
    return _constant(body, made.operands[1])


def dtype_bits(dtype: str) -> int:
    """The bits of an HLO element type: `pred` has 8, `token` none, every other says its own (`bf16`, `f8e4m3fn`)."""
    if dtype in {"token", "opaque"}:
        return 0
    found = _BITS.search(dtype)
    return int(found[0]) if found else 8


def device_groups(attributes: str, devices: int) -> Groups:
    """The groups of a collective, from any of its three notations; none given means one group of all devices.

    `{{0,1},{2,3}}`, `[2,4]<=[4,2]T(1,0)` (numbers counted up in the shape on the right, transposed, cut into the shape
    on the left), and `mesh['x'=2,'y'=4] {'y'}` (`{'y':(2)2}` is the part of size 2 behind a part of size 2).

    Raises:
      ValueError: if the notation is another.
    """
    key = "replica_groups="
    start = attributes.find(key)
    notation = attributes[start + len(key) :] if start >= 0 else "{}"
    if notation.startswith("{}"):
        return (tuple(range(devices)),)
    if notation.startswith("{{"):
        return braced_numbers(notation)
    if iota := _IOTA.match(notation):
        return _rows(_counted(iota["dims"], iota["order"]).reshape(_numbers(iota["shape"])))
    if mesh := _MESH.match(notation):
        return _mesh_groups(mesh)
    raise ValueError(f"replica groups in a notation that is not known: {notation[:80]!r}")


def braced_numbers(text: str) -> Groups:
    """`{{0,1},{2,3}}` at the start of `text`, as tuples."""
    end = _closing(text, 0)
    return tuple(_numbers(group) for group in re.findall(r"\{([\d,]*)\}", text[1:end]))


def _instruction(name: str, rest: str) -> HloInstruction:
    """`f32[8]{0} all-reduce(%a), channel_id=1` as a record."""
    shape_end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    shape = rest[:shape_end]
    rest = rest[shape_end:].lstrip()
    opening = rest.index("(")
    closing = _closing(rest, opening)
    result = tuple(HloArray(a["dtype"], _numbers(a["dims"])) for a in _ARRAY.finditer(shape))
    operands = tuple(
        operand.split(" ")[-1].lstrip("%") for operand in _split(rest[opening + 1 : closing])
    )
    return HloInstruction(name, rest[:opening], result, operands, rest[closing + 1 :])


def _mesh_groups(match: re.Match[str]) -> Groups:
    sizes = {axis["name"]: int(axis["size"]) for axis in _MESH_AXIS.finditer(match["axes"])}
    parts: dict[str, list[int]] = {name: [size] for name, size in sizes.items()}
    over: list[tuple[str, int]] = []
    for axis in _OVER_AXIS.finditer(match["over"]):
        name = axis["name"]
        part = 0
        if axis["before"]:
            before = int(axis["before"])
            size = int(axis["size"])
            parts[name] = [before, size, sizes[name] // before // size]
            part = 1
        over.append((name, part))

    places = [(name, part) for name in sizes for part in range(len(parts[name]))]
    shape = [parts[name][part] for name, part in places]
    order = [n for n, place in enumerate(places) if place not in over] + [
        places.index(place) for place in over
    ]
    numbers = _mesh_devices(match["ids"], prod(shape)).reshape(shape).transpose(order)
    return _rows(numbers.reshape(-1, prod(parts[name][part] for name, part in over)))


def _mesh_devices(ids: str | None, count: int) -> np.ndarray:
    """The devices of a mesh in its order: counted up, listed, or counted up in a shape and transposed."""
    if ids is None:
        return np.arange(count)
    counted = re.match(r"\[(?P<dims>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?$", ids)
    return _counted(counted["dims"], counted["order"]) if counted else np.array(_numbers(ids))


def _counted(dims: str, order: str | None) -> np.ndarray:
    shape = _numbers(dims)
    numbers = np.arange(prod(shape)).reshape(shape)
    return numbers.transpose(_numbers(order)) if order else numbers


def _rows(numbers: np.ndarray) -> Groups:
    return tuple(tuple(int(number) for number in row) for row in numbers)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def _closing(text: str, opening: int) -> int:
    """The position of the bracket that closes the one at `opening`."""
    depth = 0
    for position in range(opening, len(text)):
        depth += (text[position] in "([{") - (text[position] in ")]}")
        if depth == 0:
            return position
    raise ValueError(f"a bracket is never closed: {text[opening : opening + 80]!r}")


def _split(text: str) -> Iterator[str]:
    """The parts of `text` between its outermost commas."""
    depth = 0
    start = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            yield text[start:position].strip()
            start = position + 1
    if text[start:].strip():
        yield text[start:].strip()
