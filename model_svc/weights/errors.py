"""What can be wrong with a checkpoint. Every message names the file and the fault, for it is read by who started us."""

from __future__ import annotations

from pathlib import Path


class CheckpointError(Exception):
    """A model's files cannot be served as they are.

    `path` is the file at fault, `fault` one sentence without it.
    """

    def __init__(self, path: str | Path, fault: str) -> None:
        super().__init__(f"{path}: {fault}")
        self.path = str(path)
        self.fault = fault
