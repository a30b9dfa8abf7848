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
# # A rule for an operator of your own
#
# autopar knows a rule for each of JAX's primitives. A rule says which dims of operands and results are the same
# index; strategies, prices and programs follow from it. This notebook writes one for L2 normalisation, as contrastive
# models apply it to every embedding:
#
# $$ y_{bd} = x_{bd} \\, / \\, \\sqrt{\\textstyle\\sum_d x_{bd}^2 + \\varepsilon} $$
#
# Rows are independent of one another: $b$ may be split. Along $d$ every result needs all of its row.

# %%
import jax
import jax.numpy as jnp

import autopar

jax.config.update("jax_num_cpu_devices", 8)  # eight virtual devices


def plain_normalize(x):
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-12)


# %% [markdown]
# ## The rule
#
# Names are indices, spaces stand between dims, commas between arrays. `...` are any leading dims. `frozen="d"` says
# that the index `d` is never split.

# %%
normalize = autopar.operator("... d -> ... d", frozen="d")(plain_normalize)


def contrast(weights, images, texts):
    """How far the embeddings of pairs are from each other, and from all others in the batch."""
    a, b = normalize(images @ weights["image"]), normalize(texts @ weights["text"])
    logits = 20.0 * a @ b.T
    return -jnp.mean(jnp.diagonal(jax.nn.log_softmax(logits)))


def shape(*dims):
    return jax.ShapeDtypeStruct(dims, jnp.bfloat16)


weights = {"image": shape(1024, 768), "text": shape(768, 768)}
shapes = weights, shape(32768, 1024), shape(32768, 768)
kept = autopar.SearchOptions(operators="kept")
plan = autopar.plan(
    jax.value_and_grad(contrast), *shapes, cluster="8xh100", mesh={"x": 8}, options=kept
)
plan

# %% [markdown]
# The operator is in the plan under its own name, forwards and backwards: the rule of its gradient follows from ours.

# %%
for row in plan.summary.operators:
    if "normalize" in row.kind:
        print(f"{row.phase:9} {row.kind:32} {' '.join(row.ins)} -> {' '.join(row.outs)}")

# %% [markdown]
# ## Is one operator better than its parts?
#
# Without `operators="kept"` a function is planned both ways, as one operator and expanded, and the better plan is
# kept.

# %%
expanded = autopar.plan(
    jax.value_and_grad(contrast),
    *shapes,
    cluster="8xh100",
    mesh={"x": 8},
    options=autopar.SearchOptions(operators="expanded"),
)
autopar.compare(plan, expanded)

# %% [markdown]
# ## Does it compute the same?
#
# A wrong rule would give wrong numbers. On virtual devices the planned program stands beside plain JAX.

# %%
keys = jax.random.split(jax.random.key(0), 4)
small = {
    "image": jax.random.normal(keys[0], (64, 32)),
    "text": jax.random.normal(keys[1], (48, 32)),
}
images, texts = jax.random.normal(keys[2], (64, 64)), jax.random.normal(keys[3], (64, 48))
step = autopar.compile(jax.value_and_grad(contrast), mesh={"x": 8}, cluster="cpu8", options=kept)
value, grads = step(small, images, texts)
expected, expected_grads = jax.value_and_grad(contrast)(small, images, texts)
print(f"planned {value:.6f}, plain {expected:.6f}")
print({name: bool(jnp.allclose(grads[name], expected_grads[name], atol=1e-4)) for name in grads})

# %% [markdown]
# `autopar.operators.l2_normalize` ships the same. A primitive that is not made of JAX's own takes its rule by
# `autopar.register_rule`.
