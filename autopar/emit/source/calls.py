"""Calls: one operator as a call of a function of jax.lax, as a sum, or, where there is no such function, by `bind`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autopar._compat import lax_function
from autopar.emit.source.layout import Text, call, flat, sequence
from autopar.emit.source.values import dtype_text, public_name, value_text
from autopar.errors import SourceError

_OPERATORS = {"add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/"}
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_LONGEST = 60
"""An operator with longer operands is written as a call, which can be broken."""
CASTING = frozenset({*_OPERATORS, *_COMPARED, "max", "min", "pow", "rem"})
"""The operators of two operands whose functions mark a number as varying where the other operand does."""
_LAX_NAMES = {
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not",
    "scatter-add": "scatter_add", "scatter-max": "scatter_max", "scatter-min": "scatter_min",
    "scatter-mul": "scatter_mul", "scatter-sub": "scatter_sub", "add_any": "add",
}  # fmt: skip
_SCATTER = "dimension_numbers indices_are_sorted unique_indices mode"
_KEYWORDS: dict[str, str] = {
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"), "axes"),
    **dict.fromkeys(("reduce_and", "reduce_or", "reduce_xor"), "axes"),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), "axis reverse"),
    **dict.fromkeys(("scatter", "scatter-add", "scatter-max", "scatter-min"), _SCATTER),
    **dict.fromkeys(("scatter-mul", "scatter-sub"), _SCATTER),
    "bitcast_convert_type": "new_dtype",
    "broadcast_in_dim": "shape broadcast_dimensions",
    "conv_general_dilated": "window_strides padding lhs_dilation rhs_dilation dimension_numbers "
    "feature_group_count batch_group_count precision preferred_element_type",
    "convert_element_type": "new_dtype",
    "dot_general": "dimension_numbers precision preferred_element_type",
    "empty": "shape dtype",
    "lu_pivots_to_permutation": "permutation_size",
    "ormqr": "left transpose",
    "ragged_dot_general": "ragged_dot_dimension_numbers precision preferred_element_type",
    "symmetric_product": "alpha beta",
    "tile": "reps",
    "unstack": "axis",
    "gather": "dimension_numbers slice_sizes indices_are_sorted unique_indices mode fill_value",
    "integer_pow": "y",
    "pad": "padding_config",
    "reduce_precision": "exponent_bits mantissa_bits",
    "reshape": "new_sizes dimensions",
    "rev": "dimensions",
    "round": "rounding_method",
    "slice": "start_indices limit_indices strides",
    "split": "sizes axis",
    "squeeze": "dimensions",
    "transpose": "permutation",
}
"""The parameters of an operator that its function in jax.lax takes by the same names."""
_PLACES = frozenset({"out_sharding", "sharding"})
"""Parameters that say how a result lies on axes that are not split by hand: in a shard_map there are none."""
_OPTIONAL = frozenset(
    {"precision", "preferred_element_type", "dimensions", "strides", "fill_value", "mode"}
)
"""Those that are left out where they are None."""
_OF_LINALG = frozenset(
    {"cholesky_update", "lu_pivots_to_permutation", "ormqr", "symmetric_product"}
)
_UNLISTED = frozenset({"cholesky_update", "mulhi"})
"""Operators without parameters that JAX has functions for, but no public primitives."""
_WITHIN = frozenset({"update_jaxpr", "update_consts"})
"""Parameters that say how a scatter combines, as the name of its function does."""


@dataclass(frozen=True)
class Application:
    """An operator with its operands as text; `is_array` says which of them are arrays of the program."""

    primitive: Any
    operands: Sequence[Text]
    params: Mapping[str, Any]
    dtypes: Sequence[Any]
    is_array: Sequence[bool]

    @property
    def name(self) -> str:
        """What JAX calls the operator."""
        return self.primitive.name


def application_text(this: Application) -> Text:
    """The operator as an expression: its result, or the sequence of its results.

    Raises:
      SourceError: it is an operator that JAX does not make public, or has a parameter without text.
    """
    written = _as_operator(this)
    if written is None and this.name in _SPECIAL:
        written = _SPECIAL[this.name](this)
    if written is None:
        written = _by_keywords(this)
    return _by_bind(this) if written is None else written


def _as_operator(this: Application) -> Text | None:
    """`a + b`, where that is what JAX makes of it: of numbers that are no booleans, one of them at least an array."""
    sign = _COMPARED.get(this.name) or _OPERATORS.get(this.name)
    if sign is None or not any(this.is_array) or _says_more(this.params, ()):
        return None
    if any(np.dtype(dtype).kind == "b" for dtype in this.dtypes):
        return None
    if sign == "/" and np.dtype(this.dtypes[0]).kind in "iu":
        return None
    left, right = map(flat, this.operands)
    return f"{left} {sign} {right}" if len(left) + len(right) <= _LONGEST else None


def _by_keywords(this: Application) -> Text | None:
    """A call of the function of jax.lax that takes the operands in order and the parameters by name."""
    name = _LAX_NAMES.get(this.name, this.name)
    names = _KEYWORDS.get(this.name, "").split()
    called = lax_function(name, "lax.linalg" if this.name in _OF_LINALG else "lax")
    within = () if this.name == "scatter" else _WITHIN
    if called is None:
        return None

    if _says_more(this.params, (*names, *within)):
        return None
    if this.name not in _KEYWORDS and not _is_of_jax(this):
        return None
    named = {
        key: dtype_text(given) if isinstance(given, np.dtype) else value_text(given)
        for key in names
        if not ((given := this.params[key]) is None and key in _OPTIONAL)
    }
    return call(called, *this.operands, **named)


def _is_of_jax(this: Application) -> bool:
    """Whether it is an operator of JAX's with one result; a user's own may be called as one."""
    is_own = (
        type(this.primitive).__module__.startswith("jax") and not this.primitive.multiple_results
    )
    if lax_function(this.name, "lax.linalg"):  # functions that put their operands in order first
        return this.name in _UNLISTED
    return public_name(this.primitive) is not None or (is_own and this.name in _UNLISTED)


def _says_more(params: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether any parameter but those in `names` says something."""
    return any(
        not (value is None or value is False or (isinstance(value, tuple) and not value))
        for name, value in params.items()
        if name not in names and name not in _PLACES
    )


