"""Every difference between JAX versions, and every attribute of JAX that is not public. Tested on 0.10 and 0.12."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax.experimental import layout as jax_layout
from jax.experimental import xla_metadata
from jax.extend import core as jex
from jax.extend import source_info_util
from jax.extend.core import primitives
from jax.sharding import AbstractMesh, AxisType, Mesh
from jaxlib import xla_client

# JAX without its annotations, which are partial: pyright takes every attribute as Any.
untyped_jax: Any = jax
untyped_xla_client: Any = xla_client
FLOAT0 = str(np.dtype(untyped_jax.dtypes.float0))
"""How JAX writes the type of what has no derivative."""
# The traced function is called from this package: its frames are not the user's.
_PACKAGE = Path(__file__).parent
source_info_util.register_exclusion(f"{_PACKAGE}/")

_JAXPRS = (jex.Jaxpr, jex.ClosedJaxpr)
_FRAME = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(?::\d+)? \((?P<function>.*)\)$")
_LIBRARY = str(Path(jax.__file__).parent)
_current_trace: Any = untyped_jax.extend.core.find_top_trace
_NOTHING: AbstractContextManager[Any] = nullcontext()
_NO_MESH = Mesh(np.empty((), dtype=object), ())

COMPOSITE_BODY = "call_jaxpr" if issubclass(jex.ClosedJaxpr, jex.Jaxpr) else "jaxpr"
"""The parameter of a composite that holds its body; it changed its name when the two types became one."""


ADDS_STARTS = tuple(map(int, re.findall(r"\d+", untyped_jax.__version__)[:2])) < (0, 12)
"""Whether XLA makes one dynamic slice of two by adding starts that are not clamped yet; seen in 0.10, not in 0.12."""


def jax_version() -> str:
    """The version of JAX, as it names it."""
    return untyped_jax.__version__


def use_virtual_devices(count: int) -> None:
    """Has JAX make `count` CPU devices and use no others.

    Raises:
      RuntimeError: JAX has used devices already, and has others.
    """
    config: Any = untyped_jax.config
    if config.jax_platforms != "cpu":
        config.update("jax_platforms", "cpu")
    if config.jax_num_cpu_devices != count:
        config.update("jax_num_cpu_devices", count)


def lax_function(name: str, home: str) -> str | None:
    """How a function of jax.lax, or of jax.lax.linalg, is called in text that has `lax`; None if there is none."""
    module: Any = untyped_jax.lax.linalg if home == "lax.linalg" else untyped_jax.lax
    return f"{home}.{name}" if hasattr(module, name) else None


def is_type_of_lax(kind: type) -> bool:
    """Whether jax.lax makes this class public by its name."""
    return getattr(untyped_jax.lax, kind.__name__, None) is kind


def public_primitives() -> dict[str, Any]:
    """The primitives that JAX makes public, by their names in `jax.extend.core.primitives`."""
    return {name: getattr(primitives, name) for name in dir(primitives) if name.endswith("_p")}


def detects_cluster() -> bool:
    """Whether JAX finds the processes of a job by itself: of SLURM, Open MPI, Kubernetes or the host of a TPU.

    Every pod of Kubernetes looks like one to JAX; only one with an index can be.
    """
    known: Any = untyped_jax._src.clusters.ClusterEnv._cluster_types
    asked = [one for one in known if not one.opt_in_only_method]
    if "JOB_COMPLETION_INDEX" not in os.environ:
        asked = [one for one in asked if one.__name__ != "K8sCluster"]
    return any(one.is_env_present() for one in asked)


def backend_is_started() -> bool:
    """Whether JAX has devices already: too late to join other processes."""
    return bool(untyped_jax._src.xla_bridge.backends_are_initialized())


def open_jaxpr(jaxpr: Any) -> tuple[Any, tuple[Any, ...]]:
    """The jaxpr and the values of its constvars. From 0.12 on a Jaxpr holds its constants itself.

    Raises:
      ValueError: if the jaxpr has constvars and no values for them.
    """
    inner = jaxpr.jaxpr if hasattr(jaxpr, "jaxpr") else jaxpr
    consts = tuple(getattr(jaxpr, "consts", ()))
    if len(consts) != len(inner.constvars):
        raise ValueError(
            f"a jaxpr with {len(inner.constvars)} constvars came with {len(consts)} constants"
        )
    return inner, consts


def is_jaxpr(value: object) -> bool:
    """Whether `value` is a jaxpr, closed or open."""
    return isinstance(value, _JAXPRS)


def is_literal(atom: object) -> bool:
    """Whether an operand of an equation is a constant written in place."""
    return isinstance(atom, jex.Literal)


def is_tracer(value: object) -> bool:
    """Whether `value` is a placeholder of an enclosing trace, without a value of its own."""
    return isinstance(value, untyped_jax.core.Tracer)


def is_tracing() -> bool:
    """Whether a trace of JAX is under way: what is called becomes part of a function; no mesh is told."""
    return type(_current_trace(())).__name__ != "EvalTrace"


def is_mapped(value: object) -> bool:
    """Whether `value` has a value of its own for each element of the innermost `jax.vmap`."""
    return type(value).__name__ == "BatchTracer"


def computes_with(jaxpr: Any, told: Callable[[Any], bool]) -> bool:
    """Whether any value of a jaxpr, or of one within it, is of a type that `told` says so of."""
    inner = jaxpr.jaxpr if hasattr(jaxpr, "jaxpr") else jaxpr
    for eqn in inner.eqns:
        if any(told(var.aval) for var in eqn.outvars):
            return True
        params: list[Any] = list(eqn.params.values())
        members = [member for value in params for member in cast("Sequence[Any]", _several(value))]
        if any(computes_with(member, told) for member in members if is_jaxpr(member)):
            return True
    return False


def _several(value: Any) -> Any:
    return value if isinstance(value, tuple) else (value,)  # pyright: ignore[reportUnknownVariableType]


def is_reference(value: object) -> bool:
    """Whether `value` is a mutable reference, as `jax.new_ref` makes it."""
    return isinstance(value, untyped_jax.Ref)


def is_reference_type(aval: Any) -> bool:
    """Whether `aval` is the type of a reference, to memory of a kernel or to a mutable array."""
    return type(aval).__name__ == "AbstractRef"


def is_key_dtype(dtype: Any) -> bool:
    """Whether `dtype` is that of typed PRNG keys (key<fry>, ...)."""
    return not isinstance(dtype, np.dtype) and bool(
        untyped_jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
    )


def key_implementation(dtype: Any) -> Any:
    """The PRNG implementation of a key dtype: its functions seed, split, random_bits, fold_in and its key_shape."""
    return dtype._impl


def key_implementation_name(dtype: Any) -> str:
    """What `jax.random.wrap_key_data(..., impl=name)` takes for keys of this dtype."""
    return str(key_implementation(dtype).name)


def as_keys(value: Any, aval: Any) -> Any:
    """Data as the typed keys that `aval` says they are; other values as they are."""
    if not is_key_dtype(aval.dtype):
        return value
    return untyped_jax.random.wrap_key_data(value, impl=key_implementation_name(aval.dtype))


def key_data(value: Any) -> Any:
    """Typed keys as their data; other values as they are."""
    return untyped_jax.random.key_data(value) if is_key_dtype(value.dtype) else value


def defined_in_jax(jaxpr: Any) -> bool:
    """Whether the function that this jaxpr came from is part of JAX: its equations are not at the user's lines."""
    inner = jaxpr.jaxpr if hasattr(jaxpr, "jaxpr") else jaxpr
    return f" at {_LIBRARY}" in str(inner.debug_info.func_src_info)


