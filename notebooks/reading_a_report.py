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
# # Reading a report
#
# A plan says what it is, how fast, beside what, and how sure it is of that. We read one, from the first line down to
# a single weight. The model is a Llama of four layers, trained with Adam on one server of eight H100.

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


# %%
plan = autopar.plan(
    train_step, *arguments(4, 16, 4096), cluster="8xh100", mesh={"gpu": 8}, donate_argnums=0
)
print(plan.report())

# %% [markdown]
# * **layout** is the plan in the field's words, told from where its arrays lie.
# * **speed**: tokens a second, and MFU: the share of the step that products of matrices take at the devices' peak.
# * **instead**: what data parallelism, FSDP and Megatron would cost on the same devices, or that they do not fit.
# * **step time** has a standard error. It comes of how far off the cluster's numbers may be.
# * **quality** is proven: no plan in the space that was searched is better by more than that.
# * **Layers** that are alike are one row, and so are a parameter and its moments.
#
# ## Where does the time go?

# %%
import matplotlib.pyplot as plt

rows = plan.summary.blocks
figure, axes = plt.subplots(figsize=(8, 3))
names = [f"{row.name or 'other'}, {row.phase} ({row.count})" for row in rows]
compute = [1e3 * row.compute_s for row in rows]
axes.barh(names, compute, color="tab:blue", label="computing")
exposed = [1e3 * row.exposed_s for row in rows]
axes.barh(names, exposed, left=compute, color="tab:orange", label="communication that shows")
axes.invert_yaxis()
axes.set_xlabel("ms a step")
axes.margins(x=0.05)
axes.legend(loc="lower right")
axes.spines[["top", "right"]].set_visible(False)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Why does this weight lie there?
#
# `explain` follows an input through casts and slices to whoever reads it. It names the collectives that move it, and
# the next best placement with its price.

# %%
print(plan.explain("state['params']['layers']['up']"))

# %% [markdown]
# ## What lies in memory at the peak?

# %%
print(plan.report(compare=False, details=["memory"]).partition("Memory")[2])

# %% [markdown]
# The same figures are typed records: `plan.summary`, `plan.collectives`, `plan.placements`.
# `plan.timeline().save(...)` writes the step for Perfetto. Next: [what the fastest plan depends
# on](trade_offs.ipynb).
