"""Cases: what is measured, in which sizes and in which order. No JAX."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from math import prod

from cost_models.curves import CONVOLUTIONS, PICKING, convolution_elements
from cost_models.fit import Sample, SampleKind
from cost_models.kernels import item_bytes

CHAIN = 8
"""How often cheap elementwise operations (`other`) are repeated within one kernel, so that moving takes less time than
they do. Those of `ELEMENTWISE` stand alone, as in programs: in a chain each waits for the one before."""
ELEMENTWISE = ("exp", "tanh", "log", "div", "sqrt", "rsqrt", "logistic", "erf", "sin", "pow")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
TYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int8")
POOLS = ("reduce_window_max", "select_and_scatter_add")
"""The largest of every 2x2 places, and its gradient."""
REDUCTIONS = ("reduce_sum", "reduce_max")
"""Over a dim before the last; with ":last", over the last one."""
PACKS = ("pack", "pack:pages")
"""A left operand that is read across; with rows that are whole pages apart, which 1,024 columns of float32 are."""
PACKED_COLUMNS = 128
"""The columns of the product whose left operand is packed."""
STEP_BYTES = 2**24
"""What a device moves before it comes back to an array, as in a training step; see `Extent`."""
_PICKED_TIMES = {PICKING[0]: 2.0, PICKING[1]: 3.0}
"""How often elements that are picked are moved: read and written; read, and read and written where they are added."""
MOST_ARRAYS = 16
"""In how many arrays it does so at most."""


@dataclass(frozen=True)
class Case:
    """One thing to measure: `dims` are those of one device's operands, by kind; see `operations` and `size_bytes`.

    | what | kind | dims |
    |---|---|---|
    | product | dot_general | b, m, n, k |
    | moving | axpy, scale | elements |
    | fresh | scale | elements |
    | work | elementwise, other | elements |
    | work | those of `REDUCTIONS`, cumsum, argmax | rows, columns |
    | picking | those of `PICKING` | rows, elements of each, how many of them are picked |
    | work | transpose, sort, concatenate | rows, columns |
    | work | transpose:rows | rows, columns of them, elements in each |
    | work | threefry2x32 | random numbers |
    | work | those of `PACKS` | rows, columns of the left operand: what a product that sums over its rows takes longer |
    | work | those of `POOLS` | batch, image, channels |
    | work | those of `CONVOLUTIONS` | batch, image, window, channels in and out |
    | work | attention | batch, length, heads, width |
    | collective | all_reduce, ... | elements of the larger of a device's operand and result |

    A collective goes over the `axes` of a mesh of `mesh` sizes. A round does the same to each of `arrays`.
    """

    what: SampleKind
    kind: str
    dims: tuple[int, ...]
    dtype: str = "float32"
    mesh: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    arrays: int = 1

    @property
    def operations(self) -> float:
        """How much is computed, as `autopar.cost` counts it."""
        if self.what == "product":
            return 2.0 * prod(self.dims)
        if self.what == "picking":
            return float(self.dims[2])
        if self.what != "work":
            return 0.0

        if self.kind in CONVOLUTIONS:
            batch, image, window, c_in, c_out = self.dims
            return 2.0 * batch * image**2 * window**2 * c_in * c_out

        if self.kind == "attention":
            batch, length, heads, width = self.dims
            return 4.0 * batch * heads * length**2 * width

        if self.kind in POOLS:
            batch, image, channels = self.dims
            return float(batch * image**2 * channels)

        if len(self.dims) == 1:
            return float(self.dims[0] * (2 * CHAIN if self.kind == "other" else 1))

        return float(prod(self.dims))

    @property
    def size_bytes(self) -> float:
        """What is read and written; of a collective the larger of a device's bytes before and after."""
        return self._moved_elements() * item_bytes(self.dtype)

    @property
    def elements(self) -> tuple[float, float, float] | None:
        """Of a product those of both operands and of the result; a convolution is one (see `convolution_elements`)."""
        if self.kind in CONVOLUTIONS:
            batch, image, window, c_in, c_out = map(float, self.dims)
            places = batch * image**2
            x = places * c_in
            w = window**2 * c_in * c_out
            y = places * c_out
            of_result = {
                CONVOLUTIONS[0]: (w, y, c_out),
                CONVOLUTIONS[1]: (w, x, c_in),
                CONVOLUTIONS[2]: (y, w, c_out),
            }
            return convolution_elements(*of_result[self.kind], self.operations)

        if self.what != "product":
            return None

        b, m, n, k = map(float, self.dims)
        return b * m * k, b * k * n, b * m * n

    @property
    def beside(self) -> Case | None:
        """The case that this one takes longer than, if that is what counts."""
        if self.kind not in PACKS:
            return None
        rows, columns = self.dims
        return Case(
            "product",
            "dot_general",
            (1, columns, PACKED_COLUMNS, rows),
            self.dtype,
            arrays=self.arrays,
        )

    def sample(self, time_s: float) -> Sample:
        """The case, measured."""
        return Sample(
            what=self.what,
            kind=self.kind,
            dtype=self.dtype,
            size_bytes=self.size_bytes,
            time_s=time_s,
            operations=self.operations,
            elements=self.elements,
            mesh=self.mesh,
            axes=self.axes,
            run_bytes=self.dims[1] * item_bytes(self.dtype) if self.what == "picking" else 0.0,
        )

    def __str__(self) -> str:
        shape = "x".join(map(str, self.dims))
        groups = (
            f" over {prod(self.mesh[a] for a in self.axes)} of {prod(self.mesh)}"
            if self.mesh
            else ""
        )
        return f"{self.kind} {shape} {self.dtype}{groups}"

    def _moved_elements(self) -> float:
        if self.kind in CONVOLUTIONS:
            batch, image, window, c_in, c_out = self.dims
            return float(batch * image**2 * (c_in + c_out) + window**2 * c_in * c_out)

        if self.elements is not None:
            return sum(self.elements)
        if self.kind == "attention":
            return 4.0 * prod(self.dims)
        if self.kind in POOLS:
            return 1.25 * self.operations
        if self.what == "fresh":
            return float(self.dims[0])
        if self.what == "picking":
            return _PICKED_TIMES[self.kind] * self.dims[1] * self.dims[2]

        times = {
            "axpy": 3,
            "other": 3,
            "argmax": 1,
            "threefry2x32": 1,
            **dict.fromkeys(REDUCTIONS, 1),
        }
        once = self.what == "collective"
        return float(prod(self.dims) * (1 if once else times.get(self.kind.partition(":")[0], 2)))


