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
# # What the fastest plan depends on
#
# autopar plans a training step for a cluster that need not be there: it needs shapes, a profile of the hardware, and
# no accelerator. So questions about a cluster can be asked before it is bought or booked:
#
# * How should this model be split, and how long does a step take, on each of three clusters?
# * Which **mesh shape** is best?
# * When does the **network between servers** begin to hurt, and what does the plan do about it?
# * What does it cost to live with **less memory**?
#
# All times here are *predictions* of a cost model: peak arithmetic and vendor bandwidths (every number has its source
# in `cost_models/profiles`). Real programs reach a part of the peak, so read them as "this against that", not as
# promises.

# %%
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import autopar
from autopar.errors import NoFeasiblePlan, Unsolved
from autopar.search.task import SearchOptions
from autopar.solve import SolveOptions
from cost_models import load_cluster, replace_link

jax.config.update("jax_platforms", "cpu")  # shapes only: nothing is computed anywhere
plan_step = partial(
    autopar.plan, donate_argnums=(0,)
)  # the new training state takes the memory of the old one
plt.rcParams.update(
    {"figure.figsize": (9, 3.6), "axes.spines.top": False, "axes.spines.right": False}
)

# %% [markdown]
# ## The model
#
# Layers of GPT-3 XL (1.3 billion parameters: 24 layers, width 2048, 16 heads of 128), with its vocabulary of 50,304
# (padded) and 2,048 tokens a sequence, trained with Adam. Plain JAX: it knows of no devices. We take 2 of the 24
# layers, because every layer is like the other; planning time grows about as the number of layers does.
#
# `jax.eval_shape` gives the shapes of the training state without allocating it.

# %%
LAYERS, WIDTH, HEADS, VOCABULARY, SEQUENCE = 2, 2048, 16, 50_304, 2_048


def initial_state(layers):
    def dense(m, n):
        return {"w": jnp.zeros((m, n)), "b": jnp.zeros(n)}

    def norm():
        return {"scale": jnp.ones(WIDTH), "shift": jnp.zeros(WIDTH)}

    def block():
        kernels = {name: dense(WIDTH, WIDTH) for name in ("query", "key", "value", "out")}
        return {
            **kernels,
            "up": dense(WIDTH, 4 * WIDTH),
            "down": dense(4 * WIDTH, WIDTH),
            "n1": norm(),
            "n2": norm(),
        }

    params = {
        "tokens": jnp.zeros((VOCABULARY, WIDTH)),
        "positions": jnp.zeros((SEQUENCE, WIDTH)),
        "blocks": [block() for _ in range(layers)],
        "norm": norm(),
        "head": jnp.zeros((WIDTH, VOCABULARY)),
    }
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"params": params, "m": zeros, "v": zeros, "count": jnp.zeros((), jnp.int32)}


def layer_norm(p, x):
    centred = x - x.mean(-1, keepdims=True)
    return (
        centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p["scale"]
        + p["shift"]
    )


def linear(p, x):
    return x @ p["w"] + p["b"]


def transformer_block(p, x):
    normed = layer_norm(p["n1"], x)
    q, k, v = (
        linear(p[name], normed).reshape(*x.shape[:2], HEADS, -1)
        for name in ("query", "key", "value")
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    x = x + linear(p["out"], jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape))
    return x + linear(p["down"], jax.nn.gelu(linear(p["up"], layer_norm(p["n2"], x))))


def loss_fn(params, tokens, targets):
    x = params["tokens"][tokens] + params["positions"]
    for block in params["blocks"]:
        x = transformer_block(block, x)
    logits = layer_norm(params["norm"], x) @ params["head"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1).mean()


def train_step(state, tokens, targets):
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], tokens, targets)
    count = state["count"] + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, state["v"], grads)
    rate = 2e-4 * jnp.sqrt(1 - 0.95**count) / (1 - 0.9**count)
    params = jax.tree.map(
        lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), state["params"], m, v
    )
    return {"params": params, "m": m, "v": v, "count": count}, loss


def arguments(batch, layers=LAYERS):
    tokens = jax.ShapeDtypeStruct((batch, SEQUENCE), jnp.int32)
    return jax.eval_shape(partial(initial_state, layers)), tokens, tokens


count = sum(leaf.size for leaf in jax.tree.leaves(arguments(8)[0]["params"]))
print(
    f"{count / 1e6:.0f} million parameters, {12 * count / 1e9:.1f} GB with Adam's moments in float32"
)


# %% [markdown]
# ## Three clusters, and the shape of the mesh
#
# One server of eight H100s on NVLink; eight such servers on InfiniBand; sixteen TPU v5e chips in a 4x4 grid. Every
# device gets one sequence. `autopar.plan(..., mesh=None)` would try the sensible mesh shapes itself; here we name
# them, to see what each is worth. The first axis of a mesh is the outermost: with 64 GPUs as 8x8 it runs across
# servers.


