"""fuse_collectives: what it merges, what it must not, and on random programs that nothing else changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.core.placement import Placement, StepKind
from autopar.core.program import Compute, Move, ShardedProgram
from autopar.core.regions import Region
from autopar.passes.fuse_collectives import FuseCollectives
from autopar.passes.verify import verify
from tests.passes.build import MESH, SPLIT, Builder, meaning, price, programs

X, Y = Placement(((),), ("x",)), Placement(((),), ("y",))


def buckets(program: ShardedProgram) -> list[tuple[tuple[str, ...], int]]:
    return [(move.axes, len(move.ins)) for move in program.collectives]


def reductions(program: ShardedProgram) -> Counter[object]:
    """What is reduced to what, over which axes, one by one."""
    return Counter(
        (before, after, move.axes)
        for move in program.collectives
        for before, after in zip(move.ins, move.outs, strict=True)
    )


@settings(max_examples=200, deadline=None)
@given(program=programs(), bucket_bytes=st.sampled_from([1, 48, 64, 2**20]))
def test_random_programs_keep_their_meaning(program: ShardedProgram, bucket_bytes: int) -> None:
    """Valid: no result is read before its bucket, and no bucket reads what it makes. Complete: nothing is lost."""
    fused = FuseCollectives(price, bucket_bytes, shard_bucket_bytes=48).apply(program)
    verify(fused)
    assert meaning(fused) == meaning(program)
    assert reductions(fused) == reductions(program)
    computed, before = (
        [i for i in p.instructions if isinstance(i, Compute)] for p in (fused, program)
    )
    assert sorted(map(id, computed)) == sorted(map(id, before))
    for move in fused.collectives:
        values = [program.values[v] for v in move.ins]
        assert len({(v.placement.unreduced, v.placement.kind, v.tensor.dtype) for v in values}) == 1
        sizes = [
            max(map(program.local_bytes, pair)) for pair in zip(move.ins, move.outs, strict=True)
        ]
        assert move.size_bytes == sum(sizes)
        assert move.time_s == price(move.kind, move.axes, move.size_bytes)
        assert sum(sizes[:-1]) < (bucket_bytes if move.kind == "all_reduce" else 48)
        assert (
            move.kind != "all_gather"
            or len(move.outs) == 1
            or set(move.outs) <= set(program.outputs)
        )
    total = [sum(move.time_s for move in p.collectives) for p in (fused, program)]
    assert total[0] <= total[1] * (1 + 1e-9)
    assert len(fused.collectives) <= len(program.collectives)


def gradients(build: Builder, count: int, placement: Placement = X) -> list[int]:
    return [build.compute([build.inputs[0]], placement, phase="backward") for _ in range(count)]


def test_independent_ones_become_one() -> None:
    build = Builder()
    build.input()
    reduced = [build.all_reduce(v, role="mirror") for v in gradients(build, 3)]
    program = build.program([build.compute([v], phase="update") for v in reduced])
    fused = FuseCollectives(price).apply(program)
    assert buckets(fused) == [(("x",), 3)]
    (move,) = fused.collectives
    assert (move.role, move.reason) == ("mirror", "bucket of 3 all-reduces")


@pytest.mark.parametrize("moved_s", [0.0, 1e-3], ids=["free", "copies beside"])
def test_a_bucket_of_many_is_priced_a_few_times_for_each(moved_s: float) -> None:
    """Its price is that of all at once, and what each does beside; it is not worked out anew for each that joins."""
    count = 60
    asked: list[int] = []

    def counted(kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
        asked.append(size_bytes)
        return price(kind, axes, size_bytes)

    build = Builder()
    build.input()
    reduced = [build.all_reduce(v, role="mirror") for v in gradients(build, count)]
    program = build.program([build.compute([v], phase="update") for v in reduced])
    moves = [move._replace(time_s=move.time_s + moved_s) for move in program.collectives]
    (bucket,) = FuseCollectives(counted).buckets(moves)

    assert len(asked) <= 3 * count
    fused = FuseCollectives(price).fused(moves)
    assert bucket == fused._replace(time_s=bucket.time_s)
    assert bucket.time_s == pytest.approx(fused.time_s, rel=1e-12)  # Python 3.12 adds up otherwise
    together_s = price(bucket.kind, bucket.axes, sum(move.size_bytes for move in moves))
    assert bucket.time_s == pytest.approx(together_s + count * moved_s)


@pytest.mark.parametrize(("gradients", "role"), [(1, "forward"), (3, "mirror")])
def test_a_bucket_has_the_role_of_most_of_its_bytes(gradients: int, role: str) -> None:
    build = Builder()
    build.input()
    statistics = build.all_reduce(build.compute([0], X, size=16))
    sums = [build.compute([0], X, phase="backward") for _ in range(gradients)]
    program = build.program([statistics, *(build.all_reduce(v, role="mirror") for v in sums)])
    (move,) = FuseCollectives(price).apply(program).collectives
    assert move.role == role


def test_the_update_waits_for_the_gradients_that_are_still_to_come() -> None:
    """Each gradient is used at once by the update, which could run early and would split the bucket."""
    build = Builder()
    build.input()
    updated = []
    for _ in range(3):
        (gradient,) = gradients(build, 1)
        updated.append(build.compute([build.all_reduce(gradient, role="mirror")], phase="update"))
    fused = FuseCollectives(price).apply(build.program(updated))
    verify(fused)
    assert buckets(fused) == [(("x",), 3)]


def test_what_is_no_gradient_waits_for_none() -> None:
    """A view of a sum that the backward pass goes on with: a gradient comes along, and nothing later comes first."""
    build = Builder()
    build.input()
    (gradient,) = gradients(build, 1)
    updated = build.compute([build.all_reduce(gradient, role="mirror")], phase="update")
    (partial,) = gradients(build, 1)
    view = build.compute(
        [build.all_reduce(partial, role="backward")], kind="reshape", phase="backward"
    )
    last = build.compute([view], phase="backward")
    later = build.compute([0], phase="backward")
    program = build.program([updated, last, later])
    fused = FuseCollectives(price).apply(program)
    verify(fused)
    assert buckets(fused) == [(("x",), 2)]
    order = [value for i in fused.instructions if isinstance(i, Compute) for value in i.outs]
    assert order.index(last) < order.index(later)


def test_effects_keep_their_order() -> None:
    """The update calls first, and would wait for further gradients; the second call waits with it."""
    build = Builder()
    build.input()
    first, second = gradients(build, 2)
    update = build.compute(
        [build.all_reduce(first, role="mirror")], kind="tell", phase="update", effect="ordered"
    )
    forward = build.compute([0], kind="tell", effect="ordered")
    program = build.program([update, forward, build.all_reduce(second, role="mirror")])
    fused = FuseCollectives(price).apply(program)
    verify(fused)
    assert buckets(fused) == [(("x",), 2)]
    told = [
        [i.outs[0] for i in p.instructions if isinstance(i, Compute) and i.op.effect]
        for p in (program, fused)
    ]
    assert told == [[update, forward]] * 2


def test_dependent_ones_stay_apart() -> None:
    build = Builder()
    first = build.all_reduce(build.compute([build.input()], X))
    second = build.all_reduce(build.compute([first], X))
    assert buckets(FuseCollectives(price).apply(build.program([second]))) == [
        (("x",), 1),
        (("x",), 1),
    ]


def test_an_early_use_closes_the_bucket() -> None:
    build = Builder()
    build.input()
    early = build.compute([build.all_reduce(gradients(build, 1)[0])])
    late = build.all_reduce(gradients(build, 1)[0])
    fused = FuseCollectives(price).apply(build.program([early, late]))
    assert buckets(fused) == [(("x",), 1), (("x",), 1)]


def test_what_can_be_reduced_goes_along_with_what_must() -> None:
    """Both gradients are there when the first is used; the second is asked for only later."""
    build = Builder()
    build.input()
    a, b = gradients(build, 2)
    early = build.compute([build.all_reduce(a)])
    program = build.program([early, build.all_reduce(b)])
    fused = FuseCollectives(price).apply(program)
    verify(fused)
    assert buckets(fused) == [(("x",), 2)]
    assert meaning(fused) == meaning(program)


def test_reductions_one_after_the_other_are_both_kept() -> None:
    build = Builder()
    both = build.compute([build.input()], Placement(((),), ("x", "y")))
    last = build.compute([build.all_reduce(build.move("all_reduce", ("y",), both, X))])
    fused = FuseCollectives(price).apply(build.program([last]))
    verify(fused)
    assert buckets(fused) == [(("y",), 1), (("x",), 1)]


@pytest.mark.parametrize(
    "other",
    [Y, Placement(((),), ("x", "y")), Placement(((),), ("x",), "max")],
    ids=["axes", "more axes", "kind"],
)
def test_other_axes_and_kinds_get_buckets_of_their_own(other: Placement) -> None:
    build = Builder()
    build.input()
    reduced = [build.all_reduce(v) for p in (X, other, X) for v in gradients(build, 1, p)]
    fused = FuseCollectives(price).apply(build.program(reduced))
    verify(fused)
    assert sorted(len(move.ins) for move in fused.collectives) == [1, 2]


def test_a_full_bucket_is_closed() -> None:
    build = Builder()
    build.input()
    reduced = [build.all_reduce(v) for v in gradients(build, 5)]
    fused = FuseCollectives(price, bucket_bytes=64).apply(build.program(reduced))
    assert [len(move.ins) for move in fused.collectives] == [2, 2, 1]


def test_buckets_stay_in_their_region() -> None:
    build = Builder()
    build.input()
    outside = gradients(build, 1)[0]
    inside = [build.compute([0], X, region=0), build.compute([0], X, region=0)]
    reduced = [build.all_reduce(v, region=0) for v in inside]
    used = build.compute(reduced, region=0)
    last = build.all_reduce(outside)
    fused = FuseCollectives(price).apply(build.program([used, last], regions=(Region(0, "remat"),)))
    verify(fused)
    assert sorted((move.region is None, len(move.ins)) for move in fused.collectives) == [
        (False, 2),
        (True, 1),
    ]


def test_a_block_is_not_interrupted_by_what_reduces_its_result() -> None:
    build = Builder()
    build.input()
    inside = [build.compute([0], X, region=0), build.compute([0], X, region=0)]
    program = build.program([build.all_reduce(v) for v in inside], regions=(Region(0, "remat"),))
    fused = FuseCollectives(price, bucket_bytes=1).apply(program)
    verify(fused)
    assert buckets(fused) == [(("x",), 1), (("x",), 1)]


def test_scatters_of_gradients_become_one_whose_views_wait() -> None:
    """The second gradient is there only after the first one's transpose, which reads what was scattered."""
    build = Builder()
    build.input()
    scattered = []
    for _ in range(3):
        (gradient,) = gradients(build, 1)
        shard = build.reduce_scatter(gradient, role="mirror")
        scattered.append(build.compute([shard], SPLIT, kind="transpose", phase="backward"))
    fused = FuseCollectives(price).apply(build.program(scattered))
    verify(fused)
    (move,) = fused.collectives
    assert (move.kind, len(move.ins), move.reason) == (
        "reduce_scatter",
        3,
        "bucket of 3 reduce-scatters",
    )