@dataclass(frozen=True)
class Extent:
    """How large cases are: `side` of large matrices, `most_bytes` of an array on a device, `quick`: few of each.

    `cpu`: on processors, compiled by XLA. There a case goes through several arrays in turn, `STEP_BYTES` on a device:
    in a program a kernel finds little of its operands in the caches of its core, where a loop over one array finds all
    of it. And what that compiler alone packs and puts side by side is measured.
    """

    side: int
    most_bytes: float
    quick: bool
    cpu: bool = False

    def arrays(self, size_bytes: float) -> int:
        """Through how many arrays a case goes that moves `size_bytes`."""
        return max(1, min(MOST_ARRAYS, int(STEP_BYTES / size_bytes))) if self.cpu else 1


def cases_of(extent: Extent, processes: int, local_devices: int) -> tuple[Case, ...]:
    """All cases for so many processes of `local_devices` each, what matters most first.

    First a coarse round of everything, so that little is missing if it is ended early; then what is between.
    """
    kinds = (
        _coarse_first(list(_moving(extent))),
        _coarse_first(list(_products(extent))),
        list(_collectives(extent, processes, local_devices)),
        list(_fresh(extent)),
        _coarse_first(list(_elementwise(extent))),
        list(_picking(extent)),
        _coarse_first(list(_rearranging(extent))),
        _coarse_first(list(_convolutions(extent))),
    )
    rounds = zip_longest(*kinds)
    return tuple(dict.fromkeys(case for turn in rounds for case in turn if case is not None))


def _coarse_first(cases: list[Case]) -> list[Case]:
    """Every fourth, then the second of every four, and so on."""
    return [case for start in (0, 2, 1, 3) for case in cases[start::4]]


def _moving(extent: Extent) -> Iterator[Case]:
    size = 2**10
    step = 16 if extent.quick else 4
    while size * 4 <= extent.most_bytes:
        for kind in ("axpy",) if extent.quick else ("axpy", "scale"):
            yield Case("moving", kind, (size,), arrays=extent.arrays(8 * size))
        size *= step


