"""What config.json says of the part of Qwen's models that sees; what it leaves out is as usual in them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_svc.vision.config import VisionConfig, count_of
from model_svc.weights.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class QwenVisionConfig(VisionConfig):
    """Sizes of a tower that takes pictures as films of `frames` equal frames, `scale_factor` squared patches a token.

    `out_size` is the width of its features, `window` how many pixels a window of attention has along each side, but in
    the layers `full`. Qwen3-VL has no windows, and makes features for the first layers of the model of texts, too,
    behind its layers `deep`; it learned positions for a grid of `image_size`.
    """

    out_size: int
    frames: int
    window: int
    full: frozenset[int]
    deep: tuple[int, ...]

    @property
    def patch_numbers(self) -> int:
        """How many numbers one patch has."""
        return self.num_channels * self.frames * self.patch_size**2


@dataclass(frozen=True)
class _Usual:
    hidden_size: int
    intermediate_size: int
    depth: int
    patch_size: int
    act: str
    deep: tuple[int, ...] = ()


_QWEN2_5 = _Usual(1280, 3420, 32, 14, "silu")
_QWEN3 = _Usual(1152, 4304, 27, 16, "gelu_pytorch_tanh", (8, 16, 24))


def qwen2_5_config(path: Path, whole: Mapping[str, Any]) -> QwenVisionConfig:
    """Read `vision_config` of a config that was read from `path`. Raises CheckpointError naming the field at fault."""
    return _config(path, whole, _QWEN2_5)


def qwen3_config(path: Path, whole: Mapping[str, Any]) -> QwenVisionConfig:
    """Read the same of Qwen3-VL."""
    return _config(path, whole, _QWEN3)


def _config(path: Path, whole: Mapping[str, Any], usual: _Usual) -> QwenVisionConfig:
    raw = whole.get("vision_config")
    if not isinstance(raw, dict):
        raise CheckpointError(path, f"vision_config must be an object, not {raw!r}")

    def count(name: str, usual: int) -> int:
        return count_of(path, raw, name, usual)

    hidden, heads = count("hidden_size", usual.hidden_size), count("num_heads", 16)
    patch, grid = count("patch_size", usual.patch_size), math.isqrt(count("num_position_embeddings", 2304))
    if hidden % (4 * heads):
        raise CheckpointError(path, f"{heads} heads of hidden_size {hidden} have no two halves of pairs to rotate")
    if count("in_channels", count("in_chans", 3)) != 3:
        raise CheckpointError(path, "in_channels must be 3 (red, green, blue)")
    merge, window = count("spatial_merge_size", 2), count("window_size", 112)
    if window < patch * merge:
        raise CheckpointError(
            path, f"window_size {window} has no room for a square of {merge} patches of {patch} pixels"
        )
    return QwenVisionConfig(
        hidden_size=hidden,
        intermediate_size=count("intermediate_size", usual.intermediate_size),
        num_layers=count("depth", usual.depth),
        num_heads=heads,
        num_channels=3,
        image_size=grid * patch,
        patch_size=patch,
        norm_eps=1e-6,
        act=str(raw.get("hidden_act") or usual.act),
        scale_factor=merge,
        mm_tokens=0,
        out_size=count("out_hidden_size", 3584),
        frames=count("temporal_patch_size", 2),
        window=window,
        full=frozenset(_layers(path, raw, "fullatt_block_indexes", (7, 15, 23, 31))),
        deep=_layers(path, raw, "deepstack_visual_indexes", usual.deep),
        rope_theta=_theta(path, raw),
    )


def _layers(path: Path, raw: Mapping[str, Any], name: str, usual: tuple[int, ...]) -> tuple[int, ...]:
    value = usual if raw.get(name) is None else raw[name]
    if not isinstance(value, list | tuple) or not all(type(each) is int and each >= 0 for each in value):
        raise CheckpointError(path, f"{name} of what sees must be numbers of layers, not {value!r}")
    return tuple(value)


def _theta(path: Path, raw: Mapping[str, Any]) -> float:
    parameters = raw.get("rope_parameters") or {}
    theta = parameters.get("rope_theta", 10000.0) if isinstance(parameters, dict) else None
    if not isinstance(theta, int | float) or not theta > 0:
        raise CheckpointError(path, f"rope_parameters of what sees must have a positive rope_theta, not {theta!r}")
    return float(theta)
