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
jnp = untyped_jax.numpy


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

    def empty(self, stack: Compute) -> Array:
        """Zeros for the stack that leaves by `stack`, varying over the axes that it does."""
        value = self.program.values[stack.outs[0]]
        shape = value.placement.local_shape(value.tensor.shape, self.program.mesh)
        return pcast_varying(jnp.zeros(shape, value.tensor.dtype), value.placement.varying_axes)

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
    """A scan. Slices of another round are looked up, stacks of one carried, with each slice put where it belongs."""
    carries = control.boundary("carry_in")
    leaving = control.boundary("carry_out")
    stacks = control.boundary("scan_stack")
    plain = [i for i in stacks if not _shift(i)]
    shifted = [i for i in stacks if _shift(i)]
    slices = [i for i in control.boundary("scan_slice") if not _shift(i)]
    ((region, members),) = control.inner("body")
    payload: Any = control.region.payload
    held = len(carries)
    filled = held + len(shifted)

    def body(carry: Sequence[Array], xs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        given = [*carry[:held], *_given(control, xs), *carry[filled:]]
        inside = control.entered(given)
        control.run(members, inside, region)

        passed = [control.operand(inside, i) for i in leaving]
        passed += [
            _with_slice(stack, control.operand(inside, i), _place(payload, xs[-1], _shift(i)))
            for i, stack in zip(shifted, carry[held:filled], strict=True)
        ]
        made = [control.operand(inside, i) for i in plain]
        return control.with_tokens(inside, passed), made

    starts = [control.operand(control.env, i) for i in carries]
    starts += [control.empty(i) for i in shifted]
    xs = [control.read(control.env, i.ins[0]) for i in slices]
    if any(map(_shift, control.boundary("scan_slice"))) or shifted:
        xs.append(jnp.arange(payload["length"]))

    carry, ys = lax.scan(body, control.with_tokens(control.env, starts), xs, **payload)
    control.leave([*leaving, *plain, *shifted], [*carry[:held], *ys, *carry[held:]])


def _shift(border: Compute) -> int:
    """Of the slice or stack of which round: 1 for the next one, -1 for the one before; 0: of this one."""
    return border.op.params.get("shift", 0)


def _given(control: ControlRegion, xs: Sequence[Array]) -> list[Array]:
    """The slices of a round: those that the scan gives, and of other rounds, by the number of this one, the last."""
    own = iter(xs)
    return [
        _slice_at(
            control.read(control.env, i.ins[0]), _place(control.region.payload, xs[-1], _shift(i))
        )
        if _shift(i)
        else next(own)
        for i in control.boundary("scan_slice")
    ]


def _place(payload: Any, number: Array, shift: int) -> Array:
    """The place in a stack of the round so many after that of place `number`; behind the last one that of the last."""
    way = -shift if payload["reverse"] else shift
    return jnp.clip(number + way, 0, payload["length"] - 1)


def _slice_at(stack: Array, place: Array) -> Array:
    return lax.dynamic_index_in_dim(stack, place, keepdims=False)


def _with_slice(stack: Array, value: Array, place: Array) -> Array:
    return lax.dynamic_update_index_in_dim(stack, value, place, 0)


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