def source_line(source_info: Any) -> str:
    """The innermost frame outside JAX and this package as "model.py:41 (loss)"; "" where there is none."""
    match = _FRAME.match(source_info_util.summarize(source_info))
    if match is None:
        return ""
    function = match["function"].rsplit("<locals>.", 1)[-1]
    return f"{Path(match['file']).name}:{match['line']} ({function})"


def calls_of_jax(source_info: Any) -> tuple[str, ...]:
    """The functions of JAX that an equation was made in, the innermost first, up to the user's own that called them.

    None of them if no function of the user's is known.
    """
    traceback = source_info.traceback
    found: list[str] = []
    for frame in () if traceback is None else traceback.frames:
        if not frame.file_name.startswith((f"{_PACKAGE}/", f"{_LIBRARY}/")):
            return tuple(found)
        found.append(frame.function_name.rpartition("<locals>.")[2])
    return ()


def empty_name_stack() -> Any:
    """The name stack of the outermost jaxpr; name stacks add up, outer + inner."""
    return source_info_util.new_name_stack()


def context_key(eqn: Any) -> object:
    """What of the context of an equation changes how random numbers are made."""
    return getattr(eqn.ctx, "threefry_partitionable", None)


def bind_params(primitive: Any, params: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments that `primitive.bind` takes for an equation's `params`."""
    return cast("dict[str, Any]", primitive.get_bind_params(params))


def user_line(error: BaseException) -> str:
    """Where `error` was raised, at the innermost frame outside JAX and this package: "model.py:41 (loss)", or ""."""
    found = ""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith((f"{_PACKAGE}/", f"{_LIBRARY}/")):
            found = f"{Path(code.co_filename).name}:{traceback.tb_lineno} ({code.co_name})"
        traceback = traceback.tb_next
    return found


def weakly_typed(value: Any) -> Any:
    """`value` with a weak type, as a Python number has, whose dtype gives way to that of an array."""
    convert: Any = primitives.convert_element_type_p
    return convert.bind(value, new_dtype=value.dtype, weak_type=True, sharding=None)


def mesh_of(eqn: Any) -> AbstractMesh | None:
    """The mesh in whose context an equation was traced; None if there was none."""
    mesh: AbstractMesh = eqn.ctx.cur_abstract_mesh
    return None if mesh.empty else mesh


def axes_by_hand() -> tuple[str, ...]:
    """The axes that an enclosing `jax.shard_map` or `jax.pmap` splits by hand."""
    return tuple(untyped_jax.sharding.get_abstract_mesh().manual_axes)


def without_mesh() -> AbstractContextManager[Any]:
    """A context without the mesh that the user may have set by `jax.set_mesh`.

    Its axes and its devices are two things to JAX; inside of a trace only the first can be taken away. Both are set
    together, so that there is nothing to do where the first is not.
    """
    if untyped_jax.sharding.get_abstract_mesh().empty:
        return _NOTHING
    if is_tracing():
        return untyped_jax.sharding.use_abstract_mesh(AbstractMesh((), ()))
    return untyped_jax.set_mesh(_NO_MESH)


def sparse_function(name: str) -> Callable[..., Any] | None:
    """What a primitive of jax.experimental.sparse is lowered to, which is written in JAX; None for others."""
    module = sys.modules.get(f"jax.experimental.sparse.{name.partition('_')[0]}")
    return getattr(module, f"_{name}_impl", None)


HIGH = ("call_hi_primitive", "call_hi_primitive_linearized")
"""The primitives of operators of higher level, which JAX has since 0.12."""


def high_function(eqn: Any) -> Callable[..., Any]:
    """What an operator of higher level is lowered to, which is written in JAX."""
    return partial(eqn.primitive.to_lojax, **eqn.params)


def call_primitive() -> Any:
    """The primitive that runs the closed jaxpr in its parameter `call_jaxpr`."""
    return primitives.closed_call_p


SLICE: Any = primitives.slice_p
PAD: Any = primitives.pad_p
ADD_ANY: Any = primitives.add_jaxvals_p
"""The primitives of `lax.slice`, of `lax.pad`, and of the sums of gradients."""


def remat_primitive() -> Any:
    """The primitive of `jax.checkpoint`; its parameters: jaxpr (open), prevent_cse, differentiated, policy."""
    return primitives.remat_p


def make_mesh(
    sizes: Sequence[int],
    names: Sequence[str],
    devices: Sequence[Any] | None = None,
    explicit: Collection[str] = (),
) -> Mesh:
    """A JAX mesh over `devices`, row-major and in the order given; None: the first that are there.

    The devices are not reordered: device i of the plan is `devices[i]`. Axes are Auto, but for the `explicit` ones.

    Raises:
      ValueError: if there are fewer devices than the mesh needs.
    """
    count = int(np.prod(tuple(sizes), dtype=np.int64))
    given: list[Any] = list(untyped_jax.devices() if devices is None else devices)
    if len(given) < count:
        raise ValueError(
            f"a mesh of sizes {tuple(sizes)} needs {count} devices, there are {len(given)}"
        )
    grid = np.array(given[:count], dtype=object).reshape(tuple(sizes))
    types = tuple(AxisType.Explicit if name in explicit else AxisType.Auto for name in names)
    return Mesh(grid, tuple(names), axis_types=types)


def shard_map(
    function: Callable[..., Any],
    mesh: Mesh | AbstractMesh,
    in_specs: Any,
    out_specs: Any,
    check_vma: bool = True,
) -> Callable[..., Any]:
    """`jax.shard_map` with every argument named."""
    return untyped_jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma
    )


