"""The architectures of the flax examples, in flax.linen: (new parameters, loss) or (loss, gradients)."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

from tests.models.weights import (
    Built,
    cross_entropy,
    integers,
    normal,
    random_weights,
    with_gradients,
    with_sgd,
)

BATCH, CLASSES = 8, 8


# mnist and imagenet ---------------------------------------------------------------------------------------------------


class Lenet(nn.Module):
    """The CNN of the mnist example."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for features in (16, 32):
            x = nn.avg_pool(nn.relu(nn.Conv(features, (3, 3))(x)), (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(64)(x.reshape(x.shape[0], -1)))
        return nn.Dense(CLASSES)(x)


def lenet() -> Built:
    """With optax's SGD in a TrainState, as the example has it."""
    model, images, labels = Lenet(), normal((BATCH, 16, 16, 1)), integers(CLASSES, (BATCH,))
    params = random_weights(model.init, jax.random.key(0), images)["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(0.1, momentum=0.9))

    def step(
        state: TrainState, images: jax.Array, labels: jax.Array
    ) -> tuple[TrainState, jax.Array]:
        def loss(params: Any) -> jax.Array:
            logits = state.apply_fn({"params": params}, images)
            return optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, CLASSES)).mean()

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    return step, (state, images, labels)


class Bottleneck(nn.Module):
    filters: int
    strides: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.relu(norm()(nn.Conv(self.filters, (1, 1), use_bias=False)(x)))
        y = nn.relu(
            norm()(nn.Conv(self.filters, (3, 3), (self.strides, self.strides), use_bias=False)(y))
        )
        y = norm()(nn.Conv(2 * self.filters, (1, 1), use_bias=False)(y))
        if x.shape != y.shape:
            x = norm()(
                nn.Conv(2 * self.filters, (1, 1), (self.strides, self.strides), use_bias=False)(x)
            )
        return nn.relu(x + y)


def norm() -> nn.Module:
    return nn.BatchNorm(use_running_average=False, momentum=0.9)


class Resnet(nn.Module):
    """The ResNet of the imagenet example."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(
            norm()(nn.Conv(16, (7, 7), (2, 2), padding=[(3, 3), (3, 3)], use_bias=False)(x))
        )
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        x = Bottleneck(16, 2)(Bottleneck(8)(x))
        return nn.Dense(CLASSES)(jnp.mean(x, axis=(1, 2)))


def resnet() -> Built:
    """Batch norm's statistics are part of the state."""
    model, images, labels = Resnet(), normal((BATCH, 32, 32, 3)), integers(CLASSES, (BATCH,))
    variables = random_weights(model.init, jax.random.key(0), images)

    def loss(
        params: Any, stats: Any, images: jax.Array, labels: jax.Array
    ) -> tuple[jax.Array, Any]:
        given = {"params": params, "batch_stats": stats}
        logits, updates = model.apply(given, images, mutable=["batch_stats"])
        return cross_entropy(logits, labels), updates["batch_stats"]

    def step(state: Any, images: jax.Array, labels: jax.Array) -> Any:
        gradients = jax.value_and_grad(loss, has_aux=True)
        (value, stats), grads = gradients(state["params"], state["batch_stats"], images, labels)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)
        return {"params": params, "batch_stats": stats}, value

    return step, (variables, images, labels)


# vae ------------------------------------------------------------------------------------------------------------------


