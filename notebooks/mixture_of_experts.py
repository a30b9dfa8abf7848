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
# # Mixture of experts
#
# A layer with experts sends each token to a few of many products. Who holds which expert, and how do tokens get
# there? Nobody says so here: the model is plain JAX, and the plan decides.

# %%
import jax
import jax.numpy as jnp

import autopar

jax.config.update("jax_platforms", "cpu")  # shapes only: nothing is computed anywhere
WIDTH, HIDDEN, EXPERTS, VOCABULARY = 2048, 8192, 16, 32_768
CAPACITY = 1.25  # of an expert, times its fair share of the tokens of a row


def routed(x, gate):
    """For each token of a row its expert and its place there, as the masks that dispatch and combine."""
    capacity = int(CAPACITY * x.shape[1] / EXPERTS)
    probability = jax.nn.softmax((x @ gate).astype(jnp.float32))
    expert = jax.nn.one_hot(jnp.argmax(probability, -1), EXPERTS)
    place = (jnp.cumsum(expert, axis=1) * expert).sum(-1).astype(jnp.int32) - 1
    dispatch = expert[..., None] * jax.nn.one_hot(place, capacity)[..., None, :]
    weight = (probability * expert).sum(-1)
    return dispatch.astype(x.dtype), (dispatch * weight[..., None, None]).astype(x.dtype)


def experts(x, p):
    dispatch, combine = routed(x, p["gate"])
    tokens = jnp.einsum("bsec,bsd->ebcd", dispatch, x)
    hidden = jax.nn.gelu(jnp.einsum("ebcd,edh->ebch", tokens, p["up"]))
    return jnp.einsum("bsec,ebcd->bsd", combine, jnp.einsum("ebch,ehd->ebcd", hidden, p["down"]))


def loss_fn(params, tokens, targets):
    x = params["tokens"][tokens]
    x, _ = jax.lax.scan(lambda x, p: (x + experts(x, p), None), x, params["layers"])
    logp = jax.nn.log_softmax((x @ params["head"]).astype(jnp.float32))
    return -jnp.take_along_axis(logp, targets[..., None], axis=-1).mean()


def train_step(params, tokens, targets):
    loss, grads = jax.value_and_grad(loss_fn)(params, tokens, targets)
    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), loss


def shape(*dims, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(dims, dtype)


LAYERS = 4
params = {
    "tokens": shape(VOCABULARY, WIDTH),
    "layers": {
        "gate": shape(LAYERS, WIDTH, EXPERTS),
        "up": shape(LAYERS, EXPERTS, WIDTH, HIDDEN),
        "down": shape(LAYERS, EXPERTS, HIDDEN, WIDTH),
    },
    "head": shape(WIDTH, VOCABULARY),
}
tokens = shape(64, 1024, dtype=jnp.int32)

# %% [markdown]
# ## The plan
#
# Only one product in sixteen runs for a token, but all experts lie in memory, and all of their gradients are summed.

# %%
session = autopar.explore(
    train_step, params, tokens, tokens, cluster="8xh100", mesh={"gpu": 8}, donate_argnums=0
)
session

# %%
for name in ("gate", "up", "down"):
    path = f"params['layers']['{name}']"
    print(f"{path:26} {session.plan.placements[path]}")

# %% [markdown]
# ## What moves the tokens?

# %%
from collections import Counter

amounts = Counter()
for row in session.plan.collectives:
    amounts[row.role, row.kind] += row.runs * row.size_bytes / 2**20
for (role, kind), size in amounts.most_common():
    print(f"{role:16} {kind:16} {size:8,.0f} MiB a device")

# %% [markdown]
# ## What if every device held the first product of all experts?
#
# Then these are not split by experts, and their gradients are summed over all devices.

# %%
session.forbid("params['layers']['up']", "gpu")

# %% [markdown]
# ## And if links were a tenth as fast?

# %%
session.undo()
session.links(0.1)