def varying_axes(value: Any) -> frozenset[str]:
    """The mesh axes along which `value` may differ from device to device, as shard_map's check sees it."""
    return varying_axes_of(jax.typeof(value))


def varying_axes_of(aval: Any) -> frozenset[str]:
    """As `varying_axes`, of an abstract value."""
    manual = getattr(aval, "manual_axis_type", None)
    return frozenset(aval.vma if manual is None else manual.varying)


def pcast_varying(value: Any, axes: Iterable[str]) -> Any:
    """`value`, marked as varying over those of `axes` over which it is not yet; itself if there are none."""
    missing = tuple(sorted(frozenset(axes) - varying_axes(value)))
    return untyped_jax.lax.pcast(value, missing, to="varying") if missing else value


def single(value: Any, axes: Iterable[str]) -> Any:
    """`value`, marked as not varying over those of `axes`, of one device each, over which it varied.

    There is no cast for that; a collective of one device moves nothing.
    """
    named = tuple(sorted(frozenset(axes) & varying_axes(value)))
    reduce = untyped_jax.lax.pmax if value.dtype == bool else untyped_jax.lax.psum
    return reduce(value, named) if named else value


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """How many of a scan's operands are constants and how many are carried; the others are scanned over."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(tuple(consts)), len(tuple(carry))


def has_batching_rule(primitive: Any) -> bool:
    """Whether `jax.vmap` knows what to do with this primitive."""
    return primitive in untyped_jax.interpreters.batching.fancy_primitive_batchers


def callback_of(name: str, params: dict[str, Any]) -> Callable[..., Any]:
    """What an operator of the kind `name` calls on the host, with its operands as flat arguments."""
    return partial(_print_debug, params) if name == "debug_print" else params["callback"]


def _print_debug(params: dict[str, Any], *values: Any) -> None:
    """What `jax.debug.print` prints."""
    given = iter(values)
    static = dict(params["static_args"])
    leaves = [static[n] if n in static else next(given) for n in range(len(values) + len(static))]
    args, kwargs = untyped_jax.tree_util.tree_unflatten(params["in_tree"], leaves)
    options: Any = dict(params["np_printoptions"])
    with np.printoptions(**{name: options[name] for name in options if name != "override_repr"}):
        text = (
            params["fmt"].format(*args, **kwargs)
            if params["has_placeholders"] or args or kwargs
            else params["fmt"]
        )
        print(text)


def side_effects(holder: Any) -> list[Any]:
    """The effects of an equation or a jaxpr that reach out of the program; that it names a mesh axis is none."""
    return [effect for effect in holder.effects if type(effect).__name__ != "NamedAxisEffect"]


def is_ordered(eqn: Any) -> bool:
    """Whether the effects of an equation come in the order of the program."""
    return any("Ordered" in type(effect).__name__ for effect in eqn.effects)


def row_major(value: Any) -> Any:
    """`value`, which the compiler has to keep row-major; an array that has its values already is left as it is."""
    layout: Any = jax_layout
    return (
        layout.with_layout_constraint(value, layout.Layout(tuple(range(value.ndim))))
        if is_tracer(value)
        else value
    )


def function_of(jaxpr: Any) -> Callable[..., list[Any]]:
    """The function that evaluates a closed jaxpr on flat operands."""
    return partial(untyped_jax.core.eval_jaxpr, *open_jaxpr(jaxpr))


def with_shape(aval: Any, shape: tuple[int, ...]) -> Any:
    """An abstract array like `aval`, of another shape."""
    return untyped_jax.core.ShapedArray(shape, aval.dtype)


def program_text(function: Callable[..., Any], specs: Sequence[Any]) -> str:
    """`function` of arrays like `specs` as a StableHLO program for CPU, whatever the platform here."""
    traced = untyped_jax.jit(function, keep_unused=True).trace(*specs)
    return traced.lower(lowering_platforms=("cpu",)).as_text()


def run_text(text: str) -> Callable[[Sequence[Any]], list[np.ndarray[Any, Any]]]:
    """The function of a sequence of arrays that a StableHLO program for CPU is, compiled for the first CPU device."""
    device = untyped_jax.devices("cpu")[0]
    client: Any = device.client
    options = untyped_xla_client.CompileOptions()
    loaded = client.compile_and_load(text, untyped_xla_client.DeviceList((device,)), options)

    def run(operands: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        placed = [untyped_jax.device_put(operand, device) for operand in operands]
        return [
            np.asarray(shard)
            for (shard,) in loaded.execute_sharded(placed).disassemble_into_single_device_arrays()
        ]

    return run


_xla_metadata: Any = xla_metadata


@untyped_jax.jit
def _same(value: Any) -> Any:
    return value


def written(value: Any) -> Any:
    """`value`, which XLA's CPU compiler (JAX 0.10.2) writes to memory before anything reads it.

    It drops an `optimization_barrier` before it fuses; a function that is called and not inlined ends the kernels
    around it, and copies nothing. Not for other platforms, on which it was not tried.
    """
    with _xla_metadata.set_xla_metadata(inlineable="false"):
        return _same(value)


_nn: Any = untyped_jax._src.nn.functions
_cudnn: Any = untyped_jax._src.cudnn.fused_attention_stablehlo
_ATTENTION = _nn._dot_product_attention_xla
_PLANNED_CUDNN = 91300
"""The version of cuDNN that a machine for planning takes to be there: one that has all that JAX asks for."""


def attention_written_out() -> Callable[..., Any]:
    """What `jax.nn.dot_product_attention` comes to, of 4-dim arrays, where nobody asks for cuDNN."""
    return _ATTENTION


def attention_by(function: Callable[..., Any]) -> None:
    """From now on `jax.nn.dot_product_attention` calls `function` in place of `attention_written_out`.

    The function that JAX exports may be known under many names by then; this one it looks up whenever it is called.
    """
    _nn._dot_product_attention_xla = function


def plans_without_cudnn(is_planning: Callable[[], bool]) -> None:
    """From now on cuDNN's attention can be traced, while `is_planning()`, where there is no cuDNN.

    Its version and the device are asked about on the machine that traces, which need not be the one that runs.
    """
    version = _cudnn.check_cudnn_version
    capability = _cudnn.check_compute_capability

    def known_version() -> int:
        is_assumed = is_planning() and _cudnn.cuda_versions is None
        return _PLANNED_CUDNN if is_assumed else version()

    def can_compute(wanted: str) -> bool:
        return (is_planning() and _cudnn.cuda_versions is None) or capability(wanted)

    _cudnn.check_cudnn_version = known_version
    _cudnn.check_compute_capability = can_compute


def is_gpu_kernel(compiler_params: Any) -> bool:
    """Whether a kernel of Pallas with these parameters is for a GPU, which runs the points of its grid in any order."""
    module = type(compiler_params).__module__
    return ".triton" in module or ".mosaic_gpu" in module


def block_length(kind: Any) -> int | None:
    """How many elements a block of Pallas has along a dim; None where blocks need not lie one behind the other."""
    name = type(kind).__name__
    if name == "Squeezed":
        return 1
    return int(kind.block_size) if name == "Blocked" else None


def kernel_on_blocks(
    params: dict[str, Any], grid: Sequence[Any], shapes: Sequence[tuple[int, ...]], share: float
) -> dict[str, Any]:
    """The parameters of a `pallas_call` with another grid, on arrays of these shapes: operands, then results.

    It does `share` of the work that its author states.
    """
    mapping = params["grid_mapping"]
    blocks = [
        block.replace(array_aval=block.array_aval.update(shape=shape))
        for block, shape in zip(mapping.block_mappings, shapes, strict=True)
    ]

    outs = [
        aval.update(shape=shape)
        for aval, shape in zip(params["out_avals"], shapes[mapping.num_inputs :], strict=True)
    ]

    cost = params["cost_estimate"]
    changed = {
        "grid_mapping": mapping.replace(grid=tuple(grid), block_mappings=tuple(blocks)),
        "out_avals": tuple(outs),
    }

    if cost is not None:
        changed["cost_estimate"] = type(cost)(
            flops=round(cost.flops * share),
            transcendentals=round(cost.transcendentals * share),
            bytes_accessed=round(cost.bytes_accessed * share),
        )
    return {**params, **changed}
