"""MiniMax M2: norms over the whole projections of q and k, parts of heads rotated, experts by sigmoids and a bias."""

from __future__ import annotations

from kernels.route import Rule
from model_svc.layers.blocks import Layer, PreNorm
from model_svc.layers.loader import ExpertNames, Loader
from model_svc.models.decoder import Decoder

_NAMES = ExpertNames("w1", "w3", "w2")


class MiniMaxM2(Decoder):
    """MiniMaxM2ForCausalLM."""

    def layer(self, loader: Loader, index: int) -> Layer:  # noqa: ARG002 - all layers are alike
        """Build one decoder layer."""
        config, place = self.config, loader.at("block_sparse_moe")
        bias = place.exact("e_score_correction_bias", (config.whole("num_local_experts"),))
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.attention(loader, self.rope(), norm_qk="whole"),
            self.norm(loader, "post_attention_layernorm"),
            self.experts(place, config.intermediate_size, rule=Rule(sigmoid=True), deciding=bias, names=_NAMES),
        )

    def rotated(self) -> float:
        """Return what share of a head is rotated; released configs say how many dimensions are."""
        return self.config.whole("rotary_dim", self.config.head_dim) / self.config.head_dim
