"""Runs every rare kind of draw once, on slots that belong to nobody, so that what it launches is loaded.

A first penalty, mask or log-probability would else be compiled or loaded while all other answers wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from kernels import dispatch
from model_svc.engine.plan import NewSequence, SequenceStep, StepPlan
from model_svc.models.decoder import Decoder
from model_svc.runner.draws import draw_all, draws_of
from model_svc.runner.head import float_logits
from model_svc.runner.sampler import MAX_TOP_LOGPROBS
from model_svc.runner.slots import Slots
from model_svc.runner.staging import send
from model_svc.runner.target_logprobs import score
from wire.messages import SamplingParams, pack_ids

# Rows of the head's product, where guesses are checked and prompts scored: one number for each kernel that is taken
# for any, of `few_rows` (in whose tiles sixteens are a variant of their own) and of `fixed_linear`.
_ROWS, _ROWS_IN_FIXED_ORDER = (1, 2, 16, 17, 32, 33, 64, 65), (1, 17, 129)
_FEW_TOP = 20  # the most that OpenAI's clients ask for


def rare_draws(model: Decoder, dtype: torch.dtype) -> list[Callable[[], None]]:
    """Return what draws in every way that steps of padding do not; each takes some milliseconds.

    Nothing that these tell or leave has a meaning, also where kernels are only compiled.
    """
    V = model.config.vocab_size
    everything = np.full(-(-V // 32), -1, dtype=np.int32).tobytes()
    plain = SamplingParams(temperature=1.0)
    penalized = SamplingParams(
        temperature=1.0, repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1, logit_bias={0: 1.0},
        min_tokens=2, logprobs=min(_FEW_TOP, V),
    )  # fmt: skip
    most = SamplingParams(temperature=0.0, logprobs=min(MAX_TOP_LOGPROBS, V))
    draws: list[Callable[[], None]] = [
        partial(_draw, model, plain),
        partial(_draw, model, penalized, stop_token_ids=(0,), share={"allow_bitmask": everything}),
        partial(_draw, model, penalized, share={"token_ids": pack_ids([0, 0]), "num_tokens": 2, "num_drafts": 1}),
        partial(_draw, model, most, share={"forced_id": 0}),
        partial(_draw, model, plain, sentence_ends=everything, share={"landing_id": 0, "landing_bias": 1.0}),
        partial(_score, model, dtype),
    ]
    heads: list[Callable[[], None]] = [partial(_head, model, dtype, rows, nullcontext) for rows in _ROWS]
    return draws + heads + [partial(_head, model, dtype, rows, dispatch.fixed_order) for rows in _ROWS_IN_FIXED_ORDER]


def _draw(model: Decoder, sampling: SamplingParams, *, share: dict[str, Any] | None = None, **of_sequence: Any) -> None:
    """Draw for a sequence that has just begun, and for one beside it that asks for nothing."""
    begun = NewSequence(sampling=sampling, seed=0, prompt_ids=pack_ids([0]), **of_sequence)
    beside = NewSequence(sampling=SamplingParams(temperature=0.0), seed=0, prompt_ids=pack_ids([0]))
    fields: dict[str, Any] = {"start": 0, "num_tokens": 1, "token_ids": pack_ids([0])}
    items = (
        SequenceStep(slot=0, new=begun, **(fields | (share or {}))),
        SequenceStep(slot=1, new=beside, **fields),
    )
    slots = Slots(2, model.config.vocab_size, 1, model.device)
    slots.begin(StepPlan(step=0, sequences=items))
    numbers = np.array(draws_of(items), dtype=np.int64).T.copy()
    _, where, counters = send(numbers, model.device).unbind(0)
    logits = torch.zeros(numbers.shape[1], model.config.vocab_size, dtype=torch.float32, device=model.device)
    draw_all(logits, slots, items, where, counters)


def _score(model: Decoder, dtype: torch.dtype) -> None:
    """Tell what two tokens of a prompt are worth."""
    hidden = _hidden(model, dtype, 2)
    for top in (_FEW_TOP, MAX_TOP_LOGPROBS):
        score(model, hidden, (SequenceStep(slot=0, start=0, num_tokens=2, targets=pack_ids([0, 0]), num_top=top),))


def _head(model: Decoder, dtype: torch.dtype, rows: int, order: Callable[[], AbstractContextManager[None]]) -> None:
    with order():
        float_logits(model, _hidden(model, dtype, rows))


def _hidden(model: Decoder, dtype: torch.dtype, rows: int) -> torch.Tensor:
    return torch.zeros(rows, model.config.hidden_size, dtype=dtype, device=model.device)
