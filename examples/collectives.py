"""Collectives by hand: a program that uses them all, and a product whose sum is reduced; priced, listed and run.

    python examples/collectives.py      # what each plan sends, beside what the search makes of the plain function

Eight devices in a line. What is written for one device stands beside the same in plain JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import autopar
from autopar.report.findings import Findings

DEVICES = 8
MESH = {"x": DEVICES}
RIGHT = [(n, (n + 1) % DEVICES) for n in range(DEVICES)]
LEFT = [(target, source) for source, target in RIGHT]


@dataclass(frozen=True)
class Pair:
    """A function that is split by hand, the same in plain JAX, and arguments for both."""

    by_hand: Callable[..., Any]
    plain: Callable[..., Any]
    arguments: tuple[Any, ...]

    def plans(self, cluster: str = "cpu8") -> tuple[autopar.Plan, autopar.Plan]:
        """The plan of what is split by hand, and the one that the search finds for the plain function."""
        options: Any = {"cluster": cluster, "mesh": MESH}
        return (
            autopar.plan(self.by_hand, *self.arguments, **options),
            autopar.plan(self.plain, *self.arguments, **options),
        )

    def findings(self, cluster: str = "cpu8") -> Findings:
        """What is paid for by hand, and not by the plan that the search finds for the plain function."""
        return autopar.lint(
            jax.jit(self.by_hand), *self.arguments, plain=self.plain, cluster=cluster
        )


def split(body: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """`body` on each of the eight devices."""
    mesh = jax.make_mesh((DEVICES,), ("x",), axis_types=(AxisType.Auto,))
    return jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


# Each collective once -------------------------------------------------------------------------------------------------


def exchanged(rows: Any) -> Mapping[str, Any]:
    """What the collectives of one device give: rows[row, column], split by rows."""

    def body(own: Any) -> Mapping[str, Any]:
        first = lax.axis_index("x") == 0
        return {
            "all_reduce": lax.psum(own, "x"),
            "all_gather": lax.all_gather(own, "x", axis=0, tiled=True) * own[:1],
            "reduce_scatter": lax.psum_scatter(own, "x", scatter_dimension=1, tiled=True),
            "broadcast": lax.psum(jnp.where(first, own, 0), "x"),
            "neighbor_exchange": lax.ppermute(own, "x", LEFT) - lax.ppermute(own, "x", RIGHT),
            "all_to_all": lax.all_to_all(own, "x", 1, 0, tiled=True),
        }

    out_specs = {
        "all_reduce": P(),
        "all_gather": P("x"),
        "reduce_scatter": P(None, "x"),
        "broadcast": P(),
        "neighbor_exchange": P("x"),
        "all_to_all": P(None, "x"),
    }
    return split(body, P("x"), out_specs)(rows)


def exchanged_plain(rows: Any) -> Mapping[str, Any]:
    """The same of all devices: parts[device, row, column]."""
    parts = rows.reshape(DEVICES, -1, rows.shape[1])
    return {
        "all_reduce": parts.sum(0),
        "all_gather": (rows[None] * parts[:, :1]).reshape(-1, rows.shape[1]),
        "reduce_scatter": parts.sum(0),
        "broadcast": parts[0],
        "neighbor_exchange": (jnp.roll(parts, -1, 0) - jnp.roll(parts, 1, 0)).reshape(rows.shape),
        "all_to_all": rows,
    }


# A product and its sum ------------------------------------------------------------------------------------------------


def summed_product(x: Any, w: Any) -> Any:
    """sum_j x[i, k] w[k, j], with k split: a device has part of each sum."""

    def body(x: Any, w: Any) -> Any:
        return lax.psum((x @ w).sum(1), "x")

    return split(body, (P(None, "x"), P("x")), P())(x, w)


def summed_product_plain(x: Any, w: Any) -> Any:
    """The same, on one device."""
    return (x @ w).sum(1)


def drawn(*shape: int) -> np.ndarray:
    """Numbers of this shape, the same in every run."""
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


PAIRS = {
    "collectives": Pair(exchanged, exchanged_plain, (drawn(64, 512),)),
    "product and sum": Pair(
        summed_product, summed_product_plain, (drawn(64, 512), drawn(512, 128))
    ),
}


def main() -> None:
    """Prints what is sent by hand, how that compares with what the search found, and which lines are why."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    for name, pair in PAIRS.items():
        by_hand, searched = pair.plans()
        print(f"{name}\n{by_hand.diff(searched)}\n{pair.findings()}")
        jax.tree.map(
            lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3),
            by_hand.compile()(*pair.arguments),
            pair.plain(*pair.arguments),
        )


if __name__ == "__main__":
    main()
