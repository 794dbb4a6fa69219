"""Log-probabilities of given ids behind given positions: what a prompt's tokens were worth to the model.

The head runs over these rows too, some at a time: a long prompt's logits would not fit beside everything else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kernels.logprobs import top_logprobs
from model_svc.engine.plan import SequenceStep, TargetLogprobs
from model_svc.models.decoder import Decoder
from model_svc.runner.head import float_logits
from model_svc.runner.sampler import MAX_TOP_LOGPROBS
from model_svc.runner.staging import fetch, send
from wire.messages import TokenLogprob

_ROWS = 256  # 50 MB of logits for a vocabulary of 50,000

Found = list[tuple[SequenceStep, Tensor, Tensor, Tensor]]  # a share, and of its targets: chosen, ids, values


def asked(sequences: Sequence[SequenceStep]) -> bool:
    """Tell whether a step wants any."""
    return any(item.targets for item in sequences)


def score(model: Decoder, hidden: Tensor, sequences: Sequence[SequenceStep]) -> Found:
    """Compute them from the hidden states [T, E] of all tokens of a step, in the order of the plan."""
    found: Found = []
    begin = 0
    for item in sequences:
        if item.targets:
            ids = send(np.frombuffer(item.targets, dtype=np.int32).astype(np.int64), hidden.device)
            top = min(item.num_top, MAX_TOP_LOGPROBS, model.config.vocab_size)
            parts = []
            for at in range(0, len(ids), _ROWS):
                chosen = ids[at : at + _ROWS]
                logits = float_logits(model, hidden[begin + at : begin + at + len(chosen)])
                parts.append(top_logprobs(logits, chosen, top))
            of_chosen, top_ids, values = (fetch(torch.cat(tensors)) for tensors in zip(*parts, strict=True))
            found.append((item, of_chosen, top_ids, values))
        begin += item.num_tokens
    return found


def target_logprobs(found: Found) -> tuple[TargetLogprobs, ...]:
    """Read what `score` left; the device must have come so far."""
    return tuple(
        TargetLogprobs(
            slot=item.slot,
            entries=tuple(
                TokenLogprob(logprob, tuple(top_ids), tuple(top_values))
                for logprob, top_ids, top_values in zip(chosen.tolist(), ids.tolist(), values.tolist(), strict=True)
            ),
        )
        for item, chosen, ids, values in found
    )
