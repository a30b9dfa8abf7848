"""Source: rows of arrays in memory, and what is asked of the elements of any source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from autopar._compat import untyped_jax
from autopar.errors import DataError


class Rows:
    """Arrays in memory as a source: element i is row i of each array in a pytree, such as {"x": ..., "y": ...}.

    Raises:
      DataError: no arrays, an array without rows, or arrays of different numbers of rows; names them.
    """

    def __init__(self, arrays: Any) -> None:
        named, self._tree = untyped_jax.tree_util.tree_flatten_with_path(arrays)
        self._arrays = [np.asarray(array) for _, array in named]
        lengths = {
            f"arrays{untyped_jax.tree_util.keystr(path)}": array.shape[:1]
            for (path, _), array in zip(named, self._arrays, strict=True)
        }
        if len(set(lengths.values())) != 1 or () in lengths.values():
            shown = ", ".join(f"{name} {n[0] if n else 'none'}" for name, n in lengths.items())
            raise DataError(
                f"Rows: every array has to have as many rows, in its first dim; there are {shown or 'no arrays'}"
            )

    def __len__(self) -> int:
        return len(self._arrays[0])

    def __getitem__(self, index: int) -> Any:
        return untyped_jax.tree_util.tree_unflatten(
            self._tree, [array[index] for array in self._arrays]
        )


@dataclass(frozen=True)
class Element:
    """What an element has to be: the arguments called `names`, each of the structure of its `example`.

    In order of their leaves: what each is called, its shape without the dim of the batch, its dtype in the plan, and
    those dtypes that JAX takes for it.
    """

    names: tuple[str, ...]
    example: tuple[Any, ...]
    leaves: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]
    accepted: tuple[frozenset[np.dtype[Any]], ...]

    def arrays(self, element: Any) -> tuple[np.ndarray[Any, Any], ...]:
        """The leaves of an element as arrays of the plan's dtypes.

        Raises:
          DataError: for another structure, shape or dtype; names the first that differs.
        """
        values, tree = untyped_jax.tree_util.tree_flatten(self._arguments(element))
        if tree != self._tree:
            raise DataError(self._other_structure(element))

        arrays = tuple(np.asarray(value) for value in values)
        for n, array in enumerate(arrays):
            if array.shape != self.shapes[n] or array.dtype not in self.accepted[n]:
                raise DataError(
                    f"an element of the source has {self.leaves[n]} as {array.dtype}{list(array.shape)}, the plan "
                    f"takes {_show(self.dtypes[n], self.shapes[n])} of each row. Convert it by a map in transforms, "
                    f"or plan for what the source has."
                )

        return tuple(
            array.astype(dtype, copy=False)
            for array, dtype in zip(arrays, self.dtypes, strict=True)
        )

    @cached_property
    def _tree(self) -> Any:
        """The structure of all arguments; made from the example, as not every structure can be pickled."""
        return untyped_jax.tree_util.tree_structure(self.example)

    def _arguments(self, element: Any) -> tuple[Any, ...]:
        """An element's arguments: by name, in order, or the only one itself."""
        if self._is_by_name(element):
            missing = [name for name in self.names if name not in element]
            others = [str(name) for name in element if name not in self.names]
            if missing or others:
                raise DataError(
                    f"an element of the source has {_listed(map(str, element))}, the loader is for "
                    f"{_listed(self.names)}: missing {_listed(missing)}, too many {_listed(others)}. "
                    f"Rename or drop them by a map in transforms."
                )
            return tuple(element[name] for name in self.names)

        if len(self.names) == 1:
            return (element,)

        parts: Any = element if issubclass(type(element), tuple | list) else ()
        if len(parts) != len(self.names):
            shown = f"{len(parts)} parts" if parts else f"a {type(element).__name__}"
            raise DataError(
                f"an element of the source is {shown}, the loader is for {_listed(self.names)}: an element has to be "
                f"a dict by these names, or a tuple of as many parts in this order"
            )
        return tuple(parts)

    def _is_by_name(self, element: Any) -> bool:
        """Whether an element holds arguments by name; the only one may be a dict itself."""
        if not isinstance(element, Mapping):
            return False
        return len(self.names) > 1 or set(cast("Mapping[str, Any]", element)) == set(self.names)

    def _other_structure(self, element: Any) -> str:
        found = dict(zip(self.leaves, self.shapes, strict=True))
        paths, tree = untyped_jax.tree_util.tree_flatten_with_path(self._arguments(element))
        given = {leaf_name(self.names, path) for path, _ in paths}
        missing = [name for name in found if name not in given]
        others = sorted(given - set(found))

        if not missing and not others:
            return (
                f"an element of the source is of structure {tree}, the plan has {self._tree} there"
            )
        return (
            f"an element of the source lacks {_listed(missing)} and has {_listed(others)} beside what the plan takes: "
            f"{_listed(found)}. Rename or drop them by a map in transforms."
        )


def leaf_name(names: Sequence[str], path: Sequence[Any]) -> str:
    """What a leaf of a tuple of arguments is called: `images`, or `batch['x']`."""
    return names[path[0].idx] + untyped_jax.tree_util.keystr(tuple(path[1:]))


def _listed(names: Any) -> str:
    return ", ".join(names) or "nothing"


def _show(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"{dtype}{list(shape)}"
