"""BERT encoders (Devlin et al. 2018): post-norm layers over learned positions. Checkpoint names as in transformers.

RoBERTa and XLM-RoBERTa are the same but for the position that a text begins at, and for the head of a classifier.

Plain torch: an encoder reads each input once, in few large products, which is what torch's own kernels are good at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import embedding, gelu, layer_norm, linear, relu, scaled_dot_product_attention

from model_svc.embedding.checkpoint import head_layers, load
from model_svc.models.config import load_config
from model_svc.weights.errors import CheckpointError
from model_svc.weights.open import open_weights
from wire.model_card import CROSS_ENCODERS, ENCODERS, first_position

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "relu": relu,
    "gelu_new": lambda x: gelu(x, approximate="tanh"),
}


class Bert:
    """The encoder, and a classifier's head. Weights in `dtype` on `device`; states come out in float32."""

    def __init__(self, directory: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        """Load a model directory. Raises CheckpointError."""
        self.config = config = load_config(directory)
        if config.architecture not in ENCODERS | CROSS_ENCODERS:
            raise CheckpointError(config.path, f"{config.architecture} is no encoder known here")
        if config.act not in _ACTIVATIONS:
            raise CheckpointError(config.path, f"hidden_act {config.act!r} is not supported")
        if config.get("position_embedding_type", "absolute") != "absolute":
            raise CheckpointError(config.path, "only absolute position_embedding_type is supported")
        self.device = torch.device(device)
        self.hidden_size = config.hidden_size
        self._act = _ACTIVATIONS[config.act]
        self._eps = config.number("layer_norm_eps", 1e-12)
        self._first_position = first_position(config.architecture, config.get("pad_token_id"))
        self._weights = load(config, open_weights(directory, config.raw), dtype, self.device)

    @property
    def num_bytes(self) -> int:
        """How much memory the weights take."""
        return sum(weight.nbytes for weight in self._weights.values())

    @torch.inference_mode()
    def encode(self, ids: Tensor, mask: Tensor, kinds: Tensor) -> Tensor:
        """Return the states float32 [S, T, E] of `ids` int64 [S, T], padded on the right where `mask` is False.

        `kinds` int64 [S, T] tells second texts (1) from first ones, for models that know two kinds of tokens.
        """
        w = self._weights
        first, types = self._first_position, w["embeddings.token_type_embeddings.weight"]
        states = embedding(ids, w["embeddings.word_embeddings.weight"])
        states = states + w["embeddings.position_embeddings.weight"][first : first + ids.shape[1]]
        states = states + (embedding(kinds, types) if len(types) > 1 else types[0])
        states = self._norm(states, "embeddings.LayerNorm")
        seen = None if bool(mask.all()) else mask[:, None, None, :]
        for index in range(self.config.num_layers):
            states = self._layer(states, seen, f"encoder.layer.{index}.")
        return states.float()

    @torch.inference_mode()
    def logits(self, states: Tensor) -> Tensor:
        """Return the one logit of each input, float32 [S, 1], by the state [S, T, E] of its first token."""
        first, last = head_layers(self.config)
        return self._linear(self._linear(states[:, 0], first).tanh(), last)

    def _layer(self, states: Tensor, seen: Tensor | None, at: str) -> Tensor:
        mixed = self._linear(self._attend(states, seen, f"{at}attention.self."), f"{at}attention.output.dense")
        states = self._norm(states + mixed, f"{at}attention.output.LayerNorm")
        inner = self._act(self._linear(states, f"{at}intermediate.dense"))
        return self._norm(states + self._linear(inner, f"{at}output.dense"), f"{at}output.LayerNorm")

    def _attend(self, states: Tensor, seen: Tensor | None, at: str) -> Tensor:
        heads = self.config.num_heads
        q, k, v = (
            self._linear(states, at + name).view(*states.shape[:2], heads, -1).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=1 / math.sqrt(q.shape[-1]))
        return mixed.transpose(1, 2).flatten(2)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return layer_norm(x, (self.hidden_size,), weight, bias, self._eps)
