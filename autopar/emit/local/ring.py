"""Ring attention: keys and values go from device to device beside the products, each with a part of its queries.

A device asks a kernel for one block of keys after another and puts the means together by their sums, in float32 or
wider. While one block is computed the next one arrives. Backwards the gradients of a block go round with it, and home.
Under a causal mask devices hold two halves of shards in zigzag order (`core.ring`): of a block that is not a device's
own it computes two products of halves, whichever it is.

Reference: Liu, Zaharia and Abbeel 2023; Dao et al. 2022 for sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autopar._compat import untyped_jax
from autopar.core.ring import AROUND, Zigzag, zigzag
from autopar.emit.local.shard import Array, LocalOp

lax = untyped_jax.lax
jnp: Any = untyped_jax.numpy
Arrays = list[Array]
Attend = Callable[[Array, Array, Array], Sequence[Array]]
"""Queries, keys and values in; means, and the logarithms of the sums [b, n, t], out."""
Pull = Callable[..., Sequence[Array]]
"""Queries, keys, values, sums, means and the gradients of means in; those of the first three out."""


def goes_round(local: LocalOp) -> bool:
    """Whether the strategy is a ring's."""
    return any(exchange.rounds for exchange in local.strategy.exchanges)


def wide_type(value: Array) -> Any:
    """The type that sums of values of this type are taken in: float32 at least."""
    return jnp.promote_types(value.dtype, jnp.float32)


