"""Draft: nodes as they are added, computation by computation, and the bytes of their buffers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from autopar.backends.xla_cpu.node import NARROW, Node
from autopar.backends.xla_cpu.rereads import reread
from autopar.backends.xla_cpu.sink import Sunk
from autopar.core.program import Compute, ShardedProgram

FIRST_NEW = 1_000_000_000
_APART = -1
"""No dim: of shapes in which nothing else lies."""
LONG = 128
"""Arrays side by side along the last dim, so many elements in all, are not put together inside another loop."""
MOST_TOGETHER = 8
"""More arrays than these are not put together inside another loop either, as it would ask of every element which it is
from; nor are they computed where they are put together.
"""


@dataclass(eq=False)
class Scope:
    """The nodes of one computation so far, and the results met by what they are made of: none is made twice.

    `entered` and `left` are the operators that pass values into a control region and out of it, `start` its beginning.
    """

    nodes: list[Node] = field(default_factory=list[Node])
    known: dict[tuple[object, ...], tuple[int, ...]] = field(
        default_factory=dict[tuple[object, ...], tuple[int, ...]]
    )
    entered: list[Compute] = field(default_factory=list[Compute])
    left: list[Compute] = field(default_factory=list[Compute])
    start: int = 0


@dataclass(eq=False)
class NodeDraft:
    """The nodes of `program` so far: a stack of computations, the innermost last.

    `turned` are the products that are made turned round, `sunk` what is put in another order and where. `lies` are the
    shapes in which buffers lie, if not those of their values; `before` says of values what was put in another order to
    make them, and which of their dims was two. `late` are the buffers of late copies, `held` the values that are
    written before they are read.
    """

    program: ShardedProgram

    def __post_init__(self) -> None:
        program = self.program
        self.sizes = {value: program.device_bytes(value) for value in program.values}
        self.root: dict[int, int] = {}
        self.light = {value for value, v in program.values.items() if v.tensor.literal is not None}
        self.scopes: list[Scope] = [Scope()]
        self.results = set(program.outputs)
        self.held = reread(program)
        self.turned = frozenset[int]()
        self.sunk = Sunk()
        self.lies: dict[int, tuple[int, ...]] = {}
        self.before: dict[int, tuple[int, int | None]] = {}
        self.late: set[int] = set()
        self.depth: dict[int, int] = {}

        self.idle: dict[int, tuple[int, Node]] = {}

    def least_depth(self, value: int) -> int:
        """How many computations are around a buffer where it could be made first."""
        return self.idle[value][0] if value in self.idle else self.depth.get(value, 1)

    def stays(self, outs: tuple[int, ...], depth: int) -> None:
        """Notes that `outs`, just made, stay in loops although they could be made with `depth` computations around."""
        nodes = self.scopes[-1].nodes
        if nodes and nodes[-1].outs == outs:
            self.idle[outs[0]] = depth, nodes[-1]

    def outside(self, value: int, depth: int) -> int:
        """The buffer, or what is equal to it, where `depth` computations are around: the innermost one now."""
        if self.depth.get(value, 1) <= depth:
            return value
        known = self.scopes[-1].known
        (_, node) = self.idle[value]
        if ("outside", value) not in known:
            known["outside", value] = (self.made(self.sizes[value]),)
            ins = tuple(self.outside(inner, depth) for inner in node.ins)
            self.put(replace(node, ins=ins, outs=known["outside", value]))
            if value in self.light:
                self.light.add(known["outside", value][0])
        return known["outside", value][0]

    def at(self, value: int) -> int:
        """The buffer of a program value."""
        while value in self.root:
            value = self.root[value]
        return value

    def local_shape(self, value: int) -> tuple[int, ...]:
        """The shape of a program value on one device."""
        v = self.program.values[value]
        return v.placement.local_shape(v.tensor.shape, self.program.mesh)

    def counts(self, value: int) -> int:
        """The elements of a program value on one device."""
        return prod(self.local_shape(value))

    def seen(self, buffer: int, shape: tuple[int, ...], position: int) -> int:
        """A buffer as a kernel sees it that wants it in another shape: once in a computation for each shape.

        One that is not in order yet is seen so by what puts it in order, too: its view is no part of a library kernel.
        """
        own = self.lies.get(buffer)
        if own is None and buffer in self.program.values:
            own = self.local_shape(buffer)
        if own is None or own == shape:
            return buffer

        known = self.scopes[-1].known
        if ("seen", buffer, shape) not in known:
            known["seen", buffer, shape] = (self.made(self.sizes[buffer]),)
            is_late = buffer in self.late
            outs = known["seen", buffer, shape]
            has_library = shape[:1] != (_APART,)
            self.put(
                Node(
                    "loop", (buffer,), outs, position, late=is_late, view=True, library=has_library
                )
            )

        return known["seen", buffer, shape][0]

    def put_turned(self, value: int, out: int, position: int) -> None:
        """A copy of `value` with its elements in another order, as `out`, unless nobody wants it so."""
        if out in self.sunk.moved:
            self.view(out, value)
            return
        self.put_copy(value, out, position)
        if out in self.sunk.turns:
            joined = self.sunk.turns[out].joined
            self.before[out] = value, joined
            if joined is not None:
                self.lies[out] = (_APART, *self.local_shape(out))

    def summed(self, value: int, dims: Collection[int], position: int) -> int | None:
        """What a sum over `dims` of a value reads instead: its elements before they were put in another order; None if
        it cannot.
        """
        before, joined = self.before.get(value, (None, None))
        if before is None or not (joined is None or joined in dims):
            return None
        return self.seen(before, (_APART, value), position)

    def made(self, size_bytes: int) -> int:
        """A new buffer."""
        number = FIRST_NEW + len(self.sizes)
        self.sizes[number] = size_bytes
        return number

    def put(self, node: Node) -> None:
        """Appends a node to the innermost computation."""
        self.scopes[-1].nodes.append(node)
        self.depth.update(dict.fromkeys(node.outs, len(self.scopes)))

    def copied(self, value: int, position: int) -> int:
        """A copy of a buffer with its elements in another order, as a transpose makes it."""
        out = self.made(self.sizes[value])
        self.put(Node("loop", (value,), (out,), position, late=True))
        self.late.add(out)
        return out

    def ordered(self, value: int, order: Sequence[int], shape: Sequence[int], position: int) -> int:
        """A copy of a buffer of this shape whose dims lie in `order` in memory, made once in a computation; itself, if
        they do already.
        """
        kept = tuple(dim for dim in order if shape[dim] > 1)
        if list(kept) == sorted(kept):
            return value
        known = self.scopes[-1].known
        key = ("order", value, kept)
        if key not in known:
            known[key] = (self.copied(value, position),)
            self.lies[known[key][0]] = tuple(shape[dim] for dim in order)
        return known[key][0]

    def shared(
        self, key: tuple[object, ...], size_bytes: int, position: int, *, is_late: bool = False
    ) -> int:
        """A buffer that is made of nothing, once in a computation for all that ask for it by the same key; one that
        `is_late` is made of a constant, which has to be there first.
        """
        known = self.scopes[-1].known
        if key not in known:
            known[key] = (self.made(size_bytes),)
            self.put(Node("kernel", (), known[key], position, late=is_late))
        return known[key][0]

    def view(self, value: int, of: int) -> None:
        """`value` is the buffer `of`, unless a result of the program has to be copied."""
        if value in self.results and (of in self.results or of in self.program.inputs):
            self.put(Node("loop", (of,), (value,), -1, elementwise=True))
        elif value in self.results:
            self.results.add(of)
            self.root[value] = of
        elif value != of:
            self.root[value] = of

    def kernel(
        self,
        position: int,
        ins: Sequence[int],
        outs: Sequence[int],
        over: Sequence[int] = (),
        beside: int = 0,
        *,
        inplace: bool = False,
        late: bool = False,
        sums: bool = False,
        library: bool = False,
        takes: bool = False,
        joins: tuple[object, ...] = (),
    ) -> None:
        """A kernel that takes `beside` bytes while it runs."""
        made = (*outs, self.made(beside)) if beside else tuple(outs)
        kept = tuple(over)
        node = Node(
            "kernel",
            tuple(ins),
            made,
            position,
            late=late,
            sums=sums,
            over=kept,
            inplace=inplace,
            joins=joins,
        )

        self.put(replace(node, library=library, takes=takes))

    def widened(self, value: int, position: int, dtype: str) -> int:
        """A copy of a buffer of a 16-bit type as float32, which is what the CPU computes with; others as they are."""
        if dtype not in NARROW:
            return value
        wide = self.made(2 * self.sizes[value])
        self.put(Node("loop", (value,), (wide,), position))
        return wide

    def narrowed(self, out: int, dtype: str) -> int:
        """The buffer in which a kernel leaves `out`: as float32, to be converted, if it is of a 16-bit type."""
        if dtype not in NARROW:
            return out
        return self.made(2 * self.sizes[out])

    def put_narrow(self, made: int, out: int, position: int) -> None:
        """Behind the kernel: what it left, as `out`."""
        if made != out:
            self.put(Node("loop", (made,), (out,), position))

    def put_together(
        self, values: Sequence[int], out: int, position: int, shape: Sequence[int], dim: int
    ) -> None:
        """`values` side by side along `dim` of `shape`: by a kernel of its own where that is the last dim and long, and
        where there are many.
        """
        is_long = dim == len(shape) - 1 > 0 and shape[dim] >= LONG
        is_kernel = is_long or len(values) > MOST_TOGETHER

        self.put(
            Node(
                "kernel" if is_kernel else "loop",
                tuple(values),
                (out,),
                position,
                unary=False,
                once=True,
                pieces=True,
            )
        )

    def put_copy(self, value: int, out: int, position: int) -> None:
        """A copy of a buffer with its elements in another order, as `out`."""
        self.put(Node("loop", (value,), (out,), position))
