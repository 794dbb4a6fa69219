"""Keep float8 weights as they are stored, on a card whose tensor cores know them; all else is dequantized."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels import few_rows, float8_linear, scaled_linear
from kernels.float8_weight import SPAN, Float8Weight
from kernels.quantize_rows import QuantizedRows
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.kept import Kept
from model_svc.quant.method import LinearOp
from model_svc.weights.reading import Reading
from model_svc.weights.stored.grouped_tensor import GroupedTensor
from model_svc.weights.stored.tensor import QuantizedTensor

LEAST_CAPABILITY = (9, 0)  # of a card: its kernels start before the one before has ended


class Float8Linear:
    """x W^T + b over float8 weights. `weight` [out, in] and `bias` are open to layers that fuse more into it."""

    def __init__(self, weight: Float8Weight, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor | QuantizedRows) -> Tensor:
        """Multiply."""
        return float8_linear.float8_linear(x, self.weight, self.bias)


class Float8(Kept):
    """Products in `dtype` on `device` with float8 weights where the checkpoint has them."""

    name = "float8"

    def __init__(self, dtype: torch.dtype, device: torch.device, reading: Reading | None = None) -> None:
        super().__init__(Dequantized(dtype, device, reading))
        self._device = device
        on_card = device.type == "cuda"
        self._capability = torch.cuda.get_device_capability(device) if on_card else LEAST_CAPABILITY

    def linear(self, parts: Sequence[Tensor | QuantizedTensor], bias: Tensor | None) -> LinearOp:
        """Stack parts whose scales are of one form."""
        weight = self._stacked(parts)
        if weight is None:
            return self._dense.linear(parts, bias)
        self._kept_bytes += weight.nbytes
        return Float8Linear(weight, bias)

    def keeps_experts(self, part: Tensor | QuantizedTensor) -> bool:
        """Tell that experts of float8 stay so too."""
        return isinstance(part, GroupedTensor) and part.codes.dtype == torch.float8_e4m3fn

    def _stacked(self, parts: Sequence[Tensor | QuantizedTensor]) -> Float8Weight | None:
        """Return one weight of all parts; None if a part has another form, or no kernel takes the whole."""
        grouped = [part for part in parts if isinstance(part, GroupedTensor)]
        scales = [_scales(part) for part in grouped]
        known = [part for part in scales if part is not None]
        if len(known) < len(parts) or len({part.dim() for part in known}) > 1:
            return None
        if known[0].dim() == 2 and any(part.shape[0] % SPAN.value for part in grouped[:-1]):
            return None
        stacked = torch.cat(known)
        shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
        outline = Float8Weight(torch.empty(shape, dtype=torch.float8_e4m3fn, device="meta"), stacked)
        if not few_rows.suits(outline) or not scaled_linear.suits(outline, self._capability):
            return None
        return Float8Weight(self._whole([part.codes for part in grouped], shape), stacked.to(self._device))

    def _whole(self, parts: Sequence[Tensor], shape: tuple[int, int]) -> Tensor:
        whole = torch.empty(shape, dtype=torch.uint8, device=self._device)  # bytes, which every op can move
        at = 0
        for part in parts:
            self._dense.fill(whole[at : at + part.shape[0]], part.contiguous().view(torch.uint8))
            at += part.shape[0]
        return whole.view(torch.float8_e4m3fn)


def _scales(part: GroupedTensor) -> Tensor | None:
    """Return scales as `Float8Weight` has them; None if they are for other groups, or codes are not its own."""
    if part.codes.dtype != torch.float8_e4m3fn or isinstance(part.zeros, Tensor) or part.zeros != 0:
        return None
    scales = part.scales.float()
    if scales.shape[1] == 1:
        return scales[:, 0].contiguous()
    groups = part.groups()
    first = groups[:: SPAN.value]
    blocks = scales[:: SPAN.value, first]
    whole = _spread(first, 0, part.shape[1]).equal(groups) and _spread(blocks, 0, part.shape[0]).equal(scales[:, first])
    return blocks.contiguous() if whole else None


def _spread(blocks: Tensor, dim: int, size: int) -> Tensor:
    return blocks.repeat_interleave(SPAN.value, dim).narrow(dim, 0, size)
