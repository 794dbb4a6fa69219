"""Hugging Face names for the tensors of a GGUF file, and what the converter did to them.

llama.cpp renames tensors; for `llama` files and those like them it also reorders the rows of q and k (it rotates
interleaved pairs, we rotate halves), for Gemma it stores norm weights plus one, and rates of states as they are used
instead of their logarithms. Source: llama.cpp `convert_hf_to_gguf.py`.
"""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output_norm.bias": "model.norm.bias",
    "output.weight": "lm_head.weight",
    "token_embd_norm.weight": "model.embedding_norm.weight",  # LFM2's last one, in spite of its name
}
_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
# Experts lie in one tensor, of which each expert's matrix or bias is a tensor of ours.
_EXPERTS_LAYER = _LAYER | {
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_QWEN2_MOE_LAYER = _EXPERTS_LAYER | {
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
_LLAMA_LAYER = _LAYER | {  # with the experts of Mixtral, which is a `llama` file as well
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    "ffn_gate_inp": "block_sparse_moe.gate",
}
_GPT_OSS_LAYER = _EXPERTS_LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
}
_GEMMA_LAYER = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GLM4_MOE_LAYER = _EXPERTS_LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "exp_probs_b": "mlp.gate.e_score_correction_",  # and then `bias`
}
_DOTS_LAYER = _GLM4_MOE_LAYER | {"ffn_norm": "post_attention_layernorm"}
_DEEPSEEK_LAYER = _DOTS_LAYER | {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",  # since 2025 in two, keys' turned around: [H, R, D]
    "attn_v_b": "self_attn.v_b_proj",
}
_ERNIE_MOE_LAYER = _DOTS_LAYER | {"exp_probs_b": "mlp.moe_statics.e_score_correction_"}
_MINIMAX_LAYER = _LLAMA_LAYER | {"exp_probs_b": "block_sparse_moe.e_score_correction_"}
_POST_LAYER = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GLM_LAYER = _LAYER | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_GLM4_LAYER = _GLM_LAYER | {
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
_LFM2_LAYER = _LAYER | {
    "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    "ffn_gate_exps": "feed_forward.experts.{}.w1",
    "ffn_up_exps": "feed_forward.experts.{}.w3",
    "ffn_down_exps": "feed_forward.experts.{}.w2",
    "ffn_gate_inp": "feed_forward.gate",
    "exp_probs_b": "feed_forward.expert_",  # and then `bias`
}
_QWEN3_NEXT_LAYER = _QWEN2_MOE_LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_in": "linear_attn.in_proj_qkvz",  # of early files
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt": "linear_attn.dt_",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_QWEN3_5_LAYER = _QWEN3_NEXT_LAYER | {"ssm_alpha": "linear_attn.in_proj_a", "ssm_beta": "linear_attn.in_proj_b"}
_GRANITE_HYBRID_LAYER = _LAYER | {
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_a": "mamba.A_log",
    "ssm_d": "mamba.D",
    "ssm_dt": "mamba.dt_",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
    "ffn_gate": "shared_mlp.gate_proj",
    "ffn_up": "shared_mlp.up_proj",
    "ffn_down": "shared_mlp.output_linear",
    "ffn_gate_shexp": "shared_mlp.gate_proj",
    "ffn_up_shexp": "shared_mlp.up_proj",
    "ffn_down_shexp": "shared_mlp.output_linear",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.gate_proj",
    "ffn_up_exps": "block_sparse_moe.experts.{}.up_proj",
    "ffn_down_exps": "block_sparse_moe.experts.{}.down_proj",
    "ffn_gate_inp": "block_sparse_moe.gate",
}
# What differs from _LAYER, by architecture.
_LAYERS = {
    "llama": _LLAMA_LAYER,
    "qwen2moe": _QWEN2_MOE_LAYER,
    "qwen3moe": _EXPERTS_LAYER,
    "olmoe": _EXPERTS_LAYER,
    "gpt-oss": _GPT_OSS_LAYER,
    "gemma2": _GEMMA_LAYER,
    "gemma3": _GEMMA_LAYER,
    "olmo2": _POST_LAYER,
    "exaone4": _POST_LAYER,
    "seed_oss": _POST_LAYER,
    "granitemoe": _LAYER
    | {name: part.replace("mlp.", "block_sparse_moe.") for name, part in _EXPERTS_LAYER.items() if name not in _LAYER},
    "starcoder2": _LAYER | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    "hunyuan-dense": _LAYER | {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"},
    "chatglm": _GLM_LAYER,
    "glm4": _GLM4_LAYER,
    "phi3": _GLM_LAYER,
    "glm4moe": _GLM4_MOE_LAYER,
    "dots1": _DOTS_LAYER,
    "deepseek2": _DEEPSEEK_LAYER,
    "ernie4_5-moe": _ERNIE_MOE_LAYER,
    "minimax-m2": _MINIMAX_LAYER,
    "lfm2": _LFM2_LAYER,
    "lfm2moe": _LFM2_LAYER,
    "qwen3next": _QWEN3_NEXT_LAYER,
    "qwen35": _QWEN3_5_LAYER,
    "qwen35moe": _QWEN3_5_LAYER,
    "granitehybrid": _GRANITE_HYBRID_LAYER,
}
_PAIRED = frozenset(
    {"llama", "mistral3", "arcee", "granite", "granitemoe", "granitehybrid", "smollm3"}
)  # their q and k are stored for the rotation of neighbours
# Files of early 2024 hold each expert's matrices by themselves: `blk.0.ffn_gate.3.weight`.
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+(?:\.[a-z]\w*)?)(?:\.(\d+))?\.(weight|bias)")
_BARE = re.compile(r"blk\.(\d+)\.(ssm_a|ssm_d)")
_OF_ROTATION = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # the config has them
_GUESSING = re.compile(r"blk\.(\d+)\.nextn\.([\w.]+)")  # of layers that guess tokens ahead


class Change(NamedTuple):
    """What must be undone on a tensor: `unpermute` heads of rows, `minus_one` on a norm's weight, a lost `row`.

    `filters`: of convolutions, which lost the dimension between channels and taps. `flat`: numbers of heads, which got
    a dimension more. `rate`: -exp of what is ours.
    """

    unpermute: int = 0
    minus_one: bool = False
    row: bool = False
    filters: bool = False
    flat: bool = False
    rate: bool = False

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of ours."""
        if self.row and len(stored) == 1:
            return (1, *stored)
        if self.flat:
            return (prod(stored),)
        return (stored[0], 1, stored[1]) if self.filters and len(stored) == 2 else stored


class Renamed(NamedTuple):
    """A tensor's Hugging Face name and what to undo. A name with `{}` is one for each expert."""

    name: str
    change: Change


def rename(gguf_name: str, arch: str, num_heads: int, num_kv_heads: int) -> Renamed | None:
    """Return the Hugging Face name of a tensor; None for one that carries no weights (`rope_freqs.weight`).

    An unknown name is returned as it is, so that it turns up as unused and stops the load.
    """
    if gguf_name in _OF_ROTATION:
        return None
    less = arch.startswith(("gemma", "nemotron", "qwen3next", "qwen35")) and "ssm_" not in gguf_name
    minus_one = Change(minus_one=less and gguf_name.endswith("norm.weight"))
    if gguf_name in _TOP:
        return Renamed(_TOP[gguf_name], minus_one)
    if guessing := _GUESSING.fullmatch(gguf_name):
        return Renamed(f"model.layers.{guessing[1]}.{guessing[2]}", Change())
    if bare := _BARE.fullmatch(gguf_name):
        own = _LAYERS.get(arch, _LAYER).get(bare[2], bare[2])
        return Renamed(f"model.layers.{bare[1]}.{own}", Change(flat=True, rate=bare[2] == "ssm_a"))
    found = _BLOCK.fullmatch(gguf_name)
    part = _part(arch, found[2], found[3]) if found else None
    if found is None or part is None:
        return Renamed(gguf_name, Change())
    if part == "self_attn.sinks":  # which is no module's weight
        return Renamed(f"model.layers.{found[1]}.{part}", Change())
    heads = {"attn_q": num_heads, "attn_k": num_kv_heads}.get(found[2], 0) if arch in _PAIRED else 0
    row = part.endswith(("shared_expert_gate", "moe_statics.e_score_correction_"))
    filters = part.endswith(("conv.conv", "conv1d")) and found[4] == "weight"
    changed = Change(row=row, filters=filters, flat=part.endswith(("mamba.norm", "linear_attn.norm")))
    change = Change(heads) if heads else changed if any(changed) else minus_one
    return Renamed(f"model.layers.{found[1]}.{part}{'' if part.endswith('_') else '.'}{found[4]}", change)


def _part(arch: str, name: str, expert: str | None) -> str | None:
    parts = _LAYERS.get(arch, _LAYER)
    return parts.get(name) if expert is None else parts.get(f"{name}_exps", "").format(expert) or None
