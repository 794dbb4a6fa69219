"""Gemma 2: norms before and after each part, weights stored minus one, capped logits, every other layer windowed."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from model_svc.layers.attention import Attention
from model_svc.layers.blocks import Layer, Sandwich
from model_svc.layers.loader import Loader
from model_svc.models.decoder import Decoder


class Gemma2(Decoder):
    """Gemma2ForCausalLM."""

    tied_default: ClassVar[bool] = True
    window_pattern: ClassVar[int] = 2
    norm_offset: ClassVar[float] = 1.0

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        return Sandwich(
            self.norm(loader, "input_layernorm"),
            self.mixer(loader, index),
            self.norm(loader, "post_attention_layernorm"),
            self.norm(loader, "pre_feedforward_layernorm"),
            self.mlp(loader),
            self.norm(loader, "post_feedforward_layernorm"),
        )

    def mixer(self, loader: Loader, index: int) -> Attention:
        """Build a layer's attention."""
        return self.attention(
            loader, self.rope(), scale=self.query_scale(), window=self.window(index), softcap=self.cap("attn")
        )

    def query_scale(self) -> float:
        """Return what scores are multiplied with; not always that of the head size."""
        return 1.0 / math.sqrt(self.config.number("query_pre_attn_scalar", self.config.head_dim))

    def cap(self, where: str) -> float | None:
        """Return the soft cap of attention (`attn`) or output (`final`) logits."""
        return self.config.number(f"{where}_logit_softcapping")

    def embedding_scale(self) -> float | None:
        """Return what embeddings are multiplied with."""
        return math.sqrt(self.config.hidden_size)

    def scale_logits(self, logits: Tensor) -> Tensor:
        """Cap the logits softly."""
        cap = self.cap("final")
        return logits if cap is None else (logits / cap).tanh() * cap
