"""What checkpoints call the scales of a cache in 8 bits, below a layer's attention.

compressed-tensors and FP8 have them beside the projections (before, as the projections' output scales, and once one for
both), ModelOpt in them.
"""

from __future__ import annotations

K_SCALES = ("k_scale", "k_proj.k_scale", "k_proj.output_scale", "kv_scale")
V_SCALES = ("v_scale", "v_proj.v_scale", "v_proj.output_scale", "kv_scale")
_PLACES = tuple(f".self_attn.{name}" for name in {*K_SCALES, *V_SCALES})


def is_kv_scale(name: str) -> bool:
    """Tell whether a tensor is such a scale."""
    return name.endswith(_PLACES)
