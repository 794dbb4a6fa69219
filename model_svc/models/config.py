"""config.json, parsed once into what the model files share; the rest stays reachable by its own name."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from model_svc.layers.rope import RopeConfig
from model_svc.weights.errors import CheckpointError
from model_svc.weights.json_file import read_json
from wire.usual_text import usual_text


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a decoder. `raw` is the (text) config as read, for what only one architecture has."""

    path: Path
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_eps: float
    tied: bool
    act: str
    raw: dict[str, Any] = field(repr=False)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an architecture's own setting; null counts as absent."""
        value = self.raw.get(name)
        return default if value is None else value

    @overload
    def number(self, name: str) -> float | None: ...
    @overload
    def number(self, name: str, default: float) -> float: ...
    def number(self, name: str, default: float | None = None) -> float | None:
        """Return an architecture's own number. Raises CheckpointError for anything else."""
        value = self.get(name, default)
        return None if value is None else _number(self.path, name, value)

    def whole(self, name: str, default: int = 0) -> int:
        """Return an architecture's own size or count, 0 or more. Raises CheckpointError for anything else."""
        value = self.get(name, default)
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise CheckpointError(self.path, f"{name} must be a whole number, not {value!r}")
        return value

    @property
    def sliding_window(self) -> int | None:
        """How many last keys a windowed layer sees; None: all. Raises CheckpointError."""
        return self.whole("sliding_window") or None

    def rope(self, layer_type: str | None = None, rotated: float = 1.0) -> RopeConfig:
        """Return the rope parameters, of one kind of layers where these differ (Gemma 3, OLMo 3).

        `rotated` is the share of a head that is rotated where the config does not say.
        Old checkpoints hold `rope_theta` and `rope_scaling`, new ones `rope_parameters`. Raises CheckpointError.
        """
        parameters = self._object("rope_parameters")
        if layer_type is not None and isinstance(parameters.get(layer_type), dict):
            parameters = parameters[layer_type]
        merged: dict[str, Any] = {**self._object("rope_scaling"), **parameters}
        kind = str(merged.get("rope_type", merged.get("type", "default")))
        original = self.raw.get("original_max_position_embeddings")
        if original is not None:
            merged.setdefault("original_max_position_embeddings", original)
        theta, share = (
            _number(self.path, name, self.get(name, default) if merged.get(name) is None else merged[name])
            for name, default in (("rope_theta", 10000.0), ("partial_rotary_factor", rotated))
        )
        dim = int(self.head_dim * share)
        if theta <= 0 or not 0 < dim <= self.head_dim or dim % 2:
            raise CheckpointError(self.path, f"rope_theta {theta} and a rotated part of {dim} dimensions make no sense")
        return RopeConfig(theta, dim, "longrope" if kind == "su" else kind, merged, self.max_position)

    def layer_type(self, index: int, pattern: int = 0) -> str:
        """Return the kind of a layer, `full_attention` or `sliding_attention`.

        New configs list the kinds; old ones say that each `pattern`-th layer is full (a default of the architecture),
        or that layers from `max_window_layers` on are windowed.
        """
        types = self.get("layer_types")
        if isinstance(types, list) and index < len(types):
            return str(types[index])
        pattern = self.whole("sliding_window_pattern", pattern)
        windowed = (index + 1) % pattern != 0 if pattern else (
            bool(self.get("use_sliding_window", False)) and index >= self.whole("max_window_layers")
        )  # fmt: skip
        return "sliding_attention" if windowed else "full_attention"

    def _object(self, name: str) -> dict[str, Any]:
        value = self.get(name, {})
        if not isinstance(value, dict):
            raise CheckpointError(self.path, f"{name} must be an object, not {value!r}")
        return value


_EPS = ("rms_norm_eps", "layer_norm_eps", "norm_epsilon", "norm_eps")


def _number(path: Path, name: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise CheckpointError(path, f"{name} must be a number, not {value!r}")
    return float(value)


def load_config(directory: Path) -> ModelConfig:
    """Read config.json of a model directory. Raises CheckpointError naming the field at fault."""
    path = directory / "config.json"
    try:
        whole = read_json(path)
    except FileNotFoundError:
        raise CheckpointError(path, "the file is missing; `headrace pull` makes a model directory") from None
    if not isinstance(whole, dict):
        raise CheckpointError(path, "must hold a JSON object")
    return parse_config(path, whole)


def parse_config(path: Path, whole: dict[str, Any]) -> ModelConfig:
    """Check a config that was read from `path`."""
    architectures = whole.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise CheckpointError(path, "architectures must name the model class")
    text = whole.get("text_config")
    raw = whole
    if isinstance(text, dict):
        usual = usual_text(str(text.get("model_type")), rope="rope_parameters" not in text)
        raw = {**usual, **whole, **text}

    def count(name: str, default: int | None = None) -> int:
        value = raw.get(name) if raw.get(name) is not None else default
        if type(value) is not int or not 0 < value < 1 << 31:
            raise CheckpointError(path, f"{name} must be a positive integer, not {value!r}")
        return value

    hidden, heads = count("hidden_size"), count("num_attention_heads")
    kv_heads = count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise CheckpointError(path, f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    eps = next((raw[name] for name in _EPS if name in raw), 1e-6)
    if not isinstance(eps, float | int) or not 0 < eps < 1:
        raise CheckpointError(path, f"rms_norm_eps must be a small positive number, not {eps!r}")
    act = raw.get("hidden_activation") or raw.get("hidden_act") or "silu"
    return ModelConfig(
        path=path,
        architecture=architectures[0],
        vocab_size=count("vocab_size"),
        hidden_size=hidden,
        intermediate_size=count("intermediate_size", raw.get("block_ff_dim", raw.get("moe_intermediate_size"))),
        num_layers=count("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=count("head_dim", hidden // heads),
        max_position=count("max_position_embeddings", 2048),
        norm_eps=float(eps),
        tied=bool(raw.get("tie_word_embeddings", whole.get("tie_word_embeddings", False))),
        act=str(act),
        raw=raw,
    )
