"""placeholder"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from model_svc.engine.plan import SequenceStep
from model_svc.runner.slots import Slots


@dataclass(frozen=True)
class Drawn:
    tokens: Tensor
    finite: Tensor
    logprobs: Tensor | None = None
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None


def draw(logits: Tensor, slots: Slots, items: tuple[SequenceStep, ...], step: object) -> Drawn:
    finite = torch.isfinite(logits).all(-1)
    return Drawn(logits.argmax(-1).int(), finite)
