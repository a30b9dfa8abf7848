"""The exact finish where layers repeat: what few parts cost for all choices at the nodes that they share, added up.

The problem falls into parts in a row (`layers`, `parts`), most of them alike: each kind is cut to a window and eliminated
but for what it shares (`within`), once; a chain of such tables is a sum of minima. The window of a part is what all parts
together cost above the least of each: it does not grow with the layers.
"""

from __future__ import annotations

from autopar.solve.ascent import Answer
from autopar.solve.chain import Chain
from autopar.solve.few import Few
from autopar.solve.flat import per_edge
from autopar.solve.layers import layers_of
from autopar.solve.options import SolveOptions
from autopar.solve.parts import Row
from autopar.solve.problem import Infeasible
from autopar.solve.reduction import Choice
from autopar.solve.watch import Watch
from autopar.solve.within import Within, within

_SWEEPS, _MORE_SWEEPS = 3, 10  # of the row without its runs, of the parts of runs
_WIDER = 1.5  # times what the best choice costs above the bound of a part that is repeated: its first window
_MARGIN = 1e-10  # of the cost: for rounding


def by_layers(few: Few, best: Answer, options: SolveOptions, watch: Watch) -> Answer | None:
    """The optimum of the whole, with its proof, or a bound; `best` has a choice. None if there are no such layers."""
    whole, short = few.whole, few.short
    flat, order = whole.dual.flat, short.order
    layers = layers_of(whole.problem, flat, order, short.stretches, short.band)
    if layers is None or best.choice is None:
        return None
    messages = per_edge(few.ascent.dual.flat, few.ascent.held.messages)
    row = Row(whole.problem, order, layers, tuple(messages[e] for e in short.edges.tolist()), _SWEEPS)
    found = _tables(row, best.choice, best.objective, options, watch)
    return None if found is None else Chain(row, found).answer()


def _tables(row: Row, best: Choice, cutoff: float, options: SolveOptions, watch: Watch) -> dict[int, Within] | None:
    """What every kind of part costs, as far as a choice of the whole can that costs less than `cutoff`; None: too much."""
    spent = [row.cost_of(p, best) for p in range(row.layers.count)]
    certificates = {part.number: part.certificate(_MORE_SWEEPS if part.copies > 1 else 0) for part in row.parts}
    low, found = {number: known.bound for number, known in certificates.items()}, dict[int, Within]()
    margin = _MARGIN * abs(cutoff)
    by_copies = sorted(row.parts, key=lambda part: -part.copies)
    for part in by_copies * 2:
        number = part.number
        left = cutoff - sum(each.copies * low[each.number] for each in row.parts) + margin
        upper = low[number] + left
        if number not in found and part.copies > 1:
            least = min(spent[number : number + part.copies])
            upper = min(upper, low[number] + _WIDER * max(least - low[number], 0.0) + margin)
        if number in found and found[number].upper >= upper - margin:
            continue
        try:
            cut = within(certificates[number], upper, options, watch)
        except Infeasible:
            return None
        if cut is None:
            return None
        found[number], low[number] = cut, max(low[number], cut.least)
    return found
