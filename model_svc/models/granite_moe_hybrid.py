"""Granite 4: in its H sizes most layers are Mamba 2; one block for all tokens, experts beside it in some sizes."""

from __future__ import annotations

import math

from model_svc.layers.attention import Attention
from model_svc.layers.blocks import Layer, Mlp, PreNorm
from model_svc.layers.experts import ExpertsBesideShared
from model_svc.layers.loader import ExpertNames, Loader
from model_svc.layers.mamba2 import Mamba2, Mamba2Config
from model_svc.layers.mlp import GatedMlp
from model_svc.models.config import ModelConfig
from model_svc.models.decoder import StateShape
from model_svc.models.granite import Granite

_STATES = ("mamba", "linear_attention")  # as released configs, and as new ones name such layers
_ENDLESS = (math.inf, {"__float__": "Infinity"})  # as configs write it, older and newer ones
_SHARED = ExpertNames(down="output_linear")


class GraniteMoeHybrid(Granite):
    """GraniteMoeHybridForCausalLM."""

    @classmethod
    def keeps_state(cls, config: ModelConfig) -> bool:
        """Tell whether some layers have a state; the smallest sizes attend in all."""
        return any(_has_state(config, index) for index in range(config.num_layers))

    @classmethod
    def state_parts(cls, config: ModelConfig) -> int:
        """Return how many heads there are for ranks to share."""
        return config.whole("mamba_n_heads", 128)

    def layer(self, loader: Loader, index: int) -> Layer:
        """Build one decoder layer."""
        return PreNorm(
            self.norm(loader, "input_layernorm"),
            self.mixer(loader, index),
            self.norm(loader, "post_attention_layernorm"),
            self.feed_forward(loader, index),
            multiplier=self.config.number("residual_multiplier", 1.0),
        )

    def mixer(self, loader: Loader, index: int) -> Attention | Mamba2:
        """Build what lets tokens of a sequence know of one another; beside states positions are not encoded."""
        config = self.config
        if _has_state(config, index):
            return Mamba2(loader.at("mamba"), mamba2_config(config))
        bias, scale = bool(config.get("attention_bias", False)), config.number("attention_multiplier", 1.0)
        rope = self.rope() if config.get("position_embedding_type") == "rope" else None
        return self.attention(loader, rope, bias=bias, out_bias=bias, scale=scale)

    def feed_forward(self, loader: Loader, index: int) -> Mlp:  # noqa: ARG002 - all layers are alike
        """Build a layer's experts and the block beside them, or that block alone."""
        config = self.config
        inner = config.whole("shared_intermediate_size", 1024)
        place = loader.at("shared_mlp")
        fused = "input_linear" if place.has("input_linear.weight") else None  # GGUF files have its halves
        shared = GatedMlp(place, config.hidden_size, inner, config.act, fused=fused, names=_SHARED)
        if not config.whole("num_local_experts"):
            return shared
        return ExpertsBesideShared(self.experts(loader.at("block_sparse_moe"), config.intermediate_size), shared)

    def state_shape(self, index: int) -> StateShape | None:
        """Return what a layer keeps of a sequence if it has a state instead of attention."""
        if not _has_state(self.config, index):
            return None
        sizes = mamba2_config(self.config).share(self.group)
        window = (sizes.conv_width - 1, sizes.channels)
        return StateShape(window, (sizes.num_heads, sizes.state_size, sizes.head_dim))


def _has_state(config: ModelConfig, index: int) -> bool:
    types = config.get("layer_types")
    return not isinstance(types, list) or index >= len(types) or types[index] in _STATES


def mamba2_config(config: ModelConfig) -> Mamba2Config:
    """Return the sizes of layers with a state. Raises ValueError for such as make no sense."""
    inner, heads = config.whole("mamba_expand", 2) * config.hidden_size, config.whole("mamba_n_heads", 128)
    automatic = config.get("mamba_d_head", "auto") == "auto"
    sizes = Mamba2Config(
        hidden=config.hidden_size,
        num_heads=heads,
        head_dim=inner // max(heads, 1) if automatic else config.whole("mamba_d_head"),
        state_size=config.whole("mamba_d_state", 256),
        num_groups=config.whole("mamba_n_groups", 1),
        conv_width=config.whole("mamba_d_conv", 4),
        norm_eps=config.norm_eps,
        bias=bool(config.get("mamba_proj_bias", False)),
        conv_bias=bool(config.get("mamba_conv_bias", True)),
    )
    if min(heads, sizes.num_groups, sizes.head_dim, sizes.state_size) < 1 or sizes.conv_width < 2:
        raise ValueError(
            "mamba_n_heads, mamba_n_groups, mamba_d_head and mamba_d_state must be positive, mamba_d_conv 2"
        )
    if heads % sizes.num_groups or sizes.inner != inner:
        raise ValueError(
            f"mamba_n_heads {heads} of mamba_d_head {sizes.head_dim} in mamba_n_groups {sizes.num_groups} do not make "
            f"{inner} inputs"
        )
    limits = config.get("time_step_limit", [0.0, math.inf])
    if not isinstance(limits, list) or len(limits) != 2 or limits[0] != 0 or limits[1] not in _ENDLESS:
        raise ValueError(f"time_step_limit {limits} is not supported; known is [0.0, Infinity]")
    return sizes
