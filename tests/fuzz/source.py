"""A drawn program as lines of Python: what is printed is what runs, and what is made small line by line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from autopar.core.mesh import DeviceMesh

NAME = re.compile(r"\b[apv]\d+\b")
INDENT = "    "


@dataclass(frozen=True)
class Var:
    """A variable: `a0` an argument of the program, `p0` a parameter of an inner function, `v0` a result of a line."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def kind(self) -> str:
        """f, i, u or b."""
        return np.dtype(self.dtype).kind

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def type(self) -> tuple[tuple[int, ...], str]:
        return self.shape, self.dtype

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Line:
    """`outs = text`, after the definitions of the inner functions that the text names.

    `unpacks` says that the text gives a sequence, of one perhaps.
    """

    outs: tuple[Var, ...]
    text: str
    bodies: tuple[Block, ...] = ()
    unpacks: bool = False

    @property
    def target(self) -> str:
        """What stands left of the equals sign."""
        return "".join(f"{v.name}, " for v in self.outs)[:-1] if self.unpacks else self.outs[0].name

    @property
    def reads(self) -> set[str]:
        """The variables read, those that its functions take from around them included."""
        return set(NAME.findall(self.text)).union(*(body.free for body in self.bodies))

    def renamed(self, old: str, new: str) -> Line:
        """The line with every reading of `old` replaced by one of `new`."""
        text = NAME.sub(lambda m: new if m[0] == old else m[0], self.text)
        return replace(
            self, text=text, bodies=tuple(body.renamed(old, new) for body in self.bodies)
        )


@dataclass(frozen=True)
class Block:
    """A function: parameters, lines, and what it returns (an expression of its variables)."""

    name: str
    params: tuple[Var, ...]
    lines: tuple[Line, ...]
    result: str

    @property
    def free(self) -> set[str]:
        """The variables that it takes from around it."""
        made = {v.name for v in self.params}.union(
            *({v.name for v in line.outs} for line in self.lines)
        )
        read = set(NAME.findall(self.result)).union(*(line.reads for line in self.lines))
        return read - made

    def renamed(self, old: str, new: str) -> Block:
        result = NAME.sub(lambda m: new if m[0] == old else m[0], self.result)
        return replace(
            self, lines=tuple(line.renamed(old, new) for line in self.lines), result=result
        )

    def without_dead_lines(self) -> Block:
        """Only what the result depends on; parameters stay."""
        needed = set(NAME.findall(self.result))
        kept: list[Line] = []
        for line in reversed(self.lines):
            if needed.intersection(v.name for v in line.outs):
                bodies = tuple(body.without_dead_lines() for body in line.bodies)
                kept.append(replace(line, bodies=bodies))
                needed |= kept[-1].reads
        return replace(self, lines=tuple(reversed(kept)))

    def render(self) -> Iterator[str]:
        yield f"def {self.name}({', '.join(v.name for v in self.params)}):"
        for line in self.lines:
            for body in line.bodies:
                yield from (INDENT + text for text in body.render())
            types = ", ".join(f"{v.dtype}{list(v.shape)}" for v in line.outs)
            yield f"{INDENT}{line.target} = {line.text}  # {types}"
        yield f"{INDENT}return {self.result}"

    def function(self, around: dict[str, Any] | None = None) -> Callable[..., Any]:
        """The Python function; `around` holds the values of its free variables."""
        namespace: dict[str, Any] = {"jax": jax, "jnp": jnp, "lax": lax, "np": np} | (around or {})
        exec("\n".join(self.render()), namespace)
        return namespace[self.name]


@dataclass(frozen=True, eq=False)
class Program:
    """A block without free variables, the values of its parameters, and the mesh that its shard_maps are for."""

    block: Block
    values: dict[str, np.ndarray]
    mesh: DeviceMesh

    @property
    def args(self) -> tuple[np.ndarray, ...]:
        return tuple(self.values[v.name] for v in self.block.params)

    @property
    def size(self) -> int:
        """The number of lines, those of inner functions included."""
        return _count(self.block)

    def __str__(self) -> str:
        params = [f"# {v.name}: {v.dtype}{list(v.shape)}" for v in self.block.params]
        return "\n".join([*params, *self.block.render()])


def _count(block: Block) -> int:
    return sum(1 + sum(map(_count, line.bodies)) for line in block.lines)
