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
# autopar plans for a cluster that need not be there, so questions about one can be asked before it is bought or
# booked:
#
# * What does it cost to live with **less memory**?
# * When do the **links** between servers begin to hurt, and what does the plan do about it?
# * Which **mesh** is best?
# * What does a larger **batch** gain?
#
# All times are predictions of a cost model, with vendor bandwidths and peaks. Read them as "this against that".

# %%
import jax
from models.llama import arguments, train_step

import autopar

jax.config.update("jax_platforms", "cpu")  # shapes only: nothing is computed anywhere


# %% [markdown]
# ## A session
#
# Four layers of a Llama 8B on eight servers of eight H100, one row of 4,096 tokens for each GPU. A session holds the
# plan and answers questions about it; each answer is a plan of its own.

# %%
import matplotlib.pyplot as plt

plt.rcParams.update(
    {"figure.figsize": (7, 3.2), "axes.spines.top": False, "axes.spines.right": False}
)
session = autopar.explore(
    train_step,
    *arguments(4, 64, 4096),
    cluster="8x8xh100",
    mesh={"server": 8, "gpu": 8},
    donate_argnums=0,
)
start = session.plan
start

# %% [markdown]
# ## Links
#
# What if the network between servers were slower, or faster? Pins, links and what was asked before are answered from
# what is there of the plan.

# %%
FACTORS = (0.01, 0.03, 0.1, 0.3, 1, 3)
by_links = {factor: session.links(factor, "server").after for factor in FACTORS}
session.links(1)

across = {
    factor: sum(row.runs * row.size_bytes for row in report.collectives if "server" in row.axes)
    for factor, report in by_links.items()
}
gbytes = [50 * factor for factor in FACTORS]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
left.loglog(gbytes, [1e3 * r.step_time_s for r in by_links.values()], "o-", label="step")
left.loglog(gbytes, [1e3 * r.compute_time_s for r in by_links.values()], "--", label="computing")
left.set_ylabel("ms a step")
left.legend()
right.semilogx(gbytes, [size / 2**30 for size in across.values()], "o-", color="tab:green")
right.set_ylabel("GiB of a device across servers")
right.set_ylim(bottom=0)
for axes in (left, right):
    axes.set_xlabel("GB/s of a GPU to other servers")
figure.tight_layout()
plt.show()

# %% [markdown]
# With slower links the plan does not just wait longer, it changes: at the slow end hardly anything crosses servers, and
# they compute more instead. A plan tuned by hand for one cluster is not the plan for another.
#
# ## Mesh
#
# The same 64 GPUs under other meshes. The first axis of a mesh is the outermost: here it runs across servers. Each is
# searched anew, once.

# %%
MESHES = ({"gpu": 64}, {"server": 8, "gpu": 8}, {"data": 16, "model": 4}, {"data": 32, "model": 2})
by_mesh = {" x ".join(map(str, mesh.values())): session.mesh(mesh).after for mesh in MESHES}
session.mesh(None)
for name, report in by_mesh.items():
    print(
        f"{name:8} {1e3 * report.step_time_s:6.0f} ms  gap {report.gap:4.1%}  {report.parallelism}"
    )

# %% [markdown]
# ## Batch

# %%
ROWS = (64, 128, 256)
by_rows = {rows: session.batch(rows).after for rows in ROWS}
session.batch(None)

figure, axes = plt.subplots()
axes.plot(ROWS, [r.utilisation * 100 for r in by_rows.values()], "o-")
for rows, report in by_rows.items():
    axes.annotate(
        f"{report.peak_memory_bytes / 2**30:.0f} GiB",
        (rows, 100 * report.utilisation),
        textcoords="offset points",
        xytext=(6, -14),
    )
axes.set_xscale("log", base=2)
axes.set_xticks(ROWS, [str(rows) for rows in ROWS])
axes.margins(x=0.15, y=0.35)
axes.set_xlabel("rows a step")
axes.set_ylabel("MFU, %")
axes.set_title("A larger batch: MFU, and the peak of a device")
plt.show()

# %% [markdown]
# ## Memory
#
# The fastest plan is not the smallest. `front` finds the plans that need less, each the fastest for its memory.

# %%
front = session.front(6)
front

# %%
figure, axes = plt.subplots()
front.plot(axes)
axes.plot(
    start.peak_memory_bytes / 2**30, 1e3 * start.objective_s, "s", color="tab:red", label="the plan"
)
axes.margins(0.08)
axes.legend()
plt.show()

# %% [markdown]
# A single limit is a question too. Below some limit nothing fits; the error says what the tightest is, and the
# session keeps its plan:

# %%
try:
    session.limit("1GiB")
except autopar.AutoparError as error:
    print(str(error).replace(": ", ":\n"))

# %% [markdown]
# ## What was asked

# %%
session
