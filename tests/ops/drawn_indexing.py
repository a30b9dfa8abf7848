"""Gathers, scatters and dynamic slices, drawn: every role of a dim, every mode, indices of every type, empty dims."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from jax import lax

from tests.ops.build import Arg, Case
from tests.ops.cases import case, floats
from tests.ops.far import INTEGERS, Places

ROLES = ("batch", "point", "kept", "whole", "whole indexed", "run")
MODES = ("clip", "fill", "promise_in_bounds")
SCATTERS: dict[str, Callable[..., Any]] = {
    "scatter": lax.scatter,
    "scatter-add": lax.scatter_add,
    "scatter-max": lax.scatter_max,
    "scatter-min": lax.scatter_min,
    "scatter-mul": lax.scatter_mul,
    "scatter-sub": lax.scatter_sub,
}


class Indexing:
    """Dimension numbers of a gather or scatter, from a role for each dim of the operand."""

    def __init__(self, draw: st.DrawFn) -> None:
        roles = draw(st.lists(st.sampled_from(ROLES), min_size=1, max_size=3))
        sizes = st.sampled_from([0, 2, 4] if draw(st.integers(0, 3)) == 0 else [2, 4])
        self.shape = tuple(max(draw(sizes), 2 * (role in ("point", "kept"))) for role in roles)
        dims = {role: [d for d, found in enumerate(roles) if found == role] for role in ROLES}
        self.batching = dims["batch"]
        extra = draw(st.lists(sizes, min_size=1, max_size=2 - min(1, len(self.batching))))
        self.rows = (*(self.shape[d] for d in self.batching), *extra)
        self.indexed = draw(
            st.permutations([*dims["point"], *dims["kept"], *dims["whole indexed"], *dims["run"]])
        )
        # without a component of an index, XLA on CPU adds the last update only to one element
        assume(self.indexed)
        self.dropped = dims["point"]
        width = {"batch": 1, "point": 1, "kept": 1}
        self.slice = tuple(
            min(size, width.get(role, size if role != "run" else size // 2))
            for role, size in zip(roles, self.shape, strict=True)
        )
        self.window = tuple(
            s for d, s in enumerate(self.slice) if d not in (*self.dropped, *self.batching)
        )
        places = range(len(self.rows) + len(self.window))
        self.window_dims = tuple(sorted(draw(st.permutations(list(places)))[: len(self.window)]))
        self.mode = draw(st.sampled_from(MODES))
        self.dtype = draw(INTEGERS)

    def indices(self) -> Arg:
        """From far beyond both ends."""
        return Places((*self.rows, len(self.indexed)), self.dtype, size=max(self.shape))

    def updates(self) -> Arg:
        rows, window = iter(self.rows), iter(self.window)
        count = len(self.rows) + len(self.window)
        return floats(tuple(next(window if e in self.window_dims else rows) for e in range(count)))


@st.composite
def gathers(draw: st.DrawFn) -> Case:
    found = Indexing(draw)
    batching = tuple(found.batching)
    numbers = lax.GatherDimensionNumbers(
        found.window_dims,
        tuple(found.dropped),
        tuple(found.indexed),
        batching,
        tuple(range(len(batching))),
    )
    read = partial(lax.gather, dimension_numbers=numbers, slice_sizes=found.slice, mode=found.mode)
    return case("gather", lambda x, i: read(x, i), floats(found.shape), found.indices())


@st.composite
def scatters(draw: st.DrawFn) -> Case:
    found, kind = Indexing(draw), draw(st.sampled_from(sorted(SCATTERS)))
    batching = tuple(found.batching)
    numbers = lax.ScatterDimensionNumbers(
        found.window_dims,
        tuple(found.dropped),
        tuple(found.indexed),
        batching,
        tuple(range(len(batching))),
    )
    write = partial(SCATTERS[kind], dimension_numbers=numbers, mode=found.mode)
    return case(
        kind, lambda x, i, u: write(x, i, u), floats(found.shape), found.indices(), found.updates()
    )


@st.composite
def slices(draw: st.DrawFn) -> Case:
    """Dynamic slices read and written: some dims whole, some without elements."""
    shape = tuple(draw(st.lists(st.sampled_from([0, 4, 8, 8]), min_size=1, max_size=3)))
    sizes = tuple(draw(st.sampled_from([size, draw(st.integers(0, size))])) for size in shape)
    starts = Places((len(shape),), draw(INTEGERS), size=max(shape))
    dtype = draw(st.sampled_from(["float32", "bool"]))
    if draw(st.booleans()):
        return case(
            "dynamic_slice",
            lambda x, i: lax.dynamic_slice(x, list(i), sizes),
            floats(shape, dtype),
            starts,
        )
    return case(
        "dynamic_update_slice",
        lambda x, u, i: lax.dynamic_update_slice(x, u, list(i)),
        *(floats(shape, dtype), floats(sizes, dtype), starts),
    )
