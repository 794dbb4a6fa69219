"""FP8 as DeepSeek, Qwen and others publish it: float8 weights, a scale for each block of 128 x 128 or for all.

The scale's name, `weight_scale_inv`, says what the maker divided by; whoever reads multiplies with it.
"""

from __future__ import annotations

from model_svc.weights.formats.fields import Fields
from model_svc.weights.formats.scaled import Scaled


def fp8(fields: Fields) -> Scaled:
    """Return the format. Raises CheckpointError for a variant that is not read."""
    fields.one_of("activation_scheme", ("dynamic", "static"), "dynamic")
    fields.one_of("fmt", ("e4m3", "e5m2", "float8_e4m3fn", "float8_e5m2"), "e4m3")
    fields.one_of("scale_fmt", ("float", "ue8m0"), "float")
    fields.one_of("expert_dtype", ("fp8",), "fp8")
    block = fields.pair("weight_block_size")
    return Scaled(
        f"FP8, blocks of {block[0]} x {block[1]}" if block else "FP8, a scale for each tensor",
        block=block,
        scales=("weight_scale_inv", "weight_scale"),
        unneeded=("input_scale", "activation_scale"),
        ignored=fields.names("modules_to_not_convert", "ignored_layers"),
    )
