"""Loops and branches of a program, as JAX's own: what a region holds runs inside, all else is read from around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from autopar._compat import pcast_varying, untyped_jax
from autopar.core.program import Compute, Instruction, ShardedProgram
from autopar.core.regions import Region
from autopar.emit.effects import TOKEN, is_ordered, token_of

Array = jax.Array
Env = dict[int, Array]
Numbered = Sequence[tuple[int, Instruction]]
Run = Callable[[Numbered, Env, int], None]
Read = Callable[[Env, int], Array]
lax = untyped_jax.lax


@dataclass(frozen=True, eq=False)
class ControlRegion:
    """One control region: its instructions, the values around it, and how instructions of an inner region are run."""

    program: ShardedProgram
    region: Region
    members: Numbered
    env: Env
    run: Run
    read: Read

    def boundary(self, kind: str) -> list[Compute]:
        """The boundary operators of `kind` of this region, in order."""
        tree = self.program.tree
        mine = self.region.id
        found = [i for _, i in self.members if isinstance(i, Compute) and i.op.kind == kind]
        return [i for i in found if mine in (i.region, tree.parent(i.region))]

    def inner(self, kind: str) -> list[tuple[int, Numbered]]:
        """The inner regions of `kind` and their instructions."""
        tree = self.program.tree
        regions = [child.id for child in tree.children(self.region.id) if child.kind == kind]
        return [
            (region, [m for m in self.members if region in tree.path(m[1].region)])
            for region in regions
        ]

    def entered(self, given: Sequence[Array]) -> Env:
        """The values inside, where the operators that enter have made `given`."""
        entering = [
            i for _, i in self.members if isinstance(i, Compute) and i.region == self.region.id
        ]
        outs = [
            v
            for kind in ("carry_in", "scan_slice")
            for i in entering
            if i.op.kind == kind
            for v in i.outs
        ]
        return self.env | dict(zip([*outs, *self.tokens], given, strict=True))

    def operand(self, env: Env, compute: Compute, position: int = 0) -> Array:
        """What `compute` passes on, varying over the axes that its result does."""
        (out,) = compute.outs
        return pcast_varying(
            self.read(env, compute.ins[position]), self.program.values[out].placement.varying_axes
        )

    @property
    def tokens(self) -> tuple[int, ...]:
        """The place of the token, if the region makes ordered calls: a further carry or result."""
        return (TOKEN,) if is_ordered([instruction for _, instruction in self.members]) else ()

    def with_tokens(self, env: Env, values: Sequence[Array]) -> list[Array]:
        """`values` and the token of `env`, if there is one to be passed on."""
        return [*values, *(token_of(self.program.mesh, env) for _ in self.tokens)]

    def leave(self, leaving: Sequence[Compute], results: Sequence[Array]) -> None:
        """Puts the results of the region, its token last, into the values around it."""
        places = [*(compute.outs[0] for compute in leaving), *self.tokens]
        self.env.update(zip(places, results, strict=True))


def run_scan(control: ControlRegion) -> None:
    """A scan."""
    carries = control.boundary("carry_in")
    slices = control.boundary("scan_slice")
    leaving = control.boundary("carry_out")
    stacks = control.boundary("scan_stack")
    ((region, members),) = control.inner("body")
    payload: Any = control.region.payload

    def body(carry: Sequence[Array], xs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        inside = control.entered([*carry[: len(carries)], *xs, *carry[len(carries) :]])
        control.run(members, inside, region)
        carry = control.with_tokens(inside, [control.operand(inside, i) for i in leaving])
        return carry, [control.operand(inside, i) for i in stacks]

    init = control.with_tokens(control.env, [control.operand(control.env, i) for i in carries])
    xs = [control.read(control.env, i.ins[0]) for i in slices]
    carry, ys = lax.scan(body, init, xs, **payload)
    control.leave([*leaving, *stacks], [*carry[: len(leaving)], *ys, *carry[len(leaving) :]])


def run_while(control: ControlRegion) -> None:
    """A while loop."""
    leaving = control.boundary("carry_out")
    ((test, test_members),) = control.inner("test")
    ((region, members),) = control.inner("body")
    (decision,) = control.boundary("while_test")

    def going(carry: Sequence[Array]) -> Array:
        inside = control.entered(carry)
        control.run(test_members, inside, test)
        return control.read(inside, decision.ins[0])

    def body(carry: Sequence[Array]) -> list[Array]:
        inside = control.entered(carry)
        control.run(members, inside, region)
        return control.with_tokens(inside, [control.operand(inside, i) for i in leaving])

    carries = control.boundary("carry_in")
    init = control.with_tokens(control.env, [control.operand(control.env, i) for i in carries])
    control.leave(leaving, lax.while_loop(going, body, init))


def run_cond(control: ControlRegion) -> None:
    """A choice among branches. All devices choose alike: the index is the same everywhere."""
    leaving = control.boundary("cond_result")
    (index,) = control.boundary("branch_index")

    def branch(number: int, region: int, members: Numbered) -> Callable[[], list[Array]]:
        def run() -> list[Array]:
            inside = dict(control.env)
            control.run(members, inside, region)
            return control.with_tokens(
                inside, [control.operand(inside, i, number) for i in leaving]
            )

        return run

    branches = [
        branch(n, region, members) for n, (region, members) in enumerate(control.inner("branch"))
    ]
    control.leave(leaving, lax.switch(control.read(control.env, index.ins[0]), branches))


RUN: dict[str, Callable[[ControlRegion], None]] = {
    "scan": run_scan,
    "while": run_while,
    "cond": run_cond,
}
