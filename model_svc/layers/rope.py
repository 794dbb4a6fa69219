"""Rotary embedding tables: cos and sin for each position and dimension pair, for every scaling rule that we know.

All rules end in two tables of one form, so the kernel never hears of them. Formulas follow the papers named at each and
round like Hugging Face's implementation (float32 throughout), which checkpoints were evaluated with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class RopeConfig:
    """Rope parameters of a checkpoint's config. `dim` is how many dimensions of a head are rotated (even)."""

    theta: float
    dim: int
    kind: str = "default"
    scaling: dict[str, Any] | None = None
    max_position: int = 2048


class RopeTables(NamedTuple):
    """cos and sin [P, R/2], float32, indexed by position."""

    cos: Tensor
    sin: Tensor


def rope_tables(config: RopeConfig, max_len: int, device: torch.device) -> RopeTables:
    """Compute the tables for positions 0 .. max_len - 1.

    Raises ValueError for a scaling rule that is unknown, or whose parameters are missing or make no sense.
    """
    if config.kind not in _RULES:
        raise ValueError(f"rope_type {config.kind!r} is not supported; known are {', '.join(_RULES)}")
    try:
        frequencies, factor = _RULES[config.kind](config, max_len)
    except KeyError as error:
        raise ValueError(f"rope scaling of type {config.kind!r} lacks {error}") from None
    except (TypeError, ArithmeticError, RuntimeError) as error:
        raise ValueError(f"rope scaling of type {config.kind!r} makes no sense: {error}") from error
    if not bool(torch.isfinite(frequencies).all()):
        raise ValueError(f"rope scaling of type {config.kind!r} makes no sense: it divides by nothing")
    angles = torch.outer(torch.arange(max_len, dtype=torch.float32), frequencies)
    return RopeTables((angles.cos() * factor).to(device), (angles.sin() * factor).to(device))


def pair_axes(pairs: int, sections: Sequence[int], *, in_turns: bool, device: torch.device) -> Tensor:
    """Return which of three axes (time, row, column) each dimension pair turns by, int64 [R/2].

    `sections` says how many pairs each axis has: one after another (Qwen2-VL), or `in_turns` for as long as the second
    and third have some, and then time alone (Qwen3-VL). Raises ValueError for sections that make no sense.
    """
    if len(sections) != 3 or sum(sections) != pairs or min(sections) < 0:
        raise ValueError(f"mrope_section {list(sections)} must be three numbers with the sum {pairs}")
    if not in_turns:
        return torch.repeat_interleave(torch.arange(3), torch.tensor(sections)).to(device)
    axes = torch.zeros(pairs, dtype=torch.int64)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return axes.to(device)


def tables_of(tables: RopeTables, axes: Tensor, of_pairs: Tensor) -> RopeTables:
    """Return the rows [T, R/2] that turn tokens at positions `axes` [3, T], each pair by the axis of `pair_axes`."""
    positions = axes.index_select(0, of_pairs).T
    return RopeTables(tables.cos.gather(0, positions), tables.sin.gather(0, positions))


def score_factor(config: RopeConfig) -> float:
    """Return what scores are multiplied with for the sake of a stretched context, where tables cannot do it all.

    DeepSeek rotates only a part of a head, so YaRN's factor of the whole is apart: `mscale_all_dim`, squared, as it is
    that of queries and of keys. What `mscale` has beyond it is in the tables.
    """
    scaling = _scaling(config)
    weight = scaling.get("mscale_all_dim")
    if config.kind != "yarn" or not weight:
        return 1.0
    return _mscale(weight, _yarn_stretch(config)) ** 2


Rule = Callable[[RopeConfig, int], tuple[Tensor, float]]


def _powers(config: RopeConfig) -> Tensor:
    exponents = torch.arange(0, config.dim, 2, dtype=torch.float32) / config.dim
    return torch.as_tensor(config.theta**exponents)


def _scaling(config: RopeConfig) -> dict[str, Any]:
    return config.scaling or {}


def _default(config: RopeConfig, _max_len: int) -> tuple[Tensor, float]:
    return 1.0 / _powers(config), 1.0


def _linear(config: RopeConfig, _max_len: int) -> tuple[Tensor, float]:
    """Positions are divided by the factor (kaiokendev, 2023)."""
    return 1.0 / _powers(config) / _scaling(config)["factor"], 1.0


def _alpha(config: RopeConfig, _max_len: int) -> tuple[Tensor, float]:
    """A base that a fixed `alpha` stretches (HunYuan), whatever the length."""
    stretch = _scaling(config)["alpha"] ** (config.dim / (config.dim - 2))
    return 1.0 / _powers(replace(config, theta=config.theta * stretch)), 1.0


def _llama3(config: RopeConfig, _max_len: int) -> tuple[Tensor, float]:
    """Long wavelengths are divided by the factor, short ones kept, those between blended (Llama 3.1)."""
    scaling = _scaling(config)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    frequencies = 1.0 / _powers(config)
    wavelengths = 2 * math.pi / frequencies
    smooth = (original / wavelengths - low) / (high - low)
    blended = (1 - smooth) * frequencies / factor + smooth * frequencies
    scaled = torch.where(wavelengths > original / low, frequencies / factor, frequencies)
    between = (wavelengths >= original / high) & (wavelengths <= original / low)
    return torch.where(between, blended, scaled), 1.0


def _yarn(config: RopeConfig, _max_len: int) -> tuple[Tensor, float]:
    """NTK by parts with an attention factor (YaRN, arXiv 2309.00071)."""
    scaling = _scaling(config)
    original = scaling.get("original_max_position_embeddings") or config.max_position
    factor = _yarn_stretch(config)

    def pair_of(rotations: float) -> float:
        return config.dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = pair_of(scaling.get("beta_fast") or 32), pair_of(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.dim - 1)
    width = (high - low) or 0.001
    interpolated = torch.clamp((torch.arange(config.dim // 2, dtype=torch.float32) - low) / width, 0, 1)
    powers = _powers(config)
    frequencies = 1.0 / (factor * powers) * interpolated + 1.0 / powers * (1 - interpolated)
    return frequencies, _yarn_attention_factor(scaling, factor)


def _yarn_stretch(config: RopeConfig) -> float:
    scaling = _scaling(config)
    original = scaling.get("original_max_position_embeddings") or config.max_position
    return float(scaling.get("factor") or config.max_position / original)


def _mscale(weight: float, factor: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _yarn_attention_factor(scaling: dict[str, Any], factor: float) -> float:
    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return _mscale(scaling["mscale"], factor) / _mscale(scaling["mscale_all_dim"], factor)
    return _mscale(1.0, factor)


def _longrope(config: RopeConfig, max_len: int) -> tuple[Tensor, float]:
    """One divisor per frequency, in a short and a long set (LongRoPE, arXiv 2402.13753).

    Keys stay in the cache as they were rotated, so a sequence cannot change sets while it grows: the long set is used
    when the served context is longer than the original one, for all sequences.
    """
    scaling = _scaling(config)
    original = scaling["original_max_position_embeddings"]
    factor = scaling.get("factor") or config.max_position / original
    divisors = torch.tensor(scaling["long_factor" if max_len > original else "short_factor"], dtype=torch.float32)
    attention = scaling.get("attention_factor")
    if attention is None:
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return 1.0 / (divisors * _powers(config)), float(attention)


_RULES: dict[str, Rule] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _alpha,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "mrope": _default,  # of text; what differs for pictures is `pair_axes`
}
