"""Write GGUF files with the `gguf` package, the way llama.cpp's converter does, from any small llama checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def permuted(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """What convert_hf_to_gguf.py does to q and k of llama models (`LlamaModel.permute`)."""
    return (
        weights.reshape(num_heads, 2, weights.shape[0] // num_heads // 2, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


def write_llama(path: Path, model: Any, quant: str = "F32", *, norms: str = "F32", **extra: Any) -> None:
    """Convert a transformers Llama; matrices are stored as `quant`, the norms' weights as `norms`."""
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for name, value in extra.items():
        writer.add_array(name, value) if isinstance(value, list) else writer.add_string(name, value)
    for name, tensor in model.state_dict().items():
        base, _, kind = name.rpartition(".")
        data = tensor.float().numpy()
        if base in _TOP:
            new = _TOP[base]
            if new == "output" and config.tie_word_embeddings:
                continue
        else:
            _, _, layer, part = base.split(".", 3)
            new = f"blk.{layer}.{_LAYER[part]}"
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
            if _LAYER[part] in heads:
                data = permuted(data, heads[_LAYER[part]])
        kind_of = gguf.GGMLQuantizationType[quant if data.ndim == 2 else norms]
        packed = gguf.quants.quantize(data, kind_of)
        writer.add_tensor(f"{new}.{kind}", packed, raw_dtype=kind_of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tiny_llama(**changes: Any) -> Any:
    """A random transformers Llama whose rows are whole blocks of 32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        **{
            "vocab_size": 96,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128,
            "initializer_range": 0.2,
            "tie_word_embeddings": False,
            **changes,
        }
    )
    return LlamaForCausalLM._from_config(config, attn_implementation="eager").eval()
