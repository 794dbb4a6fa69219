"""Find the weights of a model directory, in whichever form they are."""

from __future__ import annotations

from pathlib import Path

from model_svc.weights.errors import CheckpointError
from model_svc.weights.gguf import GgufSource
from model_svc.weights.safetensors import SafetensorsSource, has_safetensors
from model_svc.weights.source import WeightSource


def open_weights(directory: Path) -> WeightSource:
    """Open the safetensors or the one GGUF file of a model directory (safetensors win). Raises CheckpointError."""
    if not directory.is_dir():
        raise CheckpointError(directory, "is no model directory; `headrace pull` makes one")
    if has_safetensors(directory):
        return SafetensorsSource(directory)
    found = sorted(directory.glob("*.gguf"))
    if len(found) != 1:
        raise CheckpointError(directory, f"needs one .gguf file or safetensors; it holds {len(found)} .gguf files")
    return GgufSource(found[0])
