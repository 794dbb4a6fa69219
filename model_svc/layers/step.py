"""What every layer must know of a step: one varlen batch of tokens, and where their keys and values live, or states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from kernels.lora import LoraRows
from model_svc.layers.rope import RopeTables

# Per layer: keys and values [N, B, K, D]; one tensor each, so that an in-place write never touches another layer. Of a
# layer of latents one tensor [N, B, 1, R + P]; of one with a state instead: windows [slots, W - 1, C] and states
# [slots, V, Dk, Dv], float32.
LayerKv = tuple[Tensor, ...]


class DeepFeatures(NamedTuple):
    """What pictures add behind each of the first layers: `features` [layers, R, E] to the `rows` [R]."""

    rows: Tensor
    features: Tensor


@dataclass(frozen=True)
class StepBatch:
    """The T tokens of S sequences, one sequence after another, on the device.

    `positions` [T] int64 (in rotary tables), `slot_mapping` [T] int64 (block * B + offset), `block_tables` [S, M]
    int32, `query_start` [S + 1] int32, `context_lens` [S] int32 (with the step's tokens), `slots` [S] int32 (whose
    states these are; below 0: nobody's). `max_query_len` and `max_context_len` bound them. `adapters`: which rows have
    which adapter, None where none has one. `limits` [T] int64: up to which position each token sees, None where each
    sees up to its own.
    `rope`: rotary tables of this step alone, which `positions` are rows of, instead of the layers' own. `deep`: what is
    added behind the first layers.
    """

    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    query_start: Tensor
    context_lens: Tensor
    slots: Tensor
    max_query_len: int
    max_context_len: int
    adapters: LoraRows | None = None
    limits: Tensor | None = None
    rope: RopeTables | None = None
    deep: DeepFeatures | None = None
