"""A tiny random Llama, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from model_svc.layers.adapters import AdapterRoom
from model_svc.layers.group import ALONE, Group
from model_svc.models.config import parse_config
from model_svc.models.decoder import Decoder
from model_svc.models.load import build_model
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.float8 import Float8
from model_svc.quant.kept import Kept
from model_svc.weights.adapter import AdapterCheckpoint
from model_svc.weights.random import RandomSource
from model_svc.weights.random import float4 as as_float4
from model_svc.weights.random import float8 as as_float8

VOCAB = 67  # no multiple of 32: the last word of a bit mask is not full
TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}

EXPERTS: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "norm_topk_prob": True,
}

LATENTS: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "first_k_dense_replace": 1,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "n_shared_experts": 1,
}


def tiny_llama(
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    stored: torch.dtype = torch.float32,
    group: Group = ALONE,
    *,
    float8: bool = False,
    float4: bool = False,
    adapters: Sequence[AdapterCheckpoint] = (),
    room: AdapterRoom | None = None,
    **changes: Any,
) -> Decoder:
    """Build a model whose greedy output is not constant; the same weights on every device for each `stored` dtype.

    With `**EXPERTS` it is a mixture of experts, which stay 4 bit floats with `float4`; with `**LATENTS` its cache holds
    latents.
    """
    form = as_float8 if float8 else as_float4 if float4 else None
    source = RandomSource(tied=False, spread=0.3, dtype=stored, stored=form)
    where = torch.device(device)
    config = parse_config(Path("tiny/config.json"), TINY | changes)
    dense = Dequantized(dtype, where)
    method = Float8(dtype, where) if float8 else Kept(dense) if float4 else dense
    return build_model(config, source, method, device=where, group=group, adapters=adapters, room=room)
