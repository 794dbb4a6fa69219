"""What `dtype` means on a device: the dtype of activations, and the method by which weights multiply."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels import float8_kv
from model_svc.quant import native
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.float8 import LEAST_CAPABILITY, Float8
from model_svc.quant.grouped import Grouped
from model_svc.quant.kept import Kept
from model_svc.quant.method import QuantMethod
from model_svc.weights.reading import Reading
from wire.errors import StartError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_FASTER_IN_FLOAT8 = (9, 0)  # measured on an H200; later cards do as they are told
_WORDS = ("auto", "int8", "packed", "fp8")


KV_DTYPES = ("auto", "fp8")
_KV_FLOAT8 = (8, 9)  # cards of earlier generations cannot convert such numbers


class RunnerConfigError(StartError, ValueError):
    """A runner setting cannot work on this machine or for this model; the message names it."""


class Precision(NamedTuple):
    """The dtype of activations; whether native kernels compute, or which weights stay as they are stored on a GPU.

    `float4`: the experts of MXFP4, which the other two keep as well.
    """

    dtype: torch.dtype
    native_kernels: bool = False
    packed: bool = False
    float8: bool = False
    float4: bool = False

    def method(self, device: torch.device, reading: Reading | None) -> QuantMethod:
        """Return the method of one model."""
        if self.native_kernels:
            return native.Native()
        if self.float8:
            return Float8(self.dtype, device, reading)
        if self.packed:
            return Grouped(self.dtype, device, reading)
        dense = Dequantized(self.dtype, device, reading)
        return Kept(dense) if self.float4 else dense


def kv_dtype_of(kv_dtype: str, precision: Precision, device: torch.device) -> torch.dtype:
    """Return in what keys and values are kept. Raises RunnerConfigError for a `kv_dtype` that this device has not.

    auto: as they are computed, or float16 by native kernels. fp8 is for cards, and for the exact mode, which tells what
    it costs.
    """
    if kv_dtype not in KV_DTYPES:
        raise RunnerConfigError(f"kv_dtype {kv_dtype!r} is not supported; known are {', '.join(KV_DTYPES)}")
    if kv_dtype == "auto":
        return torch.float16 if precision.native_kernels else precision.dtype
    if precision.native_kernels:
        raise RunnerConfigError("kv_dtype fp8 needs a GPU, or on a CPU dtype float32; native kernels keep float16")
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _KV_FLOAT8:
        raise RunnerConfigError("kv_dtype fp8 needs a GPU of compute capability 8.9 or later; auto works everywhere")
    return float8_kv.DTYPE


def precision_of(dtype: str, device: torch.device) -> Precision:
    """Return what a `dtype` setting means. Raises RunnerConfigError for one that this device has not."""
    on_cpu = device.type == "cpu"
    if dtype == "packed":
        if on_cpu:
            raise RunnerConfigError("dtype packed needs a GPU; on a CPU auto keeps weights packed")
        return Precision(torch.bfloat16, packed=True)
    capability = (0, 0) if on_cpu else torch.cuda.get_device_capability(device)
    if dtype == "fp8":
        if capability < LEAST_CAPABILITY:
            raise RunnerConfigError("dtype fp8 needs a GPU of compute capability 9.0 or later; auto works everywhere")
        return Precision(torch.bfloat16, float8=True)
    if dtype == "auto" and not on_cpu:
        return Precision(torch.bfloat16, float8=capability == _FASTER_IN_FLOAT8, float4=True)
    if dtype in ("auto", "int8"):
        if on_cpu and native.usable():
            return Precision(torch.float32, native_kernels=True)
        if dtype == "int8":
            raise RunnerConfigError("dtype int8 needs a CPU and native kernels; `headrace doctor` tells about them")
        return Precision(torch.float32)
    if dtype not in _DTYPES:
        raise RunnerConfigError(f"dtype {dtype!r} is not supported; known are {', '.join((*_WORDS, *_DTYPES))}")
    return Precision(_DTYPES[dtype])
