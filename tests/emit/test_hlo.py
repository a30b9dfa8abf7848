"""What is read out of compiled programs, against collectives that were written by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations, product
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from autopar._compat import make_mesh, shard_map
from autopar.core.mesh import DeviceMesh
from autopar.inspect.hlo import (
    HloCollective,
    collectives_in,
    collectives_of,
    compile_unmerged,
    peak_memory_bytes,
)
from autopar.inspect.hlo_text import device_groups, dtype_bits, parse_module
from tests.emit.chains import ONE, THREE, TWO

Body = Callable[..., Any]
LOCAL = (8, 16)
LOCAL_BYTES = 8 * 16 * 4
XS, YS, ALL = ((0, 4), (1, 5), (2, 6), (3, 7)), ((0, 1, 2, 3), (4, 5, 6, 7)), (tuple(range(8)),)


def lowered(body: Body, mesh: DeviceMesh = TWO, dtype: str = "float32", count: int = 1) -> Any:
    """`body` on every device, on `count` arrays of which each device has LOCAL."""
    spec = PartitionSpec(mesh.names)
    run = shard_map(body, make_mesh(mesh.sizes, mesh.names), (spec,) * count, spec, check_vma=False)
    return jax.jit(run).lower(*[jax.ShapeDtypeStruct((8 * LOCAL[0], LOCAL[1]), dtype)] * count)


def found(
    body: Body, mesh: DeviceMesh = TWO, dtype: str = "float32", count: int = 1
) -> tuple[HloCollective, ...]:
    return collectives_of(compile_unmerged(lowered(body, mesh, dtype, count)))


def counted(collectives: tuple[HloCollective, ...]) -> Counter[tuple[object, ...]]:
    return Counter((c.kind, c.size_bytes, c.groups, c.times) for c in collectives)


def groups_over(mesh: DeviceMesh, axes: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """The devices, numbered row-major, that differ along `axes` only: found by comparing all of them."""
    places = list(product(*map(range, mesh.sizes)))
    along = [mesh.names.index(axis) for axis in axes]
    rest = [n for n, axis in enumerate(mesh.names) if axis not in axes]
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, place in enumerate(places):
        groups.setdefault(tuple(place[n] for n in rest), []).append(number)
    return tuple(
        tuple(sorted(group, key=lambda d: [places[d][n] for n in along]))
        for group in groups.values()
    )


def axis_choices(mesh: DeviceMesh) -> Iterator[tuple[str, ...]]:
    """Every set of axes, in the mesh's order and in the opposite one."""
    for count in range(1, len(mesh.names) + 1):
        for axes in combinations(mesh.names, count):
            yield from dict.fromkeys((axes, axes[::-1]))


WRITTEN: dict[str, Callable[[tuple[str, ...]], Body]] = {
    "all_reduce": lambda axes: lambda a: lax.psum(a, axes),
    "all_gather": lambda axes: lambda a: lax.all_gather(a, axes, axis=1, tiled=True),
    "reduce_scatter": lambda axes: (
        lambda a: lax.psum_scatter(a, axes, scatter_dimension=1, tiled=True)
    ),
    "all_to_all": lambda axes: lambda a: lax.all_to_all(a, axes, 0, 1, tiled=True),
}


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize(
    ("mesh", "axes"),
    [(mesh, axes) for mesh in (ONE, TWO, THREE) for axes in axis_choices(mesh)],
    ids=str,
)
def test_kind_groups_and_bytes(kind: str, mesh: DeviceMesh, axes: tuple[str, ...]) -> None:
    size = LOCAL_BYTES * (mesh.product(axes) if kind == "all_gather" else 1)
    assert counted(found(WRITTEN[kind](axes), mesh)) == {
        (kind, size, groups_over(mesh, axes), 1): 1
    }


def test_a_permute_has_its_pairs() -> None:
    (permute,) = found(lambda a: lax.ppermute(a, "y", [(0, 1), (1, 2), (2, 3), (3, 0)]))
    ring = ((0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4))
    assert (permute.kind, permute.groups, permute.size_bytes) == ("permute", ring, LOCAL_BYTES)


