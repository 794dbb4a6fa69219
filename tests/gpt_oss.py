"""Tiny checkpoints of gpt-oss in the form of the published ones: experts in MXFP4, in two tensors for each matrix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import save_file
from torch import Tensor

_LEFT = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]


def write_published(directory: Path, model: Any) -> Path:
    """Write transformers' `model` as OpenAI's checkpoints are; its experts are rounded to what MXFP4 can hold."""
    directory.mkdir(exist_ok=True)
    stored: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name.endswith(("_proj", "_up_proj")):
            stored[f"{name}_blocks"], stored[f"{name}_scales"] = _blocks(tensor)
        else:
            stored[name] = tensor.clone()
    save_file(stored, directory / "model.safetensors")
    config = model.config.to_dict() | {"architectures": ["GptOssForCausalLM"]}
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": _LEFT}
    (directory / "config.json").write_text(json.dumps(config, default=str))
    return directory


def _blocks(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return blocks and scales of numbers [experts, in, out]."""
    rows = numbers.transpose(1, 2).contiguous().numpy()
    raw = torch.from_numpy(gguf.quants.quantize(rows, gguf.GGMLQuantizationType.MXFP4)).unflatten(2, (-1, 17))
    codes = torch.cat((raw[..., 1:] & 15, raw[..., 1:] >> 4), -1)
    return codes[..., ::2] | codes[..., 1::2] << 4, raw[..., 0].contiguous()
