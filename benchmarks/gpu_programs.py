"""Training steps for GPUs in shape only, and H100s to compile them for, which need not be there.

Needs the CUDA plugins of JAX (the extra `gpu-aot`), whose compiler runs on any x86-64 or Arm host with Linux. Neither a
driver nor CUDA has to be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from autopar.emit.measure import use_virtual_devices
from autopar.emit.several import in_order
from benchmarks import models, shapes, sparse_models
from benchmarks.models import Model, Split, Tree
from benchmarks.tpu_programs import arguments

TARGET = Path(__file__).with_name("h100_sxm.textproto")
PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
MISSING = (
    "this benchmark needs JAX's plugin for CUDA, which is not installed: pip install --no-deps "
    "jax-cuda12-plugin=={version} jax-cuda12-pjrt=={version}, or '.[gpu-aot]' (0.8 GB). No GPU and no CUDA is needed."
)
TOPOLOGIES = {"8xh100-xla": "1x1x8", "8x8xh100-xla": "1x8x8"}
"""By cluster: slices, hosts, devices of a host."""
COMPILER_OPTIONS = {
    "xla_gpu_collect_cost_model_stats": True,  # estimates beside the kernels: see `gpu_kernels`
    "xla_gpu_enable_triton_gemm": False,  # nothing is tuned without a device, and its default tiles are too small
}


def sized(name: str, devices: int) -> tuple[Model, tuple[Any, ...]]:
    """A model in shape only, whose batch grows with the devices, and its step's arguments: bfloat16, and of the Llama
    float32, which computes in bfloat16. Nothing drops out: to draw random numbers would take long to compile.
    """
    model = MODELS[name](devices // 8)
    return model, (model.state, *model.batch) if name == "llama" else arguments(model)


def mlp(more: int) -> Model:
    """Products that the tensor cores are busy with."""
    return models.mlp((4096, 16384, 4096), batch=16384 * more, drawn=False)


def gpt(more: int) -> Model:
    """One layer between embeddings and a head."""
    size = {"width": 1024, "heads": 8, "vocab": 32768, "sequence": 1024}
    return models.gpt(1, **size, batch=64 * more, rate=0, drawn=False)


def llama(more: int, layers: int = 8) -> Model:
    """`shapes.llama`, layers scanned and rematerialised. By hand: Megatron's columns and rows.

    Each head has keys of its own, as in Llama 2: where two heads share them, products are emitted whose results have
    these two as their last dim, and the compiler's transposes of them would take most of the step.
    """
    heads = 16
    sizes = {"kv_heads": heads, "vocab": 32768, "sequence": 2048, "batch": 32 * more}
    made = shapes.llama(layers, 2048, 5632, heads, **sizes)
    state, *batch = made.args
    stacks = (("blocks", layers, shapes.llama_block),)

    def loss(
        params: Tree, key: jax.Array, _split: Split, tokens: jax.Array, targets: jax.Array
    ) -> jax.Array:
        return shapes.decoder_loss(stacks, params, key, tokens, targets)

    def spec(path: tuple[str, ...], _array: Any) -> P:
        return MEGATRON.get(path[-1], P())

    size = f"{layers} scanned layers, width 2048, 2048 tokens, batch {32 * more}, remat, Adam"
    return Model("Llama", size, loss, state["params"], tuple(batch), spec, "adam")


MEGATRON: Mapping[str, P] = {
    "tokens": P("model"),
    "head": P(None, "model"),
    "query": P(None, None, "model"),
    "key": P(None, None, "model"),
    "value": P(None, None, "model"),
    "out": P(None, "model"),
    "gate": P(None, None, "model"),
    "up": P(None, None, "model"),
    "down": P(None, "model"),
}


def cnn(more: int) -> Model:
    """Convolutions."""
    return models.cnn((16, 64, 128), classes=1024, image=32, batch=512 * more, drawn=False)


def experts(more: int) -> Model:
    """A mixture of experts, GShard's."""
    return sparse_models.experts(
        16, 1024, 2048, groups=64 * more, tokens=256, classes=1024, drawn=False
    )


def attention(more: int, heads: int = 16, width: int = 2048, tokens: int = 2048) -> Model:
    """Causal attention written out, between its four products, SGD. By hand: heads on the model axis."""
    names = ("query", "key", "value", "out")
    params = {name: models.dense_init(models.generator(False), width, width) for name in names}
    x = jax.ShapeDtypeStruct((64 * more, tokens, width), jnp.float32)

    def loss(params: Tree, key: jax.Array, split: Split, x: jax.Array, y: jax.Array) -> jax.Array:
        q, k, v = (
            split(models.dense(params[name], x), "data", None, "model") for name in names[:3]
        )
        mixed = models.attention(q, k, v, key, heads, rate=0)
        made = split(models.dense(params["out"], mixed), "data")
        return jnp.mean(jnp.square((made - y).astype(jnp.float32)))

    def spec(path: tuple[str, ...], array: Any) -> P:
        if path[-2] == "out":
            return P("model", None) if len(array.shape) > 1 else P()
        return P(*[None] * (len(array.shape) - 1), "model")

    size = f"{heads} heads, width {width}, {tokens} tokens, batch {64 * more}, SGD"
    return Model("attention", size, loss, params, (x, x), spec, "sgd")


MODELS: Mapping[str, Callable[[int], Model]] = {
    "mlp": mlp,
    "gpt": gpt,
    "llama": llama,
    "cnn": cnn,
    "experts": experts,
    "attention": attention,
}


def gpu_devices(cluster: str) -> tuple[Any, ...]:
    """The H100s of a cluster of `TOPOLOGIES`, host by host.

    Raises:
      SystemExit: if no plugin is installed; the message says what to install.
    """
    if not any(map(find_spec, PLUGINS)):
        raise SystemExit(MISSING.format(version=jax.__version__))
    use_virtual_devices(1)
    from jax.experimental import topologies

    found = topologies.get_topology_desc(
        platform="cuda",
        topology_name="h100",
        topology=TOPOLOGIES[cluster],
        target_config=TARGET.read_text(encoding="utf-8"),
    )
    return in_order(found.devices)
