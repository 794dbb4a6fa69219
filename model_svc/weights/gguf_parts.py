"""A model in GGUF form, one file or split into parts (NAME-00001-of-00003.gguf, ...), under one header.

The first part has the metadata; each has a header, and data, for tensors of its own. No torch here, as in gguf_header.
Source: gguf-split of the llama.cpp repository.
"""

from __future__ import annotations

import re
from pathlib import Path

from model_svc.weights.errors import CheckpointError
from model_svc.weights.gguf_header import GgufHeader, GgufTensor, read_header

_PART = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")


def stem_of(name: str) -> str:
    """Return what the files of a model have in common: their names without part numbers and suffix."""
    found = _PART.fullmatch(name)
    return found["stem"] if found else name.removesuffix(".gguf")


def part_name(stem: str, number: int, count: int) -> str:
    """Return the name of part `number` (from 1) of `count`; a model in one file has no numbers."""
    return f"{stem}.gguf" if count == 1 else f"{stem}-{number:05}-of-{count:05}.gguf"


def part_names(name: str) -> list[str]:
    """Return the names of all parts of the model of which a file of this name is one; for any other file just its own.

    A number beyond the count is not among them.
    """
    found = _PART.fullmatch(name)
    if found is None or found["count"] == "00001":
        return [name]
    count = int(found["count"])
    return [part_name(found["stem"], number, count) for number in range(1, count + 1)]


def parts_of(path: Path) -> list[Path]:
    """Return where all parts of a file's model must lie."""
    return [path.with_name(name) for name in part_names(path.name)]


def read_parts(path: Path) -> GgufHeader:
    """Read the headers of a file and of all other parts of its model as one: the first's metadata, tensors of all.

    Raises CheckpointError for a malformed file, and for parts that are not those of one model.
    """
    paths = parts_of(path)
    if path not in paths:
        raise CheckpointError(path, "its name has a number that no part of its model has")
    for number, part in enumerate(paths, 1):
        if len(paths) > 1 and not part.exists():
            raise CheckpointError(part, f"part {number} of {len(paths)} of a split model is missing")
    first, *others = headers = [read_header(part) for part in paths]
    if not others:
        return _whole(first)
    tensors: dict[str, GgufTensor] = {}
    for index, header in enumerate(headers):
        _check(header, "split.count", len(headers), "by its name")
        _check(header, "split.no", index, "by its name, as they are counted from 0")
        _check(header, "split.tensors.count", first.value("split.tensors.count", int), f"in {first.path.name}")
        for name, tensor in header.tensors.items():
            if name in tensors:
                raise CheckpointError(header.path, f"tensor {name!r} is in {tensors[name].path.name}, too")
            tensors[name] = tensor
    _check(first, "split.tensors.count", len(tensors), "by what all parts hold")
    return first._replace(tensors=tensors)


def _check(header: GgufHeader, key: str, wanted: int, why: str) -> None:
    found = header.value(key, int)
    if found != wanted:
        fault = f"metadata key {key!r} is {found}; it must be {wanted} {why}; is it a part of another model?"
        raise CheckpointError(header.path, fault)


def _whole(header: GgufHeader) -> GgufHeader:
    """Refuse a part that has lost its name: nobody could find the others."""
    count = header.value("split.count", int, 1)
    if count > 1:
        ending = part_name("", header.value("split.no", int) + 1, count)
        raise CheckpointError(header.path, f"the file is a part of a split model; its name must end in {ending}")
    return header