# %%
def show_mesh(plan):
    return " x ".join(str(size) for size in plan.mesh.sizes)


MESHES = {
    "8xh100": ({"device": 8}, {"data": 2, "model": 4}),
    "8x8xh100": ({"device": 64}, {"server": 8, "device": 8}),
    "tpu-v5e-4x4": ({"device": 16}, {"y": 4, "x": 4}),
}
plans = {}
for cluster, meshes in MESHES.items():
    batch = load_cluster(cluster).device_count
    for mesh in meshes:
        plan = plan_step(train_step, *arguments(batch), cluster=cluster, mesh=mesh)
        plans[cluster, show_mesh(plan)] = plan

print(
    f"{'cluster':12} {'mesh':>6} {'step':>9} {'computing':>10} {'moving':>9} {'peak':>8}  {'gap':>5}"
)
for (cluster, mesh), plan in plans.items():
    times = (1e3 * t for t in (plan.step_time_s, plan.compute_time_s, plan.communication_time_s))
    step, compute, moving = (f"{t:.2f} ms" for t in times)
    print(
        f"{cluster:12} {mesh:>6} {step:>9} {compute:>10} {moving:>9}"
        f" {plan.peak_memory_bytes / 1e9:5.2f} GB {plan.gap:6.1%}"
    )

# %% [markdown]
# The *gap* says how far the plan may at most be from the best one for its mesh, under the cost model: it is proven,
# not estimated. Computing is about the same for every shape, as all devices work all the time; the shapes differ in
# what they have to move. Where does that go? Every collective of a plan has a **role**: *forward* and *backward* sum
# partial results, *mirror* combines the gradients of parameters (what data parallelism does), *redistribution*
# changes how a tensor is laid out, gathering a split parameter before it is used among them.

# %%
ROLES = {
    "forward": "tab:blue",
    "backward": "tab:orange",
    "mirror": "tab:green",
    "redistribution": "tab:red",
}


def time_of_roles(plan):
    """Milliseconds of the collectives of every role."""
    found = defaultdict(float)
    for row in plan.collectives:
        found[row.role] += 1e3 * row.time_s
    return [found[role] for role in ROLES]


def plot_roles(axes, positions, plans, width=0.6):
    bottoms = [0.0] * len(plans)
    by_role = zip(*map(time_of_roles, plans), strict=True)
    for (role, color), heights in zip(ROLES.items(), by_role, strict=True):
        axes.bar(positions, heights, width, bottom=bottoms, color=color, label=role)
        bottoms = [a + b for a, b in zip(bottoms, heights, strict=True)]


figure, axes = plt.subplots()
plot_roles(axes, range(len(plans)), list(plans.values()))
axes.set_xticks(range(len(plans)), [f"{cluster}\n{mesh}" for cluster, mesh in plans], fontsize=8)
axes.set_ylabel("ms a step in collectives")
axes.set_title("What each role of collectives costs, by cluster and mesh")
axes.legend()
plt.show()

# %% [markdown]
# ## A plan from the inside
#
# A plan is an explicit program. `report()` tabulates it; `program()` lists it, collectives included: what was priced
# is what runs. Each value has its placement in brackets: the mesh axes that split each of its dims, `-` for none,
# then what is still to be summed.

# %%
server = plans["8xh100", "2 x 4"]
print("\n".join(line[:118] for line in str(server.program()).splitlines()[:14]))

# %% [markdown]
# `explain` says where one input lies and which collectives touch it, and why:

# %%
print(server.explain("state['params']['head']"))

# %% [markdown]
# Two meshes, two programs. Their collectives, counted (`plan.diff(other)` tells everything that differs):

# %%
for mesh in ("8", "2 x 4"):
    counted = Counter((row.kind, "*".join(row.axes)) for row in plans["8xh100", mesh].collectives)
    print(
        f"{mesh:6}",
        ", ".join(f"{n} {kind} over {axes}" for (kind, axes), n in counted.most_common()),
    )

# %% [markdown]
# ## The link between servers
#
# 64 GPUs in eight servers, each GPU with its own network card of 50 GB/s, so 400 GB/s for a server. What if the
# network were slower, or as fast as NVLink? `replace_link` changes one number of a cluster; each point is planned
# anew.

# %%
cluster = load_cluster("8x8xh100")
BANDWIDTHS = (0.5e9, 5e9, 12.5e9, 50e9, 450e9)  # of one GPU
swept = [
    plan_step(
        train_step,
        *arguments(64),
        cluster=replace_link(cluster, "server", bandwidth_bytes_per_s=8 * bandwidth),
        mesh={"server": 8, "device": 8},
    )
    for bandwidth in BANDWIDTHS
]
print(
    f"{'GB/s':>5} {'step':>10} {'computing':>10} {'moving':>9} {'peak':>9} {'gap':>6}   across servers"
)
for bandwidth, plan in zip(BANDWIDTHS, swept, strict=True):
    across = [row for row in plan.collectives if "server" in row.axes]
    size = sum(row.size_bytes for row in across) / 1e6
    step, compute, moving = (
        1e3 * t for t in (plan.step_time_s, plan.compute_time_s, plan.communication_time_s)
    )
    print(
        f"{bandwidth / 1e9:5.1f} {step:7.2f} ms {compute:7.2f} ms {moving:6.2f} ms"
        f" {plan.peak_memory_bytes / 1e9:6.2f} GB {plan.gap:6.1%}   {len(across)} collectives, {size:.0f} MB"
    )

