"""Execute step plans with torch: enter the plan in the slots, run the model over one varlen batch, draw, hand back.

Everything that depends on the device's own results stays on the device until `collect`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from kernels import dispatch
from model_svc.engine.kv_tier import Kept
from model_svc.engine.plan import RunnerInfo, SequenceStep, StepOutput, StepPlan
from model_svc.models.decoder import Decoder
from model_svc.runner.adapter_shelf import AdapterShelf
from model_svc.runner.batch import DeviceStep, flatten, to_device
from model_svc.runner.block_file import BlockFile
from model_svc.runner.draws import draw_all
from model_svc.runner.kept_blocks import Store
from model_svc.runner.kv_cache import KvCache
from model_svc.runner.kv_transfer import KvTransfer
from model_svc.runner.outcome import step_output
from model_svc.runner.sampler import Drawn
from model_svc.runner.sight import Sight
from model_svc.runner.slots import Slots
from model_svc.runner.target_logprobs import Found, asked, score
from model_svc.runner.tier_copies import TierCopies, with_tier
from model_svc.runner.untouched import Untouched


@dataclass(frozen=True)
class Handle:
    """A submitted step. `drawn` is None when no sequence of it samples."""

    step: int
    items: tuple[SequenceStep, ...]
    bad_slots: frozenset[int]
    drawn: Drawn | None
    started: float
    scored: Found


class TorchRunner:
    """One model on one device, eager. Implements the engine's Runner protocol."""

    def __init__(self, model: Decoder, cache: KvCache, info: RunnerInfo, store: Store | None = None) -> None:
        """`store` is where the second tier's blocks lie."""
        self._model = model
        self._cache = cache
        self._store = store
        self._copies = TierCopies(cache, store) if store is not None else None
        self._info = with_tier(info, store, self._copies)
        max_blocks = -(-info.max_model_len // info.block_size)
        self._slots = Slots(info.max_num_seqs, info.vocab_size, max_blocks, model.device, info.adapters)
        self.adapter_places = AdapterShelf(model.adapters, self._slots.adapters)
        self._untouched = Untouched(cache)
        self._sight = Sight(model)

    @property
    def info(self) -> RunnerInfo:
        """Return the size of the KV pool and the step limits."""
        return self._info

    @cached_property
    def blocks(self) -> KvTransfer:
        """Return what copies blocks of the cache to and from other replicas."""
        return KvTransfer(self._cache)

    @property
    def kept(self) -> Kept | None:
        """Return what the second tier has from before the start."""
        return self._store if isinstance(self._store, BlockFile) else None

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> Handle:
        """Start a step. On the CPU it is done when this returns; on a GPU it is queued."""
        if self._copies is not None:
            self._copies.run(plan)
        started = time.perf_counter()
        self._slots.begin(plan)
        self._untouched.note(plan.sequences)
        items = tuple(item for item in plan.sequences if item.sample) if self._model.group.is_last else ()
        self._scored: Found = []
        self._cache.states.restore(plan.sequences)
        self._sight.look(plan)
        drawn = self._compute(plan, items) if plan.sequences else None
        self._cache.states.save(plan.sequences)
        bad = frozenset(item.slot for item in plan.sequences) & self._slots.bad
        return Handle(plan.step, items, bad, drawn, started, self._scored)

    def mask(self, handle: Handle, masks: Mapping[int, bytes]) -> None:
        """Refuse: this runner draws when it computes, so every mask has to come with the plan."""
        raise AssertionError(f"step {handle.step} was drawn without the masks of {sorted(masks)}")

    @torch.inference_mode()
    def collect(self, handle: Handle) -> StepOutput:
        """Wait for a step and return what it drew; slots whose logits were not finite are named as failed."""
        drawn = handle.drawn
        ids, finite = (drawn.tokens.tolist(), drawn.finite.tolist()) if drawn is not None else ([], [])
        return step_output(
            handle.step, handle.items, ids, finite, drawn.top if drawn is not None else None,
            bad_slots=handle.bad_slots, compute_ms=(time.perf_counter() - handle.started) * 1000, scored=handle.scored,
        )  # fmt: skip

    def use_idle_time(self) -> bool:
        """Take a page of memory for blocks to come; tells whether there was one to take."""
        return self._untouched.take_page()

    def close(self) -> None:
        """Free the model and the cache."""
        self.adapter_places.close()
        if self._copies is not None:
            self._copies.close()
        del self._model, self._cache, self._slots, self._sight, self.adapter_places
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _compute(self, plan: StepPlan, items: tuple[SequenceStep, ...]) -> Drawn | None:
        step = self._laid_out(plan)
        with dispatch.on_cpu("reference"):  # on a CPU this is the exact mode
            hidden = self._model.forward(step.inputs(self._model), step.batch, self._cache.layers)
            if not self._model.group.is_last:
                self._model.group.pass_on(hidden)
                return None
            if asked(plan.sequences):
                self._scored = score(self._model, hidden, plan.sequences)
            if not items:
                return None
            logits = self._model.logits(self._sampling_rows(hidden, step))
        return draw_all(logits, self._slots, items, step.sample_slots, step.output_index)

    def _laid_out(self, plan: StepPlan) -> DeviceStep:
        """Return a plan as the model takes it."""
        slots = self._slots
        host = flatten(plan, slots.num_blocks, slots.adapter_of if slots.ask_for_adapters(plan.sequences) else None)
        step = to_device(host, slots.block_tables, slots.last_token, self._info.block_size)
        shown = self._sight.shown(plan.sequences)
        return step if shown is None else replace(step, batch=shown.batch(step.batch), shown=shown)

    def _sampling_rows(self, hidden: Tensor, step: DeviceStep) -> Tensor:
        """Pick the rows that sample: the head is the widest product of all, prompts need it once."""
        return hidden if len(step.sample_rows) == len(hidden) else hidden[step.sample_rows]
