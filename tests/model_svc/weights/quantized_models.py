"""Quantized safetensors checkpoints of any small transformers model, written as each format's documentation says.

Every quantizer gets a weight [out, in] and returns the tensors that stand for it and the numbers that they stand for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

Parts = dict[str, Tensor]
Quantizer = Callable[[Tensor], tuple[Parts, Tensor]]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class Case(NamedTuple):
    """A format: its `quantization_config`, the quantizer, and whether native kernels keep it packed."""

    config: dict[str, Any]
    quantizer: Quantizer
    packed: bool


class Grouped(NamedTuple):
    """Integers [out, in] with scales and zeros [out, groups] and each input's group."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    group_of: Tensor

    @property
    def numbers(self) -> Tensor:
        """What they stand for."""
        return (self.codes - self.zeros[:, self.group_of]) * self.scales[:, self.group_of].float()


def grouped(weight: Tensor, size: int, bits: int, *, symmetric: bool, shuffled: bool = False) -> Grouped:
    """Round each group to the nearest of 2^bits numbers; `shuffled`: groups are of inputs far from one another."""
    columns, top = weight.shape[1], 2**bits - 1
    order = torch.arange(columns)
    if shuffled:
        order = torch.randperm(columns, generator=torch.Generator().manual_seed(9))
    group_of = torch.empty(columns, dtype=torch.int64)
    group_of[order] = torch.arange(columns) // (columns if size == -1 else size)
    scales, zeros, codes = [], [], torch.empty(weight.shape, dtype=torch.int64)
    for group in range(int(group_of.max()) + 1):
        part = weight[:, group_of == group]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        span = 2 * torch.maximum(-low, high) if symmetric else high - low
        scale = (span / top).half()
        middle = torch.full_like(scale, 2 ** (bits - 1)).long()
        zero = middle if symmetric else (-low / scale.float()).round().clamp(1, top).long()
        codes[:, group_of == group] = ((part / scale.float()[:, None]).round().long() + zero[:, None]).clamp(0, top)
        scales.append(scale)
        zeros.append(zero)
    return Grouped(codes, torch.stack(scales, 1), torch.stack(zeros, 1), group_of)