def _fresh(extent: Extent) -> Iterator[Case]:
    for exponent in (24, 20) if extent.quick else (24, 20, 22, 18, 26):
        if 2**exponent <= extent.most_bytes:
            yield Case("fresh", "scale", (2**exponent // 4,))


def _products(extent: Extent) -> Iterator[Case]:
    side = extent.side
    shapes = [(1, s, s, s) for s in (side, side // 8, side // 2, side // 32, side // 4, side // 16)]
    for thin in (side // 16, 16, 1):
        shapes += [(1, thin, side, side), (1, side, thin, side), (1, side, side, thin)]
    shapes += [(16, side // 16, side // 16, side // 16), (16, side // 8, side // 8, side // 16)]
    for dtype in TYPES[:2] if extent.quick else TYPES:
        few = extent.quick or dtype != "float32"
        for b, m, n, k in shapes[::2] if few else shapes:
            count = extent.arrays(4 * b * (m * k + k * n + m * n))
            yield Case("product", "dot_general", (b, m, n, k), dtype, arrays=count)


def _elementwise(extent: Extent) -> Iterator[Case]:
    size = min(2**16, int(extent.most_bytes) // 16) if extent.side <= 2048 else 2**24
    count = extent.arrays(8 * size)
    yield Case("work", "other", (size,), arrays=count)
    yield Case("work", "threefry2x32", (size,), arrays=count)
    for kind in ELEMENTWISE[:4] if extent.quick else ELEMENTWISE:
        yield Case("work", kind, (size,), arrays=count)
    for kind in ("other",) if extent.quick else ("other", "exp"):
        yield Case("work", kind, (size,), "bfloat16", arrays=count)


def _rearranging(extent: Extent) -> Iterator[Case]:
    side = extent.side
    yield from _reducing(extent)
    for rows in (
        (side, side // 4) if extent.quick else (side, side // 4, side // 2, side // 8, side // 16)
    ):
        yield Case("work", "transpose", (rows, rows), arrays=extent.arrays(8 * rows**2))

    for rows in (side // 4,) if extent.quick else (side // 4, side // 16):
        yield Case(
            "work", "transpose:rows", (rows, rows // 4, 32), arrays=extent.arrays(64 * rows**2)
        )

    yield from _packing(extent)
    if not extent.quick:
        for kind in POOLS:
            yield Case("work", kind, (4, side // 32, side // 16), arrays=extent.arrays(2**20))
        yield Case("work", "sort", (side // 16, side // 4), arrays=extent.arrays(side**2 // 8))
        yield Case("work", "attention", (2, side // 4, 4, 64))


def _picking(extent: Extent) -> Iterator[Case]:
    """Long rows and short ones, of tables that caches of one core do not hold."""
    side = extent.side
    for row in (side, 8) if extent.quick else (side, 8, 64, 1):
        count = min(16 * side, side**2 // 4 // row)
        for kind in PICKING:
            yield Case(
                "picking",
                kind,
                (side**2 // row, row, count),
                arrays=min(4, extent.arrays(8 * row * count)),
            )


def _reducing(extent: Extent) -> Iterator[Case]:
    side = extent.side
    for kind in REDUCTIONS:
        for over in (kind, f"{kind}:last"):
            for rows in (side // 2,) if extent.quick else (side // 2, side // 8):
                yield Case("work", over, (rows, rows), arrays=extent.arrays(4 * rows**2))
    for kind in ("argmax", "cumsum"):
        yield Case("work", kind, (side // 4, side // 4), arrays=extent.arrays(side**2 // 4))


def _packing(extent: Extent) -> Iterator[Case]:
    side = extent.side
    sizes = (side // 2,) if extent.quick else (side // 2, side // 8)
    for rows in sizes if extent.cpu else ():
        count = extent.arrays(2 * side * rows)
        yield Case("work", PACKS[0], (rows, 3 * side // 8), arrays=count)
        yield Case("work", PACKS[1], (rows // 2, side), arrays=count)
    for rows in (*sizes, *(() if extent.quick else (4 * side,))) if extent.cpu else ():
        yield Case("work", "concatenate", (rows, side // 2), arrays=extent.arrays(4 * side * rows))


def _convolutions(extent: Extent) -> Iterator[Case]:
    """Of many channels and of few, which take longer an operation."""
    many = max(16, extent.side // 16)
    shapes = [(4, 16, many, many), (2, 32, many // 2, many)]
    shapes += [(8, 16, 8, 8), (8, 16, 4, many), (8, 16, many, 4), (2, 8, 16, 16)]
    for batch, image, c_in, c_out in shapes[: 1 if extent.quick else len(shapes)]:
        for kind in CONVOLUTIONS:
            count = extent.arrays(4 * batch * image**2 * (c_in + c_out))
            yield Case("work", kind, (batch, image, 3, c_in, c_out), arrays=count)


def _collectives(extent: Extent, processes: int, local_devices: int) -> Iterator[Case]:
    """Every kind over every mesh, at every size; sizes outermost, ends first."""
    exponents = (10, 20, 24) if extent.quick else (10, 24, 20, 16, 22, 18, 19, 21, 17)

    for exponent in exponents:
        elements = min(2**exponent, int(extent.most_bytes)) // 4
        for mesh, axes in group_meshes(processes, local_devices):
            for kind in COLLECTIVES:
                members = prod(mesh[a] for a in axes)
                count = extent.arrays(8 * elements)
                yield Case(
                    "collective",
                    kind,
                    (elements // members * members,),
                    mesh=mesh,
                    axes=axes,
                    arrays=count,
                )


def group_meshes(
    processes: int, local_devices: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The meshes and axes whose groups are measured: within a process, across processes, and both in one.

    Groups of every size that divides the devices of a process, or the processes, evenly.
    """
    for size in _divisors(local_devices):
        yield (processes, local_devices // size, size), (2,)
    for size in _divisors(processes):
        yield (processes // size, size, local_devices), (1,)
    if processes > 1 and local_devices > 1:
        yield (processes, local_devices), (0, 1)


def _divisors(count: int) -> list[int]:
    return [size for size in range(2, count + 1) if count % size == 0]
