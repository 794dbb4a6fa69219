"""SmolLM 3: Llama in which every fourth layer does not encode positions."""

from __future__ import annotations

from model_svc.layers.blocks import Layer, PreNorm
from model_svc.layers.loader import Loader
from model_svc.models.decoder import Decoder
from model_svc.weights.errors import CheckpointError


class SmolLM3(Decoder):
    """SmolLM3ForCausalLM."""

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        config = self.config
        bias = bool(config.get("attention_bias", False))
        rotated = config.get("no_rope_layers") or self._usually_rotated()
        if not isinstance(rotated, list) or len(rotated) != config.num_layers:
            raise CheckpointError(config.path, f"no_rope_layers must list all layers, not {rotated!r}")
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.attention(
                loader, self.rope() if rotated[index] else None, bias=bias, out_bias=bias, window=self.window(index)
            ),
            self.norm(loader, "post_attention_layernorm"),
            self.mlp(loader, bias=bool(config.get("mlp_bias", False))),
        )

    def _usually_rotated(self) -> list[bool]:
        """Return for each layer whether it encodes positions, if the config does not list them."""
        interval = self.config.whole("no_rope_layer_interval", 4)
        return [not interval or (n + 1) % interval != 0 for n in range(self.config.num_layers)]
