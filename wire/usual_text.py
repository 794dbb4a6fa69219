"""Values that configs of text-and-image models (Gemma 3, Pixtral) leave out where the text part has the usual ones."""

from __future__ import annotations

from typing import Any

_USUAL: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "mistral": {"num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": 4096},
}
_USUAL_ROPE = {"gemma3_text": {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0}}


def usual_text(kind: str, *, rope: bool = False) -> dict[str, Any]:
    """Return the usual settings of a part of texts by its `model_type`; with `rope` also what new ones name."""
    return _USUAL.get(kind, {}) | (_USUAL_ROPE.get(kind, {}) if rope else {})
