"""A weight that stays as it is stored: 4 or 8 bits each, a scale (and a zero) for each output and group of inputs."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.grouped_words import E4M3, FRAGMENT_BLOCK, FRAGMENT_ROWS, UNSIGNED, excess, fragments, pack, parts, unpack
from kernels.language import TRITON_INSTALLED, cdiv, jit, tl

_LEAST_DOT = 16  # inputs that a tensor core takes at once
_MAX_BLOCK = 256  # H200: as many inputs again take 5 to 10 % longer


@dataclass(frozen=True)
class GroupedWeight:
    """number = scale * (code - zero), [F, E], in groups of E / G inputs. Made by `of`.

    `words`: int32 [F, E * bits / 32], blocks of `block` inputs (see `grouped_words`), the last one filled up; in the
    order of a tensor core's fragments, F filled up too, where `lie_in_fragments`.
    `scales` [G, F]: int32, the 16 bits of a scale of type `scale` above those of its zero; where scales are float32
    so are they, and `zeros` int32 [G, F] stand apart, or `middle` is all there is.
    `centred`: signed codes without zeros.
    `arrived`: int32, a count for each tile of outputs, 0 between products.
    """

    words: Tensor
    scales: Tensor
    zeros: Tensor | None
    middle: int
    scale: torch.dtype
    kind: int
    bits: int
    block: int
    shape: tuple[int, int]
    centred: bool
    arrived: Tensor
    lie_in_fragments: bool

    @staticmethod
    def of(
        codes: Tensor,
        scales: Tensor,
        zeros: Tensor | None,
        middle: int = 0,
        each: int = 1,
        hopper: bool | None = None,
        most: int = _MAX_BLOCK,
    ) -> GroupedWeight:
        """Bring uint8, int8 or float8_e4m3fn codes [F, E] into words; `each` 2: two of 4 bits a byte, lower half first.

        `scales` [F, G] of any float; `zeros` [F, G] of integers, or None where `middle` is everybody's. `hopper`: in
        the order that `grouped_hopper` reads, if it takes such a weight; None: as the device wants it. `most`: inputs
        of a block.
        """
        _check(codes, scales, zeros, each)
        hopper = _on_hopper(codes) if hopper is None else hopper
        bits, (F, G) = 8 // each, scales.shape
        E = codes.shape[1] * each
        shift = 0
        if codes.dtype == torch.int8:  # as unsigned, and zeros with them
            codes, shift = codes.view(torch.uint8) ^ 128, 128
        lie_in_fragments = hopper and fragments_fit(F, E, E // G, bits, scales)
        block = FRAGMENT_BLOCK if lie_in_fragments else _block(E, E // G, bits, most)
        raw = codes.view(torch.uint8)
        if each == 2:
            raw = torch.stack((raw & 15, raw >> 4), dim=2).view(F, E)
        middle += shift
        table = None if zeros is None else zeros.int() + shift
        wide = scales.element_size() > 2
        units = scales.float() if wide else scales.view(torch.int16).int() << 16 | (middle if table is None else table)
        words = pack(
            functional.pad(raw, (0, -E % block, 0, -F % FRAGMENT_ROWS if lie_in_fragments else 0)), bits, block
        )
        return GroupedWeight(
            words=fragments(words) if lie_in_fragments else words,
            scales=units.t().contiguous(),
            zeros=table.t().contiguous() if wide and table is not None else None,
            middle=middle,
            scale=torch.float32 if wide else scales.dtype,
            kind=(E4M3 if codes.dtype == torch.float8_e4m3fn else UNSIGNED).value,
            bits=bits,
            block=block,
            shape=(F, E),
            centred=zeros is None and middle == (0 if codes.dtype == torch.float8_e4m3fn else 128),
            arrived=torch.zeros(4 * cdiv(F, 4 * _LEAST_DOT), dtype=torch.int32, device=codes.device),
            lie_in_fragments=lie_in_fragments,
        )

    @property
    def group(self) -> int:
        """How many inputs share a scale."""
        return self.shape[1] // self.scales.shape[0]

    @property
    def spans(self) -> int:
        """In how many equal parts of a block all inputs are of one group; 0: in none that a tensor core could take."""
        span = self.group & -self.group
        return max(self.block // span, 1) if span * 32 // self.bits >= self.block else 0

    @property
    def form(self) -> dict[str, int | None]:
        """What kernels are compiled for."""
        alone = self.scale == torch.float32 and self.zeros is None
        return {
            "BITS": self.bits, "KIND": self.kind, "SCALE": _SCALES[self.scale], "MIDDLE": self.middle if alone else None
        }  # fmt: skip

    @property
    def shifted(self) -> bool:
        """Whether what the tensor cores take for a code may differ from code - zero."""
        return self.bits == 4 or not self.centred

    @property
    def nbytes(self) -> int:
        """What it takes on the device."""
        held = (self.words, self.scales, self.zeros, self.arrived)
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    def reference(self, dtype: torch.dtype) -> Tensor:
        """Return the numbers [F, E] in plain torch, rounded once."""
        F, E = self.shape
        words = fragments(self.words, back=True) if self.lie_in_fragments else self.words
        raw = unpack(words, self.bits, self.block)[:F, :E].contiguous()
        codes = raw.view(torch.float8_e4m3fn).float() if self.kind == E4M3.value else raw.float()
        if self.scale == torch.float32:
            scales = self.scales
            zeros = torch.full_like(scales, self.middle) if self.zeros is None else self.zeros.float()
        else:
            scales, zeros = (self.scales >> 16).short().view(self.scale).float(), (self.scales & 0xFFFF).float()
        codes = codes.view(F, scales.shape[0], -1)
        return ((codes - zeros.t()[:, :, None]) * scales.t()[:, :, None]).view(F, E).to(dtype)

    def launch(self, dtype: torch.dtype) -> Tensor:
        """Return the numbers by one kernel, which reads each code once."""
        F, E = self.shape
        out = torch.empty((F, E), dtype=dtype, device=self.words.device)
        width = self.block * self.bits // 32
        rows = 1024 // width  # 4 KB of words a program: enough to hide latency, little enough to fill the card
        _numbers_kernel[(cdiv(F, rows), self.words.shape[1] // width)](
            self.words, self.scales, self.scales if self.zeros is None else self.zeros, out, F, E, self.group,
            SPANS=self.spans, ROWS=rows, WIDTH=width, FRAGMENTS=self.lie_in_fragments, **self.form,
        )  # fmt: skip
        return out


def _check(codes: Tensor, scales: Tensor, zeros: Tensor | None, each: int) -> None:
    E, (F, G) = codes.shape[1] * each, scales.shape
    if codes.dtype not in (torch.uint8, torch.int8, torch.float8_e4m3fn) or not codes.is_contiguous():
        raise ValueError(f"codes are {codes.dtype}; they must be contiguous uint8, int8 or float8_e4m3fn")
    if codes.shape[0] != F or E % G or (E // G) % each:
        raise ValueError(f"scales have shape {(F, G)}, which makes no groups of codes {tuple(codes.shape)}")
    if zeros is not None and zeros.shape != scales.shape:
        raise ValueError(f"zeros have shape {tuple(zeros.shape)}; they must be {(F, G)}")


def _block(E: int, group: int, bits: int, most: int) -> int:
    """Return how many inputs a block takes: many, but not such that E is filled up or a part would be of two groups."""
    block, least = most, _LEAST_DOT * 32 // bits
    while block > least and (E % block or (group & -group) * 32 // bits < block):
        block //= 2
    return block


def fragments_fit(F: int, E: int, group: int, bits: int, scales: Tensor) -> bool:
    """Tell whether `grouped_hopper` takes such a weight; it is the only place that says so.

    A group, or what of it lies in a block, is two products' inputs at least; the copy unit's rows are 16 bytes.
    """
    span = min(group & -group, FRAGMENT_BLOCK)
    return bits == 4 and scales.element_size() == 2 and span >= 32 and E % 8 == 0 and F % 4 == 0


def _on_hopper(tensor: Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) == (9, 0) and TRITON_INSTALLED


FLOAT32, FLOAT16, BFLOAT16 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_SCALES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


@jit
def scale_and_zero(scale_ptr, zero_ptr, place, SCALE: tl.constexpr, MIDDLE: tl.constexpr):
    """Return those of some groups, float32."""
    held = tl.load(scale_ptr + place)
    if SCALE == FLOAT32:
        scale, zero = held, (tl.load(zero_ptr + place) if MIDDLE is None else held * 0.0 + MIDDLE).to(tl.float32)
    else:
        zero = (held & 0xFFFF).to(tl.float32)
        if SCALE == FLOAT16:
            scale = (held >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        else:
            scale = (held & -0x10000).to(tl.float32, bitcast=True)
    return scale, zero


@jit
def _numbers_kernel(
    word_ptr, scale_ptr, zero_ptr, out_ptr, F, E, group,
    BITS: tl.constexpr, KIND: tl.constexpr, SCALE: tl.constexpr, MIDDLE: tl.constexpr,
    SPANS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, FRAGMENTS: tl.constexpr,
):  # fmt: skip
    EACH: tl.constexpr = 32 // BITS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    word = tl.arange(0, WIDTH)
    there = tl.minimum(row, F - 1).to(tl.int64)
    if FRAGMENTS:  # ROWS and WIDTH are those of 1024 words together
        tile = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
        r = tl.arange(0, ROWS)
        at = (r // 16 * 128 + r % 8 * 16 + r // 8 % 2 * 2)[:, None] + (word // 8 * 512 + word // 2 % 4 * 4 + word % 2)
        held = tl.load(word_ptr + tile * (ROWS * WIDTH) + at)
    else:
        row_words = tl.num_programs(1) * WIDTH
        held = tl.load(word_ptr + there[:, None] * row_words + tl.program_id(1) * WIDTH + word[None, :])
    codes = parts(held, BITS, KIND, tl.float16)
    block = tl.program_id(1) * (EACH * WIDTH)
    for part in tl.static_range(EACH):
        column = block + part * WIDTH + word
        live = (row < F)[:, None] & (column < E)[None, :]
        if SPANS == 0:
            place = (tl.minimum(column, E - 1) // group)[None, :] * F + there[:, None]
        else:  # a part lies in one group
            place = (tl.minimum(block + part * WIDTH, E - 1) // group * F + there)[:, None]
        scale, zero = scale_and_zero(scale_ptr, zero_ptr, place, SCALE, MIDDLE)
        number = (codes[part].to(tl.float32) - (zero + excess(BITS, KIND, tl.float16))) * scale
        tl.store(out_ptr + there[:, None] * E + column[None, :], number.to(out_ptr.dtype.element_ty), mask=live)
