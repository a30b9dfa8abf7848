"""Counters: where the streams of random bits of XLA's Philox generator can be taken up.

The state of four words is a key of two and a counter of 64 bits, low word first. Each count gives four words of bits,
and elements lie in the order of the counts: of 64 bits two a count, of less four, which are cut off words.
A counter that runs over within one draw, which happens to one stream in 2^36 of a billion elements, goes on otherwise.
"""

from __future__ import annotations

from autopar.core.graph import OpNode

STATE_WORDS = 4
_WIDE_BYTES = 8
_COUNTED = frozenset({"RNG_DEFAULT", "RNG_PHILOX"})


def counted_dim(op: OpNode) -> int | None:
    """The dim of the bits that runs of counts divide: the first of more than one element; None if there is none.

    None too for generators of another kind, and states of another form.
    """
    state = op.ins[0]
    if (state.shape, state.dtype) != ((STATE_WORDS,), "uint32") or op.params[
        "algorithm"
    ] not in _COUNTED:
        return None
    return next((d for d, size in enumerate(op.outs[1].shape) if size > 1), None)


def elements_of_a_count(op: OpNode) -> int:
    """How many elements of the bits one count gives."""
    return 2 if op.outs[1].itemsize == _WIDE_BYTES else 4
