"""Zigzag order: every device gets two halves of shards, an early and a late one, and can send them back."""

from __future__ import annotations

import pytest

from autopar.core.ring import zigzag


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5, 8])
def test_every_device_gets_an_early_and_a_late_half(parts: int) -> None:
    order = zigzag(parts)
    held: list[list[int]] = [[] for _ in range(parts)]
    for half, hop in enumerate(order):
        assert sorted(b for _, b in hop.stated) == list(range(parts))
        for sender, receiver in hop.stated:
            held[receiver].append(2 * sender + half)
    assert [sorted(halves) for halves in held] == [[n, 2 * parts - 1 - n] for n in range(parts)]
    assert [held[n][0] < held[n][1] for n in range(parts)] == [n % 2 == 0 for n in range(parts)]


def test_halves_are_sent_back_as_they_came() -> None:
    order = zigzag(4)
    assert order.back.back == order
    assert {(b, a) for a, b in order.first.stated} == set(order.back.first.stated)
