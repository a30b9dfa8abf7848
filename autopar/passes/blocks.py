"""Blocks: instructions in the order in which they run, region by region, while they are still being made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autopar.core.program import Compute, Instruction
from autopar.core.regions import CONTROL, ENTERING, RegionTree


@dataclass(eq=False)
class Block:
    """The instructions of one region and the blocks of the regions in it, in order."""

    region: int | None
    members: list[Instruction | Block] = field(default_factory=list["Instruction | Block"])

    def flat(self) -> Iterator[Instruction]:
        """All instructions, in order."""
        for member in self.members:
            if isinstance(member, Block):
                yield from member.flat()
            else:
                yield member


@dataclass(eq=False)
class Blocks:
    """The blocks of one program. A region's block is opened when its first instruction comes.

    A control region holds its inner regions from the start: what enters stands before them, what leaves behind.
    """

    tree: RegionTree
    root: Block = field(default_factory=lambda: Block(None))
    _open: dict[int | None, Block] = field(default_factory=dict[int | None, Block])

    def __post_init__(self) -> None:
        self._open[None] = self.root

    def append(self, instruction: Instruction, region: int | None) -> None:
        """Puts an instruction at the end of `region`; what enters a control region before its inner regions."""
        if region is None:
            self.root.members.append(instruction)
            return
        members = self.open(region).members
        if isinstance(instruction, Compute) and instruction.op.kind in ENTERING:
            members.insert(
                sum(isinstance(member, Compute) and _enters(member) for member in members),
                instruction,
            )
        else:
            members.append(instruction)

    def place(self, instruction: Instruction, region: int | None, before_block: int | None) -> None:
        """Puts an instruction into `region`: before the block in it that holds `before_block`, else at the end."""
        inner = self.tree.child_towards(region, before_block)
        members = self.open(region).members
        block = None if inner is None else self.open(inner)
        if block is None:
            members.append(instruction)
        else:
            members.insert(
                next(n for n in reversed(range(len(members))) if members[n] is block), instruction
            )

    def open(self, region: int | None) -> Block:
        """The block of `region`, opened if it was not."""
        if region not in self._open:
            block = self._open[region] = Block(region)
            self.open(self.tree.parent(region)).members.append(block)
            if region is not None and self.tree.kind(region) in CONTROL:
                for child in self.tree.children(region):
                    self.open(child.id)
        return self._open[region]


def _enters(compute: Compute) -> bool:
    return compute.op.kind in ENTERING
