"""AWQ in its GEMM layout: 4 bits, packed along the outputs in an order of its own, always with zero points.

Source: AutoAWQ, `WQLinear_GEMM`: qweight int32 [in, out / 8], qzeros int32 [groups, out / 8], scales [groups, out].
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from model_svc.weights.formats.fields import Fields
from model_svc.weights.formats.format import INT, SCALES, Part, Shape, group_of, num_groups, unpacked
from model_svc.weights.stored.grouped_tensor import GroupedTensor

# Where the 8 outputs of a word lie, from its lowest bits on: 0 2 4 6 1 3 5 7; here, where each output is.
_PLACE = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])


class Awq:
    """`group` inputs share a scale and a zero."""

    codes = "qweight"
    marks: tuple[str, ...] = ("qweight", "qzeros", "scales")
    unneeded: tuple[str, ...] = ()

    def __init__(self, fields: Fields) -> None:
        """Raise CheckpointError for a variant that is not read."""
        fields.one_of("bits", (4,), 4)
        fields.one_of("version", ("gemm",), "gemm")
        fields.one_of("format", ("gemm",), "gemm")
        fields.one_of("zero_point", (True,), True)
        self.group = fields.group_size()
        self.ignored = fields.names("modules_to_not_convert")
        self.name = f"AWQ, 4 bit, groups of {self.group}"

    def shape(self, codes: Shape) -> Shape:
        """Return [out, in] of qweight [in, out / 8]."""
        return codes[1] * 8, codes[0]

    def parts(self, out: int, size: int) -> Mapping[str, Part]:
        """Return qweight, qzeros and scales."""
        groups = num_groups(size, self.group)
        return {
            "qweight": Part(((size, out // 8),), INT),
            "qzeros": Part(((groups, out // 8),), INT),
            "scales": Part(((groups, out),), SCALES),
        }

    def read(self, parts: Mapping[str, Tensor]) -> GroupedTensor:
        """Put the outputs in order and turn the weight round."""
        codes, zeros = (_in_order(unpacked(parts[name], 4)).t() for name in ("qweight", "qzeros"))
        packed = codes[:, ::2] | codes[:, 1::2] << 4
        scales = parts["scales"].t().contiguous()
        order = group_of(codes.shape[1], self.group)
        return GroupedTensor(packed.contiguous(), scales, zeros.contiguous(), bits=4, group_of=order)


def _in_order(integers: Tensor) -> Tensor:
    return integers.view(integers.shape[0], -1, 8)[:, :, _PLACE].reshape(integers.shape)
