"""A weight that stays as it is stored: 4 or 8 bits each, a scale (and a zero) for each output and group of inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.language import cdiv, jit, tl

UINT8, INT8, E4M3 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_KINDS = {torch.uint8: 0, torch.int8: 1, torch.float8_e4m3fn: 2}


@dataclass(frozen=True)
class GroupedWeight:
    """number = scale * (code - zero), [F, E], in groups of E / G inputs.

    `codes`: uint8, int8 or float8_e4m3fn [F, E], or, `each` 2, two of 4 bits a byte, the lower half first.
    `scales` [F, G] of any float; `zeros` [F, G] of integers, or None where `middle` is everybody's.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    middle: int = 0
    each: int = 1

    def __post_init__(self) -> None:
        E, (F, G) = self.codes.shape[1] * self.each, self.scales.shape
        if self.codes.dtype not in _KINDS or not self.codes.is_contiguous() or not self.scales.is_contiguous():
            raise ValueError(f"codes are {self.codes.dtype}; they must be contiguous uint8, int8 or float8_e4m3fn")
        if self.codes.shape[0] != F or E % G or (E // G) % self.each:
            raise ValueError(f"scales have shape {(F, G)}, which makes no groups of codes {tuple(self.codes.shape)}")
        if self.zeros is not None and (self.zeros.shape != self.scales.shape or not self.zeros.is_contiguous()):
            raise ValueError(f"zeros have shape {tuple(self.zeros.shape)}; they must be contiguous {(F, G)}")

    @property
    def shape(self) -> tuple[int, int]:
        """[F, E]."""
        return self.codes.shape[0], self.codes.shape[1] * self.each

    @property
    def group(self) -> int:
        """How many inputs share a scale."""
        return self.shape[1] // self.scales.shape[1]

    @property
    def kind(self) -> int:
        """How a code is read."""
        return _KINDS[self.codes.dtype]

    @property
    def raw(self) -> Tensor:
        """The codes as bytes."""
        return self.codes.view(torch.uint8)

    @property
    def nbytes(self) -> int:
        """What it takes on the device."""
        return self.codes.nbytes + self.scales.nbytes + (0 if self.zeros is None else self.zeros.nbytes)

    def reference(self, dtype: torch.dtype) -> Tensor:
        """Return the numbers [F, E] in plain torch, rounded once."""
        codes = self.codes
        if self.each == 2:
            codes = torch.stack((codes & 15, codes >> 4), dim=2)
        codes = codes.float().view(*self.scales.shape, -1)
        zeros = self.middle if self.zeros is None else self.zeros.float()[:, :, None]
        return ((codes - zeros) * self.scales.float()[:, :, None]).view(self.shape).to(dtype)

    def launch(self, dtype: torch.dtype) -> Tensor:
        """Return the numbers by one kernel, which reads each code once."""
        (F, E), G = self.shape, self.scales.shape[1]
        out = torch.empty((F, E), dtype=dtype, device=self.codes.device)
        width = self.codes.shape[1]
        # 1 KB of codes a program: enough to hide the scales' latency, small enough to fill the card at any size.
        _numbers_kernel[(F, cdiv(width, 1024))](
            self.raw, self.scales, self.scales if self.zeros is None else self.zeros, out, width, G, self.group,
            KIND=self.kind, EACH=self.each, ZEROS=self.zeros is not None, MIDDLE=self.middle, BLOCK=1024,
        )  # fmt: skip
        return out


@jit
def decoded(raw, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the float32 numbers of bytes. float8 by its bits: so it is read on cards too that do not know it."""
    if KIND == E4M3:
        # The exponent's and the mantissa's bits of a float16 of 2^-8 the size; also where they are subnormal.
        bits = raw.to(tl.uint16)
        return (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    if KIND == INT8:
        return raw.to(tl.int8, bitcast=True).to(tl.float32)
    return raw.to(tl.float32)


@jit
def _numbers_kernel(  # type: ignore[no-untyped-def]
    raw_ptr, scale_ptr, zero_ptr, out_ptr, width, G, group,
    KIND: tl.constexpr, EACH: tl.constexpr, ZEROS: tl.constexpr, MIDDLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    raw = tl.load(raw_ptr + row * width + at, mask=inside, other=0)
    place = row * G + at * EACH // group
    scale = tl.load(scale_ptr + place, mask=inside, other=0.0).to(tl.float32)
    zero = tl.load(zero_ptr + place, mask=inside, other=0).to(tl.float32) if ZEROS else MIDDLE
    out = out_ptr + row * width * EACH + at * EACH
    if EACH == 2:
        low, high = decoded(raw & 15, KIND), decoded(raw >> 4, KIND)
        tl.store(out, ((low - zero) * scale).to(out_ptr.dtype.element_ty), mask=inside)
        tl.store(out + 1, ((high - zero) * scale).to(out_ptr.dtype.element_ty), mask=inside)
    else:
        tl.store(out, ((decoded(raw, KIND) - zero) * scale).to(out_ptr.dtype.element_ty), mask=inside)
