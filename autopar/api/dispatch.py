"""Dispatch: a call goes to the runner that its arguments fit, at little more than the time of JAX's own dispatch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from autopar.api.call import Call, is_sharded, put_back, read_call
from autopar.api.runner import Runner
from autopar.api.settings import Settings
from autopar.errors import MovedWarning, users_level

Find = Callable[[tuple[Any, ...], dict[str, Any]], Runner]
UNKNOWN: Any = object()
"""In the place of results: no runner is known for such a call."""


class Dispatch:
    """Calls of one compiled function, which is called `name`.

    Arguments are flattened once. A runner of calls of the same kind is tried by the types of its arguments; `find`
    makes, or finds by the whole signature, one for calls that fit none. It `tells` the user of arrays that are moved.
    """

    def __init__(self, name: str, settings: Settings, find: Find, *, tells: bool = True) -> None:
        self._name = name
        self._static_argnums = settings.static_argnums
        self._keeps = settings.shardings == "keep"
        self._find = find
        self._runners: dict[object, list[Runner]] = {}
        self._has_told = not tells

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results of the function for these arguments."""
        result = self.attempt(args, kwargs)
        if result is not UNKNOWN:
            return result
        call = read_call(args, kwargs, self._static_argnums)
        return self._run(*self._fitting(call, args, kwargs), call.leaves)

    def attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same, if there was a call that they fit; else UNKNOWN."""
        call = read_call(args, kwargs, self._static_argnums)
        found = self._known(call)
        if found is None:
            return UNKNOWN
        runner, misplaced = found
        return self._run(runner, misplaced, call.leaves) if misplaced else runner.run(call.leaves)

    def in_place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, those moved that do not lie in place."""
        call = read_call(args, kwargs, self._static_argnums)
        runner, misplaced = self._fitting(call, args, kwargs)
        return put_back(call, runner.in_place(call.leaves, misplaced)) if misplaced else (args, kwargs)

    def _fitting(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Runner, list[int]]:
        """The runner for a call, and which of its arguments do not lie in place."""
        found = self._known(call)
        if found is not None:
            return found
        runner = self._find(args, kwargs)
        misplaced = runner.misplaced(call.leaves)
        assert misplaced is not None, "found for arguments of these types"
        self._runners.setdefault(call.kind, []).append(runner)
        return runner, misplaced

    def _known(self, call: Call) -> tuple[Runner, list[int]] | None:
        for runner in self._runners.get(call.kind, ()):
            misplaced = runner.misplaced(call.leaves)
            if misplaced is not None and (not misplaced or self._may_move(call.leaves, misplaced)):
                return runner, misplaced
        return None

    def _run(self, runner: Runner, misplaced: Sequence[int], leaves: Sequence[Any]) -> Any:
        if misplaced and not self._has_told:
            self._tell(runner, leaves, runner.moved(leaves, misplaced))
        return runner.run(leaves, misplaced)

    def _may_move(self, leaves: Sequence[Any], misplaced: Sequence[int]) -> bool:
        return not (self._keeps and any(is_sharded(leaves[n]) for n in misplaced))

    def _tell(self, runner: Runner, leaves: Sequence[Any], moved: Sequence[int]) -> None:
        """Warns, the first time that there are any, of arrays that are moved."""
        if not moved:
            return
        self._has_told = True
        count = f"{len(moved)} arrays" if len(moved) > 1 else "an array"
        size = sum(leaves[n].nbytes for n in moved)
        warnings.warn(
            f"{self._name}: {count} of {size:,} bytes came in sharded otherwise than planned and had to be moved "
            f"({runner.show_move(moved[0], leaves[moved[0]])}), as will those of later calls, of which nothing is "
            f"said. Put them there by plan.place, follow the plan whose results they are (follow=), or plan for where "
            f"they lie (shardings='keep').",
            MovedWarning,
            stacklevel=users_level(),
        )
