"""cuDNN's attention with a causal mask on some of the queries: keys before them, and keys beside them.

The kernel counts queries from the first that it gets. So a device asks it twice: for the keys before its queries, which
all of these see, as many as a length says, and for those at the same places, with a causal mask. Both means are put
together by their sums, as blocks are in the kernel itself (Dao et al. 2022).

Where heads are split and key heads are not, each head gets its own key head first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from autopar._compat import untyped_jax
from autopar.emit.local.ring import Attend, Pull, Ring, goes_round
from autopar.emit.local.shard import Array, LocalOp, Run

jnp: Any = untyped_jax.numpy
_HEADS_FIRST = 1
"""The layout of cuDNN in which heads come before places."""
_LENGTHS = slice(4, 6)


def attention_forward(local: LocalOp) -> Run:
    """The means, and the logarithms of the sums where they are asked for."""
    heads = _Heads(local)
    if not goes_round(local):
        return heads.forward(_forward(local))

    parts = _Parts(local)
    own = heads.forward(local.bind(is_training=True))
    other = heads.forward(parts.of_all_keys(is_training=True))
    ring = Ring(local, parts.split, parts.place, bool(parts.axes))

    def run(*operands: Array) -> Sequence[Array]:
        rest = operands[3:]
        return ring.forward(_attending(own, rest), _attending(other, rest), operands[:3])

    return run


def _attending(kernel: Run, rest: Sequence[Array]) -> Attend:
    """`kernel` of queries, keys and values."""

    def attend(query: Array, key: Array, value: Array) -> Sequence[Array]:
        return kernel(query, key, value, *rest)

    return attend


def attention_backward(local: LocalOp) -> Run:
    """The gradients of queries, and this device's part of those of keys and values."""
    heads = _Heads(local)
    if not goes_round(local):
        return heads.backward(_backward(local))

    parts = _Parts(local)
    own = heads.backward(local.bind())
    other = heads.backward(parts.of_all_keys())
    ring = Ring(local, parts.split, parts.place, bool(parts.axes))

    def run(*operands: Array) -> Sequence[Array]:
        rest = operands[3:10]
        given = [*operands[:3], *operands[10:]]
        return ring.backward(_pulling(own, rest), _pulling(other, rest), given)

    return run


def _pulling(kernel: Run, rest: Sequence[Array]) -> Pull:
    """`kernel` of queries, keys, values, sums, means and the gradients of means."""

    def pull(*given: Array) -> Sequence[Array]:
        return kernel(*given[:3], *rest, *given[3:])

    return pull


def _forward(local: LocalOp) -> Run:
    parts = _Parts(local)
    if not parts.axes:
        return local.bind()
    before, beside = parts.kernels(is_training=True)

    def run(*operands: Array) -> Sequence[Array]:
        start = parts.start()
        far, far_sums = before(*parts.before(operands, start))
        near, near_sums = beside(*parts.beside(operands, start))
        far_sums = jnp.where(start > 0, far_sums, -jnp.inf)
        sums = jnp.logaddexp(far_sums, near_sums)
        found = far * parts.weights(far_sums - sums) + near * parts.weights(near_sums - sums)
        return [found.astype(far.dtype), sums][: len(local.op.outs)]

    return run


def _backward(local: LocalOp) -> Run:
    parts = _Parts(local)
    if not parts.axes:
        return local.bind()
    before, beside = parts.kernels()

    def run(*operands: Array) -> Sequence[Array]:
        start = parts.start()
        far = before(*parts.before(operands, start))
        near = beside(*parts.beside(operands, start))
        queries = jnp.where(start > 0, far[0], 0) + near[0]
        pairs = zip(far[1:], near[1:], strict=True)
        return [queries, *(parts.joined(whole, own, start) for whole, own in pairs)]

    return run


