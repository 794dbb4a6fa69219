"""GLM-4 and GLM-Z1 of 2025 (0414): as GLM-4 of 2024, with norms before and after both parts."""

from __future__ import annotations

from model_svc.layers.blocks import Layer, Sandwich
from model_svc.layers.loader import Loader
from model_svc.models.glm import Glm


class Glm4(Glm):
    """Glm4ForCausalLM."""

    def layer(self, loader: Loader, index: int) -> Layer:  # noqa: ARG002 - all layers are alike
        """Build one decoder layer."""
        return Sandwich(
            self.norm(loader, "input_layernorm"),
            self.mixer(loader),
            self.norm(loader, "post_self_attn_layernorm"),
            self.norm(loader, "post_attention_layernorm"),
            self.mlp(loader, fused="gate_up_proj"),
            self.norm(loader, "post_mlp_layernorm"),
        )
