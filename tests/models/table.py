"""The table of models: a new one is a function that builds it and a row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from tests.models.weights import Built


@dataclass(frozen=True)
class Entry:
    """A model: `module.name()` in this folder builds a function and its arguments.

    `family` says which share of the work is to be split ("transformer" and "cnn" 95 %, others 80 %). `unsplit` is the
    reason why less is, where that is so. `on_two_axes`: it is also run on a mesh of two axes. `without_rule`: the
    primitives that it uses and that are replicated for want of a rule.
    """

    module: str
    name: str
    family: str
    dtype: str = "float32"
    on_two_axes: bool = False
    unsplit: str = ""
    without_rule: tuple[str, ...] = ()

    @property
    def build(self) -> Callable[[], Built]:
        """The builder; its library is imported when it is called, and must be there."""
        return getattr(import_module(f"tests.models.{self.module}"), self.name)

    @property
    def goal(self) -> float:
        """The share of the work that is to be split 8 ways."""
        return 0.95 if self.family in ("transformer", "cnn") else 0.80


ENTRIES = (
    Entry("huggingface", "gpt2", "transformer", on_two_axes=True),
    Entry("huggingface", "llama", "transformer"),
    Entry("huggingface", "mistral", "transformer"),
    Entry("huggingface", "bert", "transformer", on_two_axes=True),
    Entry("huggingface", "bart", "transformer"),
    Entry("huggingface", "whisper", "transformer"),
    Entry("huggingface", "vit", "transformer"),
    Entry("huggingface", "clip", "transformer"),
    Entry("huggingface", "generation", "decoding"),
    Entry("linen", "lenet", "cnn", on_two_axes=True),
    Entry("linen", "resnet", "cnn"),
    Entry("linen", "vae", "generative", on_two_axes=True),
    Entry("linen", "seq2seq", "recurrent", on_two_axes=True),
    Entry("linen", "sst2", "recurrent"),
    Entry("linen", "lm1b", "transformer"),
    Entry("linen", "ppo", "reinforcement"),
    Entry("linen", "diffusion", "cnn"),
    Entry("linen", "segmentation", "cnn"),
    Entry("equinox_models", "mixer", "transformer"),
    Entry("equinox_models", "rotary_transformer", "transformer"),
    Entry("equinox_models", "gru", "recurrent"),
    Entry("equinox_models", "neural_ode", "differential equation"),
    Entry("equinox_models", "kernel_regression", "probabilistic"),
    Entry("plain", "linear_recurrence", "state space"),
    Entry("plain", "selective_state_space", "state space"),
    Entry("plain", "recurrent_lstm", "recurrent", on_two_axes=True),
    Entry("plain", "switch_experts", "experts", on_two_axes=True),
    Entry("plain", "sorted_experts", "experts"),
    Entry("plain", "dlrm", "recommender", on_two_axes=True),
    Entry("plain", "wide_and_deep", "recommender"),
    Entry("plain", "graph_attention", "graph", on_two_axes=True),
    Entry("plain", "adjoint_ode", "differential equation"),
    Entry("plain", "decoding", "decoding", on_two_axes=True),
    Entry("plain", "physics_informed", "physics"),
    Entry("plain", "gaussian_process", "probabilistic"),
    Entry("nnx_models", "nnx_transformer", "transformer"),
    Entry("nnx_models", "nnx_autoencoder", "cnn"),
    Entry("inference", "variational", "probabilistic"),
    Entry("inference", "hamiltonian", "probabilistic"),
    Entry("networks", "mobilenet", "cnn"),
    Entry("networks", "haiku_rnn", "recurrent"),
    Entry("networks", "graph_network", "graph"),
    Entry("keras_models", "keras_resnet", "cnn"),
    Entry("keras_models", "efficientnet", "cnn"),
    Entry("keras_models", "keras_lstm", "recurrent"),
    Entry("keras_models", "mixtral", "experts"),
    Entry("training", "muon", "training", on_two_axes=True),
    Entry("training", "line_search", "training"),
    Entry("training", "meta_learning", "training"),
    Entry("training", "accumulation", "training"),
    Entry("training", "equilibrium", "training", on_two_axes=True),
    Entry("training", "speech", "recurrent"),
)
BY_NAME = {entry.name: entry for entry in ENTRIES}
