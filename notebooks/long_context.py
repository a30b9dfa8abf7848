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
# # Long context
#
# The same tokens a step, in fewer and longer rows: attention grows with the square of a row, and below eight rows
# there is no batch left to split over eight devices. What does a plan do then?

# %%
import jax
from models.llama import arguments, train_step

import autopar

jax.config.update("jax_platforms", "cpu")  # shapes only: nothing is computed anywhere


# %% [markdown]
# ## From 4,096 to 131,072 tokens a row
#
# Four layers of a Llama 8B on eight H100; a step takes 131,072 tokens throughout.

# %%
TOKENS = 131_072
SEQUENCES = (4_096, 16_384, 65_536, 131_072)
plans = {
    sequence: autopar.plan(
        train_step,
        *arguments(4, TOKENS // sequence, sequence),
        cluster="8xh100",
        mesh={"gpu": 8},
        donate_argnums=0,
    )
    for sequence in SEQUENCES
}
for sequence, plan in plans.items():
    report = plan.summary
    print(
        f"{TOKENS // sequence:3} x {sequence:7,}  {1e3 * report.step_time_s:7.0f} ms a step"
        f"  peak {report.peak_memory_bytes / 2**30:5.1f} GiB  {report.parallelism}"
    )

# %% [markdown]
# ## What attention takes

# %%
import matplotlib.pyplot as plt


def is_attention(row):
    return "attention" in row.kind or "attention" in row.source


attention = [
    1e3 * sum(row.runs * row.time_s for row in plan.summary.operators if is_attention(row))
    for plan in plans.values()
]
whole = [1e3 * plan.compute_time_s for plan in plans.values()]
rest = [a - b for a, b in zip(whole, attention, strict=True)]
exposed = [1e3 * plan.summary.exposed_time_s for plan in plans.values()]
labels = [f"{TOKENS // s} x {s:,}" for s in plans]

figure, axes = plt.subplots(figsize=(8, 3.2))
bottom = [0.0] * len(plans)
for name, heights in (
    ("all other computing", rest),
    ("attention", attention),
    ("communication that shows", exposed),
):
    axes.bar(labels, heights, bottom=bottom, label=name)
    bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
axes.set_xlabel("rows x tokens a row")
axes.set_ylabel("ms a step")
axes.legend(loc="upper left")
axes.spines[["top", "right"]].set_visible(False)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Where the sequence is split
#
# With one row the batch cannot be split. Between its products the plan splits the sequence ("context parallel");
# attention itself needs all keys of a row. What does it split?

# %%
longest = plans[SEQUENCES[-1]]
for row in longest.summary.operators:
    if is_attention(row) and row.phase == "forward":
        print(f"{row.kind} reads q, k, v as {' '.join(row.ins[:3])}")

# %% [markdown]
# The third dim are heads. So tokens change places with heads around each attention, which is what an all-to-all does:

# %%
from collections import Counter

amounts = Counter()
for row in longest.collectives:
    amounts[row.kind] += row.runs * row.size_bytes / 2**20
for kind, size in amounts.most_common():
    print(f"{kind:16} {size:8,.0f} MiB a device")