class Vae(nn.Module):
    """The vae example: dense encoder, reparametrised latent, dense decoder."""

    @nn.compact
    def __call__(self, x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        hidden = nn.relu(nn.Dense(64)(x))
        mean, logvar = nn.Dense(16)(hidden), nn.Dense(16)(hidden)
        z = mean + jnp.exp(0.5 * logvar) * jax.random.normal(key, mean.shape)
        return nn.Dense(64)(nn.relu(nn.Dense(64)(z))), mean, logvar


def vae() -> Built:
    model, images = Vae(), (normal((BATCH, 64)) > 0).astype(np.float32)

    def loss(params: Any, key: jax.Array, images: jax.Array) -> jax.Array:
        logits, mean, logvar = model.apply({"params": params}, images, key)
        logp = nn.log_sigmoid(logits)
        likelihood = -jnp.sum(images * logp + (1.0 - images) * jnp.log(-jnp.expm1(logp)), axis=-1)
        divergence = -0.5 * jnp.sum(1 + logvar - jnp.square(mean) - jnp.exp(logvar), axis=-1)
        return (likelihood + divergence).mean()

    key = jax.random.key(1)
    return with_gradients(loss), (
        random_weights(model.init, key, images, key)["params"],
        key,
        images,
    )


# seq2seq and sst2 -----------------------------------------------------------------------------------------------------


class Seq2Seq(nn.Module):
    """The seq2seq example: an LSTM reads, another writes from its state; `nn.RNN` is a scan."""

    @nn.compact
    def __call__(self, question: jax.Array, answer: jax.Array) -> jax.Array:
        carry, _ = nn.RNN(nn.LSTMCell(32), return_carry=True, name="encoder")(question)
        hidden = nn.RNN(nn.LSTMCell(32), name="decoder")(answer, initial_carry=carry)
        return nn.Dense(16)(hidden)


def seq2seq() -> Built:
    model = Seq2Seq()
    question, answer = (
        np.eye(16, dtype=np.float32)[integers(16, (BATCH, 8), seed)] for seed in (0, 1)
    )

    def loss(params: Any, question: jax.Array, answer: jax.Array) -> jax.Array:
        logits = nn.log_softmax(model.apply({"params": params}, question, answer[:, :-1]))
        return -jnp.mean(jnp.sum(logits * answer[:, 1:], axis=-1))

    params = random_weights(model.init, jax.random.key(0), question, answer[:, :-1])["params"]
    return with_sgd(loss), (params, question, answer)


class Classifier(nn.Module):
    """The sst2 example: embeddings, a bidirectional LSTM over padded text, attention, an MLP."""

    @nn.compact
    def __call__(self, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        x = nn.Embed(64, 32)(tokens)
        forward = nn.RNN(nn.LSTMCell(16), name="forward")
        backward = nn.RNN(nn.LSTMCell(16), name="backward")
        x = nn.Bidirectional(forward, backward)(x, seq_lengths=lengths)
        scores = nn.Dense(1, use_bias=False)(jnp.tanh(nn.Dense(16)(x)))[..., 0]
        mask = jnp.arange(tokens.shape[1]) < lengths[:, None]
        weights = nn.softmax(jnp.where(mask, scores, -1e9))
        return nn.Dense(CLASSES)(jnp.einsum("bt,btd->bd", weights, x))


def sst2() -> Built:
    model, tokens, labels = Classifier(), integers(64, (BATCH, 16)), integers(CLASSES, (BATCH,))
    lengths = integers(8, (BATCH,)) + 8

    def loss(params: Any, tokens: jax.Array, lengths: jax.Array, labels: jax.Array) -> jax.Array:
        return cross_entropy(model.apply({"params": params}, tokens, lengths), labels)

    params = random_weights(model.init, jax.random.key(0), tokens, lengths)["params"]
    return with_gradients(loss), (params, tokens, lengths, labels)


# lm1b -----------------------------------------------------------------------------------------------------------------


class Decoder(nn.Module):
    """The lm1b example: a scanned stack of rematerialised pre-norm blocks."""

    layers: int = 2
    width: int = 32
    vocab: int = 64

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(self.vocab, self.width)(tokens)
        x = x + self.param("positions", nn.initializers.normal(0.02), (tokens.shape[1], self.width))
        mask = nn.make_causal_mask(tokens)
        block = nn.scan(
            nn.remat(DecoderBlock),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,
            length=self.layers,
        )
        x, _ = block()(x, mask)
        return nn.Dense(self.vocab)(nn.LayerNorm()(x))


class DecoderBlock(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, None]:
        x = x + nn.MultiHeadDotProductAttention(num_heads=8)(nn.LayerNorm()(x), mask=mask)
        return x + nn.Dense(x.shape[-1])(
            nn.gelu(nn.Dense(2 * x.shape[-1])(nn.LayerNorm()(x)))
        ), None


def lm1b() -> Built:
    model, tokens = Decoder(), integers(64, (BATCH, 16))

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        logits = model.apply({"params": params}, tokens)
        return cross_entropy(logits[:, :-1], tokens[:, 1:])

    return with_gradients(loss), (
        random_weights(model.init, jax.random.key(0), tokens)["params"],
        tokens,
    )


# ppo ------------------------------------------------------------------------------------------------------------------


class ActorCritic(nn.Module):
    """The network of the ppo example: convolutions over stacked frames, a policy and a value."""

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = nn.relu(nn.Conv(16, (8, 8), strides=(4, 4))(x))
        x = nn.relu(nn.Conv(32, (4, 4), strides=(2, 2))(x))
        x = nn.relu(nn.Dense(64)(x.reshape(x.shape[0], -1)))
        return nn.log_softmax(nn.Dense(CLASSES)(x)), nn.Dense(1)(x)[:, 0]


def ppo() -> Built:
    """Advantages by a reversed scan over 8 steps of 8 actors, then two epochs of clipped updates on minibatches."""
    model, frames = ActorCritic(), normal((8, 8, 16, 16, 4))
    params = random_weights(model.init, jax.random.key(0), frames[0])["params"]
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1))

    def loss(
        params: Any, frames: Any, actions: Any, old: Any, advantages: Any, returns: Any
    ) -> jax.Array:
        logits, values = model.apply({"params": params}, frames)
        ratio = jnp.exp(jnp.take_along_axis(logits, actions[:, None], axis=1)[:, 0] - old)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages).mean()
        entropy = -jnp.sum(jnp.exp(logits) * logits, axis=1).mean()
        return jnp.square(returns - values).mean() - policy - 0.01 * entropy

    def step(
        params: Any, opt: Any, key: Any, frames: Any, actions: Any, rewards: Any, done: Any
    ) -> Any:
        flat = frames.reshape(-1, *frames.shape[2:])
        logits, values = model.apply({"params": params}, flat)
        old = jnp.take_along_axis(logits, actions.reshape(-1, 1), axis=1)[:, 0]
        values = values.reshape(rewards.shape)
        advantages = gae(rewards, values, done)
        data = (
            flat,
            actions.reshape(-1),
            old,
            advantages.reshape(-1),
            (advantages + values).reshape(-1),
        )
        order = jax.random.permutation(key, old.shape[0]).reshape(2, -1)

        def update(state: Any, rows: jax.Array) -> Any:
            grads = jax.grad(loss)(state[0], *(part[rows] for part in data))
            updates, opt = tx.update(grads, state[1], state[0])
            return (optax.apply_updates(state[0], updates), opt), None

        return jax.lax.scan(update, (params, opt), order)[0]

    rewards, done = normal((8, 8), 1), (normal((8, 8), 2) > 1).astype(np.float32)
    key = np.array([0, 7], np.uint32)
    return step, (params, tx.init(params), key, frames, integers(CLASSES, (8, 8)), rewards, done)


