"""Holding: what a compiler keeps in memory otherwise than its program says, line by line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Holding:
    """Habits of one compiler, by which memory is accounted (`memory.account`); nothing is known of the others.

    * `gradients_late`: backward products wait. One that only the update needs may run behind the next product and what
      reads that; one that the next product does not need, as late as that.
    * `reduces_in_place`: an all-reduce writes its sum over what it adds up, where nobody reads that later.
    * `widens_operands`: an operand of a product, of a narrower type than the other, is written in that type, once for
      all products of a region that read it so: it is there from the first of them to the last.
    * `joins_equal`: of equal collectives of one value in a region there is one; its result is there for all readers.
    * `results_lend`: a value as large as a result may lie in that one's memory, if it is gone when that is written. So
      less is expected to be set aside (`memory.lent`) than what a limit is held against.
    * `zeros_first`: what scatters write into needs nothing, so it is made first of all.
    """

    gradients_late: bool = False
    reduces_in_place: bool = False
    widens_operands: bool = False
    joins_equal: bool = False
    results_lend: bool = False
    zeros_first: bool = False


AS_WRITTEN = Holding()
