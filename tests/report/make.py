"""Reports made by hand: a GPT of `layers` layers on data=2 x model=4, with the figures that the tests look for."""

from __future__ import annotations

from dataclasses import replace

from autopar.report.summary import CollectiveRow, OperatorRow, Report, TensorRow

MIB = 2**20


def report(layers: int = 3, **changes: object) -> Report:
    """The Report of a training step; `changes` replace its fields."""
    weights = [weight(layer, name) for layer in range(layers) for name in ("w1", "w2")]
    inputs = (
        *weights,
        TensorRow("x", (32, 512), "float32", "[data, -]", 32 * 1024),
        TensorRow("step", (), "int32", "[]", 4),
    )
    made = Report(
        function="train_step",
        cluster="8xh100",
        mesh=(("data", 2), ("model", 4)),
        space="mode auto, mesh (data=2, model=4)",
        objective_s=2.5e-3,
        lower_bound_s=2.5e-3,
        gap=0.0,
        step_time_s=2.25e-3,
        compute_time_s=1.5e-3,
        communication_time_s=0.75e-3,
        peak_memory_bytes=12 * MIB,
        memory_limit_bytes=16 * MIB,
        inputs=inputs,
        outputs=(
            TensorRow("output[0]", (), "float32", "[]", 4),
            *(replace(w, name=f"output[{n + 1}]") for n, w in enumerate(weights)),
        ),
        operators=tuple(op for layer in range(layers) for op in operators(layer, layers)),
        collectives=collectives(layers),
        peak=(
            *weights,
            TensorRow(
                "dot_general (model.py:41 (mlp))", (32, 2048), "float32", "[data, model]", 64 * 1024
            ),
        ),
    )
    return replace(made, **changes)


def weight(layer: int, name: str) -> TensorRow:
    """One of a layer's weights, split by columns (w1) or rows (w2)."""
    placement, shape = {"w1": ("[-, model]", (512, 2048)), "w2": ("[model, -]", (2048, 512))}[name]
    return TensorRow(f"params['layers'][{layer}]['{name}']", shape, "float32", placement, MIB)


def operators(layer: int, layers: int) -> tuple[OperatorRow, ...]:
    """A layer's products take 99.4 % of the time of computing, the rest one part in 166."""
    whole, scope = 1.5e-3 / layers, f"layer_{layer}"
    return (
        OperatorRow(
            "dot_general",
            "model.py:41 (mlp)",
            scope,
            "forward",
            ("[data, -]", "[-, model]"),
            ("[data, model]",),
            8,
            0.497 * whole,
        ),
        OperatorRow(
            "dot_general",
            "model.py:42 (mlp)",
            scope,
            "backward",
            ("[data, model]", "[model, -]"),
            ("[data, -] sum(model)",),
            8,
            0.497 * whole,
        ),
        OperatorRow(
            "add",
            "model.py:43 (mlp)",
            scope,
            "forward",
            ("[data, -]", "[data, -]"),
            ("[data, -]",),
            2,
            0.006 * whole,
        ),
    )


def collectives(layers: int) -> tuple[CollectiveRow, ...]:
    """An all-reduce for every layer, a bucket of gradients, and a gathered weight."""
    forward = CollectiveRow(
        "all_reduce",
        ("model",),
        32 * 1024,
        1e-4,
        "forward",
        "model.py:42 (mlp)",
        "[data, -] sum(model) -> [data, -]",
        ("dot_general (model.py:42 (mlp))",),
    )
    sources = tuple(f"model.py:{line} (mlp)" for line in (41, 42))
    bucket = CollectiveRow(
        "all_reduce",
        ("data",),
        2 * layers * MIB,
        4e-4,
        "mirror",
        ", ".join(sources),
        f"bucket of {2 * layers} all-reduces",
        tuple(f"dot_general ({s})" for s in sources),
    )
    gather = CollectiveRow(
        "all_gather",
        ("model",),
        4 * MIB,
        5e-5,
        "redistribution",
        "model.py:50 (head)",
        "[-, model] -> [-, -]",
        ("params['layers'][0]['w1']",),
    )
    return (forward,) * layers + (bucket, gather)
