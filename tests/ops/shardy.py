"""An independent oracle: the factors that XLA's own partitioner, Shardy, gives the StableHLO operator of a primitive.

Only those primitives are looked at that become one operator on their operands. Shardy's rule is read from the text of
the attribute that its pass puts on the operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jaxlib.mlir.passmanager import PassManager

from autopar._payload import Payload
from autopar.ops.rules.factor_rule import FactorRule
from tests.ops.build import Built

PIPELINE = "builtin.module(func.func(sdy-populate-op-sharding-rules))"
_RULE = re.compile(
    r"op_sharding_rule<\((?P<ins>.*?)\)->\((?P<outs>.*?)\)\s*(?:\{(?P<sizes>.*?)\})?(?P<rest>.*)>"
)
_FACTOR = r"[a-z](?:_\d+)?"
_SET = re.compile(r"(?P<name>\w+)=\{(?P<factors>.*?)\}")

Place = tuple[str, int, int, int]
"""A tensor ("in" or "out", its number), a dim, and the size of what is more major in the dim."""
Index = tuple[int, frozenset[Place]]
"""What can be split: the size of an index and all places where it stands."""


@dataclass(frozen=True)
class Splits:
    """The indices that can be split without communication, those that leave the results to be combined marked True.

    `exchanged` are those that can be split with communication inside the operator.
    """

    indices: dict[Index, bool]
    exchanged: frozenset[Index] = frozenset()


def of_rule(rule: FactorRule) -> Splits:
    """What can be split by a rule of this package."""
    places = _places(
        rule.sizes, {"in": dict(enumerate(rule.ins)), "out": dict(enumerate(rule.outs))}
    )
    exchanged = set(getattr(rule, "exchanged", {}))
    free = {f: index for f, index in places.items() if f in rule.factors}
    return Splits(
        {index: f in rule.reduced for f, index in free.items() if f not in exchanged},
        frozenset(index for f, index in free.items() if f in exchanged),
    )


def of_shardy(built: Built) -> Splits | None:
    """What can be split by Shardy's rule of the operator; None where the primitive is not one operator with a rule."""
    found = _operator(built)
    if found is None:
        return None
    operation, operands = found
    match = _RULE.search(str(operation.attributes["sdy.sharding_rule"]))
    assert match, operation
    sizes = {
        name: int(size) for name, size in re.findall(rf"({_FACTOR})=(\d+)", match["sizes"] or "")
    }
    sets = {m["name"]: re.findall(_FACTOR, m["factors"]) for m in _SET.finditer(match["rest"])}
    ins = {operands[n]: dims for n, dims in enumerate(_tensors(match["ins"])) if n in operands}
    places = _places(sizes, {"in": ins, "out": dict(enumerate(_tensors(match["outs"])))})
    moved = sets.get("permutation", [])
    whole = {*sets.get("need_replication", []), *moved}
    reduced = sets.get("reduction", [])
    return Splits(
        {index: f in reduced for f, index in places.items() if f not in whole},
        frozenset(index for f, index in places.items() if f in moved),
    )


def _tensors(text: str) -> list[list[list[str]]]:
    """ "[i, jk], []" -> [[["i"], ["j", "k"]], []]."""
    bodies = re.findall(r"\[(.*?)\]", text)
    return [
        [re.findall(_FACTOR, dim) for dim in body.split(",")] if body.strip() else []
        for body in bodies
    ]


def _places(sizes: Any, sides: dict[str, Any]) -> dict[str, Index]:
    """Where each factor of more than one element stands."""
    found: dict[str, set[Place]] = {}
    for side, tensors in sides.items():
        for number, dims in tensors.items():
            for dim, factors in enumerate(dims):
                before = 1
                for factor in factors:
                    found.setdefault(factor, set()).add((side, number, dim, before))
                    before *= sizes[factor]
    return {
        factor: (sizes[factor], frozenset(places))
        for factor, places in found.items()
        if sizes[factor] > 1
    }


def _operator(built: Built) -> tuple[Any, dict[int, int]] | None:
    """The one operator that reads the operands and makes the results; which of its operands is which of them."""
    module = _lowered(built)
    functions = {
        op.sym_name.value: op for op in module.body.operations if op.operation.name == "func.func"
    }
    numbers = list(range(len(built.values)))
    name = "main"
    while True:
        block = functions[name].regions[0].blocks[0]
        known = dict(zip(block.arguments, numbers, strict=True))
        readers = [
            op for op in block.operations if any(operand in known for operand in op.operands)
        ]
        *_, end = block.operations
        if len(readers) != 1 or readers[0] == end or list(end.operands) != list(readers[0].results):
            return None
        if readers[0].operation.name != "func.call":
            break
        if any(operand not in known for operand in readers[0].operands):
            return None
        name, numbers = readers[0].callee.value, [known[operand] for operand in readers[0].operands]
    reader = readers[0]
    if "sdy.sharding_rule" not in reader.attributes:
        return None
    return reader, {
        n: known[operand] for n, operand in enumerate(reader.operands) if operand in known
    }


def _lowered(built: Built) -> Any:
    payload = built.op.payload
    assert isinstance(payload, Payload)
    primitive = payload.primitive

    def run(*operands: Any) -> Any:
        return primitive.bind(*operands, **primitive.get_bind_params(payload.params))

    module = jax.jit(run, keep_unused=True).lower(*built.values).compiler_ir("stablehlo")
    with module.context:
        PassManager.parse(PIPELINE).run(module.operation)
    return module


def differences(ours: Splits, theirs: Splits) -> Iterator[str]:
    """ "ours": we split what Shardy keeps whole; "theirs": the reverse; "kind": one passes what the other reduces.

    What either splits with communication only is no difference. Shardy also names indices that stand on one side
    only and are not reduced, to say that they are of no use to the other side; neither are they a difference.
    """
    useful = {
        index
        for index, is_reduced in theirs.indices.items()
        if is_reduced or len({p[0] for p in index[1]}) == 2
    }
    if any(index not in theirs.indices and index not in theirs.exchanged for index in ours.indices):
        yield "ours"
    if any(index not in ours.indices and index not in ours.exchanged for index in useful):
        yield "theirs"
    if any(
        ours.indices[index] != theirs.indices[index]
        for index in ours.indices.keys() & theirs.indices.keys()
    ):
        yield "kind"
