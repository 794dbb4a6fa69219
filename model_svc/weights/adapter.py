"""LoRA adapters as PEFT saves them: adapter_config.json, and each layer's A and B in adapter_model.safetensors.

What would change an answer in a way that is not computed here is refused by the name of its field, never left out.

Source: peft's LoraConfig and `get_peft_model_state_dict`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from model_svc.weights.errors import CheckpointError
from model_svc.weights.json_file import read_json
from model_svc.weights.safetensors import SafetensorsSource
from wire.adapters import CONFIG, WEIGHTS

MAX_RANK = 512
_PREFIX = "base_model.model."
_TENSOR = re.compile(r"(.+)\.lora_(A|B)(?:\.default)?\.weight")
_PLAIN = re.compile(r"[\w.]+")
# Whose values change what is computed, with those that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "use_qalora": (False, None),
    "use_bdlora": (False, None),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "modules_to_save": (None, []),
    "fan_in_fan_out": (False, None),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None,),
}
# They take a part out of the base model's weights, so that its own are not those that the adapter was trained on.
_OTHER_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")


@dataclass(frozen=True)
class LowRankPart:
    """What is added to one layer's weight: scale * up @ down, `down` [r, in], `up` [out, r]."""

    down: Tensor
    up: Tensor
    scale: float


