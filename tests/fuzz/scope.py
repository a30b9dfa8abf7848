"""Scope: a block while it is drawn. Every line is evaluated at once: values stay bounded and shapes are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from math import prod
from typing import Any

import jax
import numpy as np

from autopar.core.mesh import DeviceMesh
from tests.fuzz.source import Block, Line, Var
from tests.reference.jaxprs import evaluate

DIMS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
MAX_ELEMENTS = 2048
MESHES = tuple(
    DeviceMesh.of(dict(zip("xyz", sizes, strict=False)))
    for sizes in ((2,), (4,), (8,), (2, 2), (2, 4), (4, 2), (2, 2, 2), (3,), (2, 3))
)
LARGEST = {"f": 4.0, "i": 100.0, "u": 100.0}


class NoFit(Exception):
    """No variable in scope fits a maker."""


class Scope:
    """The variables that a line may read, with values; and the lines so far.

    `depth` is how many functions are around it, `differentiable` whether it will be differentiated in reverse.
    `manual` are the axes of `mesh` along which a shard_map around it is split.
    """

    def __init__(
        self, rng: np.random.Generator, around: Scope | None = None, differentiable: bool = False
    ) -> None:
        self.rng = rng
        self.depth = 0 if around is None else around.depth + 1
        self.differentiable = differentiable or (around is not None and around.differentiable)
        self.mesh: DeviceMesh = around.mesh if around else self.choice(MESHES)
        self.manual: tuple[str, ...] = around.manual if around else ()
        self._numbers = count() if around is None else around._numbers
        self.dims: tuple[int, ...] = around.dims if around else self._vocabulary()
        self.mixed: bool = around.mixed if around else bool(rng.random() < 0.15)
        self.params: list[Var] = []
        self.pool: list[Var] = []
        self.values: dict[str, Any] = dict(around.values) if around else {}
        self.lines: list[Line] = []
        self.unread: set[str] = set()
        if around is not None:  # a few variables of the function around it can be read too
            self.pool += [v for v in around.pool if rng.random() < 0.3]

    def _vocabulary(self) -> tuple[int, ...]:
        """The sizes of this program: few, so that operands fit; mostly ones that divide."""
        return tuple(int(n) for n in self.rng.choice([*DIMS, 4, 8, 8, 16], 4))

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def choice(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def below(self, limit: int) -> int:
        return int(self.rng.integers(limit))

    def shape(self, ndim: int) -> tuple[int, ...]:
        """A shape of the program's sizes with at most MAX_ELEMENTS elements."""
        shape = [self.choice(self.dims) for _ in range(ndim)]
        while prod(shape) > MAX_ELEMENTS:
            shape[self.below(ndim)] = 2
        return tuple(shape)

    def pick(
        self,
        kinds: str = "f",
        ndim: int = 0,
        where: Callable[[Var], bool] = lambda _: True,
        hollow: bool = False,
    ) -> Var:
        """A variable of one of the `kinds`, with `ndim` dims at least: rather one that nothing has read yet.

        It has elements, or none if `hollow`.

        Raises:
          NoFit: if there is none.
        """
        fitting = [
            v
            for v in self.pool
            if v.kind in kinds and v.ndim >= ndim and (0 in v.shape) == hollow and where(v)
        ]
        if not fitting:
            raise NoFit
        unread = [v for v in fitting if v.name in self.unread]
        return self.choice(unread if unread and self.chance(0.6) else fitting)

    def name(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers)}"

    def param(self, prefix: str, value: Any) -> Var:
        """A parameter of the block, with the value that it has while the block is drawn."""
        value = np.asarray(value)
        var = Var(self.name(prefix), value.shape, str(value.dtype))
        self.params.append(var)
        self._add(var, value)
        return var

    def line(self, text: str, *bodies: Block) -> tuple[Var, ...]:
        """Adds the line `... = text`, and one that makes large results small; the variables that hold the results."""
        results, unpacks = self._evaluate(text, bodies)
        outs = tuple(Var(self.name("v"), value.shape, str(value.dtype)) for value in results)
        line = Line(outs, text, bodies, unpacks)
        self.unread -= line.reads
        self.lines.append(line)
        for var, value in zip(outs, results, strict=True):
            self._add(var, value)
        return tuple(self._bounded(var) for var in outs)

    def stated(self, text: str, value: Any) -> Var:
        """Adds the line `... = text`, which can be evaluated in no scope alone; `value` is one of those that it has."""
        value = np.asarray(value)
        var = Var(self.name("v"), value.shape, str(value.dtype))
        line = Line((var,), text)
        self.unread -= line.reads
        self.lines.append(line)
        self._add(var, value)
        return self._bounded(var)

    def block(self, result: str, prefix: str = "f") -> Block:
        """The function of what was drawn."""
        return Block(
            self.name(prefix), tuple(self.params), tuple(self.lines), result
        ).without_dead_lines()

    def _add(self, var: Var, value: Any) -> None:
        self.pool.append(var)
        self.unread.add(var.name)
        self.values[var.name] = value

    def _bounded(self, var: Var) -> Var:
        largest = (
            float(np.max(np.abs(self.values[var.name]), initial=0)) if var.kind in LARGEST else 0.0
        )
        if not np.isfinite(largest):
            raise ValueError(f"{self.lines[-1].text} is not finite")
        if largest <= LARGEST.get(var.kind, 0.0):
            return var
        self.pool.remove(var)
        self.unread.discard(var.name)
        if var.kind == "f":
            factor = 2.0 ** -np.ceil(np.log2(largest / LARGEST["f"]))
            return self.line(f"{var} * {factor}")[0]
        return self.line(f"lax.rem({var}, jnp.asarray({self.choice((7, 16, 97))}, '{var.dtype}'))")[
            0
        ]

    def _evaluate(self, text: str, bodies: Sequence[Block]) -> tuple[list[np.ndarray], bool]:
        """The results, and whether they came as a sequence."""
        draft = Line((Var("v0", (), "bool"),), text, tuple(bodies))
        reads = sorted(draft.reads)
        params = tuple(v for v in (*self.params, *self.pool) if v.name in reads)
        names = list(dict.fromkeys(v.name for v in params))
        missing = set(reads).difference(names)
        names += sorted(missing)  # hidden from the pool, or read from further out
        block = Block("f", tuple(Var(name, (), "bool") for name in names), (draft,), "v0")
        values = [self.values[name] for name in names]
        try:
            closed, shape = jax.make_jaxpr(block.function(), return_shape=True)(*values)
        except OverflowError as error:  # an index of 8 bits along a longer dim: JAX refuses it
            raise NoFit from error
        return evaluate(closed, values), isinstance(shape, list | tuple)
