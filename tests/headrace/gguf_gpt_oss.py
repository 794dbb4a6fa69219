"""A tiny gpt-oss as transformers has it, written as llama.cpp's converter writes it: experts apart, in MXFP4 blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from tests.headrace.gguf_vocab import byte_vocab, write

ARCH = "gpt-oss"
MXFP4 = gguf.GGMLQuantizationType.MXFP4
_ATTENTION = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}
_STACKS = {"gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"), "down_proj": ("ffn_down_exps",)}
_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"}


def gpt_oss_vocab() -> dict[str, Any]:
    """Bytes, and the control tokens of gpt-oss under which an answer has parts."""
    metadata = byte_vocab()
    metadata = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
    ends = ["<|return|>", "<|end|>", "<|call|>"]
    metadata["tokenizer.ggml.tokens"] += ends
    metadata["tokenizer.ggml.token_type"] += [3] * len(ends)
    metadata["tokenizer.ggml.eos_token_id"] = len(metadata["tokenizer.ggml.tokens"]) - len(ends)
    return metadata | {"general.architecture": ARCH, "tokenizer.ggml.pre": "gpt-4o"}


def tiny_gpt_oss(path: Path, *, yarn: bool = True) -> Any:
    """Write the file, and return transformers' model of the same numbers."""
    from transformers import GptOssConfig, GptOssForCausalLM

    metadata = gpt_oss_vocab()
    scaling = {"factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16.0, "beta_slow": 0.5}
    rope = {"rope_type": "yarn", "truncate": False, **scaling} if yarn else {"rope_type": "default"}
    config = GptOssConfig(
        vocab_size=len(metadata["tokenizer.ggml.tokens"]), hidden_size=64, intermediate_size=96, head_dim=32,
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, num_local_experts=5, num_experts_per_tok=2,
        sliding_window=6, max_position_embeddings=128, rope_parameters={"rope_theta": 150000.0, **rope},
        tie_word_embeddings=False, pad_token_id=None, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(3)
    model = GptOssForCausalLM._from_config(config, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        parameter.data.normal_(1.0 if "norm" in name else 0.0, 0.3)
    with torch.no_grad():
        tensors, kinds = _converted(model)
    write(path, metadata | _described(config, yarn), tensors, kinds)
    return model


def _described(config: Any, yarn: bool) -> dict[str, Any]:
    rope = config.rope_parameters
    told = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "expert_feed_forward_length": config.intermediate_size,
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.sliding_window": config.sliding_window,
        "rope.freq_base": rope["rope_theta"],
    }
    if yarn:
        told |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": rope["beta_fast"],
            "rope.scaling.yarn_beta_slow": rope["beta_slow"],
        }
    return {f"{ARCH}.{key}": value for key, value in told.items()}


def _converted(model: Any) -> tuple[dict[str, np.ndarray], dict[str, gguf.GGMLQuantizationType]]:
    """Return the file's tensors and which are blocks; the model's experts become what these stand for."""
    tensors = {
        "token_embd.weight": model.model.embed_tokens.weight,
        "output_norm.weight": model.model.norm.weight,
        "output.weight": model.lm_head.weight,
    }
    blocks: dict[str, np.ndarray] = {}
    for n, layer in enumerate(model.model.layers):
        at = f"blk.{n}."
        tensors |= {f"{at}{theirs}.weight": getattr(layer, ours).weight for ours, theirs in _NORMS.items()}
        for ours, theirs in _ATTENTION.items():
            projection = getattr(layer.self_attn, ours)
            tensors |= {f"{at}{theirs}.weight": projection.weight, f"{at}{theirs}.bias": projection.bias}
        router = layer.mlp.router
        tensors |= {f"{at}ffn_gate_inp.weight": router.weight, f"{at}ffn_gate_inp.bias": router.bias}
        tensors[f"{at}attn_sinks.weight"] = layer.self_attn.sinks
        for ours, names in _STACKS.items():
            stack, bias = getattr(layer.mlp.experts, ours), getattr(layer.mlp.experts, f"{ours}_bias")
            for turn, name in enumerate(names):
                part = stack[:, :, turn :: len(names)]  # [experts, in, out]
                blocks[f"{at}{name}.weight"] = raw = gguf.quants.quantize(
                    part.transpose(1, 2).contiguous().numpy(), MXFP4
                )
                part.copy_(torch.from_numpy(gguf.quants.dequantize(raw, MXFP4)).transpose(1, 2))
                tensors[f"{at}{name}.bias"] = bias[:, turn :: len(names)]
    plain = {name: _array(tensor) for name, tensor in tensors.items()}
    return plain | blocks, dict.fromkeys(blocks, MXFP4)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().contiguous().numpy()
