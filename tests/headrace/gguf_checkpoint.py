"""A checkpoint of transformers as the GGUF file that llama.cpp's converter would make of it.

The names are those of the `gguf` package's own tables; what the converter changes in tensors is done here again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import torch

from tests.headrace.gguf_vocab import byte_vocab, write

_PERMUTED = frozenset(
    {"llama", "mistral3", "arcee", "granite", "granitemoe", "granitehybrid", "smollm3"}
)  # llama.cpp rotates neighbours in these, transformers halves
_NORMS_PLUS_ONE = frozenset({"gemma3", "nemotron", "qwen3next", "qwen35", "qwen35moe"})
_EXPERT = re.compile(r"(model\.layers\.\d+\..*experts)\.\d+\.(\w+)\.weight")


def gguf_of(
    model: Any,
    path: Path,
    arch: str,
    extra: dict[str, Any],
    more: Mapping[str, np.ndarray] = MappingProxyType({}),
    *,
    old_experts: bool = False,
    split_latents: bool = False,
    vocab: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Write `model` with a vocabulary of bytes, or what `vocab` says besides, and `more` tensors.

    `old_experts`: each one's matrices by themselves, as in early 2024. `split_latents`: what makes keys of latents by
    itself and turned around, as since 2025.
    """
    config = model.config
    model.save_pretrained(path.parent / "safetensors")
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    tensors: dict[str, np.ndarray] = dict(more)
    parted = _parted(_saved(path.parent / "safetensors"), config, split_latents=split_latents)
    for name, values in _merged(parted).items():
        if arch.startswith("qwen35") and "linear_attn." in name:
            values = _in_turns(name, values, config)
        if arch in _PERMUTED:
            values = _permuted(name, values, config)
        if arch in _NORMS_PLUS_ONE and name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            values = values + 1
        if name.endswith((".A_log", ".D")):
            name, values = f"{name}.", values if name.endswith("D") else -values.exp()
        name = name.replace(".dt_bias", ".dt_proj.bias")
        stem, _, suffix = re.sub(r"(_correction|expert)_bias$", r"\1.bias", name).rpartition(".")
        # Experts of Mixtral and LFM2 go by the names that Llama's own files have.
        llamas = re.sub(r"model\.(.*)(block_sparse_moe|feed_forward)\.experts", r"\1feed_forward.experts", stem)
        known = next(filter(None, map(names.get_name, (name, stem, llamas))), stem)
        if old_experts and known.endswith("_exps"):
            for n, each in enumerate(values):
                tensors[f"{known.removesuffix('_exps')}.{n}.{suffix}"] = each.numpy()
        else:
            values = values.view(config.mamba_n_groups, -1) if ".mamba.norm" in name else values.squeeze()
            values = values[:, None] if ".mamba" in name and not suffix else values
            tensors[f"{known}.{suffix}".removesuffix(".")] = values.numpy()
    metadata = _metadata(config, arch) | {f"{arch}.{key}": value for key, value in extra.items()} | dict(vocab)
    return write(path, metadata, tensors)


def vocab_size() -> int:
    """Return the vocabulary that the model must have."""
    return len(byte_vocab()["tokenizer.ggml.tokens"])