def _by_bind(this: Application) -> Text:
    name = public_name(this.primitive)
    if name is None:
        raise SourceError(
            f"operator {this.name!r} is none of JAX's public ones (jax.extend.core.primitives): "
            f"a module that imports JAX alone cannot name it"
        )
    named = {
        key: "None" if key in _PLACES else value_text(value) for key, value in this.params.items()
    }
    return call(f"primitives.{name}.bind", *this.operands, **named)


# Functions that take other arguments than the operator has ------------------------------------------------------------


def _collective(name: str, **fixed: str) -> Callable[[Application], Text | None]:
    """A collective of jax.lax; `fixed` are arguments, by name, of what a parameter is called, or text in quotes."""

    def write(this: Application) -> Text | None:
        params = this.params
        axes = params["axes"] if "axes" in params else params["axis_name"]
        if params.get("axis_index_groups") is not None:
            return None
        if any(isinstance(axis, int) for axis in axes):
            return None
        named: dict[str, Text] = {
            key: given if given[0] == '"' else value_text(params[given])
            for key, given in fixed.items()
        }
        return call(f"lax.{name}", *this.operands, value_text(tuple(axes)), **named)

    return write


def _all_to_all(this: Application) -> Text | None:
    params = this.params
    if params.get("axis_index_groups") is not None:
        return None
    axes = params["axis_name"]
    named = {name: value_text(params[name]) for name in ("split_axis", "concat_axis", "tiled")}
    return call("lax.all_to_all", *this.operands, value_text(axes), **named)


def _axis_index(this: Application) -> Text:
    return call("lax.axis_index", value_text(this.params["axis_name"]))


def _extremum(this: Application) -> Text:
    (axis,) = this.params["axes"]
    kind = dtype_text(this.params["index_dtype"])
    return call(f"lax.{this.name}", *this.operands, str(axis), kind)


