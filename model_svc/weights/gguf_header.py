"""A strict reader of GGUF headers. It believes no count: each one is checked against the bytes that are left.

The `gguf` package needs two seconds for a small model's header and sizes loops by what the file says; this needs
milliseconds, refuses bad files at once and names the fault. No torch here: `headrace pull` reads headers too.
Source: docs/gguf.md of the ggml repository.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

from model_svc.weights.errors import CheckpointError
from model_svc.weights.stored.ggml_types import GGML_TYPES, GgmlType

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_KEYS, _MAX_TENSORS, _MAX_ITEMS = 1 << 16, 1 << 18, 1 << 22
_MAX_DIMS = 4
_MAX_NAME = 1 << 16


class GgufTensor(NamedTuple):
    """One tensor's place in its file. `shape` is in torch order (slowest dimension first)."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    offset: int
    num_bytes: int
    path: Path


class GgufHeader(NamedTuple):
    """Everything before the tensor data."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    def value(self, key: str, kind: type, default: Any = None) -> Any:
        """Return a metadata value of the given type.

        Raises CheckpointError if it is missing (without a default) or of another type.
        """
        found = self.metadata.get(key, default)
        if kind is float and isinstance(found, int) and not isinstance(found, bool):
            found = float(found)
        if found is default and default is not None:
            return default
        if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
            fault = (
                f"metadata key {key!r} is missing"
                if found is None
                else f"metadata key {key!r} is not a {kind.__name__}"
            )
            raise CheckpointError(self.path, fault)
        return found

    def largest(self, key: str, default: int | None = None) -> int:
        """Return a count, or the largest of a list that has one for each layer. Raises CheckpointError."""
        found = self.metadata.get(key)
        if isinstance(found, list) and found and all(type(item) is int for item in found):
            return int(max(found))
        return int(self.value(key, int, default))


def read_header(path: str | Path) -> GgufHeader:
    """Read and check the header of a GGUF file (version 2 or 3, little endian).

    Raises CheckpointError for anything that is not exactly such a file; bounded in time and memory by the file's size.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise CheckpointError(path, "the file is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return _Cursor(path, view).header()
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error