def test_pmax_and_pmin_are_all_reduces() -> None:
    assert counted(found(lambda a: lax.pmax(a, "x") + lax.pmin(a, "x"))) == {
        ("all_reduce", LOCAL_BYTES, XS, 1): 2
    }


def test_several_of_all_kinds_in_one_program() -> None:
    def body(a: jax.Array) -> Any:
        gathered = lax.all_gather(lax.psum(a, "x"), ("x", "y"), axis=1, tiled=True)
        scattered = lax.psum_scatter(gathered, "y", scatter_dimension=0, tiled=True)
        return lax.all_to_all(scattered, "x", 0, 1, tiled=True)

    assert counted(found(body)) == {
        ("all_reduce", LOCAL_BYTES, XS, 1): 1,
        ("all_gather", 8 * LOCAL_BYTES, ALL, 1): 1,
        ("reduce_scatter", 8 * LOCAL_BYTES, YS, 1): 1,
        ("all_to_all", 2 * LOCAL_BYTES, XS, 1): 1,
    }


@pytest.mark.parametrize(
    ("dtype", "runs_as", "itemsize"),
    [
        ("bfloat16", "f32", 4),
        ("float16", "f16", 2),
        ("int8", "s8", 1),
        ("int32", "s32", 4),
        ("bool", "pred", 1),
    ],
)
def test_element_types_as_the_cpu_runs_them(dtype: str, runs_as: str, itemsize: int) -> None:
    bodies = {
        "all_reduce": lambda a: lax.pmax(a, "y"),
        "all_to_all": lambda a: lax.all_to_all(a, "y", 0, 1, tiled=True),
        "permute": lambda a: lax.ppermute(a, "y", [(0, 1), (1, 0), (2, 2), (3, 3)]),
    }
    for kind, body in bodies.items():
        (collective,) = found(body, dtype=dtype)
        assert (collective.kind, collective.dtypes) == (kind, (runs_as,))
        assert collective.size_bytes == 8 * 16 * itemsize


def three_sums(a: jax.Array, b: jax.Array, c: jax.Array) -> Any:
    return lax.psum(a, "y"), lax.psum(b[:4], "y"), lax.psum(c[:, :2], "y")


def test_a_combined_all_reduce_has_its_operands() -> None:
    (combined,) = collectives_of(lowered(three_sums, count=3).compile())
    assert sorted(combined.operand_bytes) == [64, 256, 512]
    assert (combined.size_bytes, combined.operand_count, combined.groups) == (832, 3, YS)
    assert sorted(part.size_bytes for part in combined.parts) == [64, 256, 512]


def test_compile_unmerged_keeps_them_apart() -> None:
    assert sorted(c.size_bytes for c in found(three_sums, count=3)) == [64, 256, 512]


def twice(a: jax.Array) -> jax.Array:
    return lax.psum(a, "y") * 2 + jnp.sin(lax.psum(a, "y"))


def invariant(a: jax.Array) -> Any:
    return lax.scan(
        lambda c, _: (jnp.tanh(c @ lax.all_gather(a, "y", axis=0, tiled=True)[:16]), None),
        a,
        length=4,
    )[0]


@pytest.mark.parametrize(("body", "merged", "kept"), [(twice, 1, 2), (invariant, 1, 4)])
def test_compile_unmerged_shares_and_hoists_nothing(body: Body, merged: int, kept: int) -> None:
    def runs(compiled: Any) -> int:
        return sum(c.times or 0 for c in collectives_of(compiled))

    assert runs(lowered(body).compile()) == merged
    assert runs(compile_unmerged(lowered(body))) == kept


def test_a_scan_counts_its_trips() -> None:
    def inner(c: jax.Array, _: None) -> Any:
        return lax.psum(c, "x") * 0.5, None

    def outer(c: jax.Array, _: None) -> Any:
        return lax.scan(inner, lax.psum(c, "y"), length=3)[0], None

    assert counted(found(lambda a: lax.scan(outer, a, length=7)[0])) == {
        ("all_reduce", LOCAL_BYTES, XS, 21): 1,
        ("all_reduce", LOCAL_BYTES, YS, 7): 1,
    }


