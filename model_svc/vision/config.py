"""What config.json says of the part of a model that sees; what it leaves out is as usual in the Idefics3 family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_svc.weights.errors import CheckpointError


@dataclass(frozen=True)
class VisionConfig:
    """Sizes of a vision tower, and how its patches become tokens.

    Idefics3 and Pixtral make one of `scale_factor` times `scale_factor` patches, Gemma 3 `mm_tokens` of each picture.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_channels: int
    image_size: int
    patch_size: int
    norm_eps: float
    act: str
    scale_factor: int
    mm_tokens: int
    rope_theta: float = 0.0  # of towers with rotary positions
    projector_act: str = "gelu"  # Pixtral's

    @property
    def grid(self) -> int:
        """How many patches a picture of the size that positions were learned for has along each side."""
        return self.image_size // self.patch_size

    @property
    def patch_numbers(self) -> int:
        """How many numbers one patch has."""
        return self.num_channels * self.patch_size**2


def vision_config(path: Path, whole: Mapping[str, Any]) -> VisionConfig:
    """Read `vision_config` of a config that was read from `path`. Raises CheckpointError naming the field at fault."""
    raw = whole.get("vision_config")
    if not isinstance(raw, dict):
        raise CheckpointError(path, f"vision_config must be an object, not {raw!r}")

    def count(name: str, usual: int, place: Mapping[str, Any] = raw) -> int:
        return count_of(path, place, name, usual)

    eps = raw.get("layer_norm_eps", 1e-6)
    if not isinstance(eps, float | int) or not 0 < eps < 1:
        raise CheckpointError(path, f"layer_norm_eps of what sees must be a small positive number, not {eps!r}")
    found = VisionConfig(
        hidden_size=count("hidden_size", 1152),
        intermediate_size=count("intermediate_size", 3072),
        num_layers=count("num_hidden_layers", 12),
        num_heads=count("num_attention_heads", 16),
        num_channels=count("num_channels", 3),
        image_size=count("image_size", 224),
        patch_size=count("patch_size", 32),
        norm_eps=float(eps),
        act=str(raw.get("hidden_act") or "gelu_pytorch_tanh"),
        scale_factor=count("scale_factor", 2, whole),
        mm_tokens=count("mm_tokens_per_image", 256, whole),
    )
    if found.hidden_size % found.num_heads:
        raise CheckpointError(path, f"hidden_size {found.hidden_size} is no multiple of {found.num_heads} heads")
    if found.num_channels != 3:
        raise CheckpointError(path, f"num_channels must be 3 (red, green, blue), not {found.num_channels}")
    return found


def count_of(path: Path, place: Mapping[str, Any], name: str, usual: int) -> int:
    """Return a size or count that `place`, read from `path`, says or leaves out. Raises CheckpointError naming it."""
    value = usual if place.get(name) is None else place[name]
    if type(value) is not int or not 0 < value < 1 << 31:
        raise CheckpointError(path, f"{name} of what sees must be a positive integer, not {value!r}")
    return value
