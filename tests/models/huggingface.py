"""The Flax classes of HuggingFace transformers, tiny: (loss, gradients) with dropout on."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.models.weights import (
    Built,
    cross_entropy,
    integers,
    normal,
    random_weights,
    with_gradients,
)

BATCH, LENGTH, VOCAB, WIDTH = 8, 16, 64, 32


def transformers() -> Any:
    """The library, without its notice that the Flax classes are gone in its next version."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

    logging.getLogger("transformers").setLevel(logging.ERROR)
    return transformers


def build(
    model: Any, loss_of: Callable[..., jax.Array], init_args: tuple[Any, ...], *batch: np.ndarray
) -> Built:
    """`loss_of(results, *batch)` and its gradients; `init_args` are what the Flax module is initialised with."""

    def init(*args: Any) -> Any:
        return model.module.init(jax.random.key(0), *args, return_dict=False)["params"]

    def loss(params: Any, key: jax.Array, *batch: Any) -> jax.Array:
        return loss_of(params, key, *batch)

    return with_gradients(loss), (
        random_weights(init, *init_args),
        np.array([0, 1], np.uint32),
        *batch,
    )


def text(seed: int = 0) -> np.ndarray:
    return integers(VOCAB, (BATCH, LENGTH), seed)


def places() -> np.ndarray:
    return np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (BATCH, LENGTH))


