"""The passes in the order they run. What comes out is checked; where it is wrong, or dumped, so is each pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from autopar.core.dataflow import Dataflow
from autopar.core.graph import OpGraph, OpNode
from autopar.core.plan import Stage
from autopar.core.program import ShardedProgram
from autopar.core.strategy import Exchange, Strategy
from autopar.cost.buckets import JoinedPrice, ready, waiting
from autopar.errors import InvalidOption, ProgramError
from autopar.passes.bucket_rounds import BucketRounds
from autopar.passes.fuse_collectives import FuseCollectives
from autopar.passes.insert_redistribution import InsertRedistribution
from autopar.passes.lower import lower
from autopar.passes.mark_mirror import MarkMirror
from autopar.passes.price_exchanges import ExchangePrice, PriceExchanges
from autopar.passes.price_joined import PriceJoined
from autopar.passes.raise_scalings import RaiseScalings
from autopar.passes.sink_all_reduce import SinkAllReduce
from autopar.passes.verify import verify
from autopar.redistribute.route import Router
from autopar.redistribute.step import PackPrice, StepPrice, no_pack


class Pass(Protocol):
    """A rewrite of a program that keeps it valid."""

    @property
    def name(self) -> str:
        """What the pass is called in dumps."""
        ...

    def apply(self, program: ShardedProgram) -> ShardedProgram:
        """The rewritten program."""
        ...


def passes(
    graph: OpGraph,
    router: Router,
    price: StepPrice,
    pack: PackPrice = no_pack,
    exchange: ExchangePrice | None = None,
) -> tuple[Pass, ...]:
    """The passes of every plan, in order; without a price of exchanges nothing hides any of them."""
    fuse = FuseCollectives(price, pack=pack)
    joined = router.joined_price
    joining = (PriceJoined(ready(graph), joined),) if isinstance(joined, JoinedPrice) else ()

    return (
        InsertRedistribution(router, waiting(graph), ready(graph)),
        PriceExchanges(exchange or partial(_in_full, price)),
        SinkAllReduce(),
        MarkMirror(graph),
        fuse,
        BucketRounds(fuse),
        RaiseScalings(),
        *joining,
    )


def _in_full(price: StepPrice, _op: OpNode, _strategy: Strategy, exchange: Exchange) -> float:
    return max(1, exchange.rounds) * price(exchange.kind, exchange.axes, exchange.size_bytes)


def program_states(
    graph: OpGraph,
    flow: Dataflow,
    stage: Stage,
    router: Router,
    price: StepPrice,
    pack: PackPrice = no_pack,
    exchange: ExchangePrice | None = None,
) -> tuple[tuple[str, ShardedProgram], ...]:
    """The program of `stage` after lowering and after every pass, with the pass's name; each verified."""
    program = lower(graph, flow, stage)
    _verify("lower", program)
    states = [("lower", program)]
    for step in passes(graph, router, price, pack, exchange):
        before = program
        program = step.apply(program)
        _verify(step.name, program, before)
        states.append((step.name, program))
    return tuple(states)


def _verify(name: str, program: ShardedProgram, before: ShardedProgram | None = None) -> None:
    try:
        verify(program, before)
    except ProgramError as error:
        raise ProgramError(f"after the pass {name}: {error}") from error


def build_program(
    graph: OpGraph,
    flow: Dataflow,
    stage: Stage,
    router: Router,
    price: StepPrice,
    pack: PackPrice = no_pack,
    exchange: ExchangePrice | None = None,
) -> ShardedProgram:
    """The program of `stage` as it runs, verified.

    Raises:
      ProgramError: if it is not valid; it says after which pass it was not.
    """
    program = lower(graph, flow, stage)
    for step in passes(graph, router, price, pack, exchange):
        program = step.apply(program)
    try:
        verify(program)
    except ProgramError:
        program_states(
            graph, flow, stage, router, price, pack, exchange
        )  # raises where it went wrong first
        raise
    return program


def write_dump(directory: Path, states: Sequence[tuple[str, object]]) -> None:
    """Writes each state as `NN_name.txt` into `directory`, which is made if need be.

    Raises:
      InvalidOption: if it cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for number, (name, state) in enumerate(states):
            (directory / f"{number:02d}_{name}.txt").write_text(f"{state}\n")
    except OSError as error:
        raise InvalidOption(
            f"the dump cannot be written to {directory}: {error}. Choose another directory."
        ) from error
