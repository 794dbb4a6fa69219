"""dots.llm1: Qwen 3's layers with GLM-4.5's experts."""

from __future__ import annotations

from model_svc.models.glm4_moe import Glm4Moe
from model_svc.models.qwen3 import Qwen3


class Dots1(Qwen3, Glm4Moe):
    """Dots1ForCausalLM."""

    def rotated(self) -> float:
        """Return what share of a head is rotated where the config does not say."""
        return 1.0
