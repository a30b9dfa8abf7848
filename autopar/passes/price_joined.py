"""price_joined: gathers that wait for nothing cost their share of those that the compiler makes of them."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.core.program import Move, ShardedProgram
from autopar.cost.buckets import JoinedPrice


@dataclass(frozen=True)
class PriceJoined:
    """In the order of the program, over the same axes, up to `most_bytes` of results: as many as there are are joined.

    Until here each has its share of a full one. What a move does beside its collective, such as copying in another
    order, stays its own. `ready` are the tensors that wait for nothing.
    """

    ready: frozenset[int]
    joined: JoinedPrice
    name: str = "price_joined"

    def apply(self, program: ShardedProgram) -> ShardedProgram:
        """`program` with other seconds."""
        groups: dict[tuple[str, ...], list[list[Move]]] = {}
        for one in program.instructions:
            if isinstance(one, Move) and self.is_joined(program, one):
                known = groups.setdefault(one.axes, [[]])
                if (
                    sum(move.size_bytes for move in known[-1]) + one.size_bytes
                    > self.joined.most_bytes
                ):
                    known.append([])
                known[-1].append(one)

        seconds: dict[int, float] = {}
        for group in (group for known in groups.values() for group in known if group):
            kind = group[0].kind
            axes = group[0].axes
            total = sum(move.size_bytes for move in group)
            together_s = self.joined.price(kind, axes, total)
            for move in group:
                alone_s = self.joined.price(kind, axes, move.size_bytes)
                beside_s = move.time_s - self.joined(kind, axes, move.size_bytes)
                share_s = min(alone_s, together_s * move.size_bytes / max(total, 1))
                seconds[id(move)] = share_s + max(0.0, beside_s)

        if not seconds:
            return program
        return program.with_instructions(
            tuple(
                one._replace(time_s=seconds[id(one)])
                if isinstance(one, Move) and id(one) in seconds
                else one
                for one in program.instructions
            )
        )

    def is_joined(self, program: ShardedProgram, move: Move) -> bool:
        """Whether it gathers what waits for nothing."""
        is_alone = move.kind == "all_gather" and len(move.ins) == 1 and move.region is None
        return is_alone and program.values[move.ins[0]].tensor.id in self.ready
