"""Make a model directory in Hugging Face form from a GGUF file, all or nothing: built aside, then renamed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from headrace.pull.advice import refresh_advice
from headrace.pull.errors import PullError
from headrace.pull.gguf_config import config_json, generation_config
from headrace.pull.gguf_tokenizer import tokenizer_config, tokenizer_json
from headrace.pull.sight import mark_controls, with_sight
from model_svc.weights.errors import CheckpointError
from model_svc.weights.gguf_header import read_header
from model_svc.weights.gguf_parts import part_name, parts_of, read_parts
from model_svc.weights.gguf_sight import SIGHT_FILE

_STEM = "model"
WEIGHTS = part_name(_STEM, 1, 1)
WANTED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",  # where models that see had it before
    "preprocessor_config.json",  # this one or the next: how a model that sees takes pictures
    "processor_config.json",
    "*.safetensors",
    "model.safetensors.index.json",
    "modules.json",  # these three: how an embedding model pools
    "sentence_bert_config.json",
    "*_Pooling/config.json",
)
"""What a published directory in Hugging Face form may hold that we need; patterns of paths below it."""


def from_gguf(gguf: Path, directory: Path, *, pre: str | None = None, mmproj: Path | None = None) -> Path:
    """Make `directory` from a GGUF file, or from all parts of a model of which it is one; `mmproj`: it sees with that.

    The weights are linked, or copied where that is impossible. Raises PullError with one sentence for a bad file, a
    full disk or a directory that cannot be written.
    """

    def fill(target: Path) -> None:
        write_metadata(gguf, target, pre=pre, mmproj=mmproj)
        if mmproj is not None:
            _link_or_copy(mmproj, target / SIGHT_FILE)
        parts = parts_of(gguf)
        for number, part in enumerate(parts, 1):
            _link_or_copy(part, target / part_name(_STEM, number, len(parts)))

    return build(directory, fill)


def write_metadata(gguf: Path, target: Path, *, pre: str | None = None, mmproj: Path | None = None) -> None:
    """Write everything but the weights into an existing directory."""
    try:
        header = read_parts(gguf)
        files: dict[str, dict[str, Any]] = {
            "config.json": config_json(header),
            "generation_config.json": generation_config(header),
            "tokenizer.json": tokenizer_json(header, pre=pre),
            "tokenizer_config.json": tokenizer_config(header),
        }
        if mmproj is not None:
            sight = read_header(mmproj)
            files["config.json"], files["preprocessor_config.json"] = with_sight(files["config.json"], sight, header)
            mark_controls(files["tokenizer.json"], sight, header)
    except CheckpointError as error:
        raise PullError(f"{error.path} cannot be used: {error.fault}") from error
    for name, content in files.items():
        indent = None if name == "tokenizer.json" else 2
        (target / name).write_text(json.dumps(content, ensure_ascii=False, indent=indent), encoding="utf-8")


def build(directory: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a fresh directory beside `directory` and rename it into place; nothing half-made is ever seen.

    An older directory of that name is replaced. Raises PullError.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as aside:
            fresh = Path(aside) / "new"
            fresh.mkdir()
            fill(fresh)
            refresh_advice(fresh)
            if directory.exists():
                directory.rename(Path(aside) / "old")
            fresh.rename(directory)
    except OSError as error:
        raise storage_error(error, directory) from error
    return directory


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Hold the making of a model directory: a second process waits until the first has ended. Raises PullError."""
    path = directory.with_name(f".{directory.name}.lock")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(path)
    except OSError as error:
        raise storage_error(error, directory) from error
    with lock:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked(path: Path) -> TextIO:
    while True:
        lock = path.open("w")
        with contextlib.suppress(OSError):  # a file system without locks: whoever is last wins, as a whole
            fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(lock.fileno()).st_ino:
                return lock
        lock.close()  # whom we waited for has removed the file


def storage_error(error: OSError, where: Path) -> PullError:
    """Put a failed write into one sentence."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return PullError(f"No space is left on the disk of {where}; free some and run the command again.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PullError(f"{error.filename or where} cannot be written: {error.strerror}.")
    return PullError(f"{where} could not be made: {error.strerror or error} ({error.filename or where}).")


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)  # free, and survives the removal of the original
    except OSError:
        shutil.copyfile(source, target)