def test_what_is_scattered_is_reduced_further_once_its_bucket_is_closed() -> None:
    """Over the other axes, and not behind the whole backward pass; of what is still open, that waits for the end."""
    build = Builder()
    build.input()
    over_both = Placement(((),), ("x", "y"))
    scattered = Placement((("y",),), ("x",))
    updated: list[int] = []
    rows = 0
    for _ in range(3):
        gradient = build.compute([rows], over_both, phase="backward")
        shard = build.move("reduce_scatter", ("y",), gradient, scattered, role="mirror", dim=0)
        updated.append(build.compute([build.all_reduce(shard, role="mirror")], phase="update"))
        rows = build.compute([rows], phase="backward")

    program = build.program([*updated, rows])
    fused = FuseCollectives(price, shard_bucket_bytes=64).apply(program)
    verify(fused)
    assert meaning(fused) == meaning(program)
    order = [
        (one.kind, len(one.ins)) if isinstance(one, Move) else one.op.phase
        for one in fused.instructions
        if isinstance(one, Move | Compute)
    ]
    assert order == [
        *("backward", "backward", "backward"),
        ("reduce_scatter", 2),
        *("backward", "backward", "backward"),
        ("reduce_scatter", 1),
        ("all_reduce", 3),
        *("update", "update", "update"),
    ]

    soon = FuseCollectives(price, bucket_bytes=16, shard_bucket_bytes=64).apply(program)
    verify(soon)
    assert meaning(soon) == meaning(program)
    assert [one.kind for one in soon.instructions[3:7] if isinstance(one, Move)] == [
        "reduce_scatter",
        "all_reduce",
    ]


