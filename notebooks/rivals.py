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
# # Against FSDP and Megatron
#
# The layouts that people write by hand are plans too: pins on data and parameters, of which the rest is searched. So
# the plan that is found can stand beside them, with one price for all.

# %%
import jax
from models.llama import arguments, train_step

import autopar

jax.config.update("jax_platforms", "cpu")  # shapes only: nothing is computed anywhere


# %%
plan = autopar.plan(
    train_step, *arguments(8, 16, 4096), cluster="8xh100", mesh={"gpu": 8}, donate_argnums=0
)
plan

# %% [markdown]
# ## Beside other layouts
#
# Each is the best plan of its kind that was found, on as many devices and within the same memory limit.

# %%
rivals = plan.rivals()
for row in rivals:
    if row.reason:
        print(f"{row.name:14} no plan: {row.reason}")
        continue
    slower = row.step_time_s / plan.step_time_s - 1
    memory = f"{row.peak_memory_bytes / 2**30:.1f} GiB" + ("" if row.fits else ", does not fit")
    print(
        f"{row.name:14} {1e3 * row.step_time_s:6.1f} ms ({slower:+.1%})  {memory:22} {row.layout}"
    )

# %%
import matplotlib.pyplot as plt

shown = [("the plan", plan.compute_time_s, plan.summary.exposed_time_s)]
shown += [(row.name, row.compute_time_s, row.exposed_time_s) for row in rivals if not row.reason]
names, compute, exposed = zip(*shown, strict=True)
figure, axes = plt.subplots(figsize=(8, 2.6))
axes.barh(names, [1e3 * s for s in compute], label="computing")
axes.barh(
    names,
    [1e3 * s for s in exposed],
    left=[1e3 * s for s in compute],
    label="communication that shows",
)
axes.invert_yaxis()
axes.set_xlabel("ms a step")
axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.25), ncols=2, frameon=False)
axes.spines[["top", "right"]].set_visible(False)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Is the difference real?
#
# Times are predictions, with errors. What two plans owe to the same number of the cluster errs alike in both and
# cancels. FSDP as a plan of its own, by its pins:

# %%
from jax.sharding import PartitionSpec as P

by_hand = autopar.plan(
    train_step,
    *arguments(8, 16, 4096),
    cluster="8xh100",
    mesh={"gpu": 8},
    donate_argnums=0,
    constraints=(
        autopar.pin("tokens", P("gpu")),
        autopar.pin("targets", P("gpu")),
        *(
            autopar.pin(f"state['{part}']['layers']['{name}']", P(None, "gpu"))
            for part in ("params", "m", "v")
            for name in ("q", "k", "v", "out", "gate", "up", "down")
        ),
    ),
)
print(plan.diff(by_hand))

# %% [markdown]
# A layout of your own stands beside the others in the same way: `plan.rivals(mine=[autopar.pin(...), ...])`.