def _of_list(name: str, parameter: str) -> Callable[[Application], Text]:
    def write(this: Application) -> Text:
        place = value_text(this.params[parameter])
        return call(f"lax.{name}", sequence(this.operands, "[]"), place)

    return write


def _sort(this: Application) -> Text:
    params = this.params
    named = {name: value_text(params[name]) for name in ("dimension", "is_stable", "num_keys")}
    return call("lax.sort", sequence(this.operands), **named)


def _barrier(this: Application) -> Text:
    return call("lax.optimization_barrier", sequence(this.operands))


def _iota(this: Application) -> Text | None:
    params = this.params
    if this.operands:
        return None
    shape = value_text(params["shape"])
    return call(
        "lax.broadcasted_iota", dtype_text(params["dtype"]), shape, str(params["dimension"])
    )


def _dynamic_slice(this: Application) -> Text:
    value, *starts = this.operands
    sizes = value_text(this.params["slice_sizes"])
    return call("lax.dynamic_slice", value, sequence(starts), sizes, allow_negative_indices="False")


def _dynamic_update_slice(this: Application) -> Text:
    value, update, *starts = this.operands
    start = sequence(starts)
    return call("lax.dynamic_update_slice", value, update, start, allow_negative_indices="False")


def _layout(this: Application) -> Text:
    order = this.params["layout"].major_to_minor
    made = call("Layout", value_text(tuple(order)))
    return call("with_layout_constraint", *this.operands, made)


def _put(this: Application) -> Text | None:
    (device,) = this.params["devices"]
    kind = type(device).__name__
    return (
        call("jax.device_put", *this.operands, f"jax.memory.Space.{device.name}")
        if kind == "Space"
        else None
    )


def _key_data(this: Application) -> Text:
    return call("jax.random.key_data", *this.operands)


def _wrapped_key(this: Application) -> Text:
    implementation = value_text(str(this.params["impl"].name))
    return call("jax.random.wrap_key_data", *this.operands, impl=implementation)


def _pcast(this: Application) -> Text:
    axes = value_text(tuple(this.params["axes"]))
    return call("lax.pcast", *this.operands, axes, to='"varying"')


def _empty(this: Application) -> Text | None:
    """A number in device memory that is not read: what stands for the residuals of the branches that are not taken."""
    if this.params["memory_space"].name != "Device":
        return None
    return call("lax.empty", "()", dtype_text(this.params["dtype"]))


def _polynomial(this: Application) -> Text:
    value, *coefficients = this.operands
    named: dict[str, Text] = {key: value_text(given) for key, given in this.params.items()}
    return call("lax.polynomial", value, sequence(coefficients), **named)


def _row_numbers(this: Application) -> Text:
    return call("row_numbers", value_text(tuple(this.params["shape"])))


_SPECIAL: dict[str, Callable[[Application], Text | None]] = {
    **dict.fromkeys(("argmax", "argmin"), _extremum),
    **{name: _collective(name) for name in ("psum", "pmax", "pmin")},
    "all_gather": _collective("all_gather", axis="all_gather_dimension", tiled="tiled"),
    "all_gather_invariant": _collective(
        "all_gather", axis="all_gather_dimension", tiled="tiled", to='"invarying"'
    ),
    "all_to_all": _all_to_all,
    "axis_index": _axis_index,
    "concatenate": _of_list("concatenate", "dimension"),
    "device_put": _put,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "empty2": _empty,
    "iota": _iota,
    "iota_2x32_shape": _row_numbers,
    "layout_constraint": _layout,
    "optimization_barrier": _barrier,
    "polynomial": _polynomial,
    "ppermute": _collective("ppermute", perm="perm"),
    "psum_invariant": _collective("psum"),
    "pvary": _pcast,
    "random_unwrap": _key_data,
    "random_wrap": _wrapped_key,
    "reduce_scatter": _collective(
        "psum_scatter", scatter_dimension="scatter_dimension", tiled="tiled"
    ),
    "sort": _sort,
    "stack": _of_list("stack", "axis"),
}