def _saved(directory: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(directory / "model.safetensors")


def _parted(saved: dict[str, torch.Tensor], config: Any, *, split_latents: bool) -> dict[str, torch.Tensor]:
    """Part the tensor that holds gates and what they gate (Granite's experts), and that of all heads (Qwen 3 Next).

    With `split_latents` also what makes keys and values of latents.
    """
    parted: dict[str, torch.Tensor] = {}
    for name, values in saved.items():
        if name.endswith("block_sparse_moe.input_linear.weight"):
            place = name.removesuffix("block_sparse_moe.input_linear.weight") + "mlp.experts."
            parted |= dict(zip((f"{place}gate_proj.weight", f"{place}up_proj.weight"), values.chunk(2, 1), strict=True))
        elif "shared_mlp." in name:
            place = name.partition("shared_mlp.")[0] + ("mlp.shared_expert." if config.num_local_experts else "mlp.")
            parts = values.chunk(2) if "input" in name else (values,)
            own = ("gate_proj", "up_proj") if "input" in name else ("down_proj",)
            parted |= {f"{place}{part}.weight": each for part, each in zip(own, parts, strict=True)}
        elif name.endswith("in_proj_qkvz.weight"):
            place = name.removesuffix("qkvz.weight")
            heads, group = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
            widths = [config.linear_key_head_dim] * 2 + [group * config.linear_value_head_dim] * 2
            parts = values.view(heads, -1, values.shape[1]).split(widths, 1)
            *qkv, z = (part.reshape(-1, values.shape[1]) for part in parts)
            parted |= {f"{place}qkv.weight": torch.cat(qkv), f"{place}z.weight": z}
        elif split_latents and name.endswith("kv_b_proj.weight"):
            D, Dv = config.qk_nope_head_dim, config.v_head_dim
            keys, kept = values.view(config.num_attention_heads, D + Dv, -1).split((D, Dv), dim=1)
            parted[name.replace("kv_b_proj", "k_b_proj")] = keys.transpose(1, 2)
            parted[name.replace("kv_b_proj", "v_b_proj")] = kept
        else:
            parted[name] = values
    return parted


def _merged(saved: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Put the matrices of a layer's experts into one tensor, as the converter does."""
    merged: dict[str, list[tuple[int, torch.Tensor]]] = {}
    whole = {}
    for name, values in saved.items():
        found = _EXPERT.fullmatch(name)
        if found is None:
            whole[name] = values
        else:
            number = int(name.removeprefix(found[1] + ".").partition(".")[0])
            merged.setdefault(f"{found[1]}.{found[2]}.weight", []).append((number, values))
    return whole | {
        name: torch.stack([values for _, values in sorted(parts, key=lambda part: part[0])])
        for name, parts in merged.items()
    }


def _in_turns(name: str, values: torch.Tensor, config: Any) -> torch.Tensor:
    """Put each key head's first value head first, then their second ones, where these are rows or columns."""
    K, V, width = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim
    keys = 2 * K * config.linear_key_head_dim
    dim, begin, size = {
        "in_proj_qkv": (0, keys, width), "conv1d": (0, keys, width), "in_proj_z": (0, 0, width),
        "in_proj_a": (0, 0, 1), "in_proj_b": (0, 0, 1), "A_log": (0, 0, 1), "dt_bias": (0, 0, 1),
        "out_proj": (1, 0, width),
    }.get(name.partition("linear_attn.")[2].removesuffix(".weight"), (0, 0, 0))  # fmt: skip
    if not size:
        return values
    order = torch.arange(V * size).view(K, V // K, size).transpose(0, 1).flatten() + begin
    return values.index_select(dim, torch.cat((torch.arange(begin), order)))


def _permuted(name: str, values: torch.Tensor, config: Any) -> torch.Tensor:
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None:
        return values
    return values.view(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _eps(config: Any, arch: str) -> dict[str, float]:
    """Return the entry of norms: layer norms have one of their own."""
    if getattr(config, "rms_norm_eps", None) is not None:
        return {f"{arch}.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps)}
    plain = next(
        getattr(config, name) for name in ("layer_norm_eps", "norm_epsilon", "norm_eps") if hasattr(config, name)
    )
    return {f"{arch}.attention.layer_norm_epsilon": float(plain)}


def _kv_heads(config: Any, arch: str) -> int | list[int]:
    """Return how many KV heads there are, by layer where some have none."""
    if not arch.startswith(("lfm2", "granitehybrid")):
        return int(config.num_key_value_heads)
    return [config.num_key_value_heads if kind == "full_attention" else 0 for kind in config.layer_types]


def _metadata(config: Any, arch: str) -> dict[str, Any]:
    vocab = {key: value for key, value in byte_vocab().items() if not key.startswith("llama.")}
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    theta = config.rope_parameters.get("full_attention", config.rope_parameters)["rope_theta"]
    return vocab | {
        "general.architecture": arch,
        f"{arch}.block_count": config.num_hidden_layers,
        f"{arch}.context_length": config.max_position_embeddings,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.num_attention_heads,
        f"{arch}.attention.head_count_kv": _kv_heads(config, arch),
        f"{arch}.attention.key_length": head_dim,
        f"{arch}.attention.value_length": head_dim,
        **_eps(config, arch),
        f"{arch}.rope.freq_base": float(theta),
    }