def test_a_scatter_and_an_all_reduce_stay_apart() -> None:
    build = Builder()
    build.input()
    a, b = gradients(build, 2)
    fused = FuseCollectives(price).apply(
        build.program([build.all_reduce(a), build.reduce_scatter(b)])
    )
    verify(fused)
    assert sorted(move.kind for move in fused.collectives) == ["all_reduce", "reduce_scatter"]


def test_gathers_of_results_become_one() -> None:
    build = Builder()
    build.input()
    updated = [build.compute([0], SPLIT, phase="update") for _ in range(3)]
    fused = FuseCollectives(price).apply(build.program([build.all_gather(v) for v in updated]))
    verify(fused)
    (move,) = fused.collectives
    assert (move.kind, len(move.ins), move.reason) == ("all_gather", 3, "bucket of 3 all-gathers")


def test_a_gather_of_what_is_used_is_left_where_it_is() -> None:
    """In one bucket both would be there, whole, from the first use on."""
    build = Builder()
    rows = [build.input(SPLIT) for _ in range(2)]
    gathered = [build.all_gather(v) for v in rows]
    used = [build.compute([v]) for v in gathered]
    program = build.program(used)
    assert FuseCollectives(price).apply(program).instructions == program.instructions


@pytest.mark.parametrize(
    ("most", "together"), [(1, [1] * 5), (2, [2, 2, 1]), (3, [3, 2]), (5, [5])]
)
def test_what_costs_less_together_is_together(most: int, together: list[int]) -> None:
    """A bucket of more than `most` is dear to lay out: so it is cut where that is reached, and loses nothing."""
    build = Builder()
    build.input()
    program = build.program([build.all_reduce(v) for v in gradients(build, 5)])

    def pack(kind: StepKind, axes: tuple[str, ...], sizes: Sequence[int]) -> float:
        return 0.0 if len(sizes) <= most else 100.0

    fused = FuseCollectives(price, pack=pack).apply(program)
    assert [len(move.ins) for move in fused.collectives] == together
    assert reductions(fused) == reductions(program)


def test_other_moves_are_left_alone() -> None:
    build = Builder()
    columns = [build.input() for _ in range(2)]
    cut = [build.move("slice", ("x",), v, SPLIT, dim=0) for v in columns]
    program = build.program(cut)
    assert FuseCollectives(price).apply(program).instructions == program.instructions
    assert all(isinstance(i, Move) for i in program.instructions)
    assert program.mesh == MESH
