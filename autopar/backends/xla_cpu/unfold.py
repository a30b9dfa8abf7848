"""Unfold: a program as the nodes that XLA's CPU compiler sees, with the copies that it adds.

A product wants batch dims first and what it sums or keeps side by side, a convolution its channels last; collectives
want the dim that they split or join first; an all-to-all takes and makes pieces. Each is a copy, unless all dims that
would be passed are of size 1 on a device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from autopar.backends.backend import Workspace
from autopar.backends.xla_cpu.combine import (
    ADDITIONS,
    chosen,
    is_square,
    reshaped,
    scattered_onto,
    turned_products,
    unbounded,
)
from autopar.backends.xla_cpu.draft import NodeDraft, Scope
from autopar.backends.xla_cpu.hoist import is_idle, may_leave
from autopar.backends.xla_cpu.library import LEAST_ELEMENTS, OPERATORS, SUMS, TYPES
from autopar.backends.xla_cpu.moving import unfold_move
from autopar.backends.xla_cpu.node import NARROW, Node, Nodes
from autopar.backends.xla_cpu.products import UNFOLD
from autopar.backends.xla_cpu.sink import sunk
from autopar.core.program import Compute, Instruction, Move
from autopar.core.regions import CONTROL, LOOPS
from autopar.ops.exchanged import sent_bytes
from autopar.ops.traits import is_fusible, traits_of

_VIEWS = frozenset(
    {"reshape", "squeeze", "expand_dims", "copy", "copy_p", "stop_gradient", "optimization_barrier"}
)
_VIEWS_TOO = frozenset({"reshard", "sharding_constraint", "pvary", "reduce_precision"})
_MOVING = frozenset(
    {
        *(
            "concatenate",
            "dynamic_roll",
            "dynamic_slice",
            "gather",
            "iota",
            "pad",
            "rev",
            "roll",
            "slice",
            "splice",
        ),
        *("split", "transpose"),
    }
)
_NOT_IN_PLACE = _MOVING | {"broadcast_in_dim", "gather", "dynamic_update_slice", "erfc", "reshape"}
_LOOPS_TOO = frozenset({"concatenate", "dynamic_roll", "gather", "roll", "splice"})
_ONCE = frozenset({"pad", "dynamic_update_slice"})
_SUMS = frozenset(
    {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"}
)
_PRODUCTS = frozenset({"mul", "integer_pow", "square"})
_OVER_FIRST = ("scatter", "dynamic_update_slice")
_OVER_ALL = frozenset({"sort", "threefry2x32", "cholesky", "triangular_solve", "lu"})


@dataclass(eq=False)
class Unfolding(NodeDraft):
    """The work of unfolding one program. `workspace` gives the bytes that an operator takes beside what it makes."""

    workspace: Workspace

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scattered = scattered_onto(self.program)
        self.chosen = chosen(self.program)
        self.reshaped = reshaped(self.program)
        self.turned = turned_products(self.program)
        self.sunk = sunk(self.program, self._is_elementwise, self._is_view)
        self.waiting: dict[int, tuple[Compute, tuple[int, ...]]] = {}
        self.squared: dict[int, int] = {}

    def nodes(self) -> Nodes:
        """All nodes, and the bytes of their buffers."""
        tree = self.program.tree
        opened: list[int] = []
        for position, instruction in enumerate(self.program.instructions):
            path = [r for r in reversed(tree.path(instruction.region)) if tree.kind(r) in CONTROL]
            while opened != path[: len(opened)]:
                opened.pop()
                self._close()
            for region in path[len(opened) :]:
                opened.append(region)
                self.scopes.append(Scope(start=position))
            self._add(position, instruction)

        for _ in opened:
            self._close()

        return Nodes(tuple(self.scopes[0].nodes), self.sizes)

    def _add(self, position: int, instruction: Instruction) -> None:
        if isinstance(instruction, Move):
            self._once(
                position,
                instruction,
                (instruction.kind, instruction.axes, instruction.dim, instruction.to_dim),
            )
        elif isinstance(instruction, Compute):
            op = instruction.op
            if op.kind in (
                "carry_in",
                "scan_stack",
                "carry_out",
                "cond_result",
                "while_test",
                "branch_index",
            ):
                self._boundary(position, instruction)
            else:
                key = (
                    (op.kind, op.signature, op.recomputes)
                    if op.effect is None
                    else (op.kind, position)
                )
                self._once(position, instruction, key)

    def _once(self, position: int, instruction: Compute | Move, key: tuple[object, ...]) -> None:
        ins = tuple(self.at(value) for value in instruction.ins)
        depth = self._depth(instruction, ins)
        is_moved = depth < len(self.scopes) and not is_idle(instruction)
        inner = self._left(depth) if is_moved else []
        ins = tuple(self.outside(value, depth) for value in ins) if is_moved else ins
        placed = tuple(self.program.values[value].placement for value in instruction.outs)
        known = self.scopes[-1].known
        behind = tuple(
            self.sunk.turns[value] for value in instruction.outs if value in self.sunk.behind
        )
        whole = (*key, tuple(self._name(v) for v in ins), placed, behind)
        if whole in known:
            for value, of in zip(instruction.outs, known[whole], strict=True):
                self.view(value, self.at(of))
        elif isinstance(instruction, Move):
            known[whole] = instruction.outs
            unfold_move(self, position, instruction, ins)
        else:
            known[whole] = instruction.outs
            self._compute(position, instruction, ins)
            if depth < len(self.scopes):
                self.stays(instruction.outs, depth)

        self.scopes.extend(inner)

    def _depth(self, instruction: Compute | Move, ins: tuple[int, ...]) -> int:
        """How many computations are around an instruction that leaves the loops which do not change what it reads."""
        depth = len(self.scopes)
        if depth == 1 or (isinstance(instruction, Compute) and not may_leave(instruction.op)):
            return depth
        tree = self.program.tree
        kinds = [tree.kind(r) for r in tree.path(instruction.region) if tree.kind(r) in CONTROL]
        loops = next((n for n, kind in enumerate(kinds) if kind not in LOOPS), len(kinds))
        return max(depth - loops, *(self.least_depth(value) for value in ins), 1)

    def _left(self, depth: int) -> list[Scope]:
        """Leaves the computations further inside than `depth`, which are returned."""
        inner = self.scopes[depth:]
        del self.scopes[depth:]
        return inner

    def _name(self, buffer: int) -> object:
        literal = (
            self.program.values[buffer].tensor.literal if buffer in self.program.values else None
        )
        return buffer if literal is None else ("literal", literal)

    def _compute(self, position: int, compute: Compute, ins: tuple[int, ...]) -> None:
        op = compute.op
        outs = compute.outs
        if self._is_scattered(position, compute, ins):
            return

        if len(outs) == 1 and len(ins) == 1 and (self._is_view(compute) or self._sinks(compute)):
            self.view(outs[0], ins[0])
            return

        same = unbounded(self.program, compute)
        if same is not None and outs[0] not in self.sunk.behind:
            self.view(outs[0], ins[same])
            return

        if op.kind == "concatenate" and len(ins) > 1:
            self.put_together(
                ins, outs[0], position, self.local_shape(outs[0]), op.params["dimension"]
            )
            return

        if op.kind == "scan_slice" and op.outs[0].dtype not in NARROW:
            self.put(Node("loop", ins, outs, position))
            return

        if op.body is None and len(outs) == 1 and (is_fusible(op) or op.kind in _LOOPS_TOO):
            if not self._is_gaussian(position, compute, ins):
                self._loop(position, compute, ins)
            return

        if op.kind in ("split", "unstack"):
            for out in outs:
                self.put(Node("loop", ins, (out,), position))
            return

        self._kernel(position, compute, ins)

    def _is_elementwise(self, compute: Compute) -> bool:
        op = compute.op
        if len(compute.outs) != 1 or not is_fusible(op) or op.kind in _NOT_IN_PLACE:
            return False
        return not (len(compute.ins) == 1 and self._is_view(compute))

    def _sinks(self, compute: Compute) -> bool:
        return compute.op.kind == "transpose" and compute.outs[0] in self.sunk.moved

    def _is_scattered(self, position: int, compute: Compute, ins: tuple[int, ...]) -> bool:
        """Deals with scatters into zeros that only an addition reads, and with that addition."""
        op = compute.op
        outs = compute.outs
        if outs and outs[0] in self.scattered:
            self.waiting[outs[0]] = compute, ins
            self.depth[outs[0]] = len(self.scopes)
            return True

        added = [value for value in ins if value in self.waiting] if op.kind in ADDITIONS else []
        if not added:
            return False

        scatter, of = self.waiting.pop(added[0])
        base = next(value for value in ins if value != added[0])
        of = (base, *of[1:]) if scatter.op.kind == "scatter-add" else (*of, base)
        self._compute(position, scatter._replace(outs=outs), of)
        return True

    def _kernel(self, position: int, compute: Compute, ins: tuple[int, ...]) -> None:
        op = compute.op
        outs = compute.outs
        beside = sent_bytes(compute.op, compute.exchanges)
        if op.kind in UNFOLD:
            UNFOLD[op.kind](self, position, compute, ins, beside)
            return

        shapes = compute.in_shapes(self.program.mesh)
        beside += self.workspace(op, [self.sizes[v] for v in ins], shapes)
        ins = self._seen(position, compute, ins)
        ins = tuple(
            self.widened(v, position, tensor.dtype) for v, tensor in zip(ins, op.ins, strict=True)
        )
        made = tuple(
            self.narrowed(v, tensor.dtype) for v, tensor in zip(outs, op.outs, strict=True)
        )
        over = ins if op.kind in _OVER_ALL else ins[:1] if op.kind.startswith(_OVER_FIRST) else ()
        inplace = op.kind.startswith(_OVER_FIRST)
        takes = op.kind in SUMS and self._has_library(compute)
        if op.kind in SUMS and not takes and made == outs and not beside:
            self.put(Node("loop", ins, outs, position, dear=True))
            return

        self.kernel(
            position,
            ins,
            made,
            over,
            beside,
            inplace=inplace,
            sums=op.kind == "reduce_sum",
            takes=takes,
        )
        for value, out in zip(made, outs, strict=True):
            self.put_narrow(value, out, position)

    def _seen(self, position: int, compute: Compute, ins: tuple[int, ...]) -> tuple[int, ...]:
        """The operands of a kernel in the shapes in which it wants them; a sum of few dims wants any order."""
        op = compute.op
        is_sum = op.kind in _SUMS and len(op.outs[0].shape) < 2
        before = self.summed(ins[0], op.params["axes"], position) if is_sum else None
        if before is not None:
            return (before,)
        return tuple(
            self.seen(v, self.local_shape(of), position)
            for v, of in zip(ins, compute.ins, strict=True)
        )

    def _is_gaussian(self, position: int, compute: Compute, ins: tuple[int, ...]) -> bool:
        """Deals with erfc(x), which is made of exp(-x * x), and with its derivative, which is that: made once."""
        op = compute.op
        (out,) = compute.outs
        if op.kind == "erfc" and op.outs[0].dtype not in NARROW:
            key = ("exp(-x * x)", ins[0])
            known = self.scopes[-1].known
            if key not in known:
                known[key] = (self.made(self.sizes[out]),)
                self.put(Node("loop", ins, known[key], position, dear=True, elementwise=True))
            self.put(
                Node(
                    "loop",
                    (*ins, *known[key]),
                    (out,),
                    position,
                    dear=True,
                    elementwise=True,
                    unary=False,
                )
            )
            return True

        if is_square(compute, ins):
            self.squared[out] = ins[0]
        if op.kind not in ("neg", "exp") or ins[0] not in self.squared:
            return False

        self.squared[out] = self.squared[ins[0]]
        known = self.scopes[-1].known.get(("exp(-x * x)", self.squared[out]))
        if op.kind != "exp" or known is None:
            return False

        self.view(out, known[0])
        return True

    def _loop(self, position: int, compute: Compute, ins: tuple[int, ...]) -> None:
        op = compute.op
        (out,) = compute.outs
        size = prod(self.local_shape(out))
        if op.kind not in _MOVING and op.kind not in (
            "broadcast_in_dim",
            "gather",
            "dynamic_update_slice",
        ):
            ins = tuple(self._spread(v, compute, n, position) for n, v in enumerate(ins))

        spreads = op.kind == "broadcast_in_dim" or op.kind == "gather"
        if op.kind in ("broadcast_in_dim", "iota"):
            self.light.add(out)

        pairs = zip(ins, compute.ins, strict=True)
        large = [v for v, value in pairs if v not in self.light and self.counts(value) >= size]
        unary = (
            len(large) <= 1
            or sum(self.sizes[v] for v in ins) <= self.sizes[out]
            or out in self.reshaped
        )
        elementwise = not spreads and op.kind not in _MOVING
        product = op.kind in _PRODUCTS and out not in self.chosen
        once = op.kind in _ONCE
        if op.kind == "select_n" and len(ins) == 3:
            ins = ins[0], ins[2], ins[1]  # XLA's select names first what is taken where it is true

        made = self.made(self.sizes[out]) if out in self.sunk.behind else out
        is_dear = traits_of(op.kind).is_dear
        node = Node(
            "loop", ins, (made,), position, is_dear, elementwise, spreads, unary, product, once
        )
        has_library = op.kind in OPERATORS and out not in self.chosen and self._has_library(compute)
        self.put(
            replace(
                node, negates=op.kind == "neg", library=has_library or op.kind == "broadcast_in_dim"
            )
        )
        if op.kind == "transpose":
            self.before[out] = ins[0], None

        if made != out:
            self.lies[made] = self.sunk.turns[out].shape
            self.put_turned(made, out, position)

    def _spread(self, buffer: int, compute: Compute, number: int, position: int) -> int:
        """An operand of an elementwise operator, whose dims of size 1 are spread over those of the result: once in a
        computation for all that want it so. A divisor is spread for each division, as x / spread(y) may become
        x * spread(1 / y).
        """
        value = compute.ins[number]
        (out,) = compute.outs
        v = self.program.values[value]
        shape = self.local_shape(out)
        if v.tensor.literal is not None or self.counts(value) >= prod(shape):
            return buffer

        known = self.scopes[-1].known
        divides = compute.op.kind == "div" and number == 1
        key = ("spread", buffer, self.local_shape(value), shape, position if divides else None)
        if key not in known:
            known[key] = (self.made(prod(shape) * v.tensor.itemsize),)
            self.light.update(known[key])
            self.put(Node("loop", (buffer,), known[key], position, spreads=True, library=True))

        return known[key][0]

    def _has_library(self, compute: Compute) -> bool:
        """Whether YNNPACK deals with values of these types and sizes."""
        counts = [self.counts(value) for value in (*compute.ins, *compute.outs)]
        return max(counts) >= LEAST_ELEMENTS and all(
            t.dtype in TYPES for t in (*compute.op.ins, *compute.op.outs)
        )

    def _is_view(self, compute: Compute) -> bool:
        op = compute.op
        size = self.sizes
        if op.kind in _VIEWS or op.kind in _VIEWS_TOO:
            return True
        if op.kind == "transpose":
            shape = self.local_shape(compute.ins[0])
            kept = [d for d in op.params["permutation"] if shape[d] > 1]
            return kept == sorted(kept) or compute.ins[0] in self.turned
        if op.kind in ("broadcast_in_dim", "reduce_sum", "convert_element_type"):
            same = op.ins[0].dtype == op.outs[0].dtype
            return same and size[compute.ins[0]] == size[compute.outs[0]]
        return False

    def _boundary(self, position: int, compute: Compute) -> None:
        """What enters or leaves a control region is dealt with when it ends."""
        kind = compute.op.kind
        scope = self.scopes[-1]

        if kind == "carry_in":
            scope.entered.append(compute)
            self.depth[compute.outs[0]] = len(self.scopes)
        elif kind in ("while_test", "branch_index"):
            self.scopes[-1 if kind == "while_test" else -2].nodes.append(
                Node("kernel", (self.at(compute.ins[0]),), (), position)
            )
        else:
            scope.left.append(compute)
            if kind == "scan_stack":
                self.put(Node("loop", (self.at(compute.ins[0]),), (), position))

    def _close(self) -> None:
        """Ends the innermost control region: its nodes become one.

        Carries are copied in, over their first value if nobody else reads that, and stay where they are. The stacks of
        a scan are zeros at first, which are there from the beginning.
        """
        scope = self.scopes.pop()
        inits: list[int] = []
        outs: list[int] = []
        for compute in scope.entered:
            (start,) = compute.ins
            (out,) = compute.outs
            inits.append(self.made(self.sizes[out]))
            outs.append(out)
            self.put(
                Node("kernel", (self.at(start),), (inits[-1],), scope.start, over=(self.at(start),))
            )

        carries = {i.op.params["position"]: i.outs[0] for i in scope.entered}
        carried: list[tuple[int, int]] = []
        for compute in scope.left:
            (out,) = compute.outs
            if compute.op.kind == "carry_out":
                buffer = carries[compute.op.params["position"]]
                carried.append((buffer, self.at(compute.ins[0])))
                self.view(out, buffer)
                continue
            outs.append(out)
            if compute.op.kind == "scan_stack":
                inits.append(self.made(self.sizes[out]))
                self.put(Node("kernel", (), (inits[-1],), scope.start, late=True))
            else:
                scope.nodes.append(
                    Node("kernel", tuple(self.at(v) for v in compute.ins), (), scope.start)
                )

        node = Node(
            "control",
            tuple(inits),
            tuple(outs),
            scope.start,
            over=tuple(inits),
            body=tuple(scope.nodes),
        )
        self.put(replace(node, carried=tuple(carried)))
