"""Hugging Face names for the tensors of a GGUF file, and what the converter did to them.

llama.cpp renames tensors; for `llama` files and those like them it also reorders the rows of q and k (it rotates
interleaved pairs, we rotate halves), and for Gemma it stores norm weights plus one. Source: llama.cpp
`convert_hf_to_gguf.py`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output_norm.bias": "model.norm.bias",
    "output.weight": "lm_head.weight",
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
    "ernie4_5-moe": _ERNIE_MOE_LAYER,
    "minimax-m2": _MINIMAX_LAYER,
}
_PAIRED = frozenset(
    {"llama", "mistral3", "arcee", "granite", "granitemoe", "smollm3"}
)  # their q and k are stored for the rotation of neighbours
# Files of early 2024 hold each expert's matrices by themselves: `blk.0.ffn_gate.3.weight`.
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)(?:\.(\d+))?\.(weight|bias)")
_OF_ROTATION = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # the config has them
_GUESSING = re.compile(r"blk\.(\d+)\.nextn\.([\w.]+)")  # of layers that guess tokens ahead


class Change(NamedTuple):
    """What must be undone on a tensor: `unpermute` heads of rows, `minus_one` on a norm's weight, a lost `row`."""

    unpermute: int = 0
    minus_one: bool = False
    row: bool = False


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
    minus_one = Change(minus_one=arch.startswith(("gemma", "nemotron")) and gguf_name.endswith("norm.weight"))
    if gguf_name in _TOP:
        return Renamed(_TOP[gguf_name], minus_one)
    if guessing := _GUESSING.fullmatch(gguf_name):
        return Renamed(f"model.layers.{guessing[1]}.{guessing[2]}", Change())
    found = _BLOCK.fullmatch(gguf_name)
    part = _part(arch, found[2], found[3]) if found else None
    if found is None or part is None:
        return Renamed(gguf_name, Change())
    if part == "self_attn.sinks":  # which is no module's weight
        return Renamed(f"model.layers.{found[1]}.{part}", Change())
    heads = {"attn_q": num_heads, "attn_k": num_kv_heads}.get(found[2], 0) if arch in _PAIRED else 0
    row = part.endswith(("shared_expert_gate", "moe_statics.e_score_correction_"))
    change = Change(heads) if heads else Change(row=True) if row else minus_one
    return Renamed(f"model.layers.{found[1]}.{part}{'' if part.endswith('_') else '.'}{found[4]}", change)


def _part(arch: str, name: str, expert: str | None) -> str | None:
    parts = _LAYERS.get(arch, _LAYER)
    return parts.get(name) if expert is None else parts.get(f"{name}_exps", "").format(expert) or None
