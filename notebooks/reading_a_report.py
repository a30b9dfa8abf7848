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
from models.llama import arguments, train_step

import autopar

jax.config.update("jax_platforms", "cpu")  # shapes only: nothing is computed anywhere


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
