"""What a quantized safetensors format is: which tensors make one weight, and how they become a `QuantizedTensor`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from model_svc.weights.stored.tensor import QuantizedTensor

Shape = tuple[int, ...]
INT = (torch.int32,)
SCALES = (torch.float16, torch.bfloat16, torch.float32)


class Part(NamedTuple):
    """One of the tensors that make a weight: the shapes and dtypes that it may have, and whether it may be absent."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...]
    optional: bool = False


class WeightFormat(Protocol):
    """Made of `quantization_config`, once a checkpoint. Names are what follows a module's own, `qweight` say.

    `codes`: the tensor that tells the weight's shape. `marks`: whoever has one of these is stored in this format.
    `unneeded`: what stands beside (scales for rounding activations, which are not rounded here). `ignored`: modules
    that the config says are not quantized.
    """

    name: str
    codes: str
    marks: tuple[str, ...]
    unneeded: tuple[str, ...]
    ignored: tuple[str, ...]

    def shape(self, codes: Shape) -> Shape:
        """Return the weight's [out, in], given the shape of `codes`."""
        ...

    def parts(self, out: int, size: int) -> Mapping[str, Part]:
        """Return the tensors that make a weight [out, size], `codes` among them."""
        ...

    def read(self, parts: Mapping[str, Tensor]) -> QuantizedTensor:
        """Make the weight. Raises ValueError that says what is wrong with the tensors' content."""
        ...


def num_groups(size: int, group: int) -> int:
    """Return how many groups of `group` inputs there are; -1: one of all."""
    return 1 if group == -1 else -(-size // group)


def group_of(size: int, group: int) -> Tensor | None:
    """Return the group of each of `size` inputs; None where all groups are of one size."""
    return None if group == -1 or size % group == 0 else torch.arange(size) // group


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Return the integers in int32 words [rows, n], lowest bits first: uint8 [rows, n * 32 / bits]."""
    raw = words.contiguous().view(torch.uint8)
    return raw if bits == 8 else torch.stack((raw & 15, raw >> 4), dim=2).view(raw.shape[0], -1)
