"""Which mmproj file comes with a GGUF file: the one that was named, or one beside it that fits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import TypeVar

from headrace.pull.errors import PullError
from headrace.pull.sight import known_kind, misfit
from model_svc.weights.errors import CheckpointError
from model_svc.weights.gguf_header import GgufHeader, read_header
from model_svc.weights.gguf_parts import read_parts
from model_svc.weights.gguf_sight import KINDS

Tell = Callable[[str], None]
P = TypeVar("P", bound=PurePath)

NONE = "none"  # in place of a file's name: pictures are not wanted
_PREFERRED = tuple(map(re.compile, (r"(?<!b)f16", "bf16", "f32", "q8_0", "")))


def candidates(files: Iterable[P]) -> list[P]:
    """Return which files are by their names what models see with, the ones of the usual precision first."""

    def rank(file: P) -> tuple[int, str]:
        name = file.name.lower()
        return next(n for n, pattern in enumerate(_PREFERRED) if pattern.search(name)), name

    return sorted((file for file in files if file.suffix == ".gguf" and "mmproj" in file.name.lower()), key=rank)


def beside(gguf: Path) -> list[Path]:
    """Return the candidates in a file's folder."""
    return [file for file in candidates(gguf.parent.iterdir()) if file != gguf]


def fitting(gguf: Path, files: Iterable[Path], *, named: bool, tell: Tell) -> Path | None:
    """Return the first of `files` that holds what the model in `gguf` sees with.

    `tell` is told of one that would fit but is of a kind that is not served. Raises PullError for a file that cannot
    be read, and if the user has `named` it, for one of another model.
    """
    try:
        texts = read_parts(gguf)
        for file in files:
            header = read_header(file)
            kind = known_kind(header)
            if kind not in KINDS:
                if named or _as_wide(header, texts):
                    known = ", ".join(sorted(KINDS))
                    tell(f"{file.name} is of kind {kind}, which is not served (known are {known}): no pictures.")
            elif why := misfit(header, texts):
                if named:
                    raise PullError(f"{file} is not of the model in {gguf.name}: {why}.")
            else:
                return file
    except CheckpointError as error:
        raise PullError(f"{error.path} cannot be used: {error.fault}") from error
    return None


def _as_wide(mmproj: GgufHeader, texts: GgufHeader) -> bool:
    width = texts.metadata.get(f"{texts.metadata.get('general.architecture')}.embedding_length")
    return mmproj.metadata.get("clip.vision.projection_dim") == width