def test_a_loop_of_unknown_length() -> None:
    def body(a: jax.Array) -> Any:
        return lax.while_loop(lambda c: c.sum() < 10, lambda c: lax.psum(c, ("x", "y")) + 1, a)

    assert counted(found(body)) == {("all_reduce", LOCAL_BYTES, ALL, None): 1}


COUNTED = """HloModule m

%test (c: (s32[], f32[8])) -> pred[] {
  %stop = s32[] constant(17)
  %c = (s32[], f32[8]) parameter(0)
  %n = s32[] get-tuple-element(%c), index=0
  ROOT %less = pred[] compare(%n, %stop), direction=LT
}

%body (b: (s32[], f32[8])) -> (s32[], f32[8]) {
  %b = (s32[], f32[8]) parameter(0)
  %x = f32[8]{0} get-tuple-element(%b), index=1
  %more = s32[] constant(STEP)
  %now = s32[] get-tuple-element(%b), index=0
  %next = s32[] add(%now, %more)
  ROOT %r = (s32[], f32[8]) tuple(%next, %x)
}

ENTRY %main (x: f32[8]) -> (s32[], f32[8]) {
  %x = f32[8]{0} parameter(0)
  %zero = s32[] constant(1)
  %start = s32[] copy(%zero)
  %given = (s32[], f32[8]) tuple(%start, %x)
  ROOT %loop = (s32[], f32[8]) while(%given), condition=%test, body=%body
}
"""


@pytest.mark.parametrize(("step", "count"), [(1, 16), (3, 6), (0, None)])
def test_a_loop_that_counts_up_runs_until_it_is_there(step: int, count: int | None) -> None:
    module = parse_module(COUNTED.replace("STEP", str(step)))
    assert module.trip_count(module.computations["main"][-1], "main") == count
    other = parse_module(COUNTED.replace("STEP", str(step)).replace("=LT", "=NE"))
    assert other.trip_count(other.computations["main"][-1], "main") is None


def test_both_branches_count() -> None:
    def body(a: jax.Array) -> Any:
        return lax.cond(a[0, 0] > 0, lambda c: lax.psum(c, "y"), lambda c: lax.psum(c, "x") + 1, a)

    assert counted(found(body)) == {
        ("all_reduce", LOCAL_BYTES, XS, 1): 1,
        ("all_reduce", LOCAL_BYTES, YS, 1): 1,
    }


@pytest.mark.parametrize(("scanned", "saved_again"), [(False, 1), (True, 3)])
def test_a_checkpoint_runs_its_collective_again(scanned: bool, saved_again: int) -> None:
    def block(c: jax.Array) -> jax.Array:
        return jnp.tanh(lax.psum(c, "y"))

    def loss(a: jax.Array, block: Body) -> jax.Array:
        if scanned:
            return lax.scan(lambda c, _: (block(c), None), a, length=3)[0].sum()
        return jnp.sin(block(a)).sum()

    def runs(block: Body) -> int:
        return sum(c.times or 0 for c in found(lambda a: jax.grad(loss)(a, block)))

    assert runs(jax.checkpoint(block)) - runs(block) == saved_again


