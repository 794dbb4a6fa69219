"""Random LoRA adapters as PEFT saves them, and the model that each is one with when its part is merged by hand."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    directory: Path, model: torch.nn.Module, *, targets: Sequence[str] = ALL, seed: int = 0, rank: int = 4,
    alpha: float = 8.0, spread: float = 0.3, ranks: dict[str, int] | None = None, **config: Any,
) -> Path:  # fmt: skip
    """Write an adapter of the linear layers of a transformers model whose names end with a target."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, torch.nn.Linear) or not name.endswith(tuple(targets)):
            continue
        r = next((own for end, own in (ranks or {}).items() if name.endswith(end)), rank)
        for which, shape in (("A", (r, layer.in_features)), ("B", (layer.out_features, r))):
            key = f"base_model.model.{name}.lora_{which}.weight"
            tensors[key] = torch.randn(shape, generator=generator) * spread
    assert tensors
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    write_config(directory, r=rank, lora_alpha=alpha, target_modules=list(targets), rank_pattern=ranks or {}, **config)
    return directory


def write_config(directory: Path, **fields: Any) -> None:
    """Write an adapter_config.json as PEFT does, but for these fields."""
    usual: dict[str, Any] = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "x", "bias": "none",
        "use_dora": False, "use_rslora": False, "modules_to_save": None, "fan_in_fan_out": False, "lora_dropout": 0.05,
        "init_lora_weights": True, "inference_mode": True, "layers_to_transform": None, "layer_replication": None,
        "rank_pattern": {}, "alpha_pattern": {}, "r": 4, "lora_alpha": 8,
    }  # fmt: skip
    (directory / "adapter_config.json").write_text(json.dumps(usual | fields))


def merged(model: torch.nn.Module, directory: Path) -> torch.nn.Module:
    """Return a copy of a transformers model with W + scale * B A in place of W, by PEFT's definitions."""
    from safetensors.torch import load_file

    config = json.loads((directory / "adapter_config.json").read_text())
    tensors = load_file(directory / "adapter_model.safetensors")
    whole = copy.deepcopy(model)
    for key, down in tensors.items():
        if ".lora_A." not in key:
            continue
        name = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        alpha = next((own for end, own in config["alpha_pattern"].items() if name.endswith(end)), config["lora_alpha"])
        scale = alpha / (math.sqrt(len(down)) if config["use_rslora"] else len(down))
        up = tensors[key.replace("lora_A", "lora_B")]
        with torch.no_grad():
            whole.get_submodule(name).weight += (scale * up.double() @ down.double()).float()
    return whole
