"""Drive a model or a runner step by step the way an engine would: blocks dealt out in a scattered order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from model_svc.engine.plan import NewSequence, Runner, SampledToken, SequenceStep, StepOutput, StepPlan
from model_svc.models.decoder import Decoder
from model_svc.runner.batch import flatten, to_device
from model_svc.runner.kv_cache import KvCache
from model_svc.runner.state_pool import StatePool
from wire.messages import SamplingParams, pack_ids

GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Tracked:
    """A sequence under way: its ids, how many are computed, its slot."""

    slot: int
    ids: list[int]
    sampling: SamplingParams = GREEDY
    seed: int = 0
    computed: int = 0
    num_blocks: int = 0
    sentence_ends: bytes = b""
    adapter: str = ""
    num_prompt: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt = len(self.ids)


class Dealer:
    """Hands out blocks in a random but repeatable order, and builds the steps of sequences."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._free = list(range(num_blocks))
        random.Random(5).shuffle(self._free)
        self._block_size = block_size

    def share(self, seq: Tracked, num_tokens: int, *, fed: bool = False, sample: bool | None = None) -> SequenceStep:
        """Plan the next `num_tokens` of a sequence; by default it samples when its ids are used up."""
        end = seq.computed + num_tokens
        needed = -(-end // self._block_size)
        blocks = tuple(self._free.pop() for _ in range(needed - seq.num_blocks))
        new = None
        if seq.computed == 0:
            new = NewSequence(
                sampling=seq.sampling,
                seed=seq.seed,
                prompt_ids=pack_ids(seq.ids[: seq.num_prompt]),
                generated_ids=pack_ids(seq.ids[seq.num_prompt :]),
                sentence_ends=seq.sentence_ends,
                adapter=seq.adapter,
            )
        step = SequenceStep(
            slot=seq.slot,
            start=seq.computed,
            num_tokens=num_tokens,
            token_ids=b"" if fed else pack_ids(seq.ids[seq.computed : end]),
            from_device=fed,
            new_blocks=blocks,
            new=new,
            sample=end >= len(seq.ids) if sample is None else sample,
            output_index=max(end - seq.num_prompt, 0),
        )
        seq.num_blocks, seq.computed = needed, end
        return step


class ModelDriver:
    """Runs a model over steps and returns the logits of every token, as a runner never does."""

    def __init__(
        self, model: Decoder, *, num_blocks: int = 64, block_size: int = 4, dtype: torch.dtype = torch.float32
    ) -> None:
        self.model = model
        states = StatePool(model.state_shapes(), 16, 0, model.device)
        self.cache = KvCache(model.kv_shapes(), num_blocks, block_size, dtype, model.device, states=states)
        self.dealer = Dealer(num_blocks, block_size)
        self._tables = torch.zeros(16, num_blocks, dtype=torch.int32, device=model.device)
        self._last = torch.zeros(16, dtype=torch.int32, device=model.device)
        self._num_blocks: dict[int, int] = {}
        self._block_size = block_size
        self.adapter_of: dict[int, int] = {}  # by slot

    @torch.inference_mode()
    def logits(self, *shares: tuple[Tracked, int]) -> list[Tensor]:
        """Compute the next tokens of some sequences in one step; returns logits [n, V] of each, if the head is here."""
        plan = StepPlan(step=0, sequences=tuple(self.dealer.share(seq, count) for seq, count in shares))
        step = to_device(flatten(plan, self._num_blocks, self.adapter_of), self._tables, self._last, self._block_size)
        hidden = self.model.forward(self.model.inputs(step.ids), step.batch, self.cache.layers)
        if not self.model.group.is_last:
            self.model.group.pass_on(hidden)
            return []
        return list(torch.split(self.model.logits(hidden), [count for _, count in shares]))


class RunnerDriver:
    """Runs prompts through a runner with continuous batching: every step takes what each sequence has left."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.dealer = Dealer(runner.info.num_blocks, runner.info.block_size)
        self.step_number = 0

    def run(self, *steps: SequenceStep, **fields: object) -> StepOutput:
        """Execute one plan."""
        self.step_number += 1
        plan = StepPlan(step=self.step_number, sequences=steps, **fields)  # type: ignore[arg-type]
        output = self.runner.collect(self.runner.submit(plan))
        assert output.step == self.step_number
        return output

    def generate(
        self, sequences: Sequence[Tracked], num_tokens: int, *, chunk: int = 1 << 30, fed: bool = True
    ) -> dict[int, list[SampledToken]]:
        """Generate so many tokens of each sequence, prompts in chunks; returns the drawn tokens by slot."""
        drawn: dict[int, list[SampledToken]] = {seq.slot: [] for seq in sequences}
        while live := [seq for seq in sequences if len(drawn[seq.slot]) < num_tokens]:
            shares = []
            for seq in live:
                left = len(seq.ids) - seq.computed
                decoding = bool(drawn[seq.slot])
                shares.append(self.dealer.share(seq, min(left, chunk), fed=fed and decoding))
            output = self.run(*shares)
            assert not output.failed_slots
            for token in output.tokens:
                drawn[token.slot].append(token)
                next(seq for seq in live if seq.slot == token.slot).ids.append(token.token_id)
        return drawn


def token_ids(drawn: dict[int, list[SampledToken]]) -> dict[int, list[int]]:
    """Strip everything but the ids."""
    return {slot: [token.token_id for token in tokens] for slot, tokens in drawn.items()}