figure, (left, right) = plt.subplots(1, 2)
left.loglog(
    [b / 1e9 for b in BANDWIDTHS], [1e3 * plan.step_time_s for plan in swept], "o-", label="step"
)
left.loglog(
    [b / 1e9 for b in BANDWIDTHS],
    [1e3 * plan.compute_time_s for plan in swept],
    "--",
    label="computing",
)
left.axvline(50, color="0.8")
left.set_xlabel("GB/s from each GPU to other servers")
left.set_ylabel("ms a step")
left.legend()
plot_roles(right, range(len(swept)), swept)
right.set_xticks(range(len(swept)), [f"{b / 1e9:g}" for b in BANDWIDTHS])
right.set_xlabel("GB/s from each GPU to other servers")
right.set_ylabel("ms a step in collectives")
right.legend(fontsize=7)
figure.tight_layout()
plt.show()

# %% [markdown]
# Two things to take away. Beyond a point a faster network buys little: the step is bound by computing. And with a
# slower one the plan does not just wait longer, it changes. At the slow end it gives up on splitting over servers
# altogether: each of them computes the same, in about seven times the time and memory, because that is faster than
# waiting for the network. A plan tuned by hand for one cluster is not the plan for another.

# %% [markdown]
# ## Time against memory
#
# The fastest plan is not the smallest. `memory_limit_bytes` bounds the peak of one device, and the solver finds the
# fastest plan under it. One layer on one server; data parallelism, which keeps the whole state on every device, for
# comparison. The search under a limit is work: `SolveOptions` trades some of the proof (a larger gap) for time.

# %%
quick = SearchOptions(solve=SolveOptions(cp_sat_work=0.3, max_sweeps=10, anneal_passes=10))
plan_one = partial(
    plan_step,
    train_step,
    *arguments(8, layers=1),
    cluster="8xh100",
    mesh={"device": 8},
    options=quick,
)
data_parallel = plan_one(mode="data_parallel")
free = plan_one()
points = {"data parallel": data_parallel, "no limit": free}
for limit_gb in (0.97, 0.94):
    limit = int(limit_gb * free.peak_memory_bytes)
    points[f"{limit_gb:.0%} of it"] = plan_one(memory_limit_bytes=limit)

for name, plan in points.items():
    print(
        f"{name:14} peak {plan.peak_memory_bytes / 1e9:.2f} GB, step {1e3 * plan.step_time_s:.2f} ms, at most"
        f" {plan.gap:.1%} from the best"
    )

# %% [markdown]
# Below some limit nothing fits, and autopar says so instead of returning a plan that would run out of memory. It
# names the smallest peak it found, what lies in memory then, and whether it is proven (`NoFeasiblePlan`) or not known
# (`Unsolved`) that there is no plan:

# %%
try:
    keep_all = replace(quick, recompute="never")  # every activation is kept: quicker to prove
    plan_one(memory_limit_bytes=free.peak_memory_bytes // 2, options=keep_all)
except (NoFeasiblePlan, Unsolved) as error:
    print(str(error).replace(". ", ".\n"))

# %%
figure, axes = plt.subplots()
axes.plot(
    [plan.peak_memory_bytes / 1e9 for plan in list(points.values())[1:]],
    [1e3 * plan.step_time_s for plan in list(points.values())[1:]],
    "o-",
)
axes.plot(
    data_parallel.peak_memory_bytes / 1e9, 1e3 * data_parallel.step_time_s, "s", color="tab:red"
)
for name, plan in points.items():
    axes.annotate(
        name,
        (plan.peak_memory_bytes / 1e9, 1e3 * plan.step_time_s),
        textcoords="offset points",
        xytext=(8, 4),
    )
axes.margins(x=0.15)
axes.set_xlabel("GB at the peak, one device")
axes.set_ylabel("ms a step, predicted")
axes.set_title("Time against memory: one layer, 8 H100")
plt.show()

# %% [markdown]
# Here the fastest plan is close to the smallest: it already splits parameters and moments over all devices, because
# gathering a parameter and scattering its gradient moves no more than summing the whole gradient does. Data
# parallelism is both slower and larger. What is left to trade are a few per cent of memory for a few per cent of
# time; the large savings (recomputing activations with `jax.checkpoint`, smaller batches) change the model's step
# itself.
