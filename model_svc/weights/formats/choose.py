"""The one place that decides by `quantization_config` in which format a checkpoint's weights are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from model_svc.weights.errors import CheckpointError
from model_svc.weights.formats.awq import Awq
from model_svc.weights.formats.compressed import compressed
from model_svc.weights.formats.fields import Fields
from model_svc.weights.formats.format import WeightFormat
from model_svc.weights.formats.fp8 import fp8
from model_svc.weights.formats.gptq import Gptq
from model_svc.weights.formats.mxfp4 import Mxfp4

FORMATS: dict[str, Callable[[Fields], WeightFormat | Mxfp4]] = {
    "awq": Awq,
    "gptq": Gptq,
    "fp8": fp8,
    "compressed-tensors": compressed,
    "mxfp4": Mxfp4,
}


def format_of(path: Path, config: Mapping[str, Any]) -> WeightFormat | Mxfp4 | None:
    """Return the format that a config.json at `path` names; None for weights that are not quantized.

    Raises CheckpointError that names the field, its value and what is supported.
    """
    raw = config.get("quantization_config")
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        raise CheckpointError(path, f"quantization_config must be an object, not {raw!r}")
    fields = Fields(path, raw)
    return FORMATS[fields.one_of("quant_method", tuple(FORMATS))](fields)
