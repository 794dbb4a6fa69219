"""Build a model from its directory: config, weights, quantization method, and the check that nothing was left over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from model_svc.layers.adapters import AdapterRoom, Adapters
from model_svc.layers.group import ALONE, Group
from model_svc.layers.loader import Loader
from model_svc.models.config import ModelConfig, load_config
from model_svc.models.decoder import Decoder
from model_svc.models.registry import model_class
from model_svc.quant.dequantized import Dequantized
from model_svc.quant.method import QuantMethod
from model_svc.vision.vision import load_vision, pair_axes_of, sees_both_ways
from model_svc.weights.adapter import AdapterCheckpoint
from model_svc.weights.errors import CheckpointError
from model_svc.weights.open import open_weights
from model_svc.weights.source import WeightSource


def load_model(
    directory: Path,
    *,
    dtype: torch.dtype,
    device: torch.device,
    max_len: int | None = None,
    method: QuantMethod | None = None,
    group: Group = ALONE,
    adapters: Sequence[AdapterCheckpoint] = (),
    room: AdapterRoom | None = None,
) -> Decoder:
    """Load the model of a directory. `max_len` None: the checkpoint's own limit; `method` None: dequantize.

    `adapters` can be asked for row by row; there is `room` for more. Of a `group` of several ranks each loads its part.

    Raises CheckpointError that names the file and the fault; nothing half-filled is ever returned.
    """
    config = load_config(directory)
    method = method or Dequantized(dtype, device)
    source = open_weights(directory, config.raw)
    return build_model(
        config, source, method, device=device, max_len=max_len, group=group, adapters=adapters, room=room
    )


def build_model(
    config: ModelConfig,
    source: WeightSource,
    method: QuantMethod,
    *,
    device: torch.device,
    max_len: int | None = None,
    group: Group = ALONE,
    adapters: Sequence[AdapterCheckpoint] = (),
    room: AdapterRoom | None = None,
) -> Decoder:
    """Build a model from a source of weights; every tensor of the source and of adapters must find its use."""
    has_adapters = adapters or (room is not None and room.count)
    added = Adapters(adapters, method.dtype, device, room) if has_adapters else None
    longest = min(max_len or config.max_position, config.max_position)
    try:
        model = model_class(config)(config, Loader(source, method, group=group, adapters=added), longest, device)
        # Ranks share the work on texts; each of them looks at all pictures itself.
        sees = Loader(source, method, group=group if group.stages > 1 else ALONE)
        model.sees_both_ways = sees_both_ways(config.architecture, sees)
        model.pair_axes = pair_axes_of(config.architecture, sees, config.rope(), device)
        model.vision = load_vision(config.architecture, config.path, config.raw, sees, config.hidden_size, device)
        first = len(group.layers(config.num_layers))
        if model.vision is not None and model.vision.num_deep > first:
            deep = f"pictures add something behind the first {model.vision.num_deep} layers"
            raise ValueError(f"{deep}, and pipeline_parallel leaves the first stage {first}")
        model.scale_logits(torch.zeros(1, 1, device=device))  # what the config says of it is looked at now
    except ValueError as error:  # an unknown activation or rope rule, a scale of nothing
        raise CheckpointError(config.path, str(error)) from error
    for name in source.unused():
        if name.endswith("rotary_emb.inv_freq"):  # old checkpoints saved what follows from the config
            source.ignore(name)
    left = sorted(source.unused())
    if left:
        shown = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
        raise CheckpointError(config.path, f"{config.architecture} has no use for {len(left)} tensors: {shown}")
    model.weight_bytes = method.num_bytes
    if added is not None:
        added.check_all_taken()
        model.weight_bytes += added.num_bytes
    source.release()
    return model
