# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From one GPU to 512
#
# One training step, planned for 1, 8, 64 and 512 H100, each with two rows of 4,096 tokens a device. Which parallelism
# wins where, and what does a device keep of its speed? Nothing of that runs here: a plan needs shapes and a profile.

# %%
import jax
import jax.numpy as jnp

import autopar

jax.config.update("jax_platforms", "cpu")  # shapes only: nothing is computed anywhere
WIDTH, HIDDEN, HEADS, VOCABULARY = 4096, 14_336, 32, 32_768


def norm(x, scale):
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def layer(x, p):
    y = norm(x, p["n1"])
    q, k, v = ((y @ p[name]).reshape(*x.shape[:2], HEADS, -1) for name in ("q", "k", "v"))
    attended = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
    x = x + attended.reshape(x.shape) @ p["out"]
    y = norm(x, p["n2"])
    return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]


def loss_fn(params, tokens, targets):
    x = params["tokens"][tokens]
    x, _ = jax.lax.scan(lambda x, p: (jax.checkpoint(layer)(x, p), None), x, params["layers"])
    logits = norm(x, params["norm"]) @ params["head"]
    logp = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(logp, targets[..., None], axis=-1).mean()


def train_step(state, tokens, targets):
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], tokens, targets)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * jnp.square(g), state["v"], grads)
    params = jax.tree.map(
        lambda p, m, v: (p - 1e-4 * m / (jnp.sqrt(v) + 1e-8)).astype(p.dtype),
        state["params"],
        m,
        v,
    )
    return {"params": params, "m": m, "v": v}, loss


def shape(*dims, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(dims, dtype)


def arguments(layers, rows, sequence):
    """Shapes of the training state, and of the tokens of a step."""
    square, wide, tall = (
        shape(layers, *dims) for dims in ((WIDTH, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
    )
    params = {
        "tokens": shape(VOCABULARY, WIDTH),
        "layers": {
            **dict.fromkeys(("q", "k", "v", "out"), square),
            **dict.fromkeys(("gate", "up"), wide),
            **dict.fromkeys(("n1", "n2"), shape(layers, WIDTH)),
            "down": tall,
        },
        "norm": shape(WIDTH),
        "head": shape(WIDTH, VOCABULARY),
    }
    moments = jax.tree.map(lambda leaf: shape(*leaf.shape, dtype=jnp.float32), params)
    tokens = shape(rows, sequence, dtype=jnp.int32)
    return {"params": params, "m": moments, "v": moments}, tokens, tokens


# %% [markdown]
# ## The plans
#
# Eight layers of a Llama 8B, because every layer is like the other. The more devices, the longer the axis `server`
# over InfiniBand.

# %%
MESHES = {
    1: ("1xh100", {"gpu": 1}),
    8: ("8xh100", {"gpu": 8}),
    64: ("8x8xh100", {"server": 8, "gpu": 8}),
    512: ("64x8xh100", {"server": 64, "gpu": 8}),
}
plans = {
    devices: autopar.plan(
        train_step,
        *arguments(8, 2 * devices, 4096),
        cluster=cluster,
        mesh=mesh,
        donate_argnums=0,
    )
    for devices, (cluster, mesh) in MESHES.items()
}

for devices, plan in plans.items():
    report = plan.summary
    tokens = report.throughput.tokens / report.step_time_s / devices
    print(
        f"{devices:4} GPUs  {1e3 * report.step_time_s:6.0f} ms a step  {tokens:7,.0f} tokens/s a GPU"
        f"  MFU {report.utilisation:.0%}  peak {report.peak_memory_bytes / 2**30:4.1f} GiB  gap {report.gap:.1%}"
    )
    print(f"           {report.parallelism or 'everything on one device'}")

# %% [markdown]
# ## What is communicated, and what shows

# %%
import matplotlib.pyplot as plt

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
labels = [str(devices) for devices in plans]
parts = {
    "computing": [1e3 * p.compute_time_s for p in plans.values()],
    "communication that shows": [1e3 * p.summary.exposed_time_s for p in plans.values()],
}
bottom = [0.0] * len(plans)
for name, heights in parts.items():
    left.bar(labels, heights, bottom=bottom, label=name)
    bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
left.set_ylabel("ms a step")
left.set_ylim(0, 1.35 * max(bottom))
left.legend(loc="upper left")
right.bar(labels, [p.peak_memory_bytes / 2**30 for p in plans.values()], color="tab:green")
right.set_ylabel("GiB at the peak of a device")
for axes in (left, right):
    axes.set_xlabel("GPUs")
    axes.spines[["top", "right"]].set_visible(False)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Across servers
#
# The axis `server` costs more than `gpu`. What crosses it, and in which role?

# %%
for devices in (64, 512):
    across = [row for row in plans[devices].collectives if "server" in row.axes]
    size = sum(row.runs * row.size_bytes for row in across) / 2**20
    kinds = sorted({f"{row.role} {row.kind}" for row in across})
    print(f"{devices:4} GPUs: {size:,.0f} MiB a device in {', '.join(kinds)}")
