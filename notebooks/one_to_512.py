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
from models.llama import arguments, train_step

import autopar

jax.config.update("jax_platforms", "cpu")  # shapes only: nothing is computed anywhere


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
