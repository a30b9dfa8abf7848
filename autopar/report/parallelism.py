"""Parallelism: what a plan is in the field's words, told from where its arrays lie. Facts in, words out."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from autopar.core.stages import Stages

NOTABLE = 0.05
"""Of operations or bytes: what concerns a smaller share of them is not told."""
MOST = 0.95
"""Of operations or bytes: what concerns so large a share concerns all."""
_BETWEEN = 0.2
"""Of the bytes between products: what has to be split along the sequence for it to be called sequence parallel."""
_SHOWN = 4

Axes = tuple[str, ...]
_KEY = re.compile(r"\w+")
Fact = TypeVar("Fact")


@dataclass(frozen=True)
class Product:
    """A product of matrices (or a convolution) in the forward pass: over which mesh axes which of its dims are split.

    `weight` is the path of the input that one of its operands is, "" if none is; `flops` its operations in a step.
    `tensor` are the axes that split what is neither batch nor sequence; `expert` those that split what weights and
    activations have one each of.
    """

    flops: float
    weight: str = ""
    batch: Axes = ()
    sequence: Axes = ()
    tensor: Axes = ()
    expert: Axes = ()


@dataclass(frozen=True)
class State:
    """An array that stays from step to step: how it lies between steps, and how it is used.

    `size_bytes` are those of the whole array. `gathered` are the axes over which it is split, and of which its readers
    in the forward pass see all; `is_parameter` says that there are such readers.
    """

    name: str
    size_bytes: int
    axes: Axes
    gathered: Axes = ()
    is_parameter: bool = True


@dataclass(frozen=True)
class Facts:
    """What a plan's words follow from.

    `scattered` are the axes over which gradients are reduced to parts, each device its own; `between` what is held
    between products: its bytes, and the axes that split its sequence.
    """

    mesh: tuple[tuple[str, int], ...]
    products: tuple[Product, ...]
    state: tuple[State, ...]
    scattered: Axes = ()
    between: tuple[tuple[float, Axes], ...] = ()
    stages: Stages | None = None
    is_training: bool = True
    is_split: bool = False


@dataclass(frozen=True)
class Parallelism:
    """How a plan splits a function: numbers of parts, several where they differ.

    `batch`: of the batch. `parameters`: of each parameter between steps. `zero` is the stage of ZeRO (3: parameters,
    gradients and optimizer state are split among replicas, which is FSDP; 2: the latter two; 1: the last),
    `zero_groups` among how many devices, for the share `zero_share` of the bytes. `tensor`, `context` and `expert`
    count parts likewise; `tensor_in` names the weights that are split so, () for all. `is_sequence_parallel`: between
    products of split weights the sequence is split. `is_gathered` says of a function that does not train that it
    gathers what it reads.
    """

    devices: int
    batch: tuple[int, ...] = ()
    parameters: tuple[int, ...] = ()
    zero: int = 0
    zero_groups: tuple[int, ...] = ()
    zero_share: float = 1.0
    is_gathered: bool = False
    tensor: tuple[int, ...] = ()
    tensor_in: tuple[str, ...] = ()
    is_sequence_parallel: bool = False
    context: tuple[int, ...] = ()
    expert: tuple[int, ...] = ()
    stages: int = 1
    micro_batches: int = 1
    rounds: int = 1
    is_split: bool = False

    def __str__(self) -> str:
        where = [
            *([f"batch over {_range(self.batch)}"] if self.batch else []),
            *(
                [f"parameters over {_range(self.parameters)}"]
                if max(self.parameters, default=1) > 1
                else []
            ),
        ]

        what = ", ".join(self._schemes())
        if where and what:
            return f"{', '.join(where)}: {what}"
        if where or what:
            return what or ", ".join(where)
        if self.devices == 1:
            return "one device"
        return "split where no product is" if self.is_split else "the same on every device"

    def _schemes(self) -> list[str]:
        found = [
            *([self._zero_words()] if self.zero_groups else []),
            *(
                [f"tensor parallel {_range(self.tensor)}{_inside(self.tensor_in)}"]
                if self.tensor
                else []
            ),
            *(["sequence parallel between"] if self.is_sequence_parallel else []),
            *([f"context parallel {_range(self.context)}"] if self.context else []),
            *([f"expert parallel {_range(self.expert)}"] if self.expert else []),
        ]

        if self.stages > 1:
            rounds = f" in {self.rounds} rounds" if self.rounds > 1 else ""
            found.append(
                f"{self.stages} pipeline stages{rounds} of {self.micro_batches} micro-batches"
            )
        if self.batch and not self.zero_groups and max(self.batch) > 1:
            found.insert(0, "data parallel")
        return found

    def _zero_words(self) -> str:
        name = "weights gathered" if self.is_gathered else f"ZeRO-{self.zero}"
        name += " (FSDP)" if self.zero == 3 and not self.is_gathered else ""
        groups = f" in groups of {_range(self.zero_groups)}"
        if set(self.zero_groups) == set(self.batch):
            groups = ""
        part = f" for {self.zero_share:.0%} of parameters" if self.zero_share < MOST else ""
        return name + groups + part


def parallelism(facts: Facts) -> Parallelism:
    """What the plan that the facts are of is called."""
    size = dict(facts.mesh)

    def count(axes: Iterable[str]) -> int:
        return prod(size[axis] for axis in axes)

    def parts(of: Callable[[Product], Axes]) -> tuple[int, ...]:
        shares = _shares(facts.products, lambda p: p.flops, lambda p: count(of(p)))
        return tuple(sorted(n for n, share in shares.items() if share >= NOTABLE))

    parameters = [one for one in facts.state if one.is_parameter]
    lying = _shares(parameters, lambda s: s.size_bytes, lambda s: count(s.axes))
    level, groups, share = _zero(facts, count)
    tensor = tuple(n for n in parts(lambda p: p.tensor) if n > 1)
    inside = _names_of([p for p in facts.products if p.weight], lambda p: count(p.tensor) > 1)
    along = {axis for p in facts.products for axis in p.tensor}
    held = sum(amount for amount, _ in facts.between)
    cut = sum(amount for amount, axes in facts.between if along.intersection(axes))
    stages = facts.stages

    return Parallelism(
        devices=prod(size.values()),
        batch=tuple(n for n in parts(lambda p: p.batch) if n > 1),
        parameters=tuple(sorted(n for n, s in lying.items() if s >= NOTABLE)),
        zero=level,
        zero_groups=groups,
        zero_share=share,
        is_gathered=bool(groups) and not facts.is_training,
        tensor=tensor,
        tensor_in=inside if tensor else (),
        is_sequence_parallel=bool(tensor) and cut > _BETWEEN * held,
        context=tuple(n for n in parts(lambda p: p.sequence) if n > 1),
        expert=tuple(n for n in parts(lambda p: p.expert) if n > 1),
        stages=1 if stages is None else stages.count,
        micro_batches=1 if stages is None else stages.micro_batches,
        rounds=1 if stages is None else stages.rounds,
        is_split=facts.is_split,
    )


def _zero(
    facts: Facts, count: Callable[[Iterable[str]], int]
) -> tuple[int, tuple[int, ...], float]:
    """The stage of ZeRO, among how many devices, and for which share of the bytes of the parameters."""
    parameters = [one for one in facts.state if one.is_parameter]
    shares = _shares(parameters, lambda s: s.size_bytes, lambda s: count(s.gathered))
    groups = tuple(sorted(n for n, share in shares.items() if n > 1 and share >= NOTABLE))
    if groups:
        return 3, groups, sum(shares[n] for n in groups)

    others = [one for one in facts.state if not one.is_parameter]
    apart = _split_beyond(others, parameters)
    apart &= {axis for product in facts.products for axis in product.batch}
    beyond = _shares(
        others, lambda s: s.size_bytes, lambda s: count(a for a in s.axes if a in apart)
    )
    groups = tuple(sorted(n for n, share in beyond.items() if n > 1 and share >= NOTABLE))
    if not groups or not facts.is_training:
        return 0, (), 1.0
    return (2 if apart.intersection(facts.scattered) else 1), groups, 1.0


def _split_beyond(others: Sequence[State], parameters: Sequence[State]) -> set[str]:
    """The axes that split more of the bytes of `others` than of `parameters`, by a notable share."""

    def share(of: Sequence[State], axis: str) -> float:
        return sum(one.size_bytes for one in of if axis in one.axes) / sum(
            one.size_bytes for one in of
        )

    axes = {axis for one in others if one.size_bytes for axis in one.axes}
    kept = [one for one in parameters if one.size_bytes]
    return {
        axis for axis in axes if share(others, axis) >= NOTABLE + (share(kept, axis) if kept else 0)
    }


def _shares(
    facts: Iterable[Fact], weight: Callable[[Fact], float], key: Callable[[Fact], int]
) -> dict[int, float]:
    """The share of the weight that each key has."""
    found: dict[int, float] = defaultdict(float)
    for fact in facts:
        found[key(fact)] += weight(fact)
    total = sum(found.values())
    return {number: part / total for number, part in found.items()} if total else {}


def _names_of(products: Sequence[Product], is_one: Callable[[Product], bool]) -> tuple[str, ...]:
    """What the weights of those products are called that are so: () if nearly all are.

    A key that the paths of all of these have and no other path has ("mlp"), else the last keys of their paths.
    """
    chosen = [product for product in products if is_one(product)]
    others = [product for product in products if not is_one(product)]
    total = sum(product.flops for product in products)
    if not chosen or sum(p.flops for p in chosen) >= MOST * total:
        return ()

    inside = [set(_KEY.findall(product.weight)) for product in chosen]
    outside = {key for product in others for key in _KEY.findall(product.weight)}
    shared = [
        key
        for key in _KEY.findall(chosen[0].weight)
        if not key.isdigit() and key not in outside and all(key in keys for keys in inside)
    ]
    if shared:
        return (shared[0],)
    return tuple(dict.fromkeys(_KEY.findall(product.weight)[-1] for product in chosen))


def _inside(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f" in {', '.join(names[:_SHOWN])}{more}"


def _range(counts: Sequence[int]) -> str:
    """Numbers in words: "16", "4 and 16", or of more "1 to 64"."""
    if len(counts) < 3:
        return " and ".join(map(str, counts))
    return f"{counts[0]} to {counts[-1]}"
