"""Per-sequence state on the device, one row per slot: how to sample, what was drawn last, which blocks are whose.

It stays on the device between steps, so that a step can be planned before the previous one's tokens are known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from torch import Tensor

from kernels.penalties import count_tokens
from model_svc.engine.plan import NewSequence, SequenceStep, StepPlan
from model_svc.runner.staging import send
from wire.messages import SamplingParams

# Rows of `params`, float32: one row per parameter, so that a step's values of one are contiguous for the kernels.
TEMPERATURE, TOP_P, MIN_P, PRESENCE, FREQUENCY, REPETITION = range(6)
_NO_PENALTIES = (0.0, 0.0, 1.0)


@dataclass(frozen=True)
class Extras:
    """What few sequences ask for, kept on the host: biases, ids barred until `min_tokens`, how many top log-probs."""

    bias: dict[int, float]
    stop_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    num_top: int | None = None
    penalized: bool = False
    allowed: np.ndarray | None = field(
        default=None, compare=False
    )  # int32 [ceil(V/32)], a bit for each token that may be drawn


_NO_EXTRAS = Extras(bias={})


class Slots:
    """The state of all slots. `bad` holds slots whose parameters no sampler can work with: only they fail.

    `deterministic` holds slots whose sequence wants the same bits in any company, `adapters` the numbers of adapters,
    `adapter_of` those of slots that have one.
    """

    def __init__(
        self,
        num_slots: int,
        vocab_size: int,
        max_blocks: int,
        device: torch.device,
        adapters: Sequence[str] = (),
    ) -> None:
        self.num_slots = num_slots
        self.vocab_size = vocab_size
        self.device = device
        self.block_tables = torch.zeros(num_slots, max_blocks, dtype=torch.int32, device=device)
        self.last_token = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self.params = torch.zeros(6, num_slots, dtype=torch.float32, device=device)
        self.top_k = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self.seeds = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.num_blocks: dict[int, int] = {}
        self.extras: dict[int, Extras] = {}
        self.bad: set[int] = set()
        self.deterministic: set[int] = set()
        self.adapter_of: dict[int, int] = {}
        self.adapters = {name: n for n, name in enumerate(adapters, start=1)}
        self.sentence_ends: Tensor | None = None  # bool [V], the same for all sequences that land softly
        self._tables: tuple[Tensor, Tensor] | None = None

    def begin(self, plan: StepPlan) -> None:
        """Forget the freed slots of a plan and set up the new sequences'."""
        for slot in plan.freed_slots:
            self._forget(slot)
        for item in plan.sequences:
            if item.new is not None:
                self._forget(item.slot)
                self._set_up(item.slot, item.new)

    def ask_for_adapters(self, sequences: Sequence[SequenceStep]) -> bool:
        """Tell whether one of these sequences has an adapter."""
        return bool(self.adapter_of) and any(item.slot in self.adapter_of for item in sequences)

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return what penalties look at: prompt masks int32 [slots, V/32] and output counts int32 [slots, V].

        Made when the first sequence with a penalty comes: most deployments never pay for it.
        """
        if self._tables is None:
            words = -(-self.vocab_size // 32)
            mask = torch.zeros(self.num_slots, words, dtype=torch.int32, device=self.device)
            counts = torch.zeros(self.num_slots, self.vocab_size, dtype=torch.int32, device=self.device)
            self._tables = mask, counts
        return self._tables

    def record(self, slots: Tensor, state: Tensor | None, tokens: Tensor) -> None:
        """Note the tokens [R] drawn in `slots` [R]; `state` [R] names the lines that count them, or -1."""
        self.last_token[slots] = tokens.int()
        if state is not None:
            count_tokens(self.tables()[1], state, tokens[:, None])

    def _forget(self, slot: int) -> None:
        self.num_blocks.pop(slot, None)
        self.extras.pop(slot, None)
        self.bad.discard(slot)
        self.deterministic.discard(slot)
        self.adapter_of.pop(slot, None)

    def _set_up(self, slot: int, new: NewSequence) -> None:
        sampling = new.sampling
        if sampling.deterministic:
            self.deterministic.add(slot)
        if new.adapter:
            self.adapter_of[slot] = self.adapters[new.adapter]
        stops = new.stop_token_ids
        ids = (*sampling.logit_bias, *stops, *(sampling.allowed_token_ids or ()), *new.barred_ids)
        if parameter_fault(sampling) or not all(0 <= n < self.vocab_size for n in ids):
            self.bad.add(slot)
            sampling, stops, new = SamplingParams(temperature=0.0), (), msgspec.structs.replace(new, barred_ids=())
        penalties = (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty)
        row = (sampling.temperature, sampling.top_p, sampling.min_p, *penalties)
        self._write(slot, row, min(max(sampling.top_k, 0), self.vocab_size), _signed(new.seed))
        extras = Extras(
            bias=sampling.logit_bias,
            stop_ids=stops,
            min_tokens=sampling.min_tokens if stops else 0,
            num_top=sampling.logprobs,
            penalized=penalties != _NO_PENALTIES,
            allowed=self._allowed(sampling.allowed_token_ids, new.barred_ids),
        )
        if extras != _NO_EXTRAS or extras.allowed is not None:
            self.extras[slot] = extras
        if extras.penalized:
            self._count(slot, new)
        if new.sentence_ends and self.sentence_ends is None:
            bits = np.unpackbits(np.frombuffer(new.sentence_ends, dtype=np.uint8), bitorder="little")
            self.sentence_ends = send(bits[: self.vocab_size].astype(np.bool_), self.device)

    def _allowed(self, ids: tuple[int, ...] | None, barred: tuple[int, ...]) -> np.ndarray | None:
        """Return the mask of a sequence that may not say everything, None for the others."""
        if ids is None and not barred:
            return None
        bits = np.full(-(-self.vocab_size // 32) * 32, ids is None, dtype=np.uint8)
        bits[list(ids or ())] = 1
        bits[list(barred)] = 0
        return np.packbits(bits, bitorder="little").view(np.int32)

    def _write(self, slot: int, params: tuple[float, ...], top_k: int, seed: int) -> None:
        self.params[:, slot] = torch.tensor(params, dtype=torch.float32)
        self.top_k[slot] = top_k
        self.seeds[slot] = seed

    def _count(self, slot: int, new: NewSequence) -> None:
        """Set up the lines of a sequence with penalties, which may start again with much generated already."""
        mask, counts = self.tables()
        prompt, generated = self._known_ids(new.prompt_ids), self._known_ids(new.generated_ids)
        present = np.zeros(mask.shape[1] * 32, dtype=np.uint8)
        present[prompt] = 1
        packed = np.packbits(present, bitorder="little").view(np.int32)
        mask[slot] = send(packed, self.device)
        counts[slot] = send(np.bincount(generated, minlength=self.vocab_size).astype(np.int32), self.device)

    def _known_ids(self, packed: bytes) -> np.ndarray:
        ids = np.frombuffer(packed, dtype=np.int32)
        return ids[(ids >= 0) & (ids < self.vocab_size)]


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
