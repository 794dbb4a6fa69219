"""One step on the device: its buffers at fixed addresses, and the launches between them, which graphs record."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.lora import LoraRows
from kernels.prefill_attention import UNCUT_KEYS
from kernels.sample import sample
from kernels.step_inputs import adapter_index, step_inputs
from kernels.token_feedback import token_feedback
from model_svc.engine.plan import RunnerInfo, SequenceStep
from model_svc.layers.step import StepBatch
from model_svc.models.decoder import Decoder
from model_svc.runner.device_slots import DeviceSlots
from model_svc.runner.kv_cache import KvCache
from model_svc.runner.packed_step import StepShape, pack
from model_svc.runner.rare_draws import rare_draws
from model_svc.runner.sight import Shown
from model_svc.runner.staging import Returns, Staging
from model_svc.runner.step_buffers import step_buffers


class GpuStep:
    """What every step of a runner is computed in: staged integers, unpacked inputs and `logits` [S, V].

    Its tokens go to a line of `returns`.

    A stage behind another one begins with what it takes from there, [T, E], and one before another makes no logits.
    """

    def __init__(
        self, model: Decoder, cache: KvCache, info: RunnerInfo, slots: DeviceSlots, returns: Returns, num_buffers: int
    ) -> None:
        self.group = model.group
        self._model = model
        self._cache = cache
        self._info = info
        self._slots = slots
        self._returns = returns
        S, T = info.max_num_seqs, max(info.max_num_batched_tokens, info.max_num_seqs)
        self._staging = Staging(StepShape(T, S, False).size, num_buffers, model.device)
        self._inputs = step_buffers(T, S, slots.block_tables.shape[1], model.device)
        E, heads = model.config.hidden_size, S if self.group.is_last else 0
        self._taken = None if self.group.is_first else torch.zeros(T, E, dtype=model.dtype, device=model.device)
        self.logits = torch.zeros(heads, info.vocab_size, dtype=torch.float32, device=model.device)

    def rare_draws(self) -> list[Callable[[], None]]:
        """Return what draws in the ways that `draw` does not."""
        return rare_draws(self._model, self._model.dtype) if self.group.is_last else []

    def stage(self, sequences: tuple[SequenceStep, ...], shape: StepShape, blocks: list[int], line: int) -> None:
        """Queue a plan's way to the device; its tokens will be in a line of `returns`."""
        pack(sequences, shape, blocks, line, self._staging.array(shape.size))
        self._staging.send(shape.size)

    def stage_padding(self, shape: StepShape) -> None:
        """Queue a step of nobody's: what it computes is written nowhere."""
        self.stage((), shape, [], 0)

    def take(self, num_tokens: int) -> None:
        """Queue the arrival of what the stage before this one has made of a step; padding keeps what it was."""
        if self._taken is not None:
            self.group.take(self._taken[:num_tokens])

    def forward(self, shape: StepShape, shown: Shown | None = None) -> Tensor:
        """Unpack the staged step and compute its logits; returns the hidden states [S, E] that they are made of.

        A stage that is not the last returns those of all tokens, [T, E].
        """
        hidden = self.hidden(shape, shown)
        return self.last_logits(shape, hidden) if self.group.is_last else hidden

    def forward_and_draw(self, shape: StepShape) -> Tensor:
        """Compute a step and draw; returns what `forward` does."""
        hidden = self.forward(shape)
        self.draw(shape, hidden)
        return hidden

    def hidden(self, shape: StepShape, shown: Shown | None = None) -> Tensor:
        """Unpack the staged step and compute the hidden states [T, E] of all its tokens.

        `shown`: the pictures of a step that has some.
        """
        T, S, decode, checks, short, _, adapted = shape
        inputs, packed, state = self._inputs, self._staging.device, self._slots.state
        step_inputs(packed, state, T, S, self._info.block_size, inputs)
        batch = StepBatch(
            positions=inputs.positions[:T],
            slot_mapping=inputs.slot_mapping[:T],
            block_tables=inputs.block_tables[:S],
            query_start=inputs.query_start[: S + 1],
            context_lens=inputs.context_lens[:S],
            slots=self._staging.device[2 * T :][:S],
            max_query_len=1 if decode else checks or T,
            max_context_len=min(UNCUT_KEYS, self._info.max_model_len) if short else self._info.max_model_len,
            adapters=LoraRows(adapter_index(packed, state, T, S)) if adapted else None,
        )
        first = inputs.ids[:T] if self._taken is None else self._taken[:T]
        if shown is not None:
            first, batch = first if self._taken is not None else shown.inputs(first), shown.batch(batch)
        return self._model.forward(first, batch, self._cache.layers)

    def last_logits(self, shape: StepShape, hidden: Tensor) -> Tensor:
        """Compute the logits behind each sequence's last token; returns the hidden states [S, E] of these."""
        T, S, decode, *_ = shape
        if T != S or not decode:
            hidden = hidden.index_select(0, self._inputs.last_rows[:S])
        self._model.logits_into(hidden, self.logits[:S])
        return hidden

    def draw(self, shape: StepShape, hidden: Tensor) -> None:
        """Draw a token for each sequence."""
        S, inputs = shape.num_sequences, self._inputs
        logits = self.logits[:S]
        tokens = sample(
            logits, inputs.temperature[:S], inputs.top_k[:S], inputs.top_p[:S], inputs.min_p[:S], inputs.seeds[:S],
            inputs.counters[:S],
        )  # fmt: skip
        packed = self._staging.device[: shape.size]
        slots, line = packed[2 * shape.num_tokens :][:S], packed[-1:]
        token_feedback(
            tokens, logits, hidden, slots, inputs.counters[:S], self._slots.state, self._returns.lines, line
        )  # fmt: skip