STARTED = """HloModule m, entry_computation_layout={(f32[8,16]{1,0})->f32[8,16]{1,0}}, num_partitions=8

%async_computation (q: bf16[8,16]) -> bf16[2,16] {
  %q = bf16[8,16]{1,0} parameter(0)
  ROOT %rs = bf16[2,16]{1,0} reduce-scatter(%q), replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%add
}

%add (a: bf16[], b: bf16[]) -> bf16[] {
  %a = bf16[] parameter(0)
  %b = bf16[] parameter(1)
  ROOT %s = bf16[] add(%a, %b)
}

ENTRY %e (p: f32[8,16], q: bf16[8,16]) -> f32[8,16] {
  %p = f32[8,16]{1,0:T(8,128)} parameter(0), metadata={op_name="calls=%add"}
  %q = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(1)
  %g = (f32[8,16]{1,0}, f32[32,16]{1,0:T(8,128)}) all-gather-start(%p), replica_groups=[2,4]<=[8], dimensions={0}
  %gd = f32[32,16]{1,0} all-gather-done(%g)
  %h = ((f32[8,16]{1,0}, bf16[8,16]{1,0}), (f32[16,16]{1,0}, bf16[16,16]{1,0})) all-gather-start(%p, /*index=1*/%q), \
replica_groups={{0,4},{1,5},{2,6},{3,7}}, dimensions={0}
  %hd = (f32[16,16]{1,0}, bf16[16,16]{1,0}) all-gather-done(%h)
  %c = (f32[8,16]{1,0}, f32[8,16]{1,0}, u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1},{1,0}}
  %cd = f32[8,16]{1,0} collective-permute-done(%c)
  %t = ((f32[8,16]{1,0}), f32[8,16]{1,0}) all-to-all-start(%p), replica_groups=[2,4]<=[8], dimensions={0}
  %td = f32[8,16]{1,0} all-to-all-done(%t)
  %r = f32[8,16]{1,0} all-reduce-start(%p), replica_groups={}, to_apply=%add
  %rd = f32[8,16]{1,0} all-reduce-done(%r)
  %a = ((bf16[8,16]{1,0}), bf16[2,16]{1,0}, u32[]) async-start(%q), calls=%async_computation
  %au = ((bf16[8,16]{1,0}), bf16[2,16]{1,0}, u32[]) async-update(%a), calls=%async_computation
  %ad = bf16[2,16]{1,0} async-done(%au), calls=%async_computation
  ROOT %z = f32[8,16]{1,0} add(%rd, %td)
}
"""


def test_collectives_that_are_started_and_done_count_once() -> None:
    """Other backends run them so; this text is in the form that XLA's own parser and printer agree on."""
    assert [(c.kind, c.operand_bytes, c.groups) for c in collectives_in(STARTED)] == [
        ("all_gather", (2048,), YS),
        ("all_gather", (1024, 512), XS),
        ("permute", (512,), ((0, 1), (1, 0))),
        ("all_to_all", (512,), YS),
        ("all_reduce", (512,), ALL),
        ("reduce_scatter", (256,), YS),
    ]


