"""A Llama-like training step of scanned layers, and the shapes of its arguments: what several notebooks plan."""

import jax
import jax.numpy as jnp

WIDTH, HIDDEN, HEADS, VOCABULARY = 4096, 14_336, 32, 32_768


def norm(x, scale):
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def layer(x, p):
    y = norm(x, p["n1"])
    q, k, v = ((y @ p[name]).reshape(*x.shape[:2], HEADS, -1) for name in ("q", "k", "v"))
    attended = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
    x = x + attended.reshape(x.shape) @ p["out"]
    y = norm(x, p["n2"])
    return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]


def loss_fn(params, tokens, targets):
    x = params["tokens"][tokens]
    x, _ = jax.lax.scan(lambda x, p: (jax.checkpoint(layer)(x, p), None), x, params["layers"])
    logits = norm(x, params["norm"]) @ params["head"]
    logp = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(logp, targets[..., None], axis=-1).mean()


def train_step(state, tokens, targets):
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], tokens, targets)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * jnp.square(g), state["v"], grads)
    params = jax.tree.map(
        lambda p, m, v: (p - 1e-4 * m / (jnp.sqrt(v) + 1e-8)).astype(p.dtype),
        state["params"],
        m,
        v,
    )
    return {"params": params, "m": m, "v": v}, loss


def shape(*dims, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(dims, dtype)


def arguments(layers, rows, sequence):
    """Shapes of the training state, and of the tokens of a step."""
    square, wide, tall = (
        shape(layers, *dims) for dims in ((WIDTH, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
    )
    params = {
        "tokens": shape(VOCABULARY, WIDTH),
        "layers": {
            **dict.fromkeys(("q", "k", "v", "out"), square),
            **dict.fromkeys(("gate", "up"), wide),
            **dict.fromkeys(("n1", "n2"), shape(layers, WIDTH)),
            "down": tall,
        },
        "norm": shape(WIDTH),
        "head": shape(WIDTH, VOCABULARY),
    }
    moments = jax.tree.map(lambda leaf: shape(*leaf.shape, dtype=jnp.float32), params)
    tokens = shape(rows, sequence, dtype=jnp.int32)
    return {"params": params, "m": moments, "v": moments}, tokens, tokens
