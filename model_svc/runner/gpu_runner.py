"""Execute step plans on a GPU without ever waiting for it in `submit`.

A step crosses to the device as one buffer; one launch unpacks it, a recorded graph computes it and draws, the tokens
feed the next step where they are and come back beside it. The host reads them one step behind.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property

import msgspec
import numpy as np
import torch
from torch import Tensor

from kernels import dispatch
from model_svc.engine.plan import RunnerInfo, SequenceStep, StepOutput, StepPlan
from model_svc.models.decoder import Decoder
from model_svc.runner.adapter_shelf import AdapterShelf
from model_svc.runner.device_slots import DeviceSlots
from model_svc.runner.draws import drafts, draw_all, draws_of
from model_svc.runner.gpu_handle import Clock, Computed, GpuHandle
from model_svc.runner.gpu_step import GpuStep
from model_svc.runner.head import float_logits
from model_svc.runner.kept_blocks import Store
from model_svc.runner.kv_cache import KvCache
from model_svc.runner.kv_transfer import KvTransfer
from model_svc.runner.outcome import step_output
from model_svc.runner.packed_step import StepShape, shape_of
from model_svc.runner.recorded_steps import RecordedSteps
from model_svc.runner.sampler import Drawn, TopLogprobs
from model_svc.runner.sight import Sight
from model_svc.runner.staging import Returns, Timers, fetch, on_stream, send
from model_svc.runner.target_logprobs import Found, asked, score
from model_svc.runner.tier_copies import TierCopies, with_tier


class GpuRunner:
    """One model on one GPU. Implements the engine's Runner protocol.

    Without `late` all steps are recorded before the first one, instead of some of them in `use_idle_time`.
    """

    def __init__(
        self, model: Decoder, cache: KvCache, info: RunnerInfo, store: Store | None = None, *, graphs: bool = True,
        late: bool = False,
    ) -> None:  # fmt: skip
        """`store` is where the second tier's blocks lie."""
        self._model = model
        self._cache = cache
        self._device = device = model.device
        self._group = model.group
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._copies = TierCopies(cache, store, self._stream, self._loaded) if store is not None else None
        self._info = info = with_tier(info, store, self._copies)
        max_blocks = -(-info.max_model_len // info.block_size)
        S = info.max_num_seqs
        ring = info.depth + 3  # buffers of each kind: so many steps and one in flight, one being read, one being filled
        self._slots = DeviceSlots(S, info.vocab_size, max_blocks, device, ring, info.adapters)
        self.adapter_places = AdapterShelf(model.adapters, self._slots.adapters, self._on_stream)
        self._returns = Returns(S + info.max_drafts, ring, device)
        self._sight = Sight(model)
        self._step = GpuStep(model, cache, info, self._slots, self._returns, ring)
        self._timers = Timers(3 * ring) if self._stream is not None else None
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(device))  # which fills with zeros what was made above
        self._recorded = RecordedSteps(self._step, info, on_gpu=device.type == "cuda", graphs=graphs)
        self._start_goes_on = True
        if device.type == "cuda" and graphs:
            with torch.inference_mode(), self._on_stream():
                self._recorded.record_first()
            while not late and self.use_idle_time():
                pass

    @torch.inference_mode()
    def use_idle_time(self) -> bool:
        """Do one part of what the start left for later, while no step is in flight; tells whether more is left.

        Ranks do so together, until none of them has anything left: no request finds one of them behind. From then on
        they need not meet.
        """
        if self._start_goes_on:
            with self._on_stream():
                done = not self._recorded.use_idle_time()
            self._start_goes_on = not self._group.least(int(done))
        return self._start_goes_on

    @torch.inference_mode()
    def go_through(self) -> None:
        """Run every kind of step once, of padding alone, for what they launch."""
        with self._on_stream():
            self._recorded.go_through()

    @property
    def info(self) -> RunnerInfo:
        """Return the size of the KV pool and the step limits."""
        return self._info

    @cached_property
    def blocks(self) -> KvTransfer:
        """Return what copies blocks of the cache to and from other replicas."""
        return KvTransfer(self._cache, self._stream)

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> GpuHandle:
        """Queue a step."""
        if self._copies is not None:
            self._copies.run(plan)
        with self._on_stream():
            self._begin = self._now()
            self._slots.begin(plan)
            self._scored: Found = []
            self._cache.states.restore(plan.sequences)
            self._sight.look(plan)
            computed = self._compute(plan.sequences) if plan.sequences else None
            self._cache.states.save(plan.sequences)
            drawing = plan.sequences if self._group.is_last else ()
            items = tuple(item for item in drawing if item.sample)
            rows = [n for n, item in enumerate(drawing) if item.sample]
            bad = self._slots.bad
            failed = frozenset(item.slot for item in plan.sequences if item.slot in bad) if bad else frozenset()
            handle = GpuHandle(plan.step, items, rows, failed, self._begin, self._scored)
            if computed is not None and any(item.mask_follows for item in plan.sequences):
                handle.undrawn = computed
            else:
                self._finish(handle, computed)
            return handle

    @torch.inference_mode()
    def mask(self, handle: GpuHandle, masks: Mapping[int, bytes]) -> None:
        """Queue the draws of a step that waited for masks; the device computes the step meanwhile."""
        computed, handle.undrawn = handle.undrawn, None
        assert computed is not None, "a step that waits for no masks"
        sequences = tuple(
            msgspec.structs.replace(item, allow_bitmask=masks[item.slot]) if item.mask_follows else item
            for item in computed.sequences
        )
        with self._on_stream():
            self._finish(handle, replace(computed, sequences=sequences))

    def collect(self, handle: GpuHandle) -> StepOutput:
        """Wait for a step and return what it drew; slots whose logits were not finite are named as failed."""
        assert handle.clock is not None, "collected before its masks came"
        compute_ms = handle.clock.wait_ms()
        tokens = handle.tokens.tolist() if handle.tokens is not None else []
        ids = [tokens[row] for row in handle.rows]
        return step_output(
            handle.step, handle.items, ids, [token >= 0 for token in ids], handle.top,
            bad_slots=handle.bad_slots, compute_ms=compute_ms, scored=handle.scored,
        )  # fmt: skip

    def close(self) -> None:
        """Free the model and the cache."""
        self.adapter_places.close()
        if self._stream is not None:
            self._stream.synchronize()
        if self._copies is not None:
            self._copies.close()
        self._recorded.clear()
        del self._recorded, self._model, self._cache, self._slots, self._step, self._sight, self.adapter_places
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    # --- a step ---

    def _compute(self, sequences: tuple[SequenceStep, ...]) -> Computed:
        """Queue everything between plan and logits; in a fixed order if one of the sequences asks for that."""
        if self._wants_fixed(sequences):
            with dispatch.fixed_order():
                return self._computed(sequences, fixed=True)
        return self._computed(sequences, fixed=False)

    def _wants_fixed(self, sequences: tuple[SequenceStep, ...]) -> bool:
        deterministic = self._slots.deterministic
        return bool(deterministic) and any(item.slot in deterministic for item in sequences)

    def _computed(self, sequences: tuple[SequenceStep, ...], *, fixed: bool) -> Computed:
        blocks = self._slots.enter_blocks(sequences, self._info.block_size)
        self._slots.flush()
        scores = self._group.is_last and asked(sequences)
        if drafts(sequences):
            return self._checked(sequences, blocks, scores=scores, fixed=fixed)
        step, recording, plain = self._shape_of(sequences), None, self._draws_plainly(sequences)
        shown = self._sight.shown(sequences)
        if scores or shown:  # of all rows, and recorded steps keep the last ones only; or it begins with other rows
            shape = self._recorded.fit(step)
        else:
            shape, recording = self._recorded.find(step, fixed=fixed, plain=plain)
        line = self._returns.next()
        self._step.stage(sequences, shape, blocks, line)
        if not self._group.is_first:
            self._step.take(step.num_tokens)
            self._begin = self._now()  # the time of the stage before this one is not this one's
        if recording is not None:
            recording.forward()
            hidden = recording.hidden
        elif scores:
            whole = self._step.hidden(shape, shown)
            self._scored = score(self._model, whole, sequences)
            hidden = self._step.last_logits(shape, whole)
        else:
            hidden = self._step.forward(shape, shown)
        if not self._group.is_last:
            self._group.pass_on(hidden[: step.num_tokens])
        return Computed(sequences, shape, line, recording, hidden, plain)

    def _shape_of(self, sequences: tuple[SequenceStep, ...]) -> StepShape:
        return shape_of(sequences)._replace(adapters=self._slots.ask_for_adapters(sequences))

    def _checked(
        self, sequences: tuple[SequenceStep, ...], blocks: list[int], *, scores: bool, fixed: bool
    ) -> Computed:
        """Queue everything between a plan with guesses and its hidden states."""
        longest, shown = max(item.num_tokens for item in sequences), self._sight.shown(sequences)
        eager = fixed or scores or shown is not None
        shape, recording = self._recorded.find_checks(self._shape_of(sequences), longest, fixed=eager)
        line = self._returns.next()
        self._step.stage(sequences, shape, blocks, line)
        if recording is not None:
            recording.forward()
            return Computed(sequences, shape, line, recording, recording.hidden)
        whole = self._step.hidden(shape, shown)
        if scores:
            self._scored = score(self._model, whole, sequences)
        return Computed(sequences, shape, line, None, whole)

    def _finish(self, handle: GpuHandle, computed: Computed | None) -> None:
        """Queue everything between logits and tokens; before the last stage there is nothing."""
        if computed is not None and self._group.is_last:
            if computed.shape.checks:
                self._draw_behind_guesses(handle, computed)
            elif computed.plain:
                self._draw(handle, computed)
            else:
                self._draw_specially(handle, computed)
        handle.clock = Clock(handle.begin, self._now())

    def _draw(self, handle: GpuHandle, computed: Computed) -> None:
        """Draw a token for each sequence, whether it samples or not."""
        if computed.recording is not None:
            computed.recording.draw()
        else:
            self._step.draw(computed.shape, computed.hidden)
        handle.tokens = self._returns.lines[computed.line, : len(computed.sequences)]

    def _draw_behind_guesses(self, handle: GpuHandle, computed: Computed) -> None:
        """Draw behind each guess, too."""
        numbers = np.array(draws_of(computed.sequences), dtype=np.int64).reshape(-1, 3).T.copy()
        where, slots, counters = send(numbers, self._device).unbind(0)
        hidden = computed.hidden.index_select(0, where)
        items = [item for item in computed.sequences if item.sample]  # those of the handle know no late masks
        with dispatch.fixed_order() if self._wants_fixed(computed.sequences) else nullcontext():
            logits = float_logits(self._model, hidden)
        self._bring_back(handle, computed.line, draw_all(logits, self._slots, items, slots, counters), hidden)

    def _draws_plainly(self, sequences: tuple[SequenceStep, ...]) -> bool:
        extras = self._slots.extras
        if extras and any(item.slot in extras for item in sequences):
            return False
        return not any(
            item.forced_id >= 0 or item.allow_bitmask or item.mask_follows or item.barred_ids or item.landing_id >= 0
            for item in sequences
        )

    def _draw_specially(self, handle: GpuHandle, computed: Computed) -> None:
        """Draw with whatever the sequences ask for, launch by launch."""
        rows = [n for n, item in enumerate(computed.sequences) if item.sample]
        if not rows:
            return
        items = [computed.sequences[n] for n in rows]
        numbers = np.array([rows, [item.slot for item in items], [item.output_index for item in items]], dtype=np.int64)
        where, slots, counters = send(numbers, self._device).unbind(0)
        drawn = draw_all(self._step.logits.index_select(0, where), self._slots, items, slots, counters)
        self._bring_back(handle, computed.line, drawn, computed.hidden.index_select(0, where))

    def _bring_back(self, handle: GpuHandle, line: int, drawn: Drawn, hidden: Tensor) -> None:
        """Queue the copies of draws to the host; `hidden` [R, E] is what they come of."""
        sound = drawn.finite & torch.isfinite(hidden).all(-1)
        handle.tokens = self._returns.keep(torch.where(sound, drawn.tokens, -1).int(), line)
        handle.rows = list(range(len(drawn.tokens)))
        handle.top = _fetched(drawn.top)

    def _loaded(self, event: torch.cuda.Event) -> None:
        self.blocks.wrote(event)

    def _on_stream(self) -> AbstractContextManager[object]:
        return on_stream(self._stream)

    def _now(self) -> torch.cuda.Event | float:
        return self._timers.now() if self._timers is not None else time.perf_counter()


def _fetched(top: TopLogprobs | None) -> TopLogprobs | None:
    if top is None:
        return None
    return TopLogprobs(top.rows, top.counts, fetch(top.chosen), fetch(top.ids), fetch(top.values))
