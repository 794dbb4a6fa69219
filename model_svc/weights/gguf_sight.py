"""Hugging Face names for the tensors of an mmproj file, which holds what a model sees with beside its GGUF file.

llama.cpp's converter writes one for each model of texts and images: architecture `clip`, and a kind of projector that
says whose tower it is. Source: conversion/ and tools/mtmd/clip.cpp of the llama.cpp repository.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from model_svc.weights.gguf_header import GgufHeader
from model_svc.weights.gguf_names import Change, Renamed

CLIP = "clip"  # general.architecture of these files
SIGHT_FILE = "mmproj.gguf"  # what one is called in a model directory


class _Names(NamedTuple):
    """Where a family's tower lies, what its parts are called, below a layer, and beside the layers."""

    layers: str
    layer: Mapping[str, str]
    others: Mapping[str, str]
    paired: bool = False  # queries and keys are stored for the rotation of neighbours


_SIGLIP_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_PIXTRAL_LAYER = {
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_out": "attention.o_proj",
    "ln1": "attention_norm",
    "ln2": "ffn_norm",
    "ffn_gate": "feed_forward.gate_proj",
    "ffn_up": "feed_forward.up_proj",
    "ffn_down": "feed_forward.down_proj",
}


def _siglip(tower: str, others: dict[str, str]) -> _Names:
    beside = {
        "v.patch_embd": f"{tower}.embeddings.patch_embedding",
        "v.position_embd": f"{tower}.embeddings.position_embedding",
        "v.post_ln": f"{tower}.post_layernorm",
    }
    return _Names(f"{tower}.encoder.layers", _SIGLIP_LAYER, beside | others)


_PROJECTOR = "multi_modal_projector"
_KINDS = {
    "gemma3": _siglip(
        "vision_tower.vision_model",
        {
            "mm.input_projection": f"{_PROJECTOR}.mm_input_projection_",  # and then `weight`
            "mm.soft_emb_norm": f"{_PROJECTOR}.mm_soft_emb_norm",
        },
    ),
    "idefics3": _siglip("model.vision_model", {"mm.model.fc": "model.connector.modality_projection.proj"}),
    "pixtral": _Names(
        "vision_tower.transformer.layers",
        _PIXTRAL_LAYER,
        {
            "v.patch_embd": "vision_tower.patch_conv",
            "v.pre_ln": "vision_tower.ln_pre",
            "mm.1": f"{_PROJECTOR}.linear_1",
            "mm.2": f"{_PROJECTOR}.linear_2",
            "mm.input_norm": f"{_PROJECTOR}.norm",
            "mm.patch_merger": f"{_PROJECTOR}.patch_merger.merging_layer",
        },
        paired=True,
    ),
}
KINDS = frozenset(_KINDS)
"""The kinds of projectors that we serve."""

_BLOCK = re.compile(r"v\.blk\.(\d+)\.(\w+)\.(weight|bias)")
_PLUS_ONE = "mm.soft_emb_norm"
_OF_TEXT = "v.token_embd.img_break"  # a row of the model's own embeddings


def kind_of(header: GgufHeader) -> str:
    """Return the kind of projector of an mmproj file. Raises CheckpointError."""
    of_vision = header.value("clip.vision.projector_type", str, "")  # where the file also holds what hears
    return of_vision or str(header.value("clip.projector_type", str))


def sight_names(header: GgufHeader) -> Callable[[str], Renamed | None]:
    """Return how the tensors of an mmproj file are renamed: None for one that is not needed, an unknown one unchanged.

    Raises CheckpointError for a file that does not say what it is.
    """
    names = _KINDS.get(kind_of(header))
    heads, width = (header.value(f"clip.vision.{key}", int) for key in ("attention.head_count", "embedding_length"))
    down = header.tensors.get("v.blk.0.ffn_down.weight")
    inner = header.value("clip.vision.feed_forward_length", int)
    # Files of early 2025 call the first product of a feed-forward block `down` and the second one `up`.
    swapped = down is not None and down.shape[-1] == width != inner

    def renamed(name: str) -> Renamed | None:
        stem, _, suffix = name.rpartition(".")
        if names is None:
            return Renamed(name, Change())
        if own := names.others.get(stem):
            return Renamed(f"{own}{'' if own.endswith('_') else '.'}{suffix}", Change(minus_one=stem == _PLUS_ONE))
        if name.startswith(_OF_TEXT):
            return None
        found = _BLOCK.fullmatch(name)
        part = found[2] if found else ""
        if swapped:
            part = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}.get(part, part)
        if found is None or part not in names.layer:
            return Renamed(name, Change())
        change = Change(heads if names.paired and part in ("attn_q", "attn_k") else 0)
        return Renamed(f"{names.layers}.{found[1]}.{names.layer[part]}.{found[3]}", change)

    return renamed
