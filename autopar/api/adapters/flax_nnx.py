"""flax.nnx: modules, optimizers, metrics, generators of random numbers and variables, mutable as under `nnx.jit`.

All objects of a call are one graph, so what several of them share (tied weights, the parameters of a model and its
optimizer) is one array. A call may change variables, add new ones or change the structure: the objects follow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from types import MethodType
from typing import Any, cast

from autopar._compat import untyped_jax
from autopar.api.adapters.protocol import Args, CallParts, Keeps, Kwargs, Opened, named_leaves
from autopar.trace.returned import Leaves, Returned, held_leaves, put_back

tree: Any = untyped_jax.tree
tree_util: Any = untyped_jax.tree_util

_OUTER = "autopar's call"
_INNER = "autopar's function"


@dataclass(frozen=True)
class Definition:
    """An object without its arrays: its graph, the structure of its state, the types of what is static in it.

    To the library graphs are equal whose static values are, and 1 is equal to True.
    """

    graph: Any
    state: Any
    types: tuple[Any, ...]


@dataclass(frozen=True)
class Source:
    """Where an array of an object is: the nth "held" by the arguments before, "changed", or "own" of the result."""

    kind: str
    number: int


@dataclass(frozen=True)
class KnownObjects:
    """What is known of the objects that a call leaves behind, in its arguments and in its result."""

    arguments: tuple[tuple[Definition, tuple[Source, ...]], ...]
    results: tuple[tuple[Definition, tuple[Source, ...]], ...]


class Nnx:
    """The adapter."""

    library = "flax.nnx"

    def is_object(self, value: Any) -> bool:
        """Whether `value` is a node of a graph or a variable."""
        return _is_object(value)

    def as_function(self, fn: Callable[..., Any]) -> CallParts | None:
        """The method of a module's class, with the module as its first argument."""
        if isinstance(fn, MethodType) and _is_object(fn.__self__):
            return CallParts(fn.__func__, (fn.__self__,), {})
        return CallParts(type(fn).__call__, (fn,), {}) if _is_object(fn) else None

    @contextmanager
    def open(self, parts: CallParts, keeps: Keeps) -> Generator[Opened]:
        """As the protocol says."""
        nnx = _nnx()
        with nnx.update_context(_OUTER):
            named = named_leaves(parts.fn, parts.args, parts.kwargs, _is_object)
            names = tuple(name for name, value in named if _is_object(value))
            with nnx.split_context(_OUTER) as context:
                arguments, definitions = _split_all(context, (parts.args, parts.kwargs))
            args, kwargs = arguments
            function = _NnxFunction(parts.fn, definitions, names, keeps)
            yield Opened(CallParts(function, args, kwargs), (definitions, names), _close, _shapes)


