"""Hugging Face names for the tensors of a GGUF file, and what the converter did to them.

llama.cpp renames tensors; for `llama` files it also reorders the rows of q and k (it rotates interleaved pairs, we
rotate halves), and for Gemma it stores norm weights plus one. Source: llama.cpp `convert_hf_to_gguf.py`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
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
# Experts lie in one tensor of three dimensions, of which each expert's matrix is a tensor of ours.
_EXPERTS_LAYER = _LAYER | {
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_GEMMA_LAYER = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class Change(NamedTuple):
    """What must be undone on a tensor: `unpermute` heads of rows, `minus_one` on a norm's weight."""

    unpermute: int = 0
    minus_one: bool = False


class Renamed(NamedTuple):
    """A tensor's Hugging Face name and what to undo. A name with `{}` is one for each expert."""

    name: str
    change: Change


def rename(gguf_name: str, arch: str, num_heads: int, num_kv_heads: int) -> Renamed | None:
    """Return the Hugging Face name of a tensor; None for one that carries no weights (`rope_freqs.weight`).

    An unknown name is returned as it is, so that it turns up as unused and stops the load.
    """
    if gguf_name == "rope_freqs.weight":
        return None
    minus_one = Change(minus_one=arch.startswith("gemma") and gguf_name.endswith("norm.weight"))
    if gguf_name in _TOP:
        return Renamed(_TOP[gguf_name], minus_one)
    found = _BLOCK.fullmatch(gguf_name)
    part = _parts(arch).get(found[2]) if found else None
    if found is None or part is None:
        return Renamed(gguf_name, Change())
    heads = {"attn_q": num_heads, "attn_k": num_kv_heads}.get(found[2], 0) if arch == "llama" else 0
    return Renamed(f"model.layers.{found[1]}.{part}.{found[3]}", Change(heads) if heads else minus_one)


def _parts(arch: str) -> dict[str, str]:
    if arch.startswith("gemma"):
        return _GEMMA_LAYER
    return _EXPERTS_LAYER if arch.endswith("moe") else _LAYER
