"""The JSON files of a model directory, each read as a Struct of what matters of it."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from wire.errors import StartError

S = TypeVar("S", bound=msgspec.Struct)


class ModelCardError(StartError):
    """The model directory lacks a file or holds a malformed one; the message names it."""


def read(path: Path, kind: type[S], missing: S | None = None) -> S:
    """Return a file's contents, `missing` if it is not there. Raises ModelCardError that names file and field."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        if missing is not None:
            return missing
        raise ModelCardError(f"{path}: file is missing; `headrace pull` makes a model directory") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelCardError(f"{path}: {error}") from error
