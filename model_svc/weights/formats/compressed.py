"""compressed-tensors (llm-compressor's form): float8 or int8 matrices with scales, or 4 and 8 bits packed in words.

Source: the `compressed-tensors` package. Packed: weight_packed int32 [out, in * bits / 32] of code + 2^(bits - 1),
weight_scale [out, groups], weight_zero_point of the same bias, packed along the outputs; weight_shape holds [out, in].
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from model_svc.weights.formats.fields import Fields
from model_svc.weights.formats.format import INT, SCALES, Part, Shape, WeightFormat, group_of, num_groups, unpacked
from model_svc.weights.formats.scaled import FLOAT8, Scaled
from model_svc.weights.stored.grouped_tensor import GroupedTensor

_ACTIVATIONS = ("input_scale", "input_zero_point", "output_scale", "output_zero_point", "q_scale", "k_scale", "v_scale")


def compressed(fields: Fields) -> WeightFormat:
    """Return the format. Raises CheckpointError for a variant that is not read."""
    fields.absent("transform_config")  # rotations that belong between layers
    fields.at("sparsity_config").one_of("format", ("dense",), "dense")
    groups = fields.at("config_groups")
    if len(groups.keys) != 1:
        raise fields.refuse("config_groups", "one group")
    group = groups.at(groups.keys[0])
    layout = fields.one_of("format", ("pack-quantized", "float-quantized", "int-quantized", "naive-quantized"))
    group.one_of("format", (layout,), layout)
    weights = group.at("weights")
    kind = weights.one_of("type", ("int", "float"), "int")
    bits = weights.one_of("num_bits", (4, 8) if layout == "pack-quantized" else (8,))
    ignored = _ignored(fields)
    if layout == "pack-quantized":
        if kind != "int":
            raise weights.refuse("type", "int")
        return Packed(weights, bits, ignored)
    strategy = weights.one_of("strategy", ("tensor", "channel", "block"), "tensor")
    weights.one_of("symmetric", (True,), True)
    block = weights.pair("block_structure") if strategy == "block" else None
    if strategy == "block" and block is None:
        raise weights.refuse("block_structure", "two positive integers")
    dtypes = FLOAT8 if kind == "float" else (torch.int8,)
    name = f"compressed-tensors {layout}, 8 bit, a scale for each {strategy}"
    return Scaled(name, dtypes=dtypes, block=block, unneeded=_ACTIVATIONS, ignored=ignored)


def _ignored(fields: Fields) -> tuple[str, ...]:
    """Return the modules that are not quantized: names, and patterns behind `re:`."""
    names = fields.names("ignore")
    for name in names:
        if name.startswith("re:"):
            try:
                re.compile(name[3:])
            except re.error as error:
                raise fields.refuse("ignore", f"names, and patterns behind re: ({error})") from error
    return names


class Packed:
    """Integers of 4 or 8 bits in words; `group` inputs share a scale."""

    codes = "weight_packed"
    marks: tuple[str, ...] = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")
    unneeded: tuple[str, ...] = _ACTIVATIONS

    def __init__(self, weights: Fields, bits: int, ignored: tuple[str, ...]) -> None:
        """Raise CheckpointError for a variant that is not read."""
        weights.one_of("actorder", ("weight", "static", False), False)  # `group`: columns in an order of its own
        strategy = weights.one_of("strategy", ("group", "channel"), "channel")
        self.group = weights.group_size() if strategy == "group" else -1
        self.symmetric = weights.one_of("symmetric", (True, False), True)
        self.bits = bits
        self.ignored = ignored
        self.name = f"compressed-tensors pack-quantized, {bits} bit, groups of {self.group}"

    def shape(self, codes: Shape) -> Shape:
        """Return [out, in] of weight_packed [out, in * bits / 32]."""
        return codes[0], codes[1] * 32 // self.bits

    def parts(self, out: int, size: int) -> Mapping[str, Part]:
        """Return the packed weight, its scales, zeros where it has some, and its shape."""
        groups, each = num_groups(size, self.group), 32 // self.bits
        parts = {
            "weight_packed": Part(((out, size // each),), INT),
            "weight_scale": Part(((out, groups),), SCALES),
            "weight_shape": Part(((2,),), (torch.int64, torch.int32)),
        }
        if not self.symmetric:
            parts["weight_zero_point"] = Part(((-(-out // each), groups),), INT)
        return parts

    def read(self, parts: Mapping[str, Tensor]) -> GroupedTensor:
        """Take the words as the bytes that they are."""
        codes, scales = parts["weight_packed"].contiguous().view(torch.uint8), parts["weight_scale"]
        out, size = codes.shape[0], codes.shape[1] * 8 // self.bits
        if parts["weight_shape"].tolist() != [out, size]:
            raise ValueError(f"weight_shape says {parts['weight_shape'].tolist()}, but [{out}, {size}] are packed")
        zeros: Tensor | int = 1 << self.bits - 1
        if not self.symmetric:
            zeros = unpacked(parts["weight_zero_point"].t(), self.bits).t()[:out].contiguous()
        return GroupedTensor(codes, scales, zeros, bits=self.bits, group_of=group_of(size, self.group))
