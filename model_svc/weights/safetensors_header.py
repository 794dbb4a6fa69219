"""A strict reader of safetensors headers: what does not fit the file exactly is refused before anything is allocated.

Source: the format's own rules (huggingface/safetensors README): 8 bytes of header length, at most 100 MB of JSON that
starts with `{`, unique names, and data that the tensors cover completely, in order, without holes or overlaps.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch

from model_svc.weights.errors import CheckpointError

_MAX_HEADER = 100_000_000
_MAX_DIMS = 16

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class TensorPlace(NamedTuple):
    """Where a tensor's bytes lie in its file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def read_header(path: Path) -> dict[str, TensorPlace]:
    """Read and check the header of one file. Raises CheckpointError that names the fault."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            raw_length = file.read(8)
            if len(raw_length) < 8:
                raise CheckpointError(path, f"{size} bytes are no safetensors file")
            length = int.from_bytes(raw_length, "little")
            if length > min(_MAX_HEADER, size - 8):
                raise CheckpointError(path, f"a header of {length} bytes cannot be in a file of {size} bytes")
            raw = file.read(length)
    except FileNotFoundError:
        raise CheckpointError(path, "the file is missing") from None
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
    entries = _parse(path, raw)
    entries.pop("__metadata__", None)
    places = {name: _place(path, name, entry, 8 + length) for name, entry in entries.items()}
    _check_cover(path, places, 8 + length, size)
    return places


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            counts = Counter(name for name, _ in pairs)
            twice = counts.most_common(1)[0][0]
            raise CheckpointError(path, f"{twice!r} stands twice in the header")
        return found

    if not raw.startswith(b"{"):
        raise CheckpointError(path, "the header does not start with '{'")
    try:
        entries: dict[str, Any] = json.loads(raw, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(path, f"the header is not valid JSON ({error})") from None
    return entries


def _place(path: Path, name: str, entry: Any, base: int) -> TensorPlace:
    def fail(fault: str) -> CheckpointError:
        return CheckpointError(path, f"tensor {name!r}: {fault}")

    def counts(value: Any) -> bool:
        return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise fail("needs exactly dtype, shape and data_offsets")
    shape, offsets, dtype = entry["shape"], entry["data_offsets"], entry["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise fail(f"dtype {dtype!r} is not supported")
    if not counts(shape) or len(shape) > _MAX_DIMS:
        raise fail("shape must be a short list of counts")
    if not counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise fail("data_offsets must be [begin, end]")
    num_bytes = DTYPES[dtype].itemsize
    for dim in shape:
        num_bytes *= dim
    if num_bytes != offsets[1] - offsets[0]:
        raise fail(f"{dtype} of shape {shape} takes {num_bytes} bytes, data_offsets hold {offsets[1] - offsets[0]}")
    return TensorPlace(DTYPES[dtype], tuple(shape), base + offsets[0], num_bytes)


def _check_cover(path: Path, places: dict[str, TensorPlace], base: int, size: int) -> None:
    end = base
    for name, place in sorted(places.items(), key=lambda item: (item[1].offset, item[1].num_bytes)):
        if place.offset != end:
            what = (
                "overlaps the one before it" if place.offset < end else f"leaves a hole of {place.offset - end} bytes"
            )
            raise CheckpointError(path, f"tensor {name!r} {what}")
        end += place.num_bytes
    if end != size:
        what = f"lacks {end - size} bytes: it is cut off" if end > size else f"holds {size - end} bytes of no tensor"
        raise CheckpointError(path, f"the file {what}")
