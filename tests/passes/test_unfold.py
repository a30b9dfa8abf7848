"""What XLA's CPU compiler sees of a program: where it puts elements in another order, in which shapes kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from autopar.backends.xla_cpu.fusion import Kernel, Slot, fused
from autopar.backends.xla_cpu.node import Node
from autopar.backends.xla_cpu.order import ready_first
from autopar.backends.xla_cpu.unfold import Unfolding
from autopar.core.graph import OpNode, TensorInfo
from autopar.core.placement import Placement, StepKind
from autopar.core.program import Compute, Move
from autopar.core.strategy import NEXT, PREVIOUS, Strategy
from tests.passes.build import Builder

ROWS, COLUMNS = Placement((("x",), ())), Placement(((), ("x",)))


class Matrices(Builder):
    """Builds programs of 8 x 16 matrices."""

    def matrix(
        self, placement: Placement = ROWS, shape: tuple[int, ...] = (8, 16), dtype: str = "float32"
    ) -> int:
        return self.value(placement, TensorInfo(len(self.values), shape, dtype, 4))

    def operator(self, kind: str, ins: Sequence[int], out: int, **params: Any) -> int:
        tensors = [self.values[v].tensor for v in (*ins, out)]
        placed = [self.values[v].placement for v in (*ins, out)]
        op = OpNode(
            len(self.instructions), kind, tuple(tensors[:-1]), (tensors[-1],), params=params
        )
        self.instructions.append(
            Compute(op, Strategy(tuple(placed[:-1]), (placed[-1],)), tuple(ins), (out,))
        )
        return out

    def exchanged(self, value: int, dtype: str = "float32") -> int:
        """`value` split along its columns instead of its rows."""
        out = self.matrix(COLUMNS, dtype=dtype)
        self.instructions.append(
            Move("all_to_all", ("x",), (value,), (out,), 256, 0.0, "forward", dim=0, to_dim=1)
        )
        return out

    def nodes(self, outputs: Sequence[int]) -> tuple[Node, ...]:
        return Unfolding(self.program(outputs), lambda *_: 0).nodes().nodes


def reads(nodes: Sequence[Node], out: int) -> tuple[int, ...]:
    """What the kernel that makes `out` reads."""
    return next(k.reads for k in fused(nodes, (out,)) if out in k.node.outs)


@pytest.mark.parametrize("others", [0, 1])
def test_sums_of_what_is_exchanged_are_put_in_order_once(others: int) -> None:
    """Unless something else wants an operand in order: then both operands are put in order."""
    build = Matrices()
    one, two = (build.exchanged(build.matrix()) for _ in range(2))
    added = build.operator("add", [one, two], build.matrix(COLUMNS))
    more = [
        build.operator("reduce_max", [one], build.matrix(Placement(((),)), (8,)), axes=(1,))
        for _ in range(others)
    ]
    nodes = build.nodes([added, *more])
    (sums,) = (n for n in nodes if n.elementwise)
    made_by = {value: n for n in nodes for value in n.outs}
    assert (sums.outs == (added,)) == bool(others)
    assert all(bool(made_by[v].pieces) == (not others) for v in sums.ins)


def test_what_is_scaled_is_put_in_order_behind_and_what_is_in_two_orders_before() -> None:
    build = Matrices()
    one, plain = build.exchanged(build.matrix()), build.matrix(COLUMNS)
    scale = build.value(Placement(()), TensorInfo(99, (), "float32", 4, literal=2.0))
    scaled = build.operator("mul", [one, scale], build.matrix(COLUMNS))
    mixed = build.operator("add", [scaled, plain], build.matrix(COLUMNS))
    nodes = build.nodes([mixed])
    scales, adds = (n for n in nodes if n.elementwise)
    assert scales.outs != (scaled,)
    assert adds.ins == (scaled, plain)


def test_what_is_put_in_two_orders_is_put_in_order_before() -> None:
    build, whole = Matrices(), Placement(((), ()))
    x = build.matrix(whole, (16, 8))
    turned = build.operator("transpose", [x], build.matrix(whole), permutation=(1, 0))
    exchanged = build.exchanged(build.matrix())
    mixed = build.operator("add", [exchanged, turned], build.matrix(COLUMNS))
    assert [n.ins for n in build.nodes([mixed]) if n.elementwise] == [(exchanged, turned)]


def test_halves_are_put_in_order_where_they_are_exchanged() -> None:
    build = Matrices()
    one, two = (build.exchanged(build.matrix(dtype="bfloat16"), "bfloat16") for _ in range(2))
    added = build.operator("add", [one, two], build.matrix(COLUMNS, dtype="bfloat16"))
    assert [(n.ins, n.outs) for n in build.nodes([added]) if n.elementwise] == [
        ((one, two), (added,))
    ]


@pytest.mark.parametrize(("dims", "is_before"), [((0,), True), ((1,), False)])
def test_a_sum_reads_what_is_not_in_order_yet_if_it_sums_the_dim_put_together(
    dims: tuple[int, ...], is_before: bool
) -> None:
    build = Matrices()
    one = build.exchanged(build.matrix())
    out = build.operator(
        "reduce_sum", [one], build.matrix(Placement(((),)), (16 if dims == (0,) else 8,)), axes=dims
    )
    nodes = build.nodes([out])
    seen = next(n for n in nodes if n.view)
    assert seen.ins == ((next(n for n in nodes if n.pieces).outs) if is_before else (one,))


def test_a_sum_reads_what_is_not_turned_yet() -> None:
    build = Matrices()
    x = build.matrix(Placement(((), ())))
    turned = build.operator(
        "transpose", [x], build.matrix(Placement(((), ())), (16, 8)), permutation=(1, 0)
    )
    build.inputs.append(x)
    out = build.operator("reduce_sum", [turned], build.matrix(Placement(((),)), (16,)), axes=(1,))
    assert reads(build.nodes([out]), out) == (x,)


def test_where_it_is_true_comes_first() -> None:
    build = Matrices()
    asked, false, true = (build.matrix() for _ in range(3))
    out = build.operator("select_n", [asked, false, true], build.matrix())
    (node,) = build.nodes([out])
    assert node.ins == (asked, true, false)


def test_a_convolution_reads_what_neighbours_send_beside_its_operand_and_its_gradient_the_same() -> (
    None
):
    """Twice the same halos are exchanged once; the copy in another order is as long."""
    build, split = Matrices(), Placement(((), ("x",), (), ()))
    x, made = build.matrix(split, (4, 8, 8, 4)), build.matrix(split, (4, 8, 8, 4))
    kernel, grad = (build.matrix(Placement(((), (), (), ())), (3, 3, 4, 4)) for _ in range(2))
    halo = 4 * 1 * 8 * 4 * 4
    numbers = {"lhs_spec": (0, 3, 1, 2), "rhs_spec": (3, 2, 0, 1), "out_spec": (0, 3, 1, 2)}
    turned = {"lhs_spec": (3, 0, 1, 2), "rhs_spec": (3, 0, 1, 2), "out_spec": (2, 3, 0, 1)}
    for ins, out, spec in (([x, kernel], made, numbers), ([x, made], grad, turned)):
        build.operator("conv_general_dilated", ins, out, dimension_numbers=spec)
        sent = (
            Move("permute", ("x",), (x,), (out,), halo, 0.0, "exchange", hop=hop)
            for hop in (NEXT, PREVIOUS)
        )
        build.instructions[-1] = build.instructions[-1]._replace(exchanges=tuple(sent))  # type: ignore[call-arg]
    work = Unfolding(build.program([grad]), lambda *_: 0)
    nodes = work.nodes().nodes
    (long,) = (n for n in nodes if n.pieces)
    first, last = (n for n in nodes if n.kind == "kernel" and len(n.ins) == 2)
    assert work.sizes[long.outs[0]] == work.sizes[x] + 2 * halo
    assert first.ins[0] == long.outs[0]
    assert first.outs == (made,)
    assert work.sizes[last.ins[0]] == work.sizes[long.outs[0]]
    assert sum(n.kind == "kernel" for n in nodes) == 4


def split_or_joined(build: Matrices, kind: StepKind, value: int, out: int, dim: int) -> int:
    build.instructions.append(Move(kind, ("x",), (value,), (out,), 512, 0.0, "forward", dim=dim))
    return out


@pytest.mark.parametrize("dim", [0, 1])
def test_shards_along_the_first_dim_are_in_their_places_and_others_are_copied(dim: int) -> None:
    """Behind a gather, and before a scatter."""
    whole, part = Placement(((), ())), (ROWS, COLUMNS)[dim]
    build = Matrices()
    x = build.matrix(part)
    out = split_or_joined(build, "all_gather", x, build.matrix(whole), dim)
    gather, *copies = build.nodes([out])
    assert (gather.kind, gather.ins) == ("kernel", (x,))
    assert [(n.kind, n.ins, n.outs) for n in copies] == [("loop", gather.outs, (out,))] * dim
    build = Matrices()
    x = build.matrix(Placement(((), ()), ("x",)))
    out = split_or_joined(build, "reduce_scatter", x, build.matrix(part), dim)
    *copies, scatter = build.nodes([out])
    assert (scatter.kind, scatter.outs) == ("kernel", (out,))
    assert [(n.kind, n.ins, n.outs) for n in copies] == [("loop", (x,), scatter.ins)] * dim


@pytest.mark.parametrize(("dtype", "times"), [("float32", 1), ("float16", 1), ("bfloat16", 2)])
@pytest.mark.parametrize(
    ("kind", "given"), [("all_reduce", Placement(((), ()), ("x",))), ("all_gather", ROWS)]
)
def test_collectives_of_bfloat16_run_in_float32(
    kind: StepKind, given: Placement, dtype: str, times: int
) -> None:
    """Between two conversions, on buffers of twice the bytes."""
    build = Matrices()
    x = build.matrix(given, dtype=dtype)
    out = split_or_joined(build, kind, x, build.matrix(Placement(((), ())), dtype=dtype), 0)
    found = Unfolding(build.program([out]), lambda *_: 0).nodes()
    (moved,) = (n for n in found.nodes if n.kind == "kernel")
    assert [found.sizes[v] for v in (*moved.ins, *moved.outs)] == [
        times * found.sizes[v] for v in (x, out)
    ]
    assert len(found.nodes) == 2 * times - 1


@pytest.mark.parametrize(("kind", "shape", "is_written"), [
    ("gather", (4, 16), True),
    ("broadcast_in_dim", (8, 16, 3), True),
    ("broadcast_in_dim", (8, 16, 1), False),
    ("exp", (8, 16), False),
])  # fmt: skip
def test_pieces_that_are_read_again_and_again_are_written_first(
    kind: str, shape: tuple[int, ...], is_written: bool
) -> None:
    """By the kernel that puts them together, which ends there: no copy is made."""
    build = Matrices()
    moved = build.exchanged(build.matrix())
    placed = Placement((*COLUMNS.dims, *((),) * (len(shape) - 2)))
    spread = build.operator(kind, [moved], build.matrix(placed, shape))
    out = build.operator("exp", [spread], build.matrix(placed, shape))
    nodes = build.nodes([out])
    assert reads(nodes, out) == (moved,) if is_written else moved not in reads(nodes, out)
    assert [n.over for n in nodes if moved in n.outs and n.kind == "kernel"] == [
        n.ins for n in nodes if n.inplace
    ]
    assert any(n.inplace for n in nodes) == is_written


def test_what_is_gathered_is_put_in_its_places_behind_operators_that_read_it() -> None:
    """Two that are gathered alike are added first, so that is done once."""
    build, whole = Matrices(), Placement(((), ()))
    one, two = (
        split_or_joined(build, "all_gather", build.matrix(COLUMNS), build.matrix(whole), 1)
        for _ in range(2)
    )
    added = build.operator("add", [one, two], build.matrix(whole))
    first, second, add, turn = build.nodes([added])
    assert add.elementwise
    assert add.ins == (*first.outs, *second.outs)
    assert (turn.ins, turn.outs) == (add.outs, (added,))


def line(slots: Sequence[tuple[Slot, Slot]]) -> list[int]:
    """The order in which kernels run that all read the buffer 0: each from a slot, and with one of its own."""
    kernels = [
        Kernel(Node("kernel", (0,), (n,), 0), (0,), slots={0: slot}, slot=own)
        for n, (slot, own) in enumerate(slots, 1)
    ]
    return [k.node.outs[0] for k in ready_first(kernels, [*range(1, len(kernels) + 1)])]


def test_readers_stand_where_the_node_does_that_reads() -> None:
    assert line([((False, 3), (False, 8)), ((False, 1), (False, 9)), ((True, 0), (True, 0))]) == [
        2,
        1,
        3,
    ]


def test_of_several_that_hold_one_reader_the_first_has_its_place_and_the_last_comes_next() -> None:
    shared = [((False, 1), (False, 5 + n)) for n in range(3)]
    assert line([*shared, ((False, 2), (False, 2))]) == [1, 4, 3, 2]
    assert line([*shared[:2], ((False, 1), (False, 1)), ((False, 2), (False, 2))]) == [3, 4, 2, 1]


def test_a_copy_for_a_product_comes_last() -> None:
    build, whole = Matrices(), Placement(((), (), ()))
    x, w = (build.matrix(whole, (2, 8, 16)) for _ in range(2))
    numbers = (((0, 2), (0, 2)), ((), ()))
    out = build.operator(
        "dot_general", [x, w], build.matrix(Placement(((), ())), (8, 8)), dimension_numbers=numbers
    )
    copied, *others = build.nodes([out])
    assert copied.ins == (x,)
    assert all(n.late for n in (copied, *(n for n in others if n.view)))


def test_a_slice_waits_for_the_number_of_the_device() -> None:
    """What needs arguments only runs before, although it comes later in the program."""
    build = Matrices()
    x, y = (build.matrix(Placement(((), ()))) for _ in range(2))
    build.inputs.extend([x, y])
    part = build.matrix(ROWS)
    build.instructions.append(Move("slice", ("x",), (x,), (part,), 256, 0.0, "forward", dim=0))
    out = build.operator("exp", [y], build.matrix(Placement(((), ()))))
    order = [
        k.node.outs[0]
        for k in ready_first(fused(build.nodes([part, out]), (part, out)), [part, out])
    ]
    assert order.index(out) < order.index(part)


def test_a_bucket_of_scatters_sees_its_operands_as_rows() -> None:
    """So what a product reads too is written twice."""
    build, whole = Matrices(), Placement(((), ()))
    x, w = (build.matrix(whole) for _ in range(2))
    made = build.operator("exp", [x], build.matrix(whole))
    outs = [build.matrix(ROWS) for _ in range(2)]
    build.instructions.append(
        Move("reduce_scatter", ("x",), (made, w), tuple(outs), 1024, 0.0, "forward")
    )
    out = build.operator(
        "dot_general",
        [made, w],
        build.matrix(whole, (8, 8)),
        dimension_numbers=(((1,), (1,)), ((), ())),
    )
    nodes = build.nodes([*outs, out])
    seen = [n for n in nodes if n.view and n.ins == (made,)]
    assert [n.position for n in seen] == [1]


@pytest.mark.parametrize("count", [8, 9])
def test_a_bucket_of_many_is_put_together_by_a_kernel_which_sees_each_as_a_row(count: int) -> None:
    build, whole = Matrices(), Placement(((), ()))
    made = [build.operator("exp", [build.matrix(whole)], build.matrix(whole)) for _ in range(count)]
    outs = [build.matrix(whole) for _ in made]
    build.instructions.append(
        Move("all_reduce", ("x",), tuple(made), tuple(outs), 512 * count, 0.0, "mirror")
    )
    nodes = [n for n in build.nodes(outs) if n.position == count]
    together = next(n for n in nodes if len(n.ins) == count)
    assert together.kind == ("kernel" if count > 8 else "loop")
    assert sum(n.view for n in nodes) == (count if count > 8 else 0)


def test_many_pieces_are_put_together_by_a_kernel() -> None:
    build, whole = Matrices(), Placement(((), ()))
    pieces = [build.matrix(whole, (1, 16)) for _ in range(9)]
    for count in (8, 9):
        build.operator("concatenate", pieces[:count], build.matrix(whole, (count, 16)), dimension=0)
    assert [n.kind for n in build.nodes([9, 10])] == ["loop", "kernel"]


@pytest.mark.parametrize(("shapes", "numbers", "turned"), [
    (((8, 16), (8, 16)), (((0,), (0,)), ((), ())), ()),
    (((1, 8, 16), (1, 8, 16)), (((0, 1), (0, 1)), ((), ())), ()),
    (((2, 4, 16), (2, 4, 16)), (((0, 1), (0, 1)), ((), ())), ()),
    (((2, 4, 16), (16, 2, 4)), (((0, 1), (1, 2)), ((), ())), ()),
    (((1, 8, 16), (8, 1, 16)), (((0, 1), (1, 0)), ((), ())), (0,)),
    (((2, 4, 16), (4, 2, 16)), (((0, 1), (1, 0)), ((), ())), (0, 1)),
    (((3, 8, 16), (3, 8, 16)), (((1,), (1,)), ((0,), (0,))), ()),
    (((8, 3, 16), (8, 3, 16)), (((0,), (0,)), ((1,), (1,))), (0, 1)),
])  # fmt: skip
def test_a_product_turns_operands_that_do_not_lie_as_matrices(
    shapes: tuple[tuple[int, ...], ...], numbers: Any, turned: tuple[int, ...]
) -> None:
    """Several dims, of size 1 too, stand in an order of their own unless they are merged beforehand: x[1, k, m] and
    y[k, 1, n] are no matrices as they lie, so x becomes [m, 1, k].
    """
    build = Matrices()
    given = [build.matrix(Placement(((),) * len(shape)), shape) for shape in shapes]
    shape = (*(3,) * len(numbers[1][0]), 16, 16)
    made = build.matrix(Placement(((),) * len(shape)), shape)
    out = build.operator("dot_general", given, made, dimension_numbers=numbers)
    copies = [n for n in build.nodes([out]) if n.late and n.kind == "loop" and not n.view]
    assert [n.ins for n in copies] == [(given[n],) for n in turned]


@pytest.mark.parametrize(("kind", "count"), [("mul", 1), ("div", 2)])
def test_what_is_spread_is_spread_once_but_for_each_division(kind: str, count: int) -> None:
    build, whole = Matrices(), Placement(((), ()))
    column, *values = build.matrix(whole, (8, 1)), build.matrix(whole), build.matrix(whole)
    outs = [build.operator(kind, [value, column], build.matrix(whole)) for value in values]
    assert sum(n.spreads for n in build.nodes(outs)) == count


@pytest.mark.parametrize(("shape", "dtype", "is_library"), [
    ((64, 64), "float32", True), ((64, 63), "float32", False), ((64, 64), "int32", False),
])  # fmt: skip
def test_a_library_has_sums_and_operators_of_many_elements_and_others_are_loops(
    shape: Any, dtype: str, is_library: bool
) -> None:
    build, whole = Matrices(), Placement(((), ()))
    x = build.matrix(whole, shape, dtype)
    y = build.operator("add", [x, x], build.matrix(whole, shape, dtype))
    out = build.operator(
        "reduce_sum", [y], build.matrix(Placement(((),)), shape[1:], dtype), axes=(0,)
    )
    adds, sums = build.nodes([out])
    assert (adds.library, sums.takes, sums.kind == "kernel") == (is_library,) * 3


@pytest.mark.parametrize(("literal", "is_same"), [(float("-inf"), True), (0.0, False)])
def test_the_larger_of_x_and_the_least_number_is_x(literal: float, is_same: bool) -> None:
    build, whole = Matrices(), Placement(((), ()))
    x, least = (
        build.matrix(whole),
        build.value(Placement(()), TensorInfo(99, (), "float32", 4, literal=literal)),
    )
    out = build.operator(
        "exp", [build.operator("max", [least, x], build.matrix(whole))], build.matrix(whole)
    )
    assert (build.nodes([out])[0].ins == (x,)) == is_same


def test_a_sum_sees_what_is_added_before_it_is_in_order_in_a_shape_of_its_own() -> None:
    """So the sum's operand is added up for it alone, and again inside whatever wants it in order."""
    build = Matrices()
    one, two = (build.exchanged(build.matrix()) for _ in range(2))
    added = build.operator("add", [one, two], build.matrix(COLUMNS))
    out = build.operator("reduce_sum", [added], build.matrix(Placement(((),)), (16,)), axes=(0,))
    more = build.operator("sort", [added], build.matrix(COLUMNS))
    nodes = build.nodes([out, more])
    (adds,) = (n for n in nodes if n.elementwise)
    (seen,) = (n for n in nodes if n.view and n.ins == adds.outs)
    assert not seen.library


@pytest.mark.parametrize("is_read_as_it_is", [True, False])
def test_what_only_a_reshape_reads_counts_as_one_operand(is_read_as_it_is: bool) -> None:
    """Several read the reshape, which has one operand: each may compute the sum again."""
    build, whole = Matrices(), Placement(((), ()))
    added = build.operator("add", [build.matrix(whole), build.matrix(whole)], build.matrix(whole))
    flat = build.operator("reshape", [added], build.matrix(Placement(((),)), (128,)))
    outs = [
        build.operator(kind, [flat], build.matrix(Placement(((),)), (128,)))
        for kind in ("sin", "cos")
    ]
    more = [build.operator("exp", [added], build.matrix(whole))] if is_read_as_it_is else []
    (adds, *_) = build.nodes([*outs, *more])
    assert adds.unary != is_read_as_it_is
