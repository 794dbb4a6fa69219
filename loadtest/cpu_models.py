"""Models for loadtest.cpu that are not at hand: a file requantised by llama.cpp, and random weights in a known shape.

They are made once and kept under ~/.cache/headrace/loadtest.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np

CACHE = Path.home() / ".cache" / "headrace" / "loadtest"
_FTYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7}  # as llama.h numbers them
_REQUANTIZE = """
import sys, llama_cpp as api
params = api.llama_model_quantize_default_params()
params.ftype, params.allow_requantize = int(sys.argv[3]), True
sys.exit(api.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), params))
"""


def requantized(model: Path, target: str, llama_python: str) -> Path:
    """Return a directory with the model's file in another format, made by llama.cpp itself."""
    folder = CACHE / f"{model.name}-{target}"
    path = folder / "model.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        source = next(model.glob("*.gguf"))
        part = path.with_suffix(".part")
        command = [llama_python, "-c", _REQUANTIZE, str(source), str(part), str(_FTYPES[target])]
        subprocess.run(command, check=True, capture_output=True)
        part.rename(path)
    return folder


class Shape(NamedTuple):
    """A decoder of the Llama family with a tied head; with `experts` one of Qwen 3's or gpt-oss's, by `arch`."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    arch: str = "llama"
    head_size: int = 0
    experts: int = 0
    chosen: int = 8

    @property
    def head_dim(self) -> int:
        """The size of a head."""
        return self.head_size or self.hidden // self.heads

    @property
    def is_gpt_oss(self) -> bool:
        """Whether it has sinks, biases, a head of its own, and all but its experts in Q8_0, as published files have."""
        return self.arch == "gpt-oss"


SHAPES = {
    "llama-1b": Shape(2048, 8192, 16, 32, 8, 128256),
    "smollm2-135m": Shape(576, 1536, 30, 9, 3, 49152),
    "qwen3-moe": Shape(2048, 768, 8, 32, 4, 49152, "qwen3moe", 128, experts=64),  # 30B-A3B has 48 layers of 128
    "gpt-oss": Shape(2880, 2880, 6, 64, 8, 201088, "gpt-oss", 64, experts=32, chosen=4),  # 20B has 24 layers
}


def random_model(name: str, format_name: str) -> Path:
    """Return a model directory of random weights near those of a trained model in size."""
    folder, shape = CACHE / f"{name}-random-{format_name}", SHAPES[name]
    path = folder / "model.gguf"
    if path.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_config(shape)))
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, shape.arch)
    _describe(writer, shape)
    rng = np.random.default_rng(0)
    for tensor, size in _tensors(shape).items():
        if len(size) == 1 or tensor.endswith(".bias"):
            writer.add_tensor(tensor, np.full(size, 1.0 if "norm" in tensor else 0.0, dtype=np.float32))
        elif tensor.endswith("ffn_gate_inp.weight"):
            writer.add_tensor(tensor, rng.standard_normal(size, dtype=np.float32))
        else:
            form = "Q8_0" if shape.is_gpt_oss and "_exps" not in tensor else format_name
            blocks = _blocks(rng, form, int(np.prod(size[:-1])), size[-1])
            writer.add_tensor(tensor, blocks.reshape(*size[:-1], -1), raw_dtype=gguf.GGMLQuantizationType[form])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)
    return folder


def _config(shape: Shape) -> dict[str, object]:
    special: dict[str, dict[str, object]] = {
        "llama": {},
        "qwen3moe": {
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": shape.experts,
            "num_experts_per_tok": shape.chosen, "moe_intermediate_size": shape.inner, "norm_topk_prob": True,
        },
        "gpt-oss": {
            "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": shape.experts,
            "num_experts_per_tok": shape.chosen, "sliding_window": 128, "tie_word_embeddings": False,
            "layer_types": ["full_attention" if n % 2 else "sliding_attention" for n in range(shape.layers)],
        },
    }  # fmt: skip
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": shape.vocab,
        "hidden_size": shape.hidden, "intermediate_size": shape.inner, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "max_position_embeddings": 8192, "tie_word_embeddings": True, "hidden_act": "silu",
        "eos_token_id": 2, "bos_token_id": 1, "head_dim": shape.head_dim, **special[shape.arch],
    }  # fmt: skip


def _describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(8192)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("none")
    if shape.experts:
        writer.add_key_length(shape.head_dim)
        writer.add_value_length(shape.head_dim)
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.chosen)
        writer.add_expert_feed_forward_length(shape.inner)
    if shape.is_gpt_oss:
        writer.add_sliding_window(128)


def _tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    E, F, D = shape.hidden, shape.inner, shape.head_dim
    q, kv = D * shape.heads, D * shape.kv_heads
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (shape.vocab, E), "output_norm.weight": (E,)}
    for layer in range(shape.layers):
        sizes: dict[str, tuple[int, ...]] = {
            "attn_norm": (E,), "ffn_norm": (E,), "attn_q": (q, E), "attn_k": (kv, E), "attn_v": (kv, E),
            "attn_output": (E, q),
        }  # fmt: skip
        if shape.experts:
            X = shape.experts
            sizes |= {"ffn_gate_exps": (X, F, E), "ffn_up_exps": (X, F, E), "ffn_down_exps": (X, E, F)}
            sizes["ffn_gate_inp"] = (X, E)
            sizes |= {} if shape.is_gpt_oss else {"attn_q_norm": (D,), "attn_k_norm": (D,)}
        else:
            sizes |= {"ffn_gate": (F, E), "ffn_up": (F, E), "ffn_down": (E, F)}
        if shape.is_gpt_oss:
            sizes |= {"attn_sinks": (shape.heads,), "post_attention_norm": sizes.pop("ffn_norm")}
            biased = (name for name in sizes if "norm" not in name and name != "attn_sinks")
            found |= {f"blk.{layer}.{name}.bias": sizes[name][:-1] for name in biased}
        found |= {f"blk.{layer}.{name}.weight": size for name, size in sizes.items()}
    return found | ({"output.weight": (shape.vocab, E)} if shape.is_gpt_oss else {})


def _blocks(rng: np.random.Generator, format_name: str, rows: int, width: int) -> np.ndarray:
    """Return random blocks with scales that give numbers of about 0.02."""
    values, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format_name]]
    blocks = rng.integers(0, 256, (rows * width // values, num_bytes), dtype=np.uint8)
    if format_name == "MXFP4":
        blocks[:, 0] = 120  # 2^-7
        return blocks.reshape(rows, -1)
    scales = {"Q8_0": [2.7e-4], "Q4_0": [4e-3], "Q4_K": [1.4e-4, 1e-3]}[format_name]
    blocks[:, : 2 * len(scales)] = np.array(scales, dtype=np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)