def gae(rewards: jax.Array, values: jax.Array, done: jax.Array) -> jax.Array:
    """Generalised advantage estimates, backwards in time."""

    def back(later: Any, now: Any) -> Any:
        advantage, next_value = later
        reward, value, end = now
        delta = reward + 0.99 * next_value * (1 - end) - value
        advantage = delta + 0.99 * 0.95 * (1 - end) * advantage
        return (advantage, value), advantage

    start = (jnp.zeros_like(values[0]), values[-1])
    return jax.lax.scan(back, start, (rewards, values, done), reverse=True)[1]


# diffusion ------------------------------------------------------------------------------------------------------------


class Unet(nn.Module):
    """A denoiser: convolutions with group norm and a time embedding, attention at the bottom, skip connections."""

    @nn.compact
    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        frequencies = jnp.exp(-jnp.arange(8) / 8 * jnp.log(10000.0))
        angles = time[:, None] * frequencies
        emb = nn.Dense(32)(
            nn.swish(nn.Dense(32)(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)))
        )
        first = Residual(16)(nn.Conv(16, (3, 3))(x), emb)
        low = Residual(32)(nn.Conv(32, (3, 3), strides=(2, 2))(first), emb)
        rows = nn.GroupNorm(8)(low).reshape(low.shape[0], -1, low.shape[-1])
        low = low + nn.MultiHeadDotProductAttention(num_heads=8)(rows).reshape(low.shape)
        up = jax.image.resize(low, (*first.shape[:3], low.shape[-1]), "nearest")
        x = Residual(16)(jnp.concatenate([nn.Conv(16, (3, 3))(up), first], axis=-1), emb)
        return nn.Conv(3, (3, 3))(nn.swish(nn.GroupNorm(8)(x)))


