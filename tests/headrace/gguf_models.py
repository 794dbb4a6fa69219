"""Random GGUF models, complete with tokenizer, for oracles that read GGUF by their own code."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.headrace.gguf_vocab import byte_vocab, sentencepiece_vocab, write

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS, EXPERTS = 32, 48, 4, 2, 7, 5


def tiny_model_file(path: Path, family: str) -> Path:
    """Write a model of 7 layers: enough for Gemma 3 to have a full layer among windowed ones."""
    gemma = family.startswith("gemma")
    HEAD_DIM = {"gemma3": 256, "gemma2": 256, "qwen2": 8, "qwen3": 128, "qwen3moe": 128}.get(
        family, 16
    )  # transformers takes these whatever the file says
    rng = np.random.default_rng(3)

    def matrix(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    def norm(size: int) -> np.ndarray:
        return (1 + rng.standard_normal(size) * 0.2).astype(np.float32)

    metadata = sentencepiece_vocab(prefix=False) if gemma else byte_vocab()
    vocab = len(metadata["tokenizer.ggml.tokens"])
    metadata = {key: value for key, value in metadata.items() if not key.startswith("llama.")}
    metadata |= {
        "general.architecture": family,
        f"{family}.block_count": LAYERS,
        f"{family}.context_length": 64,
        f"{family}.embedding_length": HIDDEN,
        f"{family}.feed_forward_length": INNER,
        f"{family}.attention.head_count": HEADS,
        f"{family}.attention.head_count_kv": KV_HEADS,
        f"{family}.attention.key_length": HEAD_DIM,
        f"{family}.attention.value_length": HEAD_DIM,
        f"{family}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{family}.rope.freq_base": 1000000.0 if family == "gemma3" else 10000.0,
        f"{family}.rope.dimension_count": HEAD_DIM,
        f"{family}.vocab_size": vocab,
    }
    tensors = {"token_embd.weight": matrix(vocab, HIDDEN), "output_norm.weight": norm(HIDDEN)}
    for n in range(LAYERS):
        tensors |= {
            f"blk.{n}.attn_norm.weight": norm(HIDDEN),
            f"blk.{n}.attn_q.weight": matrix(HEADS * HEAD_DIM, HIDDEN),
            f"blk.{n}.attn_k.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{n}.attn_v.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{n}.attn_output.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
            f"blk.{n}.ffn_norm.weight": norm(HIDDEN),
            f"blk.{n}.ffn_gate.weight": matrix(INNER, HIDDEN),
            f"blk.{n}.ffn_up.weight": matrix(INNER, HIDDEN),
            f"blk.{n}.ffn_down.weight": matrix(HIDDEN, INNER),
        }
        if family == "qwen3moe":
            for name in ("gate", "up", "down"):
                shape = tensors.pop(f"blk.{n}.ffn_{name}.weight").shape
                tensors[f"blk.{n}.ffn_{name}_exps.weight"] = matrix(EXPERTS, *shape)
            tensors[f"blk.{n}.ffn_gate_inp.weight"] = matrix(EXPERTS, HIDDEN)
        if family in ("gemma3", "qwen3", "qwen3moe"):
            tensors |= {
                f"blk.{n}.attn_q_norm.weight": norm(HEAD_DIM),
                f"blk.{n}.attn_k_norm.weight": norm(HEAD_DIM),
            }
        if family == "qwen2":
            tensors |= {
                f"blk.{n}.attn_q.bias": matrix(HEADS * HEAD_DIM),
                f"blk.{n}.attn_k.bias": matrix(KV_HEADS * HEAD_DIM),
                f"blk.{n}.attn_v.bias": matrix(KV_HEADS * HEAD_DIM),
            }
        if gemma:
            tensors |= {
                f"blk.{n}.post_attention_norm.weight": norm(HIDDEN),
                f"blk.{n}.post_ffw_norm.weight": norm(HIDDEN),
            }
    if family == "qwen3moe":
        metadata |= {
            f"{family}.expert_count": EXPERTS,
            f"{family}.expert_used_count": 2,
            f"{family}.expert_feed_forward_length": INNER,
        }
    if gemma:
        metadata[f"{family}.attention.sliding_window"] = 6
    else:
        tensors["output.weight"] = matrix(vocab, HIDDEN)
    return write(path, metadata, tensors)
