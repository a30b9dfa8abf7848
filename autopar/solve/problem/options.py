"""Options: how much work the solver may do, and a switch for every technique, one record for each room.

Limits count work, so that results repeat; only `time_limit_s` is a clock. A technique that is switched off leaves a
larger gap or takes longer; the answer is never wrong without it. What has no switch is no technique but a part of the
ground that others stand on: arc consistency and the merging of parallel edges, which sweeps need, and the least peak,
without which nothing says that a limit cannot be kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from autopar.errors import InvalidOption


@dataclass(frozen=True)
class PresolveOptions:
    """Reductions that keep an optimum.

    Attributes:
      hash_consing: arrays with equal contents become one object, so that work on them is done once.
      functional_edges: a node whose strategy follows from a neighbour's is merged into it.
      dead_end_elimination: a strategy goes that another replaces at no cost.
      variable_elimination: nodes of at most two neighbours are eliminated.
      batched_elimination: the same in whole arrays, before all else, where few matrices differ.
      knapsack_filtering: a strategy goes whose bytes find no room.
    """

    hash_consing: bool = True
    functional_edges: bool = True
    dead_end_elimination: bool = True
    variable_elimination: bool = True
    batched_elimination: bool = True
    knapsack_filtering: bool = True


@dataclass(frozen=True)
class EliminationOptions:
    """Exact elimination.

    Attributes:
      bucket_elimination: what reductions leave is eliminated exactly, where its tables fit.
      min_fill: a second order of elimination is planned where the first does not fit.
    """

    bucket_elimination: bool = True
    min_fill: bool = True


@dataclass(frozen=True)
class TrwsOptions:
    """Message passing.

    Attributes:
      acceleration: messages go on in the direction of the last sweep.
      smoothed_ascent: messages and memory prices move together, after the soft use of memory.
      float32: large matrices are first swept in single precision.
      consistent_decoding: where many entries are forbidden, a choice is decoded without them.
    """

    acceleration: bool = True
    smoothed_ascent: bool = True
    float32: bool = True
    consistent_decoding: bool = True


@dataclass(frozen=True)
class FixingOptions:
    """Reduced-cost fixing.

    Attributes:
      fixed_point: what lies within a window above the bound is cut, reduced and swept, in turn.
      frustrated_cycles: nodes that do not fit together are looked for, to be merged.
      node_merging: nodes are merged where few pairs are left of an edge.
    """

    fixed_point: bool = True
    frustrated_cycles: bool = True
    node_merging: bool = True


@dataclass(frozen=True)
class PrimalOptions:
    """Better choices.

    Attributes:
      first_choice: any choice within the limit is looked for first.
      single_moves: nodes of what annealing finds move to cheaper strategies, one by one.
      annealing: random forests are solved exactly at costs with noise that cools.
      large_neighbourhood: small regions are solved exactly, after annealing.
      crossover: the best choice is looked for that is made of those decoded on the way.
      path_relinking: choices about a limit are made of those that the parametric dual met.
    """

    first_choice: bool = True
    single_moves: bool = True
    annealing: bool = True
    large_neighbourhood: bool = True
    crossover: bool = True
    path_relinking: bool = True


@dataclass(frozen=True)
class CpSatOptions:
    """Search by CP-SAT.

    Attributes:
      finish: the exact finish on a small core.
      hints: it begins at the best choice known.
    """

    finish: bool = True
    hints: bool = True


@dataclass(frozen=True)
class ParametricOptions:
    """Memory prices.

    Attributes:
      filling: prices between those of lines that meet far below the curve.
      relaxation: the limit of a problem is proven at prices that proved it where what repeats chooses alike.
    """

    filling: bool = True
    relaxation: bool = True


@dataclass(frozen=True)
class PeriodicOptions:
    """What repeats.

    Attributes:
      quotient: a choice that chooses alike what repeats comes first.
      few_periods: messages begin at those of a problem of few of the periods.
    """

    quotient: bool = True
    few_periods: bool = True


@dataclass(frozen=True)
class PipelineOptions:
    """Search in rounds, on what messages leave.

    Attributes:
      windows: smaller problems, in windows above the bound, come before the whole.
      branch_and_bound: where memory has a price, choices are split in two, and again.
    """

    windows: bool = True
    branch_and_bound: bool = True


@dataclass(frozen=True)
class SolveOptions:
    """Limits on work and memory, and the records of the rooms. Lower limits give a larger gap, never a wrong answer.

    Attributes:
      max_table_entries: the largest table (8 bytes an entry) that elimination may make.
      max_total_entries: the most entries that all tables of one elimination may hold together.
      max_elimination_work: the most additions that one exact elimination may need.
      max_sweeps: message passing sweeps per dual bound; rounds have up to four times as many.
      max_rounds: of bounds and choices on a core that elimination and CP-SAT do not close; 0: what messages prove.
      anneal_passes: exact re-solves of random forests by annealing; a round has this twice, small problems less.
      region_steps: exact re-solves of a forest in a small region after annealing; less where passes are few.
      branch_entries: edge entries and strategies of all parts that branch and bound, where memory has a price and
        CP-SAT is not tried, splits after the first round; twice as many after each of the next.
      max_cp_sat_entries: CP-SAT is not tried on a core with more edge entries.
      cp_sat_work: deterministic time (roughly seconds) of one CP-SAT search.
      cp_sat_workers: threads of CP-SAT; part of the result's identity, as is `seed`.
      gap_tolerance: a choice proven to cost at most this share more than the optimum is the answer; 0: the optimum, up
        to rounding, as far as the other limits go. If not 0, what takes minutes on problems too large for CP-SAT is not
        begun, whatever gap is left, unless a time limit is given.
      seed: of every random choice.
      time_limit_s: wall-clock seconds after which the best so far is the answer; results repeat only without it.
      presolve, elimination, trws, fixing, primal, cp_sat, parametric, periodic, pipeline: switches of the rooms.
    """

    max_table_entries: int = 4_000_000
    max_total_entries: int = 150_000_000
    max_elimination_work: float = 2e10
    max_sweeps: int = 200
    max_rounds: int = 2
    anneal_passes: int = 1000
    region_steps: int = 15_000
    branch_entries: int = 4_000_000
    max_cp_sat_entries: int = 300_000
    cp_sat_work: float = 20.0
    cp_sat_workers: int = 2
    gap_tolerance: float = 0.0
    seed: int = 0
    time_limit_s: float | None = None
    presolve: PresolveOptions = PresolveOptions()
    elimination: EliminationOptions = EliminationOptions()
    trws: TrwsOptions = TrwsOptions()
    fixing: FixingOptions = FixingOptions()
    primal: PrimalOptions = PrimalOptions()
    cp_sat: CpSatOptions = CpSatOptions()
    parametric: ParametricOptions = ParametricOptions()
    periodic: PeriodicOptions = PeriodicOptions()
    pipeline: PipelineOptions = PipelineOptions()

    def __post_init__(self) -> None:
        limits = (
            self.max_table_entries,
            self.max_total_entries,
            self.max_elimination_work,
            self.max_sweeps,
        )
        others = (
            self.anneal_passes,
            self.region_steps,
            self.max_rounds,
            self.max_cp_sat_entries,
            self.cp_sat_work,
        )
        counts = (self.branch_entries, self.gap_tolerance)
        if min(*limits, self.cp_sat_workers) < 1 or min(*others, *counts) < 0:
            raise InvalidOption(f"work limits must be positive: {self._limits_text()}")

        if self.time_limit_s is not None and not self.time_limit_s >= 0:
            raise InvalidOption(
                f"time_limit_s is {self.time_limit_s!r}: pass seconds >= 0, or None for no limit"
            )

    def _limits_text(self) -> str:
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return ", ".join(f"{name} {value}" for name, value in values if not is_dataclass(value))

    @property
    def switches(self) -> dict[str, bool]:
        """Every switch by its name, `room.technique`, and whether it is on."""
        return {f"{room}.{name}": is_on for room, name, is_on in self._switches()}

    def without(self, switch: str) -> SolveOptions:
        """The same with a technique, `room.technique`, switched off.

        Raises:
          InvalidOption: there is no such switch.
        """
        if switch not in self.switches:
            raise InvalidOption(
                f"there is no switch {switch!r}; there are {', '.join(self.switches)}"
            )
        room, _, name = switch.partition(".")
        changed: dict[str, Any] = {room: replace(getattr(self, room), **{name: False})}
        return replace(self, **changed)

    def _switches(self) -> Iterator[tuple[str, str, bool]]:
        for room in fields(self):
            record: object = getattr(self, room.name)
            if is_dataclass(record) and not isinstance(record, type):
                yield from (
                    (room.name, each.name, bool(getattr(record, each.name)))
                    for each in fields(record)
                )
