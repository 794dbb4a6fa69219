"""Weights of a model directory in GGUF form: mapped, under Hugging Face names, blocks kept as blocks."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from model_svc.weights.errors import CheckpointError
from model_svc.weights.gguf_header import GgufTensor
from model_svc.weights.gguf_names import Change, Renamed, rename
from model_svc.weights.gguf_parts import read_parts
from model_svc.weights.gguf_sight import CLIP, sight_names
from model_svc.weights.safetensors import map_file
from model_svc.weights.source import Stored, TrackedSource
from model_svc.weights.stacked import MAX_EXPERTS
from model_svc.weights.stored.block_tensor import BlockTensor
from model_svc.weights.stored.ggml import dequantize
from model_svc.weights.stored.tensor import QuantizedTensor

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class _Place(NamedTuple):
    """Where a tensor of ours lies: one of a file, or an expert's part of it; and what is to be undone on it."""

    tensor: GgufTensor
    change: Change
    expert: int | None = None


class GgufSource(TrackedSource):
    """The tensors of a GGUF file, or of all parts of a split one, named as the same model's safetensors would be."""

    def __init__(self, path: Path) -> None:
        """Read the header of the file, or of all parts if it is one. Raises CheckpointError for a malformed file."""
        super().__init__()
        self.place = str(path)
        self.header = read_parts(path)
        self._maps: dict[Path, mmap.mmap] = {}
        arch = self.header.value("general.architecture", str)
        names = sight_names(self.header) if arch == CLIP else self._text_names(arch)
        num_experts = min(self.header.value(f"{arch}.expert_count", int, 0), MAX_EXPERTS)
        self._tensors: dict[str, _Place] = {}
        self.shapes = {}
        for tensor in self.header.tensors.values():
            renamed = names(tensor.name)
            if renamed is None:
                continue
            dims = 2 if renamed.name.endswith(".bias") else 3
            if "{}" in renamed.name and len(tensor.shape) == dims and tensor.shape[0] == num_experts:
                for expert in range(num_experts):
                    self._enter(renamed.name.format(expert), _Place(tensor, renamed.change, expert))
            else:
                self._enter(renamed.name, _Place(tensor, renamed.change))

    def read(self, name: str) -> Stored:
        """Return a tensor in the row order and offset that Hugging Face checkpoints have."""
        tensor, change, expert = self._tensors[name]
        shape = self.shapes[name]
        view = self._maps.get(tensor.path) or self._maps.setdefault(tensor.path, map_file(tensor.path))
        raw = torch.frombuffer(view, dtype=torch.uint8, count=tensor.num_bytes, offset=tensor.offset)
        if expert is not None:
            raw = raw.view(tensor.shape[0], -1)[expert]
        stored: Stored
        if tensor.type.name in _PLAIN:
            stored = raw.view(_PLAIN[tensor.type.name]).view(shape)
        elif len(shape) == 1:  # a norm's weight or a bias: used as numbers
            stored = dequantize(raw.view(1, -1), tensor.type.name)[0]
        else:
            stored = BlockTensor(raw.view(*shape[:-1], -1), shape, tensor.type)
        if change.unpermute:
            if tensor.shape[0] % (2 * change.unpermute):
                fault = f"tensor {tensor.name!r} has {tensor.shape[0]} rows, no pairs of {change.unpermute} heads"
                raise CheckpointError(tensor.path, fault)
            order = _unpermuted_rows(tensor.shape[0], change.unpermute)
            return stored.rows(order) if isinstance(stored, QuantizedTensor) else stored[order]
        if change.minus_one and isinstance(stored, Tensor):
            return stored - 1
        if change.rate and isinstance(stored, Tensor):
            return (-stored.float()).log()
        return stored

    def _text_names(self, arch: str) -> Callable[[str], Renamed | None]:
        heads = self._num_heads(f"{arch}.attention.head_count")
        kv_heads = self._num_heads(f"{arch}.attention.head_count_kv", heads)
        return lambda name: rename(name, arch, heads, kv_heads)

    def _enter(self, name: str, place: _Place) -> None:
        if name in self._tensors:
            taken = self._tensors[name].tensor.name
            raise CheckpointError(place.tensor.path, f"tensors {taken!r} and {place.tensor.name!r} are both {name!r}")
        self._tensors[name] = place
        shape = place.tensor.shape if place.expert is None else place.tensor.shape[1:]
        self.shapes[name] = place.change.shape(shape)

    def release(self) -> None:
        """Forget the pages read: packed weights are copies, and the system reads again what a view still needs."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for view in self._maps.values():
                view.madvise(mmap.MADV_DONTNEED)

    def _num_heads(self, key: str, default: int | None = None) -> int:
        count = self.header.largest(key, default)
        if count < 1:
            raise CheckpointError(self.header.path, f"metadata key {key!r} is {count}; it must be at least 1")
        return count


def _unpermuted_rows(num_rows: int, num_heads: int) -> Tensor:
    """Return which stored row goes where: within a head, pairs (2i, 2i + 1) become the halves (i, i + D/2)."""
    return torch.arange(num_rows).view(num_heads, -1, 2).transpose(1, 2).reshape(-1)