class Residual(nn.Module):
    channels: int

    @nn.compact
    def __call__(self, x: jax.Array, emb: jax.Array) -> jax.Array:
        y = nn.Conv(self.channels, (3, 3))(nn.swish(nn.GroupNorm(8)(x)))
        y = y + nn.Dense(self.channels)(nn.swish(emb))[:, None, None, :]
        y = nn.Conv(self.channels, (3, 3))(nn.swish(nn.GroupNorm(8)(y)))
        return y + (x if x.shape == y.shape else nn.Conv(self.channels, (1, 1))(x))


def diffusion() -> Built:
    """Predicting the noise that was added at random times."""
    model, images, key = Unet(), normal((BATCH, 16, 16, 3)), jax.random.key(3)

    def loss(params: Any, key: jax.Array, images: jax.Array) -> jax.Array:
        time_key, noise_key = jax.random.split(key)
        time = jax.random.randint(time_key, (images.shape[0],), 0, 100)
        kept = jnp.cumprod(1.0 - jnp.linspace(1e-4, 0.02, 100))[time][:, None, None, None]
        noise = jax.random.normal(noise_key, images.shape)
        noisy = jnp.sqrt(kept) * images + jnp.sqrt(1.0 - kept) * noise
        return jnp.square(
            model.apply({"params": params}, noisy, time.astype(jnp.float32)) - noise
        ).mean()

    params = random_weights(model.init, key, images, np.zeros(BATCH, np.float32))["params"]
    return with_gradients(loss), (params, key, images)


class Segmenter(nn.Module):
    """A segmentation U-Net: pooled down, transposed convolutions up, skips, batch statistics of the batch itself."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        skips = []
        for channels in (8, 16):
            x = nn.relu(norm()(nn.Conv(channels, (3, 3))(x)))
            skips.append(x)
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Conv(32, (3, 3), kernel_dilation=2)(x))
        for channels, skip in zip((16, 8), reversed(skips), strict=True):
            x = jnp.concatenate(
                [nn.ConvTranspose(channels, (2, 2), strides=(2, 2))(x), skip], axis=-1
            )
            x = nn.relu(norm()(nn.Conv(channels, (3, 3))(x)))
        return nn.Conv(CLASSES, (1, 1))(x)


def segmentation() -> Built:
    """Cross entropy for every pixel and the soft Dice loss."""
    model, images, labels = (
        Segmenter(),
        normal((BATCH, 16, 16, 3)),
        integers(CLASSES, (BATCH, 16, 16)),
    )
    variables = random_weights(model.init, jax.random.key(0), images)

    def loss(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        logits, _ = model.apply(variables | {"params": params}, images, mutable=["batch_stats"])
        chance, truth = nn.softmax(logits), jax.nn.one_hot(labels, CLASSES)
        overlap = (
            2 * jnp.sum(chance * truth, axis=(1, 2)) / (jnp.sum(chance + truth, axis=(1, 2)) + 1.0)
        )
        return cross_entropy(logits, labels) + 1.0 - overlap.mean()

    return with_gradients(loss), (variables["params"], images, labels)
