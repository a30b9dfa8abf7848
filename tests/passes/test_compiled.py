"""What XLA's CPU compiler makes of nodes, part by part: fusion, order, joined all-reduces, donations, memory."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.backends.xla_cpu.arena import ALIGNMENT, _clock, _places, arena_bytes
from autopar.backends.xla_cpu.donate import with_copies, with_own
from autopar.backends.xla_cpu.draft import NodeDraft
from autopar.backends.xla_cpu.fusion import fused
from autopar.backends.xla_cpu.join import joined
from autopar.backends.xla_cpu.moving import unfold_move
from autopar.backends.xla_cpu.node import Node
from autopar.backends.xla_cpu.order import post_order, ready_first
from autopar.backends.xla_cpu.place import END, HeldBuffer, Timed, held, left_over, most
from autopar.backends.xla_cpu.unfold import Unfolding
from autopar.core.graph import OpNode, TensorInfo
from autopar.core.placement import Placement
from autopar.core.program import Compute, Move
from autopar.core.regions import Region
from autopar.core.strategy import Strategy
from tests.passes.build import SPLIT, Builder

X, A, B, C, D, E = range(6)


def loop(
    ins: tuple[int, ...], out: int, *, dear: bool = False, unary: bool = True, **more: bool
) -> Node:
    return Node("loop", ins, (out,), 0, dear=dear, elementwise=True, unary=unary, **more)


def kernel(ins: tuple[int, ...], *outs: int, **more: object) -> Node:
    return Node("kernel", ins, outs, 0, **more)  # type: ignore[arg-type]


def written(nodes: list[Node], kept: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """What is written, and what its kernel reads."""
    return {value: k.reads for k in fused(nodes, kept) for value in k.node.outs}


def test_a_loop_is_computed_inside_its_only_reader() -> None:
    assert written([loop((X,), A), loop((A,), B)], (B,)) == {B: (X,)}


def test_what_a_kernel_reads_is_written() -> None:
    assert written([loop((X,), A), kernel((A,), B)], (B,)) == {A: (X,), B: (A,)}


def test_cheap_loops_are_computed_in_each_reader() -> None:
    assert written([loop((X,), A), loop((A,), B), loop((A,), C)], (B, C)) == {B: (X,), C: (X,)}


def test_dear_loops_are_computed_once() -> None:
    assert written([loop((X,), A, dear=True), loop((A,), B), loop((A,), C)], (B, C)) == {
        A: (X,),
        B: (A,),
        C: (A,),
    }
    together = [loop((X,), A, dear=True), loop((A,), B), loop((A,), C), loop((B, C), D)]
    assert written(together, (D,)) == {D: (X,)}


def test_what_is_written_anyhow_is_computed_again_if_it_reads_one_operand_of_its_size() -> None:
    unary = [loop((X,), A), kernel((A,), B), loop((A,), C)]
    assert written(unary, (B, C))[C] == (X,)
    both = [loop((X, D), A, unary=False), kernel((A,), B), loop((A,), C)]
    assert written(both, (B, C))[C] == (A,)


def view(value: int, out: int, **more: bool) -> Node:
    return Node("loop", (value,), (out,), 0, view=True, **more)


def test_a_loop_is_computed_inside_its_buffer_in_another_shape() -> None:
    both, last = loop((X, D), A, unary=False), loop((A,), C)
    seen = [both, view(A, E), kernel((E,), B), last]
    assert written(seen, (B, C)) == {E: (X, D), B: (E,), C: (X, D)}
    assert written([*seen, kernel((A,), 6)], (B, C, 6)) == {A: (X, D), B: (A,), C: (A,), 6: (A,)}


def test_what_two_kernels_see_in_two_shapes_is_written_twice() -> None:
    seen = [view(A, B), view(A, C), kernel((B,), D), kernel((C,), E)]
    assert written([loop((X,), A), *seen], (D, E)) == {B: (X,), C: (X,), D: (B,), E: (C,)}
    assert written([kernel((X,), A), *seen], (D, E)) == {A: (X,), D: (A,), E: (A,)}


def test_pieces_are_put_together_inside_one_kernel_only() -> None:
    together = loop((X, D), A, unary=False, once=True, pieces=True)
    assert A not in written([together, loop((A,), B), kernel((B,), C)], (C,))
    both = [together, loop((A,), B), view(B, 6), view(B, 7), kernel((6,), C), kernel((7,), E)]
    assert written(both, (C, E)) == {A: (X, D), 6: (A,), 7: (A,), C: (6,), E: (7,)}


def test_what_nobody_reads_is_not_made() -> None:
    assert written([loop((X,), A), loop((A,), B), kernel((X,), C)], (C,)) == {C: (X,)}


def test_a_sum_negates_behind() -> None:
    nodes = [loop((X,), A, negates=True), kernel((A,), B, sums=True)]
    assert written(nodes, (B,)) == {B: (X,)}
    assert written(
        [loop((X, D), C, product=True), loop((C,), A, negates=True), nodes[1]], (B,)
    ) == {B: (X, D)}
    assert written([*nodes, kernel((A,), C)], (B, C)) == {A: (X,), B: (A,), C: (A,)}


def part(ins: tuple[int, ...], out: int, **more: bool) -> Node:
    """What the library may take in."""
    return loop(ins, out, library=True, **more)


def summed(value: int, out: int) -> Node:
    return kernel((value,), out, takes=True)


def test_a_sum_takes_in_what_alone_reads_it_and_waits_for_the_rest_of_its_operands() -> None:
    nodes = [summed(X, A), part((A,), B), part((B, D), C)]
    assert written([*nodes, kernel((C,), E)], (E,)) == {C: (X, D), E: (C,)}
    assert written([*nodes, kernel((A,), E)], (C, E)) == {A: (X,), C: (D, A), E: (A,)}
    assert written([summed(X, A), loop((A,), B), kernel((B,), C)], (C,)) == {
        A: (X,),
        B: (A,),
        C: (B,),
    }
    assert written([summed(X, A), part((A,), B)], (A, B)) == {A: (X,), B: (A,)}


def test_a_sum_takes_in_what_nobody_else_reads_products_too() -> None:
    nodes = [kernel((X, D), A, library=True), part((A,), B), summed(B, C)]
    assert written(nodes, (C,)) == {C: (X, D)}
    assert written([*nodes, kernel((A,), E)], (C, E)) == {A: (X, D), C: (A,), E: (A,)}
    assert written([kernel((X,), A), part((A,), B), summed(B, C)], (C,)) == {A: (X,), C: (A,)}


def test_a_sum_takes_in_its_own_operand_once_it_holds_what_else_reads_that() -> None:
    """As a softmax: x = a b, exp(x - max(x)); the last sum is the first that takes."""
    softmax = [
        kernel((X,), A, library=True),
        summed(A, B),
        part((B,), C, spreads=True),
        part((A, C), D, dear=True),
    ]
    assert written(softmax, (D,)) == {D: (X,)}
    assert written([*softmax, summed(D, E)], (D, E)) == {D: (X,), E: (D,)}
    assert written([*softmax, summed(D, E)], (E,)) == {E: (X,)}


def test_nothing_is_written_over_by_what_a_sum_takes_in() -> None:
    (one,) = fused([summed(X, A), part((A,), B), part((B, X), C)], (C,))
    assert (one.reads, one.same, one.node.over) == ((X,), frozenset(), ())


def test_what_has_large_operands_is_kept_for_who_depends_on_it_by_another_path() -> None:
    """The kernel that makes C reads what A is computed inside, so what reads A and C could not hold all between."""
    wide, first, summed = loop((X, D), A, unary=False), loop((A,), B), kernel((B,), C)
    assert written([wide, first, summed, loop((A, C), E)], (E,))[E] == (A, C)
    assert written([wide, first, summed, loop((A,), 6), loop((6, C), E)], (E,))[E] == (C, X, D)
    assert A in written(
        [wide, first, loop((B,), C, dear=True), loop((C,), 6), loop((A, 6, C), E)], (E,)
    )
    assert A not in written([wide, first, loop((B,), C), loop((A, C), E)], (E,))


def test_what_is_computed_inside_a_loop_brings_its_operands_behind() -> None:
    """The operand made last is taken in first; D and X are there once."""
    nodes = [loop((X,), A), loop((D, X), B, unary=False), loop((A, B, D), C, unary=False)]
    assert written(nodes, (C,))[C] == (D, X)
    assert written([loop((X,), A), loop((D,), B), loop((A, B, E), C, unary=False)], (C,))[C] == (
        E,
        D,
        X,
    )


def test_products_merge_several_dims_that_they_keep_or_sum() -> None:
    build, flat, deep = Builder(), Placement(((), ())), Placement(((), (), ()))
    x, w = (
        build.value(deep, TensorInfo(0, (2, 8, 4), "float32", 4)),
        build.value(flat, TensorInfo(1, (4, 2), "float32", 4)),
    )
    out = build.value(deep, TensorInfo(2, (2, 8, 2), "float32", 4))
    tensors = [build.values[value].tensor for value in (x, w, out)]
    op = OpNode(
        0,
        "dot_general",
        tuple(tensors[:2]),
        (tensors[2],),
        params={"dimension_numbers": (((2,), (0,)), ((), ()))},
    )
    build.instructions.append(Compute(op, Strategy((deep, flat), (deep,)), (x, w), (out,)))
    seen, product = Unfolding(build.program([out]), lambda _op, _sizes: 0).nodes().nodes
    assert seen.view
    assert seen.ins == (x,)
    assert product.ins == (*seen.outs, w)


def test_a_truth_value_chooses_and_a_sum_of_what_it_chose_multiplies_nothing() -> None:
    build = Builder()
    x, y = build.input(), build.input()
    truth = TensorInfo(9, (8,), "bool", 1)
    asked, told = build.value(SPLIT, truth), build.value(SPLIT)
    kinds = OpNode(0, "convert_element_type", (truth,), (build.values[told].tensor,))
    build.instructions.append(Compute(kinds, Strategy((SPLIT,), (SPLIT,)), (asked,), (told,)))
    for other, is_product in ((told, False), (y, True)):
        build.compute([x, other], kind="mul")
        *_, node = Unfolding(build.program([]), lambda _op, _sizes: 0).nodes().nodes
        assert node.product == is_product


def test_a_sum_multiplies_first() -> None:
    nodes = [loop((X, D), A, product=True), kernel((A,), B, sums=True)]
    assert written(nodes, (B,)) == {B: (X, D)}
    assert A in written([*nodes, loop((A,), C)], (B, C))


def test_kernels_run_as_soon_as_they_can() -> None:
    kernels = fused(
        [kernel((X,), A), kernel((A,), B), kernel((B,), C), kernel((X,), D), kernel((C, D), E)],
        (E,),
    )
    assert [k.node.outs[0] for k in ready_first(kernels)] == [A, D, B, C, E]


def made_by(nodes: list[Node], kept: tuple[int, ...]) -> list[int]:
    """The first results of the kernels, in the order in which they run."""
    return [k.node.outs[0] for k in ready_first(fused(nodes, kept))]


def test_each_of_several_results_waits_to_be_taken_out_of_their_tuple() -> None:
    nodes = [kernel((X,), A, B), kernel((X,), C), kernel((A, B), D), kernel((C,), E)]
    assert made_by(nodes, (D, E)) == [A, C, E, D]


def test_what_reads_earlier_arguments_runs_first_and_late_copies_last() -> None:
    copied = Node("loop", (A,), (C,), 0, late=True)
    assert made_by([kernel((B,), D), kernel((X,), A), copied, kernel((A,), E)], (C, D, E)) == [
        A,
        D,
        E,
        C,
    ]
    assert made_by([kernel((), A, late=True), kernel((X,), B), kernel((), C)], (A, B, C)) == [
        C,
        B,
        A,
    ]


def test_what_comes_from_several_places_is_computed_for_one_reader() -> None:
    once = loop((X,), A, once=True)
    assert written([once, loop((A,), B)], (B,)) == {B: (X,)}
    assert A in written([once, loop((A,), B), loop((A,), C)], (B, C))


@pytest.mark.parametrize(
    ("shape", "dim", "kind"),
    [((4, 128), 1, "kernel"), ((4, 127), 1, "loop"), ((128, 4), 0, "loop"), ((128,), 0, "loop")],
)
def test_long_rows_are_put_together_by_a_kernel_of_their_own(
    shape: tuple[int, ...], dim: int, kind: str
) -> None:
    draft = NodeDraft(Builder().program([]))
    draft.put_together((A, B), C, 0, shape, dim)
    (node,) = draft.scopes[-1].nodes
    assert node.kind == kind


def test_what_a_loop_does_not_change_is_made_before_it_and_what_only_spreads_it_with_that() -> None:
    build = Builder()
    given, start = build.input(), build.input()
    carried = build.compute([start], kind="carry_in", region=0, params={"position": 0})
    spread, alone = (
        build.compute([given], kind="broadcast_in_dim", size=16, region=1) for _ in range(2)
    )
    made = build.compute([spread], kind="sin", size=16, region=1)
    build.compute([carried, alone], kind="mul", size=16, region=1)
    regions = (Region(0, "scan"), Region(1, "body", 0))
    program = build.program([], regions=regions)
    before, inside = [], []
    for node in Unfolding(program, lambda _op, _sizes: 0).nodes().nodes:
        inside.extend(out for inner in node.body for out in inner.outs)
        before.extend(() if node.body else node.outs)
    assert made in before
    assert made not in inside
    assert spread in inside
    assert spread not in before


@pytest.mark.parametrize("kind", ["split", "unstack"])
def test_parts_are_cut_out_inside_what_reads_them(kind: str) -> None:
    build = Builder()
    whole, *parts = (
        build.value(Placement(((), ())), TensorInfo(n, (2, 8), "float32", 4)) for n in range(3)
    )
    tensors = [build.values[value].tensor for value in (whole, *parts)]
    op = OpNode(0, kind, (tensors[0],), tuple(tensors[1:]), params={"axis": 0})
    whole_placed = Placement(((), ()))
    strategy = Strategy((whole_placed,), (whole_placed, whole_placed))
    build.instructions.append(Compute(op, strategy, (whole,), tuple(parts)))
    found = Unfolding(build.program(parts), lambda _op, _sizes: 0).nodes().nodes
    assert [(node.kind, node.ins, node.outs) for node in found] == [
        ("loop", (whole,), (part,)) for part in parts
    ]


@pytest.mark.parametrize(("size", "kind"), [(64, "kernel"), (2, "loop")])
def test_shards_of_a_bucket_are_put_together_row_by_row(size: int, kind: str) -> None:
    """What is split along its first dim lies in rows, what along another is copied; short rows need no kernel."""
    build = Builder()
    tensors = [TensorInfo(n, (size, 8), "float32", 4) for n in range(2)]
    one, two = (build.value(Placement(((), ()), ("x",)), tensor) for tensor in tensors)
    parts = [Placement(((), ("x",))), Placement((("x",), ()))]
    outs = tuple(
        build.value(placement, tensor) for placement, tensor in zip(parts, tensors, strict=True)
    )
    draft = NodeDraft(build.program(outs))
    unfold_move(
        draft,
        0,
        Move("reduce_scatter", ("x",), (one, two), outs, 64 * size, 0.0, "mirror", dim=0),
        (one, two),
    )
    nodes = draft.scopes[-1].nodes
    copied, (together,) = nodes[0], [node for node in nodes if node.pieces]
    views = {node.outs[0]: node.ins[0] for node in nodes if node.view}
    assert (copied.kind, copied.ins) == ("loop", (one,))
    assert (together.kind, [views.get(v, v) for v in together.ins]) == (kind, [*copied.outs, two])


@pytest.mark.parametrize("others", [0, 1])
def test_a_product_that_only_a_transpose_reads_is_made_turned_round(others: int) -> None:
    """(a b)^T is b^T a^T, unless something else reads a b."""
    build, whole = Builder(), Placement(((), ()))
    x, w, made, turned = (
        build.value(whole, TensorInfo(n, s, "float32", 4)) for n, s in enumerate(_PRODUCT)
    )
    build.inputs += [x, w]
    tensors = [build.values[value].tensor for value in (x, w, made, turned)]
    sums = OpNode(
        0,
        "dot_general",
        tuple(tensors[:2]),
        (tensors[2],),
        params={"dimension_numbers": _SUMS_ROWS},
    )
    turns = OpNode(1, "transpose", (tensors[2],), (tensors[3],), params={"permutation": (1, 0)})
    build.instructions.append(Compute(sums, Strategy((whole, whole), (whole,)), (x, w), (made,)))
    build.instructions.append(Compute(turns, Strategy((whole,), (whole,)), (made,), (turned,)))
    read = [build.compute([made], kind="sin") for _ in range(others)]
    first, *rest = Unfolding(build.program([turned, *read]), lambda _op, _sizes: 0).nodes().nodes
    assert first.ins == ((x, w) if others else (w, x))
    assert [node.outs for node in rest] == ([(turned,), (read[0],)] if others else [])


_PRODUCT = ((8, 2), (8, 4), (2, 4), (4, 2))
_SUMS_ROWS = (((0,), (0,)), ((), ()))


def test_places_count_within_one_kernel() -> None:
    """Each kernel may hold fifteen copies, however many others hold some."""

    def together(count: int, first: int) -> list[Node]:
        parts = [Node("loop", (A,), (first + n,), 0) for n in range(count)]
        return [*parts, loop(tuple(node.outs[0] for node in parts), first + 99, unary=False)]

    both = [loop((X,), A), *together(10, 100), *together(10, 300)]
    assert A not in written(both, (199, 399))
    assert A in written([loop((X,), A), *together(16, 100)], (199,))


def test_all_reduces_that_need_not_one_another_are_joined() -> None:
    apart = [
        kernel((X,), A, joins=("x",)),
        kernel((A,), B),
        kernel((X,), C, joins=("x",)),
        kernel((B, C), D),
    ]
    found = joined(fused(apart, (D,)))
    assert [k.node.outs for k in found] == [(A, C), (B,), (D,)]
    chained = [kernel((X,), A, joins=("x",)), kernel((A,), B, joins=("x",))]
    assert len(joined(fused(chained, (B,)))) == 2


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["", "x", "y"])),
        max_size=12,
    )
)
def test_joining_leaves_an_order(drawn: list[tuple[int, int, str]]) -> None:
    """All kernels still run, each behind what it reads."""
    nodes = [
        kernel((min(a, n), min(b, n)), n + 1, joins=(j,) if j else ())
        for n, (a, b, j) in enumerate(drawn)
    ]
    found = joined(fused(nodes, range(len(nodes) + 1)))
    assert sorted(v for k in found for v in k.node.outs) == list(range(1, len(nodes) + 1))
    seen = {0}
    for one in ready_first(found):
        assert seen.issuperset(one.reads)
        seen.update(one.node.outs)
    assert len(seen) == len(nodes) + 1


def test_a_donated_argument_is_copied_if_it_may_be_read_later() -> None:
    sizes = dict.fromkeys(range(6), 8)
    safe = fused([kernel((X,), A), loop((X, A), B)], (B,))
    assert len(with_copies(safe, {B: X}, sizes, 100)) == 2
    late = fused([kernel((X,), A), loop((X, C), B)], (A, B))
    found = with_copies(late, {B: X}, sizes, 100)
    assert found[0].reads == (X,)
    assert all(100 in k.reads for k in found[1:])


def test_a_kernel_writes_over_what_nobody_reads_later() -> None:
    sizes = dict.fromkeys(range(6), 8)
    timed = Timed(sizes)
    timed.run(
        fused([kernel((X,), A), loop((A,), B, dear=True), kernel((B,), C), kernel((B,), D)], (C, D))
    )
    assert most(held(timed, frozenset({X, C, D})))[0] == 8
    timed = Timed(sizes)
    timed.run(fused([kernel((X,), A), kernel((A,), B), kernel((B,), C)], (C,)))
    assert most(held(timed, frozenset({X, C})))[0] == 16


def test_buffers_lie_in_results_that_are_not_made_yet() -> None:
    early, late, large = HeldBuffer(A, 0, 3, 8), HeldBuffer(B, 2, 5, 8), HeldBuffer(C, 0, 1, 99)
    assert left_over([early, late, large], [(10, [(4, END)])], {A: 0, B: 1, C: 2}) == [large, late]


def test_of_buffers_of_one_size_that_of_the_least_rank_finds_a_place_first() -> None:
    first, second = HeldBuffer(A, 0, 2, 8), HeldBuffer(B, 1, 3, 8)
    assert left_over([first, second], [(8, [(4, END)])], {A: 0, B: 1}) == [second]
    assert left_over([first, second], [(8, [(4, END)])], {A: 1, B: 0}) == [first]


def test_of_rooms_of_one_size_the_first_is_tried_first() -> None:
    both, early, late = (
        [HeldBuffer(A, 0, 2, 8), HeldBuffer(B, 1, 5, 8)],
        (8, [(3, END)]),
        (8, [(6, END)]),
    )
    assert left_over(both, [(8, [(3, END)]), (8, [(6, END)])], {A: 0, B: 1}) == []
    assert left_over(both, [late, early], {A: 0, B: 1}) == [both[1]]


def test_what_others_read_too_is_copied_before_it_is_written_over() -> None:
    """A scatter into zeros: into copies, each of its own, where two scatters have the same ones."""
    sizes = dict.fromkeys(range(6), 8)
    zeros = kernel((), A)
    alone = fused([zeros, kernel((A, X), B, over=(A,), inplace=True)], (B,))
    assert with_own(alone, (X,), sizes, 100) == alone
    twice = fused([*(k.node for k in alone), kernel((A, X), C, over=(A,), inplace=True)], (B, C))
    found = with_own(twice, (X,), sizes, 100)
    assert [k.reads for k in found] == [(), (100, X), (101, X), (A,), (A,)]
    assert [k.node.over for k in found[1:3]] == [(100,), (101,)]
    assert (sizes[100], sizes[101]) == (8, 8)


def test_what_runs_before_may_read_what_is_written_over() -> None:
    sizes = dict.fromkeys(range(6), 8)
    before = fused(
        [kernel((X,), A), kernel((A,), B), kernel((A, B), C, over=(A,), inplace=True)], (C,)
    )
    assert with_own(before, (X,), sizes, 100) == before
    beside = fused(
        [kernel((X,), A), kernel((A,), B), kernel((A, X), C, over=(A,), inplace=True)], (B, C)
    )
    assert len(with_own(beside, (X,), sizes, 100)) == 4


def test_arguments_are_copied_before_they_are_written_over() -> None:
    sizes = dict.fromkeys(range(6), 8)
    kernels = fused([kernel((X, A), B, over=(X,), inplace=True)], (B,))
    assert len(with_own(kernels, (X, A), sizes, 100)) == 2


def test_what_is_written_over_and_what_becomes_of_it_are_one_buffer() -> None:
    """From the zeros on, to the last reader of what is scattered into them; a reader in place may write over it."""
    sizes = dict.fromkeys(range(6), 8)
    nodes = [kernel((), A), kernel((X,), D), kernel((A, D), B, over=(A,), inplace=True)]
    timed = Timed(sizes)
    timed.run(fused([*nodes, kernel((B,), C)], (C,)))
    timed.write_over((C,))
    assert [one for one in held(timed, frozenset({X, C})) if one.buffer in (A, B)] == [
        HeldBuffer(A, 0, 3, 8)
    ]
    timed = Timed(sizes)
    timed.run(fused([*nodes, loop((B,), C, dear=True)], (C,)))
    timed.write_over((C,))
    assert [one for one in held(timed, frozenset({X, C})) if one.buffer in (A, B)] == [
        HeldBuffer(A, 0, 2, 8)
    ]
    timed = Timed(sizes)
    timed.run(fused(nodes, (B,)))
    timed.write_over((B,))
    assert timed.made[B] == 0
    assert [one.buffer for one in held(timed, frozenset({X, B}))] == [D]


def test_ranks_follow_the_results_and_their_operands_not_the_program() -> None:
    kernels = fused(
        [kernel((X,), A), kernel((X,), B), kernel((A,), C), kernel((B, A), D), kernel((X,), E)],
        (D, C),
    )
    assert sorted((D, C, B, A, E), key=post_order(kernels, [D, C]).__getitem__) == [B, A, D, C, E]


def test_buffers_of_loops_rank_behind_all_others() -> None:
    body = (kernel((A,), B), kernel((B,), C))
    loop_of = Node("control", (A,), (D,), 0, body=body, carried=((D, C),))
    ranks = post_order(fused([kernel((X,), A), loop_of, kernel((D,), E)], (E,)), [E])
    assert sorted(ranks, key=ranks.__getitem__) == [A, D, E, B, C]


IN_ORDER = {n: n for n in range(12)}
BUFFERS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(1, 40)), min_size=1, max_size=12
)


@given(BUFFERS)
def test_an_arena_holds_all_that_is_held_at_once(drawn: list[tuple[int, int, int]]) -> None:
    buffers = [
        HeldBuffer(n, first, first + long, ALIGNMENT * size)
        for n, (first, long, size) in enumerate(drawn)
    ]
    size = arena_bytes(buffers, IN_ORDER)
    assert most(buffers)[0] <= size <= sum(one.size_bytes for one in buffers)
    if all(a.last < b.first or b.last < a.first for a, b in combinations(buffers, 2)):
        assert size == max(one.size_bytes for one in buffers)


def test_an_arena_may_be_fragmented() -> None:
    unit = ALIGNMENT
    buffers = [
        HeldBuffer(0, 0, 1, 3 * unit),
        HeldBuffer(1, 1, 3, 2 * unit),
        HeldBuffer(2, 2, 3, 4 * unit),
    ]
    assert arena_bytes(buffers, IN_ORDER) == most(buffers)[0] == 6 * unit
    buffers.append(HeldBuffer(3, 0, 0, 3 * unit))
    assert arena_bytes(buffers, IN_ORDER) >= most(buffers)[0]


def test_an_arena_is_the_smaller_of_two() -> None:
    """The largest first, 13 units; those first that live longest, 12."""
    drawn = [(2, 5, 5), (1, 1, 6), (5, 5, 3), (0, 5, 4)]
    buffers = [
        HeldBuffer(n, first, last, ALIGNMENT * size) for n, (first, last, size) in enumerate(drawn)
    ]
    assert arena_bytes(buffers, IN_ORDER) == most(buffers)[0] == 12 * ALIGNMENT


def test_buffers_that_are_written_over_one_another_lie_in_one_place() -> None:
    """Else the second would lie where the first did not: in the gap that others leave it."""
    unit = ALIGNMENT
    others = [HeldBuffer(2, 0, 2, 2 * unit), HeldBuffer(3, 3, 9, 2 * unit)]
    apart = [HeldBuffer(0, 0, 2, unit), HeldBuffer(1, 3, 9, unit), *others]
    assert _places(apart) == [(one, one.buffer) for one in sorted(apart, key=lambda one: one.first)]
    ((place, last), *_) = _places(
        [
            HeldBuffer(0, 0, 2, unit),
            HeldBuffer(1, 3, 9, unit, over=0),
            HeldBuffer(4, 10, 12, unit, over=1),
        ]
    )
    assert (place.buffer, place.first, place.last, last) == (0, 0, 12, 4)
    # what is not there
    assert (
        arena_bytes([HeldBuffer(0, 0, 2, unit), HeldBuffer(1, 3, 9, unit, over=7)], IN_ORDER)
        == unit
    )


def test_the_clock_moves_with_buffers_and_not_with_kernels() -> None:
    """Three kernels that make nothing pass in no time."""
    begins, ends = _clock([HeldBuffer(0, 0, 5, 1), HeldBuffer(1, 1, 1, 1), HeldBuffer(2, 5, 9, 1)])
    assert (begins, ends) == ({0: 0, 1: 1, 2: 3}, {1: 2, 0: 4, 2: 5})


def test_kernels_know_what_they_read_in_place() -> None:
    (one,) = fused([loop((X,), A), Node("loop", (A, D), (B,), 0, spreads=True)], (B,))
    assert one.reads == (D, X)
    assert not one.same
    (one,) = fused([loop((X,), A), loop((A, D), B)], (B,))
    assert one.same == {X, D}