def next_token(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    return cross_entropy(logits[:, :-1], tokens[:, 1:])


def decoder_only(model: Any) -> Built:
    """A causal language model: the next token."""

    def loss(params: Any, key: jax.Array, tokens: jax.Array) -> jax.Array:
        return next_token(model(tokens, params=params, dropout_rng=key, train=True).logits, tokens)

    return build(model, loss, (text(), np.ones((BATCH, LENGTH), np.int32), places()), text())


def gpt2() -> Built:
    lib = transformers()
    config = lib.GPT2Config(n_layer=2, n_head=8, n_embd=WIDTH, vocab_size=VOCAB, n_positions=LENGTH)
    return decoder_only(lib.FlaxGPT2LMHeadModel(config, _do_init=False))


def llama() -> Built:
    lib = transformers()
    config = lib.LlamaConfig(
        num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=8, hidden_size=WIDTH, intermediate_size=64,
        vocab_size=VOCAB, max_position_embeddings=LENGTH,
    )  # fmt: skip
    return decoder_only(lib.FlaxLlamaForCausalLM(config, _do_init=False))


def mistral() -> Built:
    lib = transformers()
    config = lib.MistralConfig(
        num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2, hidden_size=WIDTH, intermediate_size=64,
        vocab_size=VOCAB, max_position_embeddings=LENGTH, sliding_window=8,
    )  # fmt: skip
    return decoder_only(lib.FlaxMistralForCausalLM(config, _do_init=False))


def bert() -> Built:
    lib = transformers()
    config = lib.BertConfig(
        num_hidden_layers=2, num_attention_heads=8, hidden_size=WIDTH, intermediate_size=64, vocab_size=VOCAB,
        max_position_embeddings=LENGTH, num_labels=8,
    )  # fmt: skip
    model = lib.FlaxBertForSequenceClassification(config, _do_init=False)
    mask = (np.arange(LENGTH) < integers(8, (BATCH, 1)) + 8).astype(np.int32)

    def loss(
        params: Any, key: jax.Array, tokens: jax.Array, mask: jax.Array, labels: jax.Array
    ) -> jax.Array:
        logits = model(
            tokens, attention_mask=mask, params=params, dropout_rng=key, train=True
        ).logits
        return cross_entropy(logits, labels)

    heads = np.ones((2, 8), np.int32)
    init_args = (text(), mask, np.zeros_like(text()), places(), heads)
    return build(model, loss, init_args, text(), mask, integers(8, (BATCH,)))


def encoder_decoder(model: Any, init_args: tuple[Any, ...], inputs: np.ndarray) -> Built:
    """A sequence to sequence model: the next token of the decoder's text."""

    def loss(params: Any, key: jax.Array, inputs: jax.Array, tokens: jax.Array) -> jax.Array:
        found = model(inputs, decoder_input_ids=tokens, params=params, dropout_rng=key, train=True)
        return next_token(found.logits, tokens)

    return build(model, loss, init_args, inputs, text(1))


def bart() -> Built:
    """Where T5 was meant: T5's Flax class calls jnp.clip(a_max=...), which this JAX no longer has."""
    lib = transformers()
    config = lib.BartConfig(
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=8, decoder_attention_heads=8, d_model=WIDTH,
        encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=VOCAB, max_position_embeddings=LENGTH,
    )  # fmt: skip
    ones = np.ones((BATCH, LENGTH), np.int32)
    model = lib.FlaxBartForConditionalGeneration(config, _do_init=False)
    return encoder_decoder(model, (text(), ones, text(), ones, places(), places()), text())


def whisper() -> Built:
    lib = transformers()
    config = lib.WhisperConfig(
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=8, decoder_attention_heads=8, d_model=WIDTH,
        encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=VOCAB, num_mel_bins=8, max_source_positions=LENGTH,
        max_target_positions=LENGTH, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    ones, sound = np.ones((BATCH, LENGTH), np.int32), normal((BATCH, 8, 2 * LENGTH))
    model = lib.FlaxWhisperForConditionalGeneration(config, _do_init=False)
    return encoder_decoder(model, (sound, text(), ones, places()), sound)


def vit() -> Built:
    lib = transformers()
    config = lib.ViTConfig(
        num_hidden_layers=2, num_attention_heads=8, hidden_size=WIDTH, intermediate_size=64, image_size=16,
        patch_size=4, num_channels=3, num_labels=8,
    )  # fmt: skip
    model = lib.FlaxViTForImageClassification(config, _do_init=False)
    images = normal((BATCH, 3, 16, 16))

    def loss(params: Any, key: jax.Array, images: jax.Array, labels: jax.Array) -> jax.Array:
        return cross_entropy(
            model(images, params=params, dropout_rng=key, train=True).logits, labels
        )

    return build(model, loss, (np.moveaxis(images, 1, -1),), images, integers(8, (BATCH,)))


def clip() -> Built:
    """Two towers and the contrastive loss over all pairs of the batch."""
    lib = transformers()
    layers: dict[str, int] = {
        "num_hidden_layers": 1, "num_attention_heads": 8, "hidden_size": WIDTH, "intermediate_size": 64,
    }  # fmt: skip
    config = lib.CLIPConfig(
        text_config={**layers, "vocab_size": VOCAB, "max_position_embeddings": LENGTH},
        vision_config={**layers, "image_size": 16, "patch_size": 4},
        projection_dim=WIDTH,
    )
    model = lib.FlaxCLIPModel(config, _do_init=False)
    images = normal((BATCH, 3, 16, 16))

    def loss(params: Any, key: jax.Array, tokens: jax.Array, images: jax.Array) -> jax.Array:
        found = model(tokens, images, params=params, dropout_rng=key, train=True)
        pairs = jnp.arange(BATCH)
        return cross_entropy(found.logits_per_text, pairs) + cross_entropy(
            found.logits_per_image, pairs
        )

    init_args = (text(), np.moveaxis(images, 1, -1), np.ones((BATCH, LENGTH), np.int32), places())
    return build(model, loss, init_args, text(), images)


def generation() -> Built:
    """The library's own `generate`: sampling with temperature, top-k and top-p from a cache, in a while loop."""
    lib = transformers()
    config = lib.GPT2Config(n_layer=1, n_head=8, n_embd=WIDTH, vocab_size=VOCAB, n_positions=32)
    model = lib.FlaxGPT2LMHeadModel(config, _do_init=False)

    def generate(params: Any, key: jax.Array, tokens: jax.Array) -> jax.Array:
        found = model.generate(
            tokens,
            params=params,
            prng_key=key,
            max_length=LENGTH + 4,
            do_sample=True,
            top_k=8,
            top_p=0.9,
            temperature=0.7,
            pad_token_id=0,
            eos_token_id=1,
        )
        return found.sequences

    shape = (BATCH, LENGTH)
    params = random_weights(lambda: model.init_weights(jax.random.key(0), shape))
    return generate, (params, np.array([0, 3], np.uint32), text())
