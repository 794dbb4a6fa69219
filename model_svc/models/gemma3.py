"""Gemma 3 (text): Gemma 2 with normed queries and keys, no caps, and a rotary base of its own for windowed layers."""

from __future__ import annotations

from typing import ClassVar

from model_svc.layers.attention import Attention
from model_svc.layers.loader import Loader
from model_svc.layers.rope import RopeConfig, RopeTables, rope_tables
from model_svc.models.gemma2 import Gemma2


class Gemma3(Gemma2):
    """Gemma3ForCausalLM."""

    window_pattern: ClassVar[int] = 6

    def mixer(self, loader: Loader, index: int) -> Attention:
        """Build a layer's attention."""
        return self.attention(
            loader,
            self.rope(self.layer_type(index)),
            scale=self.query_scale(),
            window=self.window(index),
            softcap=self.cap("attn"),
            norm_qk="head",
        )

    def rope(self, layer_type: str | None = None) -> RopeTables:
        """Return the tables of a kind of layers; old configs name the windowed layers' base `rope_local_base_freq`."""
        local = self.config.number("rope_local_base_freq")
        if layer_type != "sliding_attention" or local is None:
            return super().rope(layer_type)
        if layer_type not in self._ropes:
            config = RopeConfig(local, self.config.head_dim, max_position=self.config.max_position)
            self._ropes[layer_type] = rope_tables(config, self.max_len, self.device)
        return self._ropes[layer_type]
