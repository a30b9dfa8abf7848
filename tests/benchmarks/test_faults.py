"""What the benchmark of faults counts: checkpoints that were lost, losses that differ."""

from __future__ import annotations

from benchmarks.faults import Life, differing, lost, shown
from benchmarks.record import shown_table


def life(resumed: int, complete: int, losses: dict[int, str]) -> Life:
    return Life(resumed, complete, 1, True, 2.0, losses)


WANTED = {1: "0.5", 2: "0.25", 3: "0.125"}


def test_a_checkpoint_is_lost_that_is_not_gone_on_from() -> None:
    lives = [life(0, 10, {}), life(10, 30, {}), life(20, 20, {})]
    assert lost(lives, life(30, 40, {})) == 1
    assert lost(lives[:1], life(10, 40, {})) == 0


def test_losses_differ_by_their_last_digit() -> None:
    assert differing([life(0, 0, WANTED), life(0, 0, {**WANTED, 4: "1.0"})], WANTED) == 0
    assert differing([life(0, 0, {**WANTED, 2: "0.2500001"}), life(2, 0, WANTED)], WANTED) == 1


def test_the_table_says_what_was_found() -> None:
    lives = [life(0, 10, {15: "1.0"}), life(10, 20, {24: "1.0"})]
    rows = dict(shown_table(shown(lives, life(10, 40, {40: "1.0"}), 3)).rows)
    assert rows["complete checkpoints lost"] == "1"
    assert rows["losses that differ from a job left alone"] == "3"
    assert rows["kills survived"] == "2 of 2 (0 of rank 0 and 2 of rank 1)"
