"""GPTQ: 4 or 8 bits, packed along the inputs; with activation order (or not) `g_idx` says which group an input is of.

Source: AutoGPTQ's `QuantLinear`: qweight int32 [in * bits / 32, out], qzeros int32 [groups, out * bits / 32], scales
[groups, out], g_idx [in]. Its first layout, still the usual one, stores each zero less one; `gptq_v2` does not.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from model_svc.weights.formats.fields import Fields
from model_svc.weights.formats.format import INT, SCALES, Part, Shape, group_of, num_groups, unpacked
from model_svc.weights.stored.grouped_tensor import GroupedTensor


class Gptq:
    """`group` inputs share a scale and a zero."""

    codes = "qweight"
    marks: tuple[str, ...] = ("qweight", "qzeros", "scales", "g_idx")
    unneeded: tuple[str, ...] = ()

    def __init__(self, fields: Fields) -> None:
        """Raise CheckpointError for a variant that is not read."""
        self.bits = fields.one_of("bits", (4, 8))
        fields.absent("dynamic")
        layouts = [fields.one_of(name, ("gptq", "gptq_v2"), "gptq") for name in ("checkpoint_format", "format")]
        self.less = 0 if "gptq_v2" in layouts else 1
        self.group = fields.group_size()
        self.ignored = fields.names("modules_to_not_convert")
        self.name = f"GPTQ, {self.bits} bit, groups of {self.group}"

    def shape(self, codes: Shape) -> Shape:
        """Return [out, in] of qweight [in * bits / 32, out]."""
        return codes[1], codes[0] * 32 // self.bits

    def parts(self, out: int, size: int) -> Mapping[str, Part]:
        """Return qweight, qzeros, scales and g_idx."""
        groups, each = num_groups(size, self.group), 32 // self.bits
        return {
            "qweight": Part(((size // each, out),), INT),
            "qzeros": Part(((groups, -(-out // each)),), INT),
            "scales": Part(((groups, out),), SCALES),
            "g_idx": Part(((size,),), INT, optional=True),
        }

    def read(self, parts: Mapping[str, Tensor]) -> GroupedTensor:
        """Turn the weight round: its words then are the bytes that we want."""
        codes = parts["qweight"].t().contiguous().view(torch.uint8)
        scales = parts["scales"].t().contiguous()
        zeros = unpacked(parts["qzeros"], self.bits).t()[: scales.shape[0]].short() + self.less
        order = group_of(codes.shape[1] * 8 // self.bits, self.group)
        if "g_idx" in parts:
            order = self._activation_order(parts["g_idx"].long(), scales.shape[1])
        return GroupedTensor(codes, scales, zeros.contiguous(), bits=self.bits, group_of=order)

    def _activation_order(self, groups: Tensor, count: int) -> Tensor | None:
        if int(groups.min()) < 0 or int(groups.max()) >= count:
            raise ValueError(f"g_idx names groups {int(groups.min())} to {int(groups.max())} of {count}")
        usual = group_of(len(groups), self.group)
        plain = torch.arange(len(groups)) // (len(groups) // count) if usual is None else usual
        return usual if torch.equal(groups, plain) else groups