class _Heads:
    """Which heads a device has, of which key heads: `axes` split the dim `dim` of queries, but not that of keys."""

    def __init__(self, local: LocalOp) -> None:
        self.local = local
        self.dim = 1 if local.op.params["layout"] == _HEADS_FIRST else 2
        queries, keys = (placement.dims[self.dim] for placement in local.strategy.ins[:2])
        self.count = local.in_shape(0)[self.dim]
        self.whole, self.keys = (tensor.shape[self.dim] for tensor in local.op.ins[:2])
        self.axes = queries if not keys and self.keys > 1 else ()

    def _own(self) -> Any:
        """The key head of each head that is here."""
        first = self.local.start(self.axes, self.whole)
        heads = first + self.local.step(self.axes) * jnp.arange(self.count)
        return heads // (self.whole // self.keys)

    def _taken(self, operands: Sequence[Array], own: Any) -> list[Array]:
        query, key, value, *rest = operands
        return [query, *(jnp.take(each, own, axis=self.dim) for each in (key, value)), *rest]

    def forward(self, kernel: Run) -> Run:
        """`kernel`, with a key head for each head."""
        if not self.axes:
            return kernel
        return lambda *operands: kernel(*self._taken(operands, self._own()))

    def backward(self, kernel: Run) -> Run:
        """`kernel`, with a key head for each head, whose gradients are added up where heads share one."""
        if not self.axes:
            return kernel

        def run(*operands: Array) -> Sequence[Array]:
            own = self._own()
            query, key, value, *rest = kernel(*self._taken(operands, own))
            return [query, self._added(key, own), self._added(value, own), *rest]

        return run

    def _added(self, gradient: Array, own: Any) -> Array:
        rows: Any = jnp.moveaxis(gradient.astype("float32"), self.dim, 0)
        zeros = jnp.zeros((self.keys, *rows.shape[1:]), rows.dtype)
        return jnp.moveaxis(zeros.at[own].add(rows), 0, self.dim).astype(gradient.dtype)


class _Parts:
    """Where a device's queries are: `axes` split the dim `place`; none where they need not be told apart."""

    def __init__(self, local: LocalOp) -> None:
        self.local = local
        self.place = 2 if local.op.params["layout"] == _HEADS_FIRST else 1
        is_causal = local.op.params["mask_type"] == "CAUSAL"
        self.split = local.strategy.ins[0].dims[self.place]
        self.axes = self.split if is_causal else ()
        self.count = local.in_shape(0)[self.place]
        self.whole = local.op.ins[0].shape[self.place]

    def kernels(self, **changed: Any) -> tuple[Run, Run]:
        """The kernel for as many keys as a length says, and with a causal mask."""
        return self._masked("PADDING", **changed), self.local.bind(**changed)

    def of_all_keys(self, **changed: Any) -> Run:
        """The kernel without a mask."""
        return self._masked("NO_MASK", **changed)

    def _masked(self, mask: str, **changed: Any) -> Run:
        masks: Any = self.local.payload.params["mask_type"].__class__
        return self.local.bind(mask_type=masks[mask], **changed)

    def start(self) -> Any:
        """The place of the first query."""
        return jnp.asarray(self.local.start(self.axes, self.whole), jnp.int32)

    def before(self, operands: Sequence[Array], start: Any) -> list[Array]:
        """Operands for the keys before; the first device, that has none, is given one, which it leaves out later."""
        batch = operands[0].shape[0]
        lengths = [
            jnp.full((batch,), self.count, jnp.int32),
            jnp.broadcast_to(jnp.maximum(start, 1), (batch,)),
        ]
        found = list(operands)
        found[_LENGTHS] = lengths
        return found

    def beside(self, operands: Sequence[Array], start: Any) -> list[Array]:
        """Operands with the keys and values at the places of the queries."""
        query, key, value, *rest = operands
        own = [
            lax.dynamic_slice_in_dim(each, start, self.count, self.place) for each in (key, value)
        ]
        return [query, *own, *rest]

    def weights(self, logarithms: Array) -> Array:
        """[b, n, t] as factors of the results."""
        shown = jnp.exp(logarithms)[..., None]
        return shown if self.place == 2 else shown.swapaxes(1, 2)

    def joined(self, far: Array, near: Array, start: Any) -> Array:
        """A gradient of all keys, of those before the queries from the one and of those beside them from the other."""
        places = jnp.arange(self.whole).reshape(
            tuple(-1 if dim == self.place else 1 for dim in range(4))
        )
        before = jnp.where(places < start, far, 0)
        return lax.dynamic_update_slice_in_dim(before, near, start, self.place)
