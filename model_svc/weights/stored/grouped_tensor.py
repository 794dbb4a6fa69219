"""A weight as AWQ, GPTQ, compressed-tensors and FP8 checkpoints hold it, brought into one form.

number = scale * (code - zero), where a group of a row's columns shares scale and zero. Formats differ in where they put
the parts; `model_svc/weights/formats` has a file for each.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

import torch
from torch import Tensor

from model_svc.weights.stored.block_tensor import BlockTensor
from model_svc.weights.stored.ggml_types import BY_NAME
from model_svc.weights.stored.tensor import QuantizedTensor

_BLOCK = 32
_HALF_ULP, _NEXT_TO_NOTHING = 2.0**-11, 2.0**-20


class GroupedTensor(QuantizedTensor):
    """Rows of `codes` with a scale and a zero for each row and group.

    `codes`: [rows, columns] uint8, int8 or float8; or, `bits` 4, uint8 [rows, columns / 2], the lower half first.
    `scales`: [rows, groups]. `zeros`: integers [rows, groups], or one number for all.
    `group_of`: int64 [columns], the group of each column; None: groups of equal size, one after another.
    """

    def __init__(
        self, codes: Tensor, scales: Tensor, zeros: Tensor | int, *, bits: int = 8, group_of: Tensor | None = None
    ) -> None:
        self.codes = codes
        self.scales = scales
        self.zeros = zeros
        self.bits = bits
        columns = codes.shape[1] * 8 // bits
        self.shape = torch.Size((codes.shape[0], columns))
        self.group_of = group_of
        if group_of is None and columns % scales.shape[1]:
            raise ValueError(f"{columns} columns are not {scales.shape[1]} groups of one size")

    def rows(self, index: Tensor | slice) -> GroupedTensor:
        """Return some rows."""
        return self._with(lambda tensor: tensor[index], self.group_of)

    def columns(self, start: int, stop: int) -> GroupedTensor:
        """Return a range of columns; scales of groups that it leaves out stay. Raises ValueError if it cuts a byte."""
        each = 8 // self.bits
        if start % each or stop % each:
            raise ValueError(f"columns {start}..{stop} cut a byte of {each} values")
        codes = self.codes[:, start // each : stop // each]
        if self.scales.shape[1] == 1:
            return GroupedTensor(codes, self.scales, self.zeros, bits=self.bits)
        group_of = self.groups()[start:stop]
        return GroupedTensor(codes, self.scales, self.zeros, bits=self.bits, group_of=group_of)

    def moved(self, move: Callable[[Tensor], Tensor]) -> GroupedTensor:
        """Return the same on another device."""
        return self._with(move, None if self.group_of is None else move(self.group_of))

    def groups(self) -> Tensor:
        """Return the group of each column, int64 [columns]."""
        if self.group_of is not None:
            return self.group_of
        columns = torch.arange(self.shape[1], device=self.codes.device)
        return columns // (self.shape[1] // self.scales.shape[1])

    @property
    def stored(self) -> Tensor:
        """The codes."""
        return self.codes

    def integers(self, rows: slice = slice(None)) -> Tensor:
        """Return the codes of some rows one by one, [n, columns]."""
        codes = self.codes[rows]
        if self.bits == 8:
            return codes
        return torch.stack((codes & 15, codes >> 4), dim=2).view(codes.shape[0], -1)

    def piece(self, rows: slice) -> Tensor:
        """Return the float32 numbers of some rows."""
        codes, scales = self.integers(rows).float(), self.scales[rows].float()
        zeros = self.zeros[rows].float() if isinstance(self.zeros, Tensor) else self.zeros
        if self.group_of is not None:
            if isinstance(zeros, Tensor):
                zeros = zeros[:, self.group_of]
            return (codes - zeros) * scales[:, self.group_of]
        codes = codes.view(*scales.shape, -1)
        if isinstance(zeros, Tensor):
            zeros = zeros[:, :, None]
        return ((codes - zeros) * scales[:, :, None]).view(scales.shape[0], -1)

    @property
    def order(self) -> Tensor | None:
        """The columns sorted by group, where they are not so as they lie (activation order)."""
        if self.group_of is None or not bool((self.group_of.diff() < 0).any()):
            return None
        return torch.argsort(self.group_of, stable=True)

    def evened(self) -> GroupedTensor | None:
        """Return the same with its inputs along `order`, in groups of one size; None if a byte would be cut."""
        if self.group_of is None:
            return self
        order, codes, groups = self.order, self.codes, self.group_of
        if order is not None:
            codes, groups = self.integers()[:, order], groups[order]
            if self.bits == 4:
                codes = codes[:, ::2] | codes[:, 1::2] << 4
        size = gcd(*torch.unique_consecutive(groups, return_counts=True)[1].tolist())
        if size % (8 // self.bits):
            return None
        taken = groups[::size]
        zeros = self.zeros[:, taken] if isinstance(self.zeros, Tensor) else self.zeros
        return GroupedTensor(codes, self.scales[:, taken], zeros, bits=self.bits)

    def as_blocks(self) -> BlockTensor | None:
        """Return GGML blocks of 32 along `order`: Q4_0 or Q8_0 where zeros lie in the middle, else Q4_1.

        Nothing is rounded but what float16 cannot hold: a Q4_1 minimum, scale * zero, at most by half its last place.
        """
        even = None if self.codes.dtype.is_floating_point else self.evened()
        return even._blocks() if even is not None and even.group % _BLOCK == 0 else None

    @property
    def group(self) -> int:
        """How many inputs share a scale, where groups are of one size."""
        return self.shape[1] // self.scales.shape[1]

    @property
    def middle(self) -> int:
        """The zero of weights that are stored plus half their range."""
        return 0 if self.codes.dtype != torch.uint8 else 1 << self.bits - 1

    def _blocks(self) -> BlockTensor | None:
        scales, middle, zeros = self.scales.float(), self.middle, self.zeros
        centred = bool((zeros == middle).all()) if isinstance(zeros, Tensor) else zeros == middle
        if self.bits == 8 and not centred:
            return None
        heads = [scales] if centred else [scales, -scales * zeros]
        if not all(_fits_half(head) for head in heads):
            return None
        codes = self.integers().view(self.shape[0], -1, _BLOCK)
        if self.bits == 4:
            codes = codes[:, :, : _BLOCK // 2] | codes[:, :, _BLOCK // 2 :] << 4
        elif middle:
            codes = codes ^ middle  # as two's complement: code - 128
        each = self.group // _BLOCK
        parts = [head.half().repeat_interleave(each, 1)[:, :, None].view(torch.uint8) for head in heads]
        raw = torch.cat([*parts, codes.view(torch.uint8)], dim=2)
        name = "Q8_0" if self.bits == 8 else "Q4_0" if centred else "Q4_1"
        return BlockTensor(raw.view(raw.shape[0], -1), self.shape, BY_NAME[name])

    def _with(self, change: Callable[[Tensor], Tensor], group_of: Tensor | None) -> GroupedTensor:
        zeros = change(self.zeros) if isinstance(self.zeros, Tensor) else self.zeros
        return GroupedTensor(change(self.codes), change(self.scales), zeros, bits=self.bits, group_of=group_of)


def _fits_half(numbers: Tensor) -> bool:
    """Tell whether float16 holds numbers as well as it can, or loses what is nothing beside the largest."""
    lost = (numbers.half().float() - numbers).abs()
    allowed = numbers.abs() * _HALF_ULP + numbers.abs().amax() * _NEXT_TO_NOTHING
    return bool((lost <= allowed).all())