@pytest.mark.parametrize(
    ("notation", "groups"),
    [
        ("{{0,4},{1,5},{2,6},{3,7}}", XS),
        ("{}", ALL),
        ("[2,4]<=[8]", YS),
        ("[4,2]<=[2,4]T(1,0)", XS),
        ("[1,8]<=[2,4]T(1,0)", ((0, 4, 1, 5, 2, 6, 3, 7),)),
        ("[4,2]<=[2,2,2]T(0,2,1)", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['x'=2,'y'=4] {'y'}", YS),
        ("mesh['x'=2,'y'=4] {'x'}", XS),
        ("mesh['x'=2,'y'=4] {'x','y'}", ALL),
        ("mesh['x'=2,'y'=4] {'y','x'}", ((0, 4, 1, 5, 2, 6, 3, 7),)),
        ("mesh['x'=2,'y'=4] {'y':(1)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['x'=2,'y'=4] {'y':(2)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['x'=2,'y'=4] {'x','y':(2)2}", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("mesh['x'=2,'y'=4], device_ids=(0,4,1,5,2,6,3,7) {'y'}", ((0, 4, 1, 5), (2, 6, 3, 7))),
        ("mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'y'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
    ],
)
def test_the_three_notations_of_groups(notation: str, groups: tuple[tuple[int, ...], ...]) -> None:
    assert device_groups(f", channel_id=1, replica_groups={notation}, to_apply=%add", 8) == groups


def test_an_unknown_notation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not known: 'v4\[2\]"):
        device_groups("replica_groups=v4[2]", 8)


def test_text_that_is_no_module_is_refused() -> None:
    with pytest.raises(ValueError, match="without an entry"):
        collectives_in("")


def test_types_and_their_bits() -> None:
    bits = {"pred": 8, "bf16": 16, "f8e4m3fn": 8, "s4": 4, "c64": 64, "f64": 64, "token": 0}
    assert {dtype: dtype_bits(dtype) for dtype in bits} == bits


def test_every_instruction_of_a_real_program_is_read() -> None:
    """XLA's own structure of the module, beside what its text was read as."""
    compiled = lowered(
        lambda a: lax.scan(lambda c, _: (jnp.sin(lax.psum(c, "y")), None), a, length=3)[0]
    ).compile()
    (real,) = compiled.runtime_executable().hlo_modules()
    module = parse_module(compiled.as_text())
    wanted = {c.name: [i.name for i in c.instructions()] for c in real.computations()}
    assert {name: sorted(i.name for i in read) for name, read in module.computations.items()} == {
        name: sorted(names) for name, names in wanted.items()
    }
    operands = {
        i.name: [o.name for o in i.operands()]
        for c in real.computations()
        for i in c.instructions()
    }
    leaves = {"parameter", "constant"}
    for read in module.computations.values():
        for instruction in read:
            assert (
                instruction.opcode in leaves
                or list(instruction.operands) == operands[instruction.name]
            )
    assert module.devices == 8


def test_peak_memory_counts_a_donated_argument_once() -> None:
    spec = jax.ShapeDtypeStruct((1024,), "float32")
    assert peak_memory_bytes(jax.jit(lambda a: a + 1).lower(spec).compile()) >= 8192
    donated = jax.jit(lambda a: a + 1, donate_argnums=0).lower(spec).compile()
    assert 4096 <= peak_memory_bytes(donated) < 8192


BESIDE_COMPUTING = """HloModule jit_run, is_scheduled=true, num_partitions=4

%begin (a: bf16[4,128]) -> (bf16[4,128], bf16[16,128]) {
  %a = bf16[4,128]{1,0} parameter(0)
  %gather.0 = bf16[16,128]{1,0} all-gather(%a), channel_id=3, replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %started = (bf16[4,128]{1,0}, bf16[16,128]{1,0}) custom-call(%gather.0), custom_call_target="Start"
}

%beside (b: bf16[4,128]) -> bf16[4,128] {
  %b = bf16[4,128]{1,0} parameter(0)
  %gather.1 = bf16[16,128]{1,0} all-gather(%b), channel_id=3, replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %computed = bf16[4,128]{1,0} negate(%b)
}

%another (c: bf16[4,128]) -> bf16[16,128] {
  %c = bf16[4,128]{1,0} parameter(0)
  ROOT %gather.2 = bf16[16,128]{1,0} all-gather(%c), channel_id=4, replica_groups={{0,1,2,3}}, dimensions={0}
}

ENTRY %main (p: bf16[4,128]) -> bf16[16,128] {
  %p = bf16[4,128]{1,0} parameter(0)
  %start = (bf16[4,128]{1,0}, bf16[16,128]{1,0}) fusion(%p), kind=kCustom, calls=%begin
  %made = bf16[4,128]{1,0} fusion(%p), kind=kLoop, calls=%beside
  ROOT %end = bf16[16,128]{1,0} fusion(%made), kind=kCustom, calls=%another
}
"""


def test_a_collective_that_runs_beside_several_fusions_is_one() -> None:
    """As TPU programs have it: the channel says which are the same."""
    assert [c.size_bytes for c in collectives_in(BESIDE_COMPUTING)] == [16 * 128 * 2] * 2
    apart = BESIDE_COMPUTING.replace(
        "gather.1 = bf16[16,128]{1,0} all-gather(%b), channel_id=3",
        "gather.1 = bf16[16,128]{1,0} all-gather(%b), channel_id=5",
    )
    assert len(collectives_in(apart)) == 3