class AdapterCheckpoint:
    """An adapter's files. Layers ask for their part by the name that the base model's checkpoint gives them."""

    def __init__(self, name: str, directory: Path) -> None:
        """Read the configuration and all headers. Raises CheckpointError that names the file and the fault."""
        self.name = name
        self._path = directory / CONFIG
        self._config = _read(directory)
        self._check()
        self._source = SafetensorsSource.of_file(directory / WEIGHTS)
        self._layers = self._named()
        self._taken: set[str] = set()

    def has(self, layer: str) -> bool:
        """Tell whether a layer is adapted."""
        return layer in self._layers

    def rank(self, layer: str) -> int:
        """Return the rank of a layer's part, 0 without one."""
        return self._source.shapes[self._layers[layer]["A"]][0] if layer in self._layers else 0

    def check_ranks(self, most: int) -> None:
        """Raise CheckpointError if a layer's part is of a higher rank than there is room for."""
        for layer in self._layers:
            if self.rank(layer) > most:
                raise self._fault(f"r: {layer!r} has rank {self.rank(layer)}; max_adapter_rank is {most}")

    def part(self, layer: str, out: int, size: int) -> LowRankPart:
        """Return the part of a layer with `out` outputs and `size` inputs. Raises CheckpointError for another shape."""
        self._taken.add(layer)
        r = self._rank_of(layer)
        tensors = self._layers[layer]
        down, up = self._source.get(tensors["A"], (r, size)), self._source.get(tensors["B"], (out, r))
        for which, tensor in (("A", down), ("B", up)):
            if not tensor.dtype.is_floating_point:
                raise self._fault(f"tensor {tensors[which]!r} is {tensor.dtype}; it must hold numbers", weights=True)
        return LowRankPart(down, up, self._scale(layer, r))

    def leave(self, prefix: str) -> None:
        """Count what is below a place as used: another stage has these layers."""
        self._taken.update(layer for layer in self._layers if layer.startswith(prefix))

    def check_all_taken(self) -> None:
        """Raise CheckpointError if a part belongs to no layer that can be adapted."""
        left = sorted(set(self._layers) - self._taken)
        if left:
            raise self._fault(
                f"{left[0]!r} is no layer of the base model that an adapter can change ({len(left)} such); "
                "attention's and dense feed-forward projections can be",
                weights=True,
            )

    def _check(self) -> None:
        config = self._config
        if config.get("peft_type") != "LORA":
            raise self._fault(f"peft_type is {config.get('peft_type')!r}; only LORA is served")
        for field, neutral in _NEUTRAL.items():
            if field in config and config[field] not in neutral:
                raise self._fault(f"{field} {json.dumps(config[field])[:80]} is not supported")
        begun = config.get("init_lora_weights")
        if isinstance(begun, str) and begun.lower().startswith(_OTHER_BASE):
            raise self._fault(f"init_lora_weights {begun[:80]!r} changes the base model; convert it to a plain LoRA")
        for field, kind in (("r", int), ("lora_alpha", (int, float))):
            value = config.get(field)
            if not isinstance(value, kind) or isinstance(value, bool) or not math.isfinite(value):
                raise self._fault(f"{field} must be a number, not {value!r:.80}")
        self._check_rank(config["r"], "r")
        for field in ("rank_pattern", "alpha_pattern"):
            self._check_pattern(field)

    def _check_pattern(self, field: str) -> None:
        pattern = self._config.get(field) or {}
        if not isinstance(pattern, dict):
            raise self._fault(f"{field} must be an object")
        for key, value in pattern.items():
            if not _PLAIN.fullmatch(key.removeprefix("^")):
                raise self._fault(f"{field}: {key[:80]!r} is a regular expression; layers must be named plainly")
            if type(value) not in (int, float) or not math.isfinite(value):
                raise self._fault(f"{field}: {key!r} must be a number, not {value!r:.80}")
            if field == "rank_pattern":
                self._check_rank(value, f"{field}: {key!r}")

    def _check_rank(self, rank: float, field: str) -> None:
        if rank != int(rank) or not 1 <= rank <= MAX_RANK:
            raise self._fault(f"{field} must be a whole number of 1 to {MAX_RANK}, not {rank}")

    def _named(self) -> dict[str, dict[str, str]]:
        """Return the tensors' names by layer and matrix."""
        layers: dict[str, dict[str, str]] = {}
        for name in sorted(self._source.names()):
            found = _TENSOR.fullmatch(name)
            if found is None:
                raise self._fault(f"tensor {name[:120]!r} is not supported; only lora_A and lora_B are", weights=True)
            layer, which = _layer_of(found[1]), found[2]
            if layer.rsplit(".", 1)[-1] in ("lm_head", "embed_tokens"):
                raise self._fault(f"{layer!r}: the head and the embeddings cannot be adapted", weights=True)
            if which in layers.setdefault(layer, {}):
                raise self._fault(f"tensors {layers[layer][which]!r} and {name!r} are of one layer", weights=True)
            layers[layer][which] = name
        for layer, tensors in layers.items():
            if len(tensors) != 2:
                lacks = "B" if "A" in tensors else "A"
                raise self._fault(f"layer {layer[:120]!r} lacks lora_{lacks}", weights=True)
            if not len(self._source.shapes[tensors["A"]]) == len(self._source.shapes[tensors["B"]]) == 2:
                raise self._fault(f"layer {layer[:120]!r} is of no matrices", weights=True)
        if not layers:
            raise self._fault("no layer is adapted", weights=True)
        return layers

    def _rank_of(self, layer: str) -> int:
        return int(self._by_pattern("rank_pattern", layer, self._config["r"]))

    def _scale(self, layer: str, rank: int) -> float:
        alpha = self._by_pattern("alpha_pattern", layer, self._config["lora_alpha"])
        return float(alpha / math.sqrt(rank) if self._config.get("use_rslora") else alpha / rank)

    def _by_pattern(self, field: str, layer: str, default: float) -> float:
        """Return a layer's value: that of the first key that is its name, or the end of it behind a dot."""
        for key, value in (self._config.get(field) or {}).items():
            plain = _layer_of(key.removeprefix("^"))
            if layer == plain or (not key.startswith("^") and layer.endswith(f".{plain}")):
                return float(value)
        return default

    def _fault(self, fault: str, *, weights: bool = False) -> CheckpointError:
        return CheckpointError(self._path.with_name(WEIGHTS) if weights else self._path, fault)


def _layer_of(module: str) -> str:
    """Return what a model of texts alone calls a layer."""
    name = module.removeprefix(_PREFIX)
    name = name.removeprefix("language_model.")
    return name.replace("model.language_model.", "model.", 1) if name.startswith("model.language_model.") else name


def _read(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG
    if not directory.is_dir():
        raise CheckpointError(directory, "is no directory of an adapter")
    if not (directory / WEIGHTS).exists():
        pickled = (directory / "adapter_model.bin").exists()
        advice = "adapter_model.bin can run code and is not read; save it as safetensors"
        raise CheckpointError(directory / WEIGHTS, advice if pickled else "the file is missing")
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise CheckpointError(path, "the file is missing") from None
    if not isinstance(content, dict):
        raise CheckpointError(path, "must hold an object")
    return content
