"""Find the weights of a model directory, in whichever form they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_svc.weights.errors import CheckpointError
from model_svc.weights.formats.choose import format_of
from model_svc.weights.formats.mxfp4 import Mxfp4
from model_svc.weights.gguf import GgufSource
from model_svc.weights.gguf_parts import parts_of
from model_svc.weights.gguf_sight import SIGHT_FILE
from model_svc.weights.joined import JoinedSources
from model_svc.weights.mxfp4_experts import Mxfp4Experts
from model_svc.weights.quantized import QuantizedSource
from model_svc.weights.safetensors import SafetensorsSource, has_safetensors
from model_svc.weights.source import TrackedSource, WeightSource
from model_svc.weights.stacked import StackedExperts, stacked
from model_svc.weights.text_part import TextPart, has_text_part


def open_weights(directory: Path, config: Mapping[str, Any] | None = None) -> WeightSource:
    """Open the safetensors or the GGUF file, or all parts of one, of a model directory (safetensors win).

    Beside a GGUF file may be another one, of what the model sees with.

    `config` (config.json's content) may say that safetensors are quantized. Raises CheckpointError.
    """
    if not directory.is_dir():
        raise CheckpointError(directory, "is no model directory; `headrace pull` makes one")
    if has_safetensors(directory):
        form = format_of(directory / "config.json", config or {})
        checkpoint = SafetensorsSource(directory)
        source: TrackedSource = checkpoint
        if form is not None:
            source = Mxfp4Experts(checkpoint, form) if isinstance(form, Mxfp4) else QuantizedSource(checkpoint, form)
        if has_text_part(source.shapes):
            source = TextPart(source)
        return StackedExperts(source) if stacked(source.shapes) else source
    sight = directory / SIGHT_FILE
    found = sorted(set(directory.glob("*.gguf")) - {sight})
    if not found:
        raise CheckpointError(directory, "needs safetensors or a .gguf file; it holds neither")
    others = sorted(set(found) - set(parts_of(found[0])) - {found[0]})
    if others:
        raise CheckpointError(others[0], f"the file is no part of the model of {found[0].name}; a directory holds one")
    texts = GgufSource(found[0])
    return JoinedSources(texts, GgufSource(sight)) if sight.exists() else texts
