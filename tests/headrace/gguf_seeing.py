"""A tiny model that sees as llama.cpp's converter writes it: a GGUF file of its texts, an mmproj file beside it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file

from tests.headrace.gguf_checkpoint import gguf_of
from tests.headrace.gguf_vocab import byte_vocab, write
from tests.model_svc.vision.seeing import IMAGE_TOKEN, VOCAB, Seeing

# By family: llama.cpp's architecture of texts, its kind of projector, the image token and two that stand around it.
KINDS: dict[str, tuple[str, str, tuple[str, str, str]]] = {
    "Gemma3": ("gemma3", "gemma3", ("<start_of_image>", "<end_of_image>", "<image_soft_token>")),
    "Idefics3": ("llama", "idefics3", ("<fake_token_around_image>", "<global-img>", "<image>")),
    "Llava": ("llama", "pixtral", ("[IMG_BREAK]", "[IMG_END]", "[IMG]")),
    "Mistral3": ("llama", "pixtral", ("[IMG_BREAK]", "[IMG_END]", "[IMG]")),
}


def texts_of(seeing: Seeing, path: Path, family: str, says: dict[str, Any]) -> Path:
    """Write the model of texts, whose vocabulary has the tokens of pictures."""
    arch, _, controls = KINDS[family]
    config = seeing.oracle.config.get_text_config()
    texts = transformers.AutoModelForCausalLM.from_config(config).eval()
    whole = seeing.oracle
    texts.model.load_state_dict(
        (whole.model.text_model if family == "Idefics3" else whole.model.language_model).state_dict()
    )
    texts.lm_head.load_state_dict(whole.lm_head.state_dict())
    tokens = [*byte_vocab()["tokenizer.ggml.tokens"][: VOCAB - 4], "he", *controls]
    assert tokens.index(controls[-1]) == IMAGE_TOKEN
    vocab = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3]
        + [1] * (VOCAB - 5)
        + [4, 3],  # not all files know what users may not write
        "tokenizer.ggml.merges": ["h e"],
    }
    return gguf_of(texts, path, arch, says, vocab=vocab)


def mmproj_of(seeing: Seeing, path: Path, family: str, *, old: bool = False, **says: Any) -> Path:
    """Write what the model sees with; `old`: as in early 2025, names of a block's two products swapped."""
    _, kind, _ = KINDS[family]
    config, stored = seeing.oracle.config, load_file(seeing.directory / "model.safetensors")
    sees, processor = config.vision_config, seeing.processor
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 9)  # as many as real ones have; projections count, too
    tensors: dict[str, np.ndarray] = {}
    for name, values in stored.items():
        if "language_model" in name or "text_model" in name or "lm_head" in name or "vision_model.head." in name:
            continue
        stem, _, suffix = name.replace("projection_weight", "projection.weight").rpartition(".")
        older = stem.replace("vision_tower.", "vision_tower.vision_model.")  # as Gemma 3's is named in published files
        known = names.get_name(stem) or names.get_name(older)
        assert known is not None, name
        if kind == "pixtral" and stem.endswith(("q_proj", "k_proj")):
            H = sees.num_attention_heads
            values = values.view(H, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        if known == "mm.soft_emb_norm":
            values = values + 1
        if old:
            known = re.sub("ffn_(up|down)", lambda found: "ffn_down" if found[1] == "up" else "ffn_up", known)
        whole = values.dim() == 1 or ".embeddings." in name or kind == "gemma3"
        tensors[f"{known}.{suffix}"] = values.to(torch.float32 if whole else torch.float16).numpy()
    if kind == "pixtral":
        tensors["v.token_embd.img_break"] = stored["language_model.model.embed_tokens.weight"][IMAGE_TOKEN - 2].numpy()
    metadata = {
        "clip.use_silu" if sees.hidden_act == "silu" else "clip.use_gelu": True,
        "clip.vision.projection_dim": config.get_text_config().hidden_size,
        "clip.vision.image_size": sees.image_size,
        "clip.vision.patch_size": sees.patch_size,
        "clip.vision.embedding_length": sees.hidden_size,
        "clip.vision.feed_forward_length": sees.intermediate_size,
        "clip.vision.block_count": sees.num_hidden_layers,
        "clip.vision.attention.head_count": sees.num_attention_heads,
        "clip.vision.attention.layer_norm_epsilon": float(getattr(sees, "layer_norm_eps", 1e-5)),
        "clip.vision.image_mean": [float(each) for each in processor.image_mean],
        "clip.vision.image_std": [float(each) for each in processor.image_std],
    }
    return write(
        path, metadata_of(kind) | metadata | {f"clip.vision.{key}": value for key, value in says.items()}, tensors
    )


def metadata_of(kind: str) -> dict[str, Any]:
    """Return what an mmproj file says at the least, which is enough to make a model directory."""
    sizes = ("image_size", "patch_size", "embedding_length", "feed_forward_length", "block_count", "projection_dim")
    return {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": kind,
        **{f"clip.vision.{key}": 32 for key in (*sizes, "attention.head_count", "projector.scale_factor")},
        "clip.vision.image_mean": [0.5] * 3,
        "clip.vision.image_std": [0.5] * 3,
    }
