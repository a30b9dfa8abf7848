"""Dispatch: a call goes to the runner that its arguments fit, at little more than the time of JAX's own dispatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autopar.api.call import read_call
from autopar.api.runner import Runner

Find = Callable[[tuple[Any, ...], dict[str, Any]], Runner]


class Dispatch:
    """Calls of one compiled function.

    Arguments are flattened once. A runner of calls of the same kind is tried by the types of its arguments; `find`
    makes, or finds by the whole signature, one for calls that fit none.
    """

    def __init__(self, static_argnums: int | Sequence[int], find: Find) -> None:
        self._static_argnums = static_argnums
        self._find = find
        self._runners: dict[object, list[Runner]] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results of the function for these arguments."""
        call = read_call(args, kwargs, self._static_argnums)
        for runner in self._runners.get(call.kind, ()):
            misplaced = runner.misplaced(call.leaves)
            if misplaced is not None:
                return runner.run(call.leaves, misplaced)
        runner = self._find(args, kwargs)
        misplaced = runner.misplaced(call.leaves)
        assert misplaced is not None, "found for arguments of these types"
        self._runners.setdefault(call.kind, []).append(runner)
        return runner.run(call.leaves, misplaced)