class _Cursor:
    """A position in the mapped file; every read checks the bytes that are left."""

    def __init__(self, path: Path, view: mmap.mmap) -> None:
        self.path = path
        self.view = view
        self.at = 0
        self.size = len(view)

    def fail(self, fault: str) -> CheckpointError:
        return CheckpointError(self.path, f"{fault} (at byte {self.at})")

    def take(self, code: str) -> Any:
        width = struct.calcsize("<" + code)
        if self.at + width > self.size:
            raise self.fail("the header is cut off")
        (value,) = struct.unpack_from("<" + code, self.view, self.at)
        self.at += width
        return value

    def count(self, what: str, limit: int, least_bytes: int) -> int:
        """Read a 64-bit count whose items take at least so many bytes each."""
        value: int = self.take("Q")
        if value > limit or value * least_bytes > self.size - self.at:
            raise self.fail(f"{value} {what} cannot be in a file of {self.size} bytes")
        return value

    def text(self, what: str, limit: int) -> str:
        length = self.count(f"bytes of {what}", limit, 1)
        raw = self.view[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8") from None

    def header(self) -> GgufHeader:
        self.preamble()
        num_tensors = self.count("tensors", _MAX_TENSORS, 24)
        num_keys = self.count("metadata keys", _MAX_KEYS, 13)
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self.text("a metadata key", _MAX_NAME)
            if key in metadata:
                raise self.fail(f"metadata key {key!r} stands twice")
            metadata[key] = self.value(key)
        infos = [self.tensor_info() for _ in range(num_tensors)]
        return GgufHeader(self.path, metadata, self.place(infos, metadata.get("general.alignment", 32)))

    def preamble(self) -> None:
        magic = bytes(self.view[:4])
        self.at = 4
        if magic != b"GGUF":
            raise self.fail(f"not a GGUF file: it begins with {magic!r}")
        version = self.take("I")
        if version not in (2, 3):
            hint = " (a big-endian file?)" if version in (2 << 24, 3 << 24) else ""
            raise self.fail(f"GGUF version {version} is not supported{hint}")

    def value(self, key: str) -> Any:
        kind = self.take("I")
        if kind == _STRING:
            return self.text(f"the value of {key!r}", self.size)
        if kind != _ARRAY:
            return self.scalar(kind, key)
        kind = self.take("I")
        if kind == _STRING:
            return self.strings(key)
        if kind not in _SCALARS:
            raise self.fail(f"{key!r} is an array of unknown or nested type {kind}")
        code = _SCALARS[kind]
        width = struct.calcsize(code)
        length = self.count(f"items of {key!r}", _MAX_ITEMS, width)
        items = list(struct.unpack_from(f"<{length}{code}", self.view, self.at))
        self.at += length * width
        return items

    def scalar(self, kind: int, key: str) -> Any:
        if kind not in _SCALARS:
            raise self.fail(f"{key!r} has the unknown value type {kind}")
        return self.take(_SCALARS[kind])

    def strings(self, key: str) -> list[str]:
        """Read an array of strings: the hot loop, half a million items in large vocabularies."""
        length = self.count(f"items of {key!r}", _MAX_ITEMS, 8)
        view, at, size = self.view, self.at, self.size
        unpack = struct.Struct("<Q").unpack_from
        items: list[bytes] = []
        for _ in range(length):
            if at + 8 > size:
                raise self.fail(f"{key!r} is cut off")
            end = at + 8 + unpack(view, at)[0]
            if end > size:
                raise self.fail(f"an item of {key!r} is longer than the file")
            items.append(view[at + 8 : end])
            at = end
        self.at = at
        try:
            return [item.decode("utf-8") for item in items]
        except UnicodeDecodeError:
            raise self.fail(f"an item of {key!r} is not UTF-8") from None

    def tensor_info(self) -> tuple[str, tuple[int, ...], GgmlType, int, int]:
        name = self.text("a tensor name", _MAX_NAME)
        num_dims = self.take("I")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise self.fail(f"tensor {name!r} has {num_dims} dimensions")
        dims = tuple(self.take("Q") for _ in range(num_dims))
        code = self.take("I")
        offset = self.take("Q")
        if code not in GGML_TYPES:
            raise self.fail(f"tensor {name!r} has the type {code}, which is not supported")
        kind = GGML_TYPES[code]
        values = 1
        for dim in dims:
            values *= dim
            if not dim > 0 or values > self.size * 8:
                raise self.fail(f"tensor {name!r} of shape {dims} cannot be in this file")
        if dims[0] % kind.values:
            raise self.fail(f"tensor {name!r}: rows of {dims[0]} values are no whole {kind.name} blocks")
        return name, tuple(reversed(dims)), kind, offset, values // kind.values * kind.num_bytes

    def place(self, infos: list[tuple[str, tuple[int, ...], GgmlType, int, int]], align: Any) -> dict[str, GgufTensor]:
        """Turn offsets within the data part into offsets in the file; refuse what overlaps or lies outside."""
        if not isinstance(align, int) or not 8 <= align <= 1 << 20 or align & (align - 1):
            raise self.fail(f"alignment {align!r} is no power of two from 8 to 2^20")
        base = -(-self.at // align) * align
        tensors: dict[str, GgufTensor] = {}
        end, last = 0, ""
        for name, shape, kind, offset, num_bytes in sorted(infos, key=lambda info: info[3]):
            if name in tensors:
                raise self.fail(f"tensor {name!r} stands twice")
            if offset % align:
                raise self.fail(f"tensor {name!r} is not aligned to {align} bytes")
            if offset < end:
                raise self.fail(f"tensor {name!r} overlaps {last!r}")
            end, last = offset + num_bytes, name
            if base + end > self.size:
                raise self.fail(f"tensor {name!r} ends at byte {base + end} of {self.size}: the file is cut off")
            tensors[name] = GgufTensor(name, shape, kind, base + offset, num_bytes, self.path)
        return tensors
