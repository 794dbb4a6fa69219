"""Per-sequence state on the device, one row per slot: how to sample, what was drawn last, which blocks are whose.

It stays on the device between steps, so that a step can be planned before the previous one's tokens are known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from model_svc.engine.plan import NewSequence, StepPlan
from wire.messages import SamplingParams

# Columns of `params`, float32.
TEMPERATURE, TOP_P, MIN_P, PRESENCE, FREQUENCY, REPETITION = range(6)


class Slots:
    """The state of all slots. `bad` holds slots whose parameters no sampler can work with: only they fail."""

    def __init__(self, num_slots: int, vocab_size: int, max_blocks: int, device: torch.device) -> None:
        self.num_slots = num_slots
        self.vocab_size = vocab_size
        self.device = device
        self.block_tables = torch.zeros(num_slots, max_blocks, dtype=torch.int32, device=device)
        self.last_token = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self.params = torch.zeros(num_slots, 6, dtype=torch.float32, device=device)
        self.top_k = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self.seeds = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.num_blocks: dict[int, int] = {}
        self.bad: set[int] = set()
        self.greedy: set[int] = set()
        self.penalized: set[int] = set()
        self.logprobs: dict[int, int] = {}
        self.biases: dict[int, tuple[Tensor, Tensor]] = {}
        self.floors: dict[int, tuple[int, Tensor]] = {}  # min_tokens and the stop ids barred until then
        self._counts: Tensor | None = None
        self._in_prompt: Tensor | None = None

    def begin(self, plan: StepPlan) -> None:
        """Forget the freed slots of a plan and set up the new sequences'."""
        for slot in plan.freed_slots:
            self._forget(slot)
        for item in plan.sequences:
            if item.new is not None:
                self._forget(item.slot)
                self._set_up(item.slot, item.new)

    def counts(self) -> tuple[Tensor, Tensor]:
        """Return how often each id was generated in each slot [slots, V], and whether it is in its prompt.

        Made when the first sequence with a penalty comes: most deployments never pay for it.
        """
        if self._counts is None or self._in_prompt is None:
            self._counts = torch.zeros(self.num_slots, self.vocab_size, dtype=torch.int32, device=self.device)
            self._in_prompt = torch.zeros(self.num_slots, self.vocab_size, dtype=torch.bool, device=self.device)
        return self._counts, self._in_prompt

    def record(self, slots: Tensor, host_slots: Iterable[int], tokens: Tensor) -> None:
        """Note the tokens [R] int32 drawn in `slots` [R]."""
        self.last_token[slots] = tokens
        if self._counts is not None and not self.penalized.isdisjoint(host_slots):
            self._counts.index_put_((slots, tokens.long()), torch.ones_like(tokens), accumulate=True)

    def _forget(self, slot: int) -> None:
        self.num_blocks.pop(slot, None)
        self.bad.discard(slot)
        self.greedy.discard(slot)
        self.penalized.discard(slot)
        for held in (self.logprobs, self.biases, self.floors):
            held.pop(slot, None)

    def _set_up(self, slot: int, new: NewSequence) -> None:
        sampling = new.sampling
        fault = parameter_fault(sampling)
        if fault or any(not 0 <= n < self.vocab_size for n in (*sampling.logit_bias, *new.stop_token_ids)):
            self.bad.add(slot)
            sampling = SamplingParams(temperature=0.0)
        row = (
            sampling.temperature,
            sampling.top_p,
            sampling.min_p,
            sampling.presence_penalty,
            sampling.frequency_penalty,
            sampling.repetition_penalty,
        )
        self.params[slot] = torch.tensor(row, dtype=torch.float32)
        self.top_k[slot] = min(max(sampling.top_k, 0), self.vocab_size)
        self.seeds[slot] = _signed(new.seed)
        if sampling.temperature == 0:
            self.greedy.add(slot)
        if sampling.logprobs is not None:
            self.logprobs[slot] = min(sampling.logprobs, self.vocab_size)
        if sampling.logit_bias:
            self.biases[slot] = (self._ids(sampling.logit_bias), self._floats(sampling.logit_bias.values()))
        if sampling.min_tokens > 0 and new.stop_token_ids and slot not in self.bad:
            self.floors[slot] = (sampling.min_tokens, self._ids(new.stop_token_ids))
        if row[3:] != (0.0, 0.0, 1.0):
            self._count(slot, new)

    def _count(self, slot: int, new: NewSequence) -> None:
        """Set up the counts of a sequence with penalties, which may start again with much generated already."""
        counts, in_prompt = self.counts()
        self.penalized.add(slot)
        prompt, generated = (torch.from_numpy(np.frombuffer(raw, np.int32).astype(np.int64)) for raw in
                             (new.prompt_ids, new.generated_ids))  # fmt: skip
        in_prompt[slot] = False
        in_prompt[slot, prompt.to(self.device)] = True
        counts[slot] = torch.bincount(generated, minlength=self.vocab_size).to(self.device, torch.int32)

    def _ids(self, ids: Iterable[int]) -> Tensor:
        return torch.tensor(list(ids), dtype=torch.int64, device=self.device)

    def _floats(self, values: Iterable[float]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.float32, device=self.device)


def parameter_fault(sampling: SamplingParams) -> str | None:
    """Name the parameter that no sampler can work with. The edge refuses such requests; this is the second look."""
    floats = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
    for name in floats:
        if not math.isfinite(getattr(sampling, name)):
            return name
    if any(not math.isfinite(value) for value in sampling.logit_bias.values()):
        return "logit_bias"
    ranges = {
        "temperature": sampling.temperature >= 0,
        "top_p": 0 < sampling.top_p <= 1,
        "min_p": 0 <= sampling.min_p <= 1,
        "repetition_penalty": sampling.repetition_penalty > 0,
        "top_k": sampling.top_k >= -1,
        "logprobs": sampling.logprobs is None or sampling.logprobs >= 0,
    }
    return next((name for name, good in ranges.items() if not good), None)


def _signed(seed: int) -> int:
    """Fold any integer into int64."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