class _NnxFunction:
    """A function of arrays: makes objects of them, calls the user's function, and tells what became of the objects."""

    def __init__(
        self,
        fn: Callable[..., Any],
        definitions: Sequence[Definition],
        names: Sequence[str],
        keeps: Keeps,
    ) -> None:
        self._fn = fn
        self._definitions = definitions
        self._names = names
        self._keeps = keeps
        update_wrapper(self, fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Returned:
        nnx = _nnx()
        holders = held_leaves((args, kwargs))
        with nnx.update_context(_INNER):
            with nnx.merge_context(_INNER, True) as context:
                objects = [
                    context.merge(definition.graph, tree.unflatten(definition.state, holder.values))
                    for definition, holder in zip(self._definitions, holders, strict=True)
                ]
            args, kwargs = put_back((args, kwargs), iter(objects))
            result = self._fn(*args, **kwargs)
            with nnx.split_context(_INNER) as context:
                after, definitions = _split_all(context, objects)
                result, of_result = _split_all(context, result)

        return self._returned(holders, after, definitions, result, of_result)

    def _returned(
        self,
        before: Sequence[Leaves],
        after: Sequence[Leaves],
        definitions: Sequence[Definition],
        result: Any,
        of_result: Sequence[Definition],
    ) -> Returned:
        found = _Sources(before, [self._keeps(name) for name in self._names])
        for name, leaves in zip(self._names, after, strict=True):
            found.changed(name, leaves)

        arguments = [
            (definition, found.of(leaves))
            for definition, leaves in zip(definitions, after, strict=True)
        ]
        own = held_leaves(result)
        results = [
            (definition, found.of(leaves))
            for definition, leaves in zip(of_result, own, strict=True)
        ]
        result = put_back(result, iter([found.new(leaves) for leaves in own]))
        return Returned(result, found.leaves, KnownObjects(tuple(arguments), tuple(results)))


class _Sources:
    """Tells arrays that are held by the arguments from those that were changed. Arrays are told by identity."""

    def __init__(self, before: Sequence[Leaves], keeps: Sequence[bool]) -> None:
        arrays = [
            (value, kept)
            for leaves, kept in zip(before, keeps, strict=True)
            for value in leaves.values
        ]
        self._arrays = [value for value, _ in arrays]
        self._held = {id(value): n for n, (value, kept) in enumerate(arrays) if kept}
        self._changed: dict[int, int] = {}
        self.leaves = Leaves((), ())

    def changed(self, argument: str, leaves: Leaves) -> None:
        """Notes those arrays of an argument that were not there before, under their names."""
        for name, value in zip(leaves.names, leaves.values, strict=True):
            if id(value) not in self._held and id(value) not in self._changed:
                self._changed[id(value)] = len(self.leaves.values)
                self.leaves = Leaves(
                    (*self.leaves.names, f".{argument}{name}"), (*self.leaves.values, value)
                )

    def of(self, leaves: Leaves) -> tuple[Source, ...]:
        """Where each array of an object is."""
        own = iter(range(len(leaves.values)))
        return tuple(self._source(value) or Source("own", next(own)) for value in leaves.values)

    def new(self, leaves: Leaves) -> Leaves:
        """The arrays of an object in the result that are nowhere else."""
        pairs = [
            pair
            for pair in zip(leaves.names, leaves.values, strict=True)
            if self._source(pair[1]) is None
        ]
        return Leaves([name for name, _ in pairs], [value for _, value in pairs])

    def _source(self, value: Any) -> Source | None:
        if id(value) in self._held:
            return Source("held", self._held[id(value)])
        return Source("changed", self._changed[id(value)]) if id(value) in self._changed else None


def _close(returned: Returned, args: Args, kwargs: Kwargs) -> Any:
    """Changes the objects among the arguments of the call; its result, with objects."""
    known: KnownObjects = returned.known
    holders = held_leaves((args, kwargs))
    place = {
        "held": [value for leaves in holders for value in leaves.values],
        "changed": returned.changed.values,
    }
    own = held_leaves(returned.result)
    with _nnx().merge_context(_OUTER, False) as context:
        for definition, sources in known.arguments:
            _merge(context, definition, sources, place)
        objects: list[Any] = []
        for (definition, sources), leaves in zip(known.results, own, strict=True):
            place["own"] = leaves.values
            objects.append(_merge(context, definition, sources, place))

    return put_back(returned.result, iter(objects))


def _shapes(returned: Returned, args: Args, kwargs: Kwargs) -> Any:
    """The result for shapes: objects in it are new ones, and hold shapes."""
    known: KnownObjects = returned.known
    held = [value for leaves in held_leaves((args, kwargs)) for value in leaves.values]
    place = {"held": held, "changed": returned.changed.values}
    objects: list[Any] = []
    with _nnx().merge_context(None, None) as context:
        for definition, sources in known.arguments:  # to which those in the result may refer
            _merge(context, definition, sources, place)
        for (definition, sources), leaves in zip(
            known.results, held_leaves(returned.result), strict=True
        ):
            place["own"] = leaves.values
            objects.append(_merge(context, definition, sources, place))

    return put_back(returned.result, iter(objects))


def _split_all(context: Any, structure: Any) -> tuple[Any, tuple[Definition, ...]]:
    """`structure` with Leaves for its objects, and what these are without their arrays."""
    definitions: list[Definition] = []

    def split(value: Any) -> Any:
        if not _is_object(value):
            return value
        graph, state = context.split(value)
        keyed, state_structure = tree_util.tree_flatten_with_path(state)
        definitions.append(Definition(graph, state_structure, _static_types(graph)))
        return Leaves([_name(path) for path, _ in keyed], [leaf for _, leaf in keyed])

    return tree.map(split, structure, is_leaf=_is_object), tuple(definitions)


def _static_types(graph: Any) -> tuple[Any, ...]:
    """The types of the attributes of a graph's objects, and of what describes its variables."""
    attributes = [
        _type(attribute.value) for _, attribute in graph.attributes if hasattr(attribute, "value")
    ]
    described = [
        _type(node.metadata)
        for node in graph.nodes
        if isinstance(getattr(node, "metadata", None), Mapping)
    ]
    return (*attributes, *described)


def _type(value: Any) -> Any:
    """The type of `value`, or those of its elements."""
    elements: Any = (
        (*cast("Mapping[Any, Any]", value).values(),) if isinstance(value, Mapping) else value
    )
    if isinstance(elements, tuple | list):
        return tuple(map(_type, cast("Sequence[Any]", elements)))
    return cast("Any", type(elements))


def _merge(
    context: Any,
    definition: Definition,
    sources: Sequence[Source],
    place: Mapping[str, Sequence[Any]],
) -> Any:
    """An object of the arrays that `sources` name, each by its place and its number there."""
    values = [place[source.kind][source.number] for source in sources]
    return context.merge(definition.graph, tree.unflatten(definition.state, values))


def _name(path: Sequence[Any]) -> str:
    """The path of a state's array as one reaches it from the object: ".layers[0].kernel"."""
    keys = [key.key if isinstance(key, tree_util.DictKey) else key for key in path]
    if keys and isinstance(keys[-1], tree_util.GetAttrKey) and keys[-1].name == "value":
        keys = keys[:-1]
    return "".join(map(_key, keys))


def _key(key: Any) -> str:
    if isinstance(key, str):
        return f".{key}"
    return f"[{key}]" if isinstance(key, int) else str(key)


def _is_object(value: Any) -> bool:
    nnx = _nnx()
    return isinstance(value, nnx.Variable) or bool(nnx.graph.is_graph_node(value))


def _nnx() -> Any:
    return sys.modules["flax.nnx"]
