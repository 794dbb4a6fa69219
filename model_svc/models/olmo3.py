"""OLMo 3: OLMo 2 in which three of four layers see a window; only the others stretch their positions."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from model_svc.layers.rope import RopeTables, rope_tables
from model_svc.models.olmo2 import Olmo2


class Olmo3(Olmo2):
    """Olmo3ForCausalLM."""

    window_pattern: ClassVar[int] = 4

    def rope(self, layer_type: str | None = None) -> RopeTables:
        """Return the tables of a kind of layers; what old configs say of scaling is not meant for windowed ones."""
        if layer_type != "sliding_attention" or self.config.get("rope_parameters"):
            return super().rope(layer_type)
        if layer_type not in self._ropes:
            plain = replace(self.config.rope(), kind="default", scaling=None)
            self._ropes[layer_type] = rope_tables(plain, self.max_len, self.device)
        return self._ropes[layer_type]
