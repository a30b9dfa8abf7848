"""How much work the solver may do. Limits count work, so that results repeat; only `time_limit_s` is a clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SolveOptions:
    """Limits on work and memory. Lower limits give a larger gap, never a wrong answer.

    Attributes:
      max_table_entries: the largest table (8 bytes an entry) that elimination may make.
      max_total_entries: the most entries that all tables of one elimination may hold together.
      max_elimination_work: the most additions that one exact elimination may need.
      max_sweeps: message passing sweeps per dual bound; rounds have up to four times as many.
      max_price_steps: exact eliminations at memory prices; together they keep within max_elimination_work.
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
    """

    max_table_entries: int = 4_000_000
    max_total_entries: int = 150_000_000
    max_elimination_work: float = 2e10
    max_sweeps: int = 200
    max_price_steps: int = 60
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

    def __post_init__(self) -> None:
        limits = (self.max_table_entries, self.max_total_entries, self.max_elimination_work, self.max_sweeps)
        others = (self.anneal_passes, self.region_steps, self.max_rounds, self.max_cp_sat_entries, self.cp_sat_work)
        counts = (self.max_price_steps, self.branch_entries, self.gap_tolerance)
        if min(*limits, self.cp_sat_workers) < 1 or min(*others, *counts) < 0:
            raise ValueError(f"work limits must be positive: {self}")
        if self.time_limit_s is not None and not self.time_limit_s >= 0:
            raise ValueError(f"time_limit_s is {self.time_limit_s!r}: pass seconds >= 0, or None for no limit")
