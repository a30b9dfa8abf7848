"""Nodes: what a compiler sees of a program before it fuses anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

NodeKind = Literal["loop", "kernel", "control"]
NARROW = frozenset({"bfloat16", "float16"})


@dataclass(frozen=True, eq=False)
class Node:
    """One operation on buffers, which are numbered.

    A "loop" makes each element of its result on its own, so it may be computed inside its readers; a "kernel" reads and
    writes memory. A "control" is a loop or a branch that runs the nodes of `body`. `position` is that of the program's
    instruction.

    Of a loop: whether it is `dear` to compute twice; whether it is `elementwise`, made of the elements at the same
    place; whether it `spreads`, reads elements of its operands more than once; whether it is `unary`, at most one
    operand being as large as its result; whether it is a `product` of two; whether it is computed `once` at most, for
    one reader, as its elements come from several places, and, if it puts `pieces` together, inside one kernel only;
    whether it `negates`; whether it is a `view`, the same buffer in another shape if what makes that is not computed
    inside it.
    Whether it comes `late`: a copy that a compiler adds, what is made of a constant, or a product that sums over the
    first dims of both its operands, as of weights' gradients, which is left to another library.
    Whether the `library` YNNPACK has it, so that it may be part of a kernel of that.
    Of a kernel: whether it `takes` in such parts before and behind it; it may write over the operands `over`, if nobody
    reads them later; one that is `inplace` has to write over the first of them; one that `sums` multiplies first, if
    nobody else reads the product, and negates behind the sum; all-reduces of equal `joins` become one. Of a control
    node: `carried` pairs a buffer with the value that becomes its next content.
    """

    kind: NodeKind
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    position: int
    dear: bool = False
    elementwise: bool = False
    spreads: bool = False
    unary: bool = True
    product: bool = False
    once: bool = False
    pieces: bool = False
    negates: bool = False
    view: bool = False
    late: bool = False
    sums: bool = False
    library: bool = False
    takes: bool = False
    over: tuple[int, ...] = ()
    inplace: bool = False
    body: tuple[Node, ...] = ()
    carried: tuple[tuple[int, int], ...] = ()
    joins: tuple[object, ...] = ()


@dataclass(frozen=True, eq=False)
class Nodes:
    """All nodes of a program, those of loops inside their control node, and the bytes of every buffer."""

    nodes: tuple[Node, ...]
    sizes: Mapping[int, int]


def read_inside(node: Node) -> set[int]:
    """All buffers that the body of a node reads."""
    return {value for inner in node.body for value in (*inner.ins, *read_inside(inner))}


def ranked(
    operands: Sequence[Sequence[int]], outs: Sequence[Sequence[int]], results: Sequence[int]
) -> dict[int, int]:
    """The place of every buffer when `results` are made one after the other, each one's operands before it.

    Args:
      operands: what each of several operations reads, in order.
      outs: what each makes.
      results: buffers that are wanted first; then all others.
    """
    maker = {value: n for n, made in enumerate(outs) for value in made}
    found: dict[int, int] = {}
    seen: set[int] = set()
    for result in (*results, *maker):
        stack = [maker[result]] if result in maker else []
        while stack:
            n = stack[-1]
            own = () if n in seen else (maker.get(v, n) for v in operands[n])
            left = [m for m in own if m != n and m not in seen]
            seen.add(n)
            stack.extend(reversed(left))
            if stack[-1] == n:
                stack.pop()
                for value in outs[n]:
                    found.setdefault(value, len(found))

    return found
