"""Random weights of any shape asked for: benchmarks and tests of models whose checkpoint is not at hand."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import torch
from torch import Tensor

from model_svc.weights.source import WHOLE, Shard, Stored, narrow
from model_svc.weights.stored.block_tensor import BlockTensor
from model_svc.weights.stored.ggml_types import BY_NAME
from model_svc.weights.stored.grouped_tensor import GroupedTensor
from model_svc.weights.stored.tensor import QuantizedTensor


class RandomSource:
    """A checkpoint that has every tensor. Values depend on `seed` and the tensor's name only.

    Norm weights are near one, everything else is normal with `spread`, which keeps activations finite at any depth.
    `stored`: brings the matrices of layers into the form of a quantized checkpoint (`float8`, `float4`,
    `four_bits`).
    """

    def __init__(
        self,
        *,
        tied: bool,
        seed: int = 0,
        spread: float = 0.02,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        stored: Callable[[Tensor], QuantizedTensor] | None = None,
    ) -> None:
        self._tied = tied
        self._seed = seed
        self._spread = spread
        self._dtype = dtype
        self._device = torch.device(device)
        self._stored = stored

    def names(self) -> frozenset[str]:
        """Return nothing: no name stands out."""
        return frozenset()

    def has(self, name: str) -> bool:
        """Tell whether a tensor exists: all do, but for the head of a tied model."""
        return not (self._tied and name == "lm_head.weight")

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Make a tensor."""
        # On the CPU even for a GPU would make values equal everywhere, but takes minutes for billions of weights.
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()) + self._seed)
        values = torch.randn(shape, generator=generator, device=self._device, dtype=self._dtype).mul_(self._spread)
        return values.add_(1) if "norm" in name.rsplit(".", 2)[-2] else values

    def get_any(self, name: str) -> Tensor:
        """Refuse: a tensor that no name stands for has no shape of its own."""
        raise AssertionError(f"{name} has no shape")

    def get_shard(self, name: str, shape: tuple[int, ...], shard: Shard = WHOLE) -> Stored:
        """Make a tensor and return a part of it."""
        values = self.get(name, shape)
        stored: Stored = values
        if self._stored is not None and len(shape) == 2 and ".layers." in name:
            stored = self._stored(values)
        return narrow(stored, shard.dim, *shard.span(shape[shard.dim]))

    def ignore(self, name: str) -> None:
        """Do nothing."""

    def unused(self) -> frozenset[str]:
        """Return nothing."""
        return frozenset()

    def release(self) -> None:
        """Do nothing."""


def float8(values: Tensor) -> GroupedTensor:
    """Return numbers [F, E] as float8 with a scale for each output."""
    scales = values.abs().amax(1, keepdim=True).float() / torch.finfo(torch.float8_e4m3fn).max
    return GroupedTensor((values / scales).to(torch.float8_e4m3fn), scales, 0)


def four_bits(values: Tensor) -> GroupedTensor:
    """Return numbers [F, E] as 4 bits each, in groups of 128 inputs with a scale each."""
    groups = values.float().view(len(values), -1, 128)
    scales = groups.abs().amax(2).clamp_min(1e-12) / 7
    codes = (groups / scales.unsqueeze(2)).round_().add_(8).to(torch.uint8).flatten(1)
    return GroupedTensor(codes[:, ::2] | codes[:, 1::2] << 4, scales.half(), 8, bits=4)


_BETWEEN = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)  # neighbours of the 4 bit floats


def float4(values: Tensor) -> BlockTensor:
    """Return numbers [F, E] as MXFP4: 4 bit floats in groups of 32 inputs with a power of two each."""
    groups = values.float().view(len(values), -1, 32)
    exponents = groups.abs().amax(2, keepdim=True).clamp_min(2.0**-100).div_(6).log2_().ceil_()
    scaled = groups / exponents.exp2()
    codes = torch.bucketize(scaled.abs(), torch.tensor(_BETWEEN, device=values.device)).to(torch.uint8)
    codes |= (scaled < 0).to(torch.uint8) << 3
    raw = torch.cat(((exponents + 127).to(torch.uint8), codes[:, :, :16] | codes[:, :, 16:] << 4), 2)
    return BlockTensor(raw.flatten(1), values.shape, BY_NAME["MXFP4"])
