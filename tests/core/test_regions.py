"""RegionTree: where a value may be redistributed, against the definition looked up region by region."""

from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from autopar.core.regions import CONTROL, LOOPS, Region, RegionKind, RegionTree

INNER: dict[str, tuple[RegionKind, ...]] = {
    "scan": ("body",),
    "while": ("test", "body"),
    "cond": ("branch", "branch"),
}


@st.composite
def trees(draw: st.DrawFn) -> RegionTree:
    """Regions in each other as `trace` makes them: a control region has its inner ones, which hold any others."""
    regions: list[Region] = []
    holders: list[int | None] = [None]
    for _ in range(draw(st.integers(0, 5))):
        parent = draw(st.sampled_from(holders))
        kind: RegionKind = draw(st.sampled_from(("remat", *INNER)))
        region = Region(len(regions), kind, parent)
        regions.append(region)
        if kind == "remat":
            holders.append(region.id)
        for inner in INNER.get(kind, ()):
            trips = draw(st.sampled_from((0.5, 1.0, 3.0)))
            holders.append(len(regions))
            regions.append(Region(len(regions), inner, region.id, trips))
    return RegionTree(regions)


def around(tree: RegionTree, region: int | None) -> list[int | None]:
    """The region and those around it, the outside last."""
    found: list[int | None] = [region]
    while region is not None:
        region = tree[region].parent
        found.append(region)
    return found


def all_regions(tree: RegionTree) -> list[int | None]:
    return [None, *(region.id for region in tree.regions)]


@given(tree=trees(), data=st.data())
def test_a_value_is_redistributed_as_near_to_its_reader_as_it_may(
    tree: RegionTree, data: st.DataObject
) -> None:
    """Not in a loop that it was made outside of, and not in a control region but the one it entered."""
    reader = data.draw(st.sampled_from(all_regions(tree)))
    source = data.draw(st.sampled_from(around(tree, reader)))

    def allowed(place: int | None) -> bool:
        outer = around(tree, place)
        loops = [r for r in outer if r is not None and tree[r].kind in LOOPS]
        free = place == source or place is None or tree[place].kind not in CONTROL
        return free and all(loop in around(tree, source) for loop in loops)

    assert tree.site(source, reader) == next(
        place for place in around(tree, reader) if allowed(place)
    )


@given(tree=trees(), data=st.data())
def test_paths_weights_and_common_regions(tree: RegionTree, data: st.DataObject) -> None:
    some = data.draw(st.lists(st.sampled_from(all_regions(tree)), min_size=1, max_size=3))
    shared = [r for r in around(tree, some[0]) if all(r in around(tree, other) for other in some)]
    assert tree.common(some) == shared[0]
    for region in some:
        weight = 1.0
        for outer in tree.path(region):
            weight *= tree[outer].trips
        assert tree.weight(region) == weight
        assert [*tree.path(region), None] == around(tree, region)
        for outer in around(tree, region):
            child = tree.child_towards(outer, region)
            assert (child is None) == (outer == region)
            assert child is None or (tree[child].parent == outer and child in around(tree, region))


def test_every_kind_is_drawn_or_inner() -> None:
    inner = {kind for kinds in INNER.values() for kind in kinds}
    assert {"remat", *INNER, *inner} == set(get_args(RegionKind))
