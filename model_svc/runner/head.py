"""Logits of rows that a step's own buffer has no room for: draws behind guesses, tokens of a prompt."""

from __future__ import annotations

import torch
from torch import Tensor

from model_svc.models.decoder import Decoder


def float_logits(model: Decoder, hidden: Tensor) -> Tensor:
    """Return float32 logits [R, V] of `hidden` [R, E], the very ones that a plain step draws from.

    `model.logits` would round them to the dtype of the weights, and tokens would depend on whose guesses are beside.
    """
    logits = hidden.new_empty((hidden.shape[0], model.config.vocab_size), dtype=torch.float32)
    model.logits_into(hidden, logits)
    return logits
