"""Whose turn it is, and what becomes an update: drawn orders of workers that come, step, die and are restored."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.parameter_server.progress import Progress, Push
from autopar.parameter_server.records import Saved, Turn


def push(progress: Progress, turn: Turn, worker: int, examples: int = 1, loss: float = 0.0):
    return progress.push(worker, Push(turn.step, examples, loss))


def joined(progress: Progress, count: int) -> list[int]:
    return [progress.join() for _ in range(count)]


EVENTS = st.lists(st.tuples(st.sampled_from("tttttppppppjd"), st.integers(0, 5)), max_size=120)


@given(st.integers(0, 3), EVENTS)
def test_no_worker_begins_a_step_that_lies_more_than_k_ahead(
    k: int, events: Sequence[tuple[str, int]]
) -> None:
    progress = Progress(steps=1000, staleness=k, save_every=10)
    held: dict[int, Turn] = {}
    live, finished = joined(progress, 3), dict.fromkeys(range(3), 0)
    updates = 0
    for event, choice in events:
        if event == "j":
            worker = progress.join()
            finished[worker] = min((finished[one] for one in live), default=0)
            live.append(worker)
        if not live:
            continue
        worker = live[choice % len(live)]
        if event == "d":
            live.remove(worker)
            held.pop(worker, None)
            assert progress.leave(worker) == []
        if event == "t" and worker not in held:
            turn = progress.turn(worker)
            lead = finished[worker] - min(finished[one] for one in live)
            assert (turn is not None) == (lead <= k)
            if turn is not None:
                assert turn.step == finished[worker]
                held[worker] = turn
        if event == "p" and worker in held:
            turn = held.pop(worker)
            (commit,) = push(progress, turn, worker)
            updates += 1
            finished[worker] += 1
            assert commit.version == progress.version == updates
            assert commit.shares == (((worker, turn.step), 1.0),)
    assert all(update.lead <= k for update in progress.updates)


@given(EVENTS)
def test_a_synchronous_step_is_of_all_members_that_live(events: Sequence[tuple[str, int]]) -> None:
    """An oracle in plain words: members are who lives when the step's first turn is asked for."""
    progress = Progress(steps=1000, staleness=None, save_every=10)
    live = joined(progress, 3)
    members: set[int] = set()
    pushed: set[int] = set()
    version = 0
    for event, choice in events:
        if event == "j":
            live.append(progress.join())
        if not live:
            continue
        worker = live[choice % len(live)]
        commits = []
        if event == "d":
            live.remove(worker)
            commits = progress.leave(worker)
        if event == "t":
            if not members & set(live):
                members = set(live)
            turn = progress.turn(worker)
            assert (turn is not None) == (worker in members - pushed)
            if turn is not None:
                assert (turn.step, turn.count) == (version, len(members))
                assert sorted(members)[turn.index] == worker
        if event == "p" and worker in members - pushed:
            pushed.add(worker)
            commits = progress.push(worker, Push(version, 2, 1.0))
        is_full = bool(pushed) and members & set(live) <= pushed
        assert len(commits) == is_full
        for commit in commits:
            version += 1
            assert {key for key, _ in commit.shares} == {(w, version - 1) for w in pushed}
            assert sum(share for _, share in commit.shares) == pytest.approx(1)
            members, pushed = set(), set()


def test_shares_are_those_of_the_examples_and_the_loss_is_their_mean() -> None:
    progress = Progress(steps=1, staleness=None, save_every=10)
    joined(progress, 2)
    turn = progress.turn(0)
    assert turn == Turn(step=0, index=0, count=2, version=0, generation=0)
    assert push(progress, turn, 0, examples=3, loss=1.0) == []
    (commit,) = push(progress, turn, 1, examples=1, loss=5.0)
    assert commit.shares == (((0, 0), 0.75), ((1, 0), 0.25))
    assert progress.updates[0].loss == 2.0
    assert progress.is_over
    assert progress.turn(0) is None


def test_a_worker_that_dies_ends_the_step_that_waited_for_it_alone() -> None:
    progress = Progress(steps=2, staleness=None, save_every=10)
    joined(progress, 2)
    turn = progress.turn(0)
    assert turn is not None
    push(progress, turn, 0)
    (commit,) = progress.leave(1)
    assert commit.shares == (((0, 0), 1.0),)
    after = progress.turn(0)
    assert after is not None
    assert (after.index, after.count) == (0, 1)  # the next batch is all its own


def test_what_a_dead_worker_had_pushed_whole_counts() -> None:
    progress = Progress(steps=2, staleness=None, save_every=10)
    joined(progress, 2)
    turn = progress.turn(0)
    assert turn is not None
    push(progress, turn, 0)
    assert progress.leave(0) == []
    (commit,) = push(progress, turn, 1)
    assert [worker for (worker, _), _ in commit.shares] == [0, 1]
    assert commit.live == {1}


def test_checkpoints_follow_every_so_many_updates() -> None:
    progress = Progress(steps=7, staleness=None, save_every=3)
    joined(progress, 1)
    saves = []
    while (turn := progress.turn(0)) is not None:
        saves += [commit.saves for commit in push(progress, turn, 0)]
    assert saves == [False, False, True, False, False, True, False]


@pytest.mark.parametrize("staleness", [None, 1])
def test_restored_all_begin_where_they_were(staleness: int | None) -> None:
    progress = Progress(steps=10, staleness=staleness, save_every=2)
    joined(progress, 2)
    saved = None
    for _ in range(3):
        for worker in (0, 1):
            turn = progress.turn(worker)
            assert turn is not None
            for commit in push(progress, turn, worker):
                saved = saved or (commit.saves and Saved(commit.version, dict(progress.clocks)))
    assert saved
    progress.leave(1)
    progress.roll_back(saved)

    assert progress.generation == 1
    assert progress.version == 2 == len(progress.updates)
    newcomer = progress.join()
    steps = [progress.turn(worker) for worker in (0, newcomer)]
    assert [turn and turn.step for turn in steps] == [saved.clocks[0]] * 2