@dataclass(frozen=True)
class Ring:
    """A device's place in a ring along `axes`. `place` is the dim of places in all but sums, where it is the last."""

    local: LocalOp
    axes: tuple[str, ...]
    place: int
    is_causal: bool

    @property
    def parts(self) -> int:
        """The number of devices."""
        return self.local.mesh.product(self.axes)

    def here(self) -> Any:
        """The number of the device."""
        return jnp.asarray(self.local.offset_of(self.axes), jnp.int32)

    def forward(self, own: Attend, other: Attend, qkv: Sequence[Array]) -> list[Array]:
        """Means, and the logarithms of sums if asked for, by kernels for a device's own block and for others'."""
        entered = [self.entered(x, self.place) for x in qkv]
        out, sums = self._attended(own, other, entered)
        means = self.left(out.astype(entered[0].dtype), self.place)
        if len(self.local.op.outs) == 1:
            return [means]
        return [means, self.left(sums, sums.ndim - 1)]

    def _attended(self, own: Attend, other: Attend, qkv: Arrays) -> Arrays:
        """As `forward`, in the order of the ring, and wide."""
        query, key, value = qkv

        def near() -> Arrays:
            out, sums = own(query, key, value)
            return [out.astype(wide_type(query)), sums.astype(wide_type(query))]

        def far(known: Arrays, block: Arrays, holder: Any) -> Arrays:
            if not self.is_causal:
                return self.joined(known, other(query, *block))
            return self._joined_halves(known, other, query, block, holder)

        return self._round(near, far, [key, value])

    def joined(self, known: Arrays, found: Sequence[Array]) -> Arrays:
        """Means of two sets of keys and the logarithms of their sums, as those of all of them."""
        out, sums = known
        more, more_sums = found
        total = jnp.logaddexp(sums, more_sums)
        first = self.weights(jnp.exp(sums - total))
        second = self.weights(jnp.exp(more_sums - total))
        return [out * first + more.astype(out.dtype) * second, total]

    def weights(self, sums: Array) -> Array:
        """[b, n, t] as factors of means."""
        return sums[..., None] if self.place == 2 else sums.swapaxes(1, 2)[..., None]

    def _joined_halves(
        self, known: Arrays, other: Attend, query: Array, block: Arrays, holder: Any
    ) -> Arrays:
        """With another's block: the later queries see its earlier keys; of the other pairs of halves one is seen."""
        early, late = self.halves(query)
        keys, values = map(self.halves, block)
        is_before = holder < self.here()
        parts = [self.halves(known[0]), self.halves(known[1], known[1].ndim - 1)]
        first, second = ([part[n] for part in parts] for n in (0, 1))

        second = self.joined(second, other(late, keys[0], values[0]))
        out, sums = other(*(jnp.where(is_before, *pair) for pair in ((early, late), keys, values)))
        first = self.joined(first, [out, jnp.where(is_before, sums, -jnp.inf)])
        second = self.joined(second, [out, jnp.where(is_before, -jnp.inf, sums)])

        return [
            lax.concatenate([first[0], second[0]], self.place),
            lax.concatenate([first[1], second[1]], sums.ndim - 1),
        ]

    def _round(
        self,
        near: Callable[[], Arrays],
        far: Callable[[Arrays, Arrays, Any], Arrays],
        block: Arrays,
    ) -> Arrays:
        """What `near` makes of a device's own block, and `far` of that and each other, which it is told whose it is."""
        here = self.here()
        block = self.sent(block)
        state = near()
        count = len(state)

        def step(n: Any, values: Arrays) -> Arrays:
            held = values[count:]
            coming = self.sent(held)
            return [*far(values[:count], held, (here - n) % self.parts), *coming]

        values = self.local.exchanger.repeat(1, self.parts - 1, step, [*state, *block])
        return far(values[:count], values[count:], (here + 1) % self.parts)

    def backward(self, own: Pull, other: Pull, given: Sequence[Array]) -> Arrays:
        """The gradients of queries, keys and values; `given` are these, sums, means and the gradients of means."""
        entered = [self.entered(x, self.place if x.ndim == 4 else x.ndim - 1) for x in given]
        return self._left(self._pulled(own, other, entered[:3], entered[3:]), given)

    def gradients(
        self, attend: tuple[Attend, Attend], pull: tuple[Pull, Pull], given: Sequence[Array]
    ) -> Arrays:
        """As `backward`, given queries, keys, values and the gradients of means only: these go round twice."""
        *qkv, dy = (self.entered(x, self.place) for x in given)
        out, sums = self._attended(*attend, qkv)
        return self._left(self._pulled(*pull, qkv, [sums, out, dy]), given)

    def _left(self, gradients: Arrays, given: Sequence[Array]) -> Arrays:
        return [
            self.left(x.astype(like.dtype), self.place)
            for x, like in zip(gradients, given, strict=False)
        ]

    def _pulled(self, own: Pull, other: Pull, qkv: Arrays, known: Arrays) -> Arrays:
        """The gradients in the order of the ring, and wide."""
        query, key, value = qkv
        wide = wide_type(query)

        def near() -> Arrays:
            return [x.astype(wide) for x in own(query, key, value, *known)]

        def far(found: Arrays, block: Arrays, holder: Any) -> Arrays:
            arrived = [found[0], *self.sent(found[1:])]
            if self.is_causal:
                more = self._pulled_halves(other, query, block, known, holder)
            else:
                more = other(query, *block, *known)
            return [x + y.astype(wide) for x, y in zip(arrived, more, strict=True)]

        dq, *around = self._round(near, far, [key, value])
        return [dq, *self.sent(around)]

    def _pulled_halves(
        self, other: Pull, query: Array, block: Arrays, known: Arrays, holder: Any
    ) -> Arrays:
        """As `_joined_halves`, backwards."""
        queries = self.halves(query)
        keys, values = map(self.halves, block)
        rest = [self.halves(x, self.place if x.ndim == 4 else x.ndim - 1) for x in known]
        is_before = holder < self.here()

        first = other(queries[1], keys[0], values[0], *(pair[1] for pair in rest))
        second = other(*(jnp.where(is_before, *pair) for pair in (queries, keys, values, *rest)))

        wide = [[x.astype(wide_type(query)) for x in each] for each in (first, second)]
        early = [jnp.where(is_before, x, 0) for x in wide[1]]
        late = [jnp.where(is_before, 0, x) for x in wide[1]]
        (dq, dk, dv) = wide[0]
        return [
            lax.concatenate([early[0], late[0] + dq], self.place),
            lax.concatenate([early[1] + dk, late[1]], self.place),
            lax.concatenate([early[2] + dv, late[2]], self.place),
        ]

    def sent(self, block: Arrays) -> Arrays:
        """What the device before sends when every one sends its block to the next."""
        return [self.local.exchanger.permute(x, self.axes, AROUND) for x in block]

    def halves(self, value: Array, dim: int | None = None) -> Arrays:
        """The halves of a dim, that of places."""
        dim = self.place if dim is None else dim
        half = value.shape[dim] // 2
        return [lax.slice_in_dim(value, n * half, (n + 1) * half, axis=dim) for n in (0, 1)]

    def entered(self, value: Array, dim: int) -> Array:
        """A shard in zigzag order, if order matters."""
        if not self.is_causal:
            return value
        order = zigzag(self.parts)
        return lax.concatenate(self._ordered(self._dealt(self.halves(value, dim), order)), dim)

    def left(self, value: Array, dim: int) -> Array:
        """A shard in zigzag order as a run of places."""
        if not self.is_causal:
            return value
        order = zigzag(self.parts).back
        return lax.concatenate(self._dealt(self._ordered(self.halves(value, dim)), order), dim)

    def _dealt(self, halves: Arrays, order: Zigzag) -> Arrays:
        send = self.local.exchanger.permute
        return [send(half, self.axes, hop) for half, hop in zip(halves, order, strict=True)]

    def _ordered(self, halves: Arrays) -> Arrays:
        """From those that were first and second in a shard to the earlier and the later, or the other way round."""
        first, second = halves
        is_even = self.here() % 2 == 0
        return [jnp.where(is_even, first, second), jnp.where(is_even, second, first)]
