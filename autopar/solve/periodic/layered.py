"""The exact finish where layers repeat: what few parts cost for all choices at the nodes that they share, added up.

The problem falls into parts in a row (`layers`, `parts`), most of them alike. Each kind is cut to a window and
eliminated but for what it shares (`within`), once; what is left is a chain of tables (`chain`). The window of a part is
what the best choice costs above the least of every part, added up: it does not grow with the layers.
"""

from __future__ import annotations

from autopar.solve.fixing.reduced_cost_fixing import sampled, window_of
from autopar.solve.periodic.few_periods import Few
from autopar.solve.periodic.part_tables import Within, within
from autopar.solve.periodic.parts import Part, Row
from autopar.solve.periodic.transfer_matrix import Chain
from autopar.solve.problem.incumbent import Watch
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Infeasible
from autopar.solve.problem.reduction import Choice
from autopar.solve.trws.ascent import Answer

_WIDER = 1.5  # times what the best choice costs above the bound of a part: its first window
_MARGIN = 1e-10  # of the cost: for rounding
_SAMPLE = 1_000_000  # entries of a part's edges
_FEW_PAIRS, _FEWER_PAIRS = 0.005, 0.001  # of all pairs: what a window leaves that is guessed; of a part with copies
_FEWEST = 1000  # and at least so many of the sample: what has fewer pairs is looked at whole
_MORE, _GUESSES = 2.0, 3  # times as many, another window; how many are tried
_NARROWER = 4  # times, a window that is guessed


def by_layers(few: Few, best: Answer, options: SolveOptions, watch: Watch) -> Answer | None:
    """The optimum of the whole, with its proof, or a bound. None if there are no such layers, or it is too much.

    Where `best` has no choice, windows are guessed, to find one: that may be the optimum with a bound below it.
    """
    whole, short, messages = few.whole, few.short, few.messages
    if short.layers is None:
        return None
    edges: list[int] = short.edges.tolist()
    row = Row(whole.problem, short.layers, tuple(messages[e] for e in edges), whole.dual.pool)
    if best.choice is None:
        found = _guessed(row, options, watch)
    else:
        found = _tables(row, best.choice, best.objective, options, watch)
    return None if found is None else Chain(row, found).answer()


def _guessed(row: Row, options: SolveOptions, watch: Watch) -> dict[int, Within] | None:
    """What each kind of part costs within a window that leaves few pairs; None: too much for one of them."""
    found = dict[int, Within]()
    for part in row.parts:
        cut = _guessed_of(part, options, watch)
        if cut is None:
            return None
        found[part.number] = cut
    return found


def _guessed_of(part: Part, options: SolveOptions, watch: Watch) -> Within | None:
    """What a part costs within a window that leaves few pairs: more, if nothing is in it, or fewer, if it is much."""
    above, _ = sampled(part.certificate, _SAMPLE)
    share = _FEW_PAIRS if part.copies == 1 else _FEWER_PAIRS
    for _ in range(_GUESSES):
        window = window_of(above, max(_FEWEST, share * len(above)))
        try:
            return within(part.certificate, part.certificate.bound + window, options, watch, narrower=_NARROWER)
        except Infeasible:
            share *= _MORE
    return None


def _tables(row: Row, best: Choice, cutoff: float, options: SolveOptions, watch: Watch) -> dict[int, Within] | None:
    """What each kind of part costs, as far as a choice of the whole can that costs less than `cutoff`; None: too much.

    The first window of a part is guessed from what the best choice costs there; that of the last is what is left.
    """
    margin, found = _MARGIN * abs(cutoff), dict[int, Within]()
    low = {part.number: part.certificate.bound for part in row.parts}
    above = {part.number: row.cost_of(part.number + part.copies // 2, best) - low[part.number] for part in row.parts}
    in_order = sorted(row.parts, key=lambda part: (-part.copies, above[part.number]))
    for part in in_order * 2:
        number = part.number
        left = cutoff - sum(each.copies * low[each.number] for each in row.parts) + margin
        upper = low[number] + left
        if len(found) < len(in_order) - 1:
            upper = min(upper, low[number] + _WIDER * max(above[number], 0.0) + margin)
        if number in found and found[number].upper >= upper - margin:
            continue
        try:
            cut = within(part.certificate, upper, options, watch)
        except Infeasible:
            return None
        if cut is None:
            return None
        found[number], low[number] = cut, max(low[number], cut.least)
    return found
