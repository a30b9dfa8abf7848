"""bucket_rounds: collectives of a scan's rounds that nothing in between waits for run as one, in buckets.

A round gathers the parameters of its layer and reduces their gradients, one by one: on many devices that is latency
more than bytes. What is gathered depends on slices alone, so the next few come with the one that is needed first; what
is reduced is put on stacks, so the first few wait for the last. Both only up to `SHARD_BUCKET_BYTES`, as the tensors
are whole meanwhile, and only where one collective takes less time than they do one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autopar.core.program import FUSED_KINDS, Instruction, Move, ShardedProgram
from autopar.cost.buckets import SHARD_BUCKET_BYTES
from autopar.passes.fuse_collectives import BucketKey, FuseCollectives
from autopar.passes.rounds import Rounds, is_collective, scans


@dataclass(frozen=True)
class BucketRounds:
    """Puts collectives of scans' rounds in buckets of at most `most_bytes`; one of several costs what `fuse` says."""

    fuse: FuseCollectives
    most_bytes: int = SHARD_BUCKET_BYTES
    name: str = "bucket_rounds"

    def apply(self, program: ShardedProgram) -> ShardedProgram:
        """`program` with buckets in its scans, where these take less time."""
        sent = Counter(region for one in program.collectives for region in _around(program, one))
        for scan in scans(program) if sent else ():
            if sent[scan.id] > 1:
                program = _Order(self, Rounds(program, scan)).program()
        return program


def _around(program: ShardedProgram, move: Move) -> Sequence[int]:
    return program.tree.path(move.region)


Groups = Mapping[int, Sequence[int]]
"""Which positions become one bucket, by each of them."""


@dataclass(eq=False)
class _Order:
    """One scan while its instructions are put in another order; `done` are those that stand there already."""

    buckets: BucketRounds
    rounds: Rounds
    done: list[Instruction] = field(default_factory=list["Instruction"])
    standing: set[int] = field(default_factory=set[int])

    def program(self) -> ShardedProgram:
        """The whole program, with this scan anew."""
        whole = self.rounds.all
        self.groups: Groups = {n: group for group in self._grouped() for n in group}
        if not self.groups:
            return whole

        waiting: list[int] = []
        for n in self.rounds.span:
            if n in self.rounds.late and not self._is_ready(n):
                waiting.append(n)
                continue
            self._run(n)
            if n in self.groups and n in self.rounds.late:
                waiting = self._run_those(waiting)

        span = self.rounds.span
        instructions = whole.instructions
        written = (*instructions[: span.start], *self.done, *instructions[span.stop :])
        return whole.with_instructions(written)

    def _grouped(self) -> Iterator[Sequence[int]]:
        """What becomes a bucket: of several, in less time than one by one."""
        rounds = self.rounds
        for group in self._candidates(rounds.ahead, rounds.early):
            yield from self._paying([n for n in group if self._may_come_early(n, min(group))])
        for group in self._candidates(sorted(rounds.behind), rounds.late):
            yield from self._paying([n for n in group if self._may_wait(n, max(group))])

    def _paying(self, group: Sequence[int]) -> Iterator[Sequence[int]]:
        moves = self._moves(group)
        if len(group) > 1 and self.buckets.fuse.fused(moves).time_s < sum(m.time_s for m in moves):
            yield group

    def _candidates(self, moves: Sequence[int], chain: frozenset[int]) -> list[list[int]]:
        """These collectives, those together that have one key and are as many collectives of `chain` deep."""
        level = self._levels(chain)
        found: list[list[int]] = []
        open_: dict[tuple[BucketKey, int], list[int]] = {}

        for n in moves:
            (move,) = self._moves([n])
            if move.kind not in FUSED_KINDS:
                continue

            key = self.buckets.fuse.key(self.rounds.all, move), level[n]
            if key not in open_:
                open_[key] = []
                found.append(open_[key])
            open_[key].append(n)
            if sum(m.size_bytes for m in self._moves(open_[key])) >= self.buckets.most_bytes:
                del open_[key]
        return found

    def _levels(self, chain: frozenset[int]) -> Mapping[int, int]:
        """Behind how many collectives, one reading the other, each of `chain` stands."""
        found: dict[int, int] = {}
        for n in sorted(chain):
            before = [m for m in self._made_by(n) if m in found]
            found[n] = max(
                (found[m] + is_collective(self.rounds.all.instructions[m]) for m in before),
                default=0,
            )
        return found

    def _may_come_early(self, position: int, first: int) -> bool:
        """Whether what a collective depends on can stand in front of `first`: no region is torn apart."""
        region = self.rounds.all.instructions[position].region
        before = self.rounds.of(self.rounds.before([position]))
        return all(n < first or one.region == region for n, one in before)

    def _may_wait(self, position: int, last: int) -> bool:
        """Whether what depends on a collective can stand behind `last`."""
        region = self.rounds.all.instructions[position].region
        behind = self.rounds.of(self.rounds.after([position]))
        return all(n > last or one.region == region for n, one in behind)

    def _run_those(self, waiting: Sequence[int]) -> list[int]:
        """Runs what is ready of them, and what is then; the others."""
        left = [n for n in waiting if n not in self.standing]
        while (ready := next(filter(self._is_ready, left), None)) is not None:
            self._run(ready)
            left = [n for n in left if n not in self.standing]
        return left

    def _is_ready(self, position: int) -> bool:
        """Whether all stands that it, and what is in its bucket, reads."""
        group = self.groups.get(position, [position])
        return all(m in self.standing for n in group for m in self._made_by(n))

    def _run(self, position: int) -> None:
        """Puts what stands at `position` next, its bucket with it, behind what they read."""
        if position in self.standing:
            return
        group = self.groups.get(position, [position])
        for n in group:
            for m in self._made_by(n):
                self._run(m)

        self.standing.update(group)
        if len(group) > 1:
            self.done.append(self.buckets.fuse.fused(self._moves(group)))
        else:
            self.done.append(self.rounds.all.instructions[position])

    def _made_by(self, position: int) -> list[int]:
        """Who in the scan makes what is read at `position`."""
        makers = self.rounds.makers
        read = self.rounds.all.instructions[position].ins
        return [makers[v] for v in read if v in makers]

    def _moves(self, positions: Sequence[int]) -> list[Move]:
        found = [one for _, one in self.rounds.of(positions)]
        return [one for one in found if isinstance(one, Move)]