def words(integers: Tensor, bits: int) -> Tensor:
    """Pack integers [rows, n] into int32 words along the rows, the first one lowest; n is filled up with zeros."""
    each = 32 // bits
    filled = np.zeros((integers.shape[0], -(-integers.shape[1] // each) * each), dtype=np.uint32)
    filled[:, : integers.shape[1]] = integers.numpy()
    out = np.zeros((filled.shape[0], filled.shape[1] // each), dtype=np.uint32)
    for place in range(each):
        out |= filled[:, place::each] << np.uint32(bits * place)
    return torch.from_numpy(out.view(np.int32).copy())


def awq(size: int) -> Case:
    """AutoAWQ's GEMM layout."""

    def pack(integers: Tensor) -> Tensor:
        shuffled = integers.view(integers.shape[0], -1, 8)[:, :, AWQ_ORDER]
        return words(shuffled.reshape(integers.shape), 4)

    def quantize(weight: Tensor) -> tuple[Parts, Tensor]:
        form = grouped(weight, size, 4, symmetric=False)
        parts = {"qweight": pack(form.codes.t()), "qzeros": pack(form.zeros.t()), "scales": form.scales.t()}
        return parts, form.numbers

    config = {"quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": "gemm"}
    return Case(config, quantize, packed=True)


def gptq(size: int, bits: int = 4, *, symmetric: bool = True, order: bool = False, layout: str = "gptq") -> Case:
    """AutoGPTQ's layout; its first version stores zeros less one."""

    def quantize(weight: Tensor) -> tuple[Parts, Tensor]:
        form = grouped(weight, size, bits, symmetric=symmetric, shuffled=order)
        less = 1 if layout == "gptq" else 0
        parts = {
            "qweight": words(form.codes, bits).t(),
            "qzeros": words(form.zeros.t() - less, bits),
            "scales": form.scales.t(),
            "g_idx": form.group_of.int(),
            "bias": torch.zeros(weight.shape[0]),  # what old files have for layers without one
        }
        return parts, form.numbers

    config = {"quant_method": "gptq", "bits": bits, "group_size": size, "sym": symmetric, "desc_act": order}
    return Case(config | {"checkpoint_format": layout}, quantize, packed=bits == 4 or symmetric)


def fp8(block: tuple[int, int] | None, scheme: str = "dynamic") -> Case:
    """DeepSeek's blocks, or one scale a tensor with a scale for activations."""

    def quantize(weight: Tensor) -> tuple[Parts, Tensor]:
        if block is None:
            scale = weight.abs().max() / 448
            codes = (weight / scale).to(torch.float8_e4m3fn)
            return {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(0.5)}, codes.float() * scale
        rows, columns = block
        grid = torch.empty(-(-weight.shape[0] // rows), -(-weight.shape[1] // columns))
        spread = torch.empty_like(weight)
        for r in range(grid.shape[0]):
            for c in range(grid.shape[1]):
                at = slice(r * rows, (r + 1) * rows), slice(c * columns, (c + 1) * columns)
                grid[r, c] = spread[at] = weight[at].abs().max() / 448
        codes = (weight / spread).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale_inv": grid}, codes.float() * spread

    config = {"quant_method": "fp8", "activation_scheme": scheme, "weight_block_size": block and list(block)}
    return Case(config, quantize, packed=False)


def _compressed(layout: str, activations: bool = False, **weights: Any) -> dict[str, Any]:
    inputs = {"num_bits": 8, "type": weights["type"], "dynamic": True, "strategy": "token"} if activations else None
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


def compressed_packed(bits: int, size: int, *, symmetric: bool = True) -> Case:
    """Pack-quantized integers, signed, stored plus 2^(bits - 1)."""

    def quantize(weight: Tensor) -> tuple[Parts, Tensor]:
        form = grouped(weight, size, bits, symmetric=symmetric)
        scales = form.scales.bfloat16()
        form = form._replace(scales=scales)
        parts = {
            "weight_packed": words(form.codes, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            parts["weight_zero_point"] = words(form.zeros.t(), bits).t()
        return parts, form.numbers

    strategy = "channel" if size == -1 else "group"
    config = _compressed(
        "pack-quantized", num_bits=bits, type="int", symmetric=symmetric, strategy=strategy,
        group_size=None if size == -1 else size, actorder=None, dynamic=False,
    )  # fmt: skip
    return Case(config, quantize, packed=bits == 4 or symmetric)


def _compressed_blocks() -> Case:
    def quantize(weight: Tensor) -> tuple[Parts, Tensor]:
        parts, numbers = fp8((128, 128)).quantizer(weight)
        return {"weight": parts["weight"], "weight_scale": parts["weight_scale_inv"]}, numbers

    config = _compressed(
        "float-quantized", activations=True, num_bits=8, type="float", symmetric=True, strategy="block",
        block_structure=[128, 128], dynamic=False,
    )  # fmt: skip
    return Case(config, quantize, packed=False)


def compressed_plain(kind: str, strategy: str) -> Case:
    """Float8 or int8 matrices with a scale for the tensor, each channel or (float8) each block."""

    if strategy == "block":
        return _compressed_blocks()

    def quantize(weight: Tensor) -> tuple[Parts, Tensor]:
        top = 448 if kind == "float" else 127
        peak = weight.abs().amax(1, keepdim=True) if strategy == "channel" else weight.abs().max().reshape(1)
        scale = (peak / top).bfloat16()
        codes = weight / scale.float()
        codes = codes.to(torch.float8_e4m3fn) if kind == "float" else codes.round().clamp(-128, 127).to(torch.int8)
        return {"weight": codes, "weight_scale": scale}, codes.float() * scale.float()

    config = _compressed(
        f"{kind}-quantized", activations=True, num_bits=8, type=kind, symmetric=True, strategy=strategy, dynamic=False
    )
    return Case(config, quantize, packed=kind == "int")


CASES: dict[str, Case] = {
    "awq_128": awq(128),
    "awq_32": awq(32),
    "gptq_4": gptq(64),
    "gptq_4_asymmetric": gptq(128, symmetric=False),
    "gptq_4_activation_order": gptq(32, symmetric=False, order=True),
    "gptq_4_one_group": gptq(-1),
    "gptq_4_v2": gptq(32, symmetric=False, layout="gptq_v2"),
    "gptq_8": gptq(32, 8),
    "gptq_8_asymmetric": gptq(32, 8, symmetric=False),
    "gptq_8_activation_order": gptq(32, 8, order=True),
    "fp8_blocks": fp8((128, 128)),
    "fp8_small_blocks": fp8((16, 40)),
    "fp8_static": fp8(None, "static"),
    "compressed_4": compressed_packed(4, 32),
    "compressed_4_asymmetric": compressed_packed(4, 64, symmetric=False),
    "compressed_8": compressed_packed(8, 64),
    "compressed_8_channel": compressed_packed(8, -1),
    "compressed_fp8_tensor": compressed_plain("float", "tensor"),
    "compressed_fp8_channel": compressed_plain("float", "channel"),
    "compressed_fp8_block": compressed_plain("float", "block"),
    "compressed_int8": compressed_plain("int", "channel"),
}


def write_quantized(directory: Path, model: Any, case: Case) -> None:
    """Write a checkpoint with quantized layers, but for the head; `model` gets the numbers that they stand for."""
    stored: Parts = {}
    linears = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)} - {"lm_head"}
    for name, tensor in model.state_dict().items():
        module, _, kind = name.rpartition(".")
        if module not in linears or kind == "bias":
            stored[name] = tensor.clone()
        else:
            parts, numbers = case.quantizer(tensor.float())
            stored = {f"{module}.{part}": value.contiguous().clone() for part, value in parts.items()} | stored
            tensor.copy_(numbers)
    if model.config.tie_word_embeddings:
        stored.pop("lm_head.weight", None)
    save_file(stored, directory / "model.safetensors")
    config = model.config.to_dict() | {"quantization_config": case.config}
    config["architectures"] = [type(model).__name__]
    (directory / "config.json").write_text(json.dumps(config, default=str))
