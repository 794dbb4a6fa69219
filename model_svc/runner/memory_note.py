"""What a start measured of a GPU's memory, kept beside the compiled kernels: the next one need not measure it again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch

from kernels.compile_ahead import note_for
from model_svc.engine.plan import RunnerInfo
from model_svc.models.decoder import Decoder

_PACKAGES = ("layers", "models", "quant", "runner", "weights/stored")  # what they do decides what a step takes


class MemoryUse(msgspec.Struct, frozen=True):
    """`step_bytes` are the peak of the largest step; `kept_bytes` stay with libraries and kernels once it has run."""

    step_bytes: int
    kept_bytes: int


def memory_note(model: Decoder, kv_dtype: torch.dtype, info: RunnerInfo) -> Path | None:
    """Return where the memory use of a runner with these limits is noted; None where nothing is ever noted.

    The name changes with all that `note_for` knows, with the model's code, its size on the card and the limits.
    """
    limits = msgspec.structs.replace(info, num_blocks=1)
    note = note_for(model.config.raw, limits, kv_dtype, model.weight_bytes, model.group.stage, sources())
    return note and note.with_name(note.name.replace("compiled", "memory"))


def sources() -> list[bytes]:
    """Return the code that decides what a step takes and launches."""
    root = Path(__file__).parent.parent
    return [path.read_bytes() for name in _PACKAGES for path in sorted((root / name).glob("*.py"))]


def read_note(note: Path | None) -> MemoryUse | None:
    """Return what was noted, None if nothing was or it cannot be read."""
    try:
        return msgspec.json.decode(note.read_bytes(), type=MemoryUse) if note is not None else None
    except (OSError, msgspec.MsgspecError):
        return None


def write_note(note: Path | None, use: MemoryUse) -> None:
    """Note a memory use; where that cannot be written, the next start measures again."""
    if note is not None:
        try:
            note.parent.mkdir(parents=True, exist_ok=True)
            beside = note.with_name(f"{note.name}.new")
            beside.write_bytes(msgspec.json.encode(use))
            beside.replace(note)
        except OSError:
            return
