"""Control flow: a loop or a choice becomes a region whose body is walked in place, between boundary operators.

See `core.regions` for what stands where. Constants of a body are read from outside as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from autopar import _compat
from autopar._compat import untyped_jax
from autopar._mesh import sharding_in_type
from autopar.core.graph import TensorInfo
from autopar.core.regions import RegionKind
from autopar.trace.draft import DraftOp, Surroundings
from autopar.trace.loop_parts import in_parts, part_count
from autopar.trace.types import typed_specs

if TYPE_CHECKING:
    from autopar.trace.walk import Walker

Tensors = Sequence[TensorInfo]
Run = Callable[..., list[Any]]
lax = untyped_jax.lax
make_jaxpr = untyped_jax.make_jaxpr


class ControlEquation:
    """One control equation on its way into the draft; `region` is its control region."""

    def __init__(self, walker: Walker, eqn: Any, place: Surroundings) -> None:
        self.walker = walker
        self.draft = walker.draft
        self.eqn = eqn
        self.in_parts = place.in_parts == "next"
        place = replace(place, in_parts="around") if self.in_parts else place
        self.place = walker.inside(eqn, place)
        self.source = walker.source(eqn, place)
        payload = {
            name: value
            for name, value in eqn.params.items()
            if name in ("length", "reverse", "unroll")
        }

        self.region = self.draft.region(eqn.primitive.name, place.region, payload=payload)

    def boundary(
        self,
        kind: str,
        ins: Tensors,
        avals: Sequence[Any],
        position: int,
        region: int | None = None,
    ) -> Any:
        """The results of a boundary operator, the `position`th of its kind."""
        params: dict[str, Any] = {"position": position}
        if kind in ("scan_slice", "while_test") and self.in_parts:
            params["in_parts"] = True
        outs = tuple(self.draft.tensor(aval) for aval in avals)
        where = self.region if region is None else region
        scope = str(self.place.stack)
        self.draft.ops.append(
            DraftOp(kind, tuple(ins), outs, params, self.source, scope, where, payload=None)
        )
        return outs

    def walk(
        self, kind: RegionKind, closed: Any, ins: Tensors, trips: float
    ) -> tuple[list[TensorInfo], int]:
        """The results of a body, test or branch, and its region."""
        region = self.draft.region(kind, self.region, trips)
        jaxpr, consts = _compat.open_jaxpr(closed)
        return self.walker.walk(
            jaxpr, consts, list(ins), replace(self.place, region=region)
        ), region

    def each(self, kind: str, ins: Tensors, avals: Sequence[Any]) -> list[TensorInfo]:
        """One boundary operator for each of `ins`; its result has the abstract value beside it."""
        pairs = enumerate(zip(ins, avals, strict=True))
        return [self.boundary(kind, (tensor,), (aval,), n)[0] for n, (tensor, aval) in pairs]


def scan(walker: Walker, eqn: Any, ins: Tensors, place: Surroundings) -> list[TensorInfo]:
    """A scan: carry, ys[i] = body(consts, carry, xs[i]) for each i; in parts where that is wanted and can be."""
    is_whole = place.in_parts != "none" or place.alone or walker.draft.manual
    parts = 1 if is_whole else part_count(eqn, walker.loop_parts)
    if parts > 1:
        walker.has_parts = True
        return walker.inline(
            eqn, in_parts(eqn, parts), list(ins), replace(place, in_parts=_where(eqn, parts))
        )

    control = ControlEquation(walker, eqn, place)
    body = eqn.params["jaxpr"]
    consts, carried = _compat.scan_counts(eqn.params)
    avals = list(body.in_avals)
    first = consts
    last = consts + carried
    carry = control.each("carry_in", ins[first:last], avals[first:last])
    slices = control.each("scan_slice", ins[last:], avals[last:])
    trips = float(max(eqn.params["length"], 1))
    results, _ = control.walk("body", body, [*ins[:consts], *carry, *slices], trips)
    outs = [var.aval for var in eqn.outvars]
    return [
        *control.each("carry_out", results[:carried], outs[:carried]),
        *control.each("scan_stack", results[carried:], outs[carried:]),
    ]


def _where(eqn: Any, parts: int) -> Literal["next", "around"]:
    """What is in so many parts of the scan `eqn`: the loop that is next, or where all rounds are one, all that is."""
    return "next" if parts < eqn.params["length"] else "around"


def while_(walker: Walker, eqn: Any, ins: Tensors, place: Surroundings) -> list[TensorInfo]:
    """A while loop: carry = body(consts, carry) as long as test(consts, carry).

    One that vmap made, in which elements that are through stay as they are, may be left by each device by itself.
    """
    if eqn.params["cond_jaxpr"].out_avals[0].shape:
        if walker.loop_parts > 1 and not (eqn.effects or place.alone or walker.draft.manual):
            walker.has_parts = True
            place = replace(place, in_parts="next")
        return walker.inline(eqn, _unbatched(eqn), list(ins), place)

    if _compat.side_effects(eqn.params["cond_jaxpr"]):
        return walker.inline(eqn, _tested_in_body(eqn), list(ins), place)

    control = ControlEquation(walker, eqn, place)
    params = eqn.params
    of_test = params["cond_nconsts"]
    of_body = params["body_nconsts"]
    around = walker.draft.fixed
    walker.draft.fixed = walker.draft.fixed or control.in_parts
    carry = control.each("carry_in", ins[of_test + of_body :], [var.aval for var in eqn.outvars])
    trips = walker.while_trips
    (going,), region = control.walk("test", params["cond_jaxpr"], [*ins[:of_test], *carry], trips)
    control.boundary("while_test", (going,), (), 0, region)
    results, _ = control.walk(
        "body", params["body_jaxpr"], [*ins[of_test : of_test + of_body], *carry], trips
    )
    walker.draft.fixed = around
    return control.each("carry_out", results, [var.aval for var in eqn.outvars])


def _test_and_body(params: Mapping[str, Any]) -> tuple[Run, Run, int, int]:
    """The two functions of a while loop, and how many constants each takes."""
    test, body = (_compat.function_of(params[name]) for name in ("cond_jaxpr", "body_jaxpr"))
    return test, body, params["cond_nconsts"], params["body_nconsts"]


def _tested_in_body(eqn: Any) -> Any:
    """A closed jaxpr of a while loop whose test makes calls, with one that only reads: it tests before and in its body.

    So the calls of the test have their place among the others, and their token is carried.
    """
    test, body, of_test, of_body = _test_and_body(eqn.params)

    def loop(*operands: Any) -> Any:
        consts = operands[: of_test + of_body]
        given = operands[of_test + of_body :]

        def step(state: Any) -> Any:
            after = body(*consts[of_test:], *state[1])
            return test(*consts[:of_test], *after)[0], after

        def going(state: Any) -> Any:
            return state[0]

        return lax.while_loop(going, step, (test(*consts[:of_test], *given)[0], list(given)))[1]

    with eqn.ctx.manager:
        return make_jaxpr(loop)(*typed_specs(eqn))


def _unbatched(eqn: Any) -> Any:
    """A closed jaxpr of a while loop whose test has dims, as vmap makes it, with a test that has none.

    It goes round as long as any element does; where one has stopped, its part of the carry stays.
    """
    test, body, of_test, of_body = _test_and_body(eqn.params)

    def loop(*operands: Any) -> Any:
        consts = operands[: of_test + of_body]
        given = operands[of_test + of_body :]

        def going(carry: Any) -> Any:
            (decision,) = test(*consts[:of_test], *carry)
            return decision

        def any_going(carry: Any) -> Any:
            return going(carry).any()

        def step(carry: Any) -> list[Any]:
            decision = going(carry)
            after = body(*consts[of_test:], *carry)
            dims = range(decision.ndim)
            goes_on = [_spread(decision, held, tuple(dims)) for held in carry]
            return [lax.select(*parts) for parts in zip(goes_on, after, carry, strict=True)]

        return lax.while_loop(any_going, step, list(given))

    with eqn.ctx.manager:
        return make_jaxpr(loop)(*typed_specs(eqn))


def _spread(decision: Any, held: Any, dims: tuple[int, ...]) -> Any:
    """`decision` for each element of `held`, whose type it has to have where that speaks of a mesh."""
    sharding = sharding_in_type(untyped_jax.typeof(held))
    return lax.broadcast_in_dim(decision, held.shape, dims, out_sharding=sharding)


def cond(walker: Walker, eqn: Any, ins: Tensors, place: Surroundings) -> list[TensorInfo]:
    """A choice: branches[index](operands); each is held to be as probable as the others."""
    control = ControlEquation(walker, eqn, place)
    branches = eqn.params["branches"]
    control.boundary("branch_index", ins[:1], (), 0)
    results = [control.walk("branch", branch, ins[1:], 1 / len(branches))[0] for branch in branches]
    return [
        control.boundary("cond_result", values, (var.aval,), n)[0]
        for n, (*values, var) in enumerate(zip(*results, eqn.outvars, strict=True))
    ]


WALKERS: dict[str, Callable[[Walker, Any, Tensors, Surroundings], list[TensorInfo]]] = {
    "scan": scan,
    "while": while_,
    "cond": cond,
}
