"""LFM2: short gated convolutions in most layers, attention in the others; with experts in all but the first few."""

from __future__ import annotations

from typing import ClassVar

from kernels.route import Rule
from model_svc.layers.attention import Attention
from model_svc.layers.blocks import Layer, Mlp, PreNorm
from model_svc.layers.loader import ExpertNames, Loader
from model_svc.layers.mlp import GatedMlp
from model_svc.layers.short_conv import ShortConv, ShortConvConfig
from model_svc.models.config import ModelConfig
from model_svc.models.decoder import Decoder, StateShape

_NAMES = ExpertNames("w1", "w3", "w2")


class Lfm2(Decoder):
    """Lfm2ForCausalLM."""

    tied_default: ClassVar[bool] = True
    last_norm: ClassVar[str] = "embedding_norm"

    @classmethod
    def keeps_state(cls, config: ModelConfig) -> bool:  # noqa: ARG003 - all sizes do
        """Tell that some layers have a state instead of attention."""
        return True

    @classmethod
    def state_parts(cls, config: ModelConfig) -> int:
        """Return how many channels there are for ranks to share."""
        return config.hidden_size

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        return PreNorm(
            self.norm(loader, "operator_norm"),
            self.mixer(loader, index),
            self.norm(loader, "ffn_norm"),
            self.feed_forward(loader, index),
        )

    def mixer(self, loader: Loader, index: int) -> Attention | ShortConv:
        """Build what lets tokens of a sequence know of one another."""
        if self.has_state(index):
            return ShortConv(loader.at("conv"), self.short_conv())
        names = ("q_layernorm", "k_layernorm")
        return self.attention(loader, self.rope(), norm_qk="head", norm_names=names, out="out_proj")

    def feed_forward(self, loader: Loader, index: int) -> Mlp:  # noqa: ARG002 - all layers are alike
        """Build a layer's block, whose inner size old configs leave to be computed."""
        config = self.config
        inner = config.intermediate_size
        if config.get("block_auto_adjust_ff_dim", True):
            each = config.whole("block_multiple_of", 256) or 1
            inner = int(config.number("block_ffn_dim_multiplier", 1.0) * (2 * inner // 3))
            inner = -(-inner // each) * each
        return self.block(loader, inner)

    def block(self, loader: Loader, inner: int) -> GatedMlp:
        """Build a feed-forward block of this inner size."""
        config = self.config
        return GatedMlp(loader.at("feed_forward"), config.hidden_size, inner, config.act, names=_NAMES)

    def has_state(self, index: int) -> bool:
        """Tell whether a layer is a convolution."""
        types, full = self.config.get("layer_types"), self.config.get("full_attn_idxs")
        if isinstance(types, list) and index < len(types):
            return bool(types[index] == "conv")
        return isinstance(full, list) and index not in full

    def state_shape(self, index: int) -> StateShape | None:
        """Return what a layer keeps of a sequence if it is a convolution."""
        conv = self.short_conv()
        return StateShape((conv.width - 1, conv.hidden // self.group.size)) if self.has_state(index) else None

    def short_conv(self) -> ShortConvConfig:
        """Return the sizes of convolutions. Raises ValueError for one that sees no other token."""
        width = self.config.whole("conv_L_cache", 3)
        if width < 2:
            raise ValueError(f"conv_L_cache {width}: a convolution must be over 2 tokens or more")
        return ShortConvConfig(self.config.hidden_size, width, bool(self.config.get("conv_bias", False)))


class Lfm2Moe(Lfm2):
    """Lfm2MoeForCausalLM."""

    def feed_forward(self, loader: Loader, index: int) -> Mlp:
        """Build a layer's experts, chosen by sigmoids, or the one block of the first layers."""
        config, place = self.config, loader.at("feed_forward")
        if index < config.whole("num_dense_layers", 2):
            return self.block(loader, config.intermediate_size)
        biased = bool(config.get("use_expert_bias", True))
        return self.experts(
            place,
            config.whole("moe_intermediate_size"),
            names=_NAMES,
            renormalise=bool(config.get("norm_topk_prob", True)),
            rule=Rule(sigmoid=True, scale=config.number("routed_scaling_factor", 1.0)),
            deciding=place.exact("expert_bias", (config.whole("num_experts"),)) if biased else None,
        )
