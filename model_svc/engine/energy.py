"""Shares what a meter counted among the sequences that were computed meanwhile.

A step's work is its time. It is divided among those in it by what the scheduler's cost model says of their tokens: a
token of a prompt, and one of an answer, which takes its part of a step without prompts. Between two readings the energy
goes to them by their work; whoever ended before the second one has paid at the price of the time before. What a device
uses at rest, what it computed for those who had gone, and the errors of those prices are nobody's. So what all paid and
what is nobody's is together what the counter said.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from model_svc.engine.plan import SequenceStep
from model_svc.engine.policy import StepCosts
from model_svc.engine.scheduler import ScheduledStep
from model_svc.engine.sequence import Sequence, Status


class EnergyShares:
    """The account of one engine. Work is in ms of step time, energy in J."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._joules = self._at = 0.0  # the last reading
        self._reads = False
        self._was_idle = False
        self._gone_ms = self._gone_j = 0.0  # work of those who ended since then, and what they paid for it
        self._num_steps = 0
        self.price = 0.0  # J for a ms of work
        self._rest_w: float | None = None
        self.paid_j = 0.0
        self.nobodys_j = 0.0

    @property
    def has_work(self) -> bool:
        """Whether anything was computed since the last reading."""
        return self._num_steps > 0

    def note_step(self, scheduled: ScheduledStep, step_ms: float) -> None:
        """Divide a step's time among its sequences."""
        items = scheduled.plan.sequences
        self._num_steps += 1
        if scheduled.num_prefill_tokens:
            shares = self._mixed(items, step_ms)
        else:
            unit = step_ms / sum([item.num_tokens for item in items])
            shares = [item.num_tokens * unit for item in items]
        for seq, work_ms in zip(scheduled.sequences, shares, strict=True):  # 256 of these a step
            if seq.status is Status.FINISHED:  # its bill is out
                self._gone_ms += work_ms
            else:
                seq.work_ms += work_ms

    def _mixed(self, items: Seq[SequenceStep], step_ms: float) -> list[float]:
        """Return each one's share of the time of a step that has prompts in it."""
        prompts = [not item.sample or item.num_tokens - item.num_drafts > 1 for item in items]
        num_answer = sum(item.num_tokens for item, prompt in zip(items, prompts, strict=True) if not prompt)
        per_prompt, per_answer = self._weights(num_answer)
        weights = [
            item.num_tokens * (per_prompt if prompt else per_answer)
            for item, prompt in zip(items, prompts, strict=True)
        ]
        unit = step_ms / sum(weights)
        return [weight * unit for weight in weights]

    def _weights(self, num_answer: int) -> tuple[float, float]:
        """Return what a token of a prompt and one of an answer weigh in a step; the same while one is unknown."""
        costs = self._costs
        if not num_answer or costs.prefill_token_ms <= 0 or costs.decode_step_ms <= 0:
            return 1.0, 1.0
        return costs.prefill_token_ms, costs.decode_step_ms / num_answer

    def read(self, joules: float, at: float, live: Iterable[Sequence]) -> None:
        """Share what was used since the last reading; `live` are all sequences that have not ended."""
        used, elapsed_s = joules - self._joules, at - self._at
        began = not self._reads or used < 0  # a counter that goes back has begun anew
        self._joules, self._at, self._reads = joules, at, True
        if began:
            return
        working = [seq for seq in live if seq.work_ms]
        work_ms = self._gone_ms + sum(seq.work_ms for seq in working)
        self._num_steps = 0
        if not work_ms:
            self._rest(used, elapsed_s)
            return
        power_w = used / elapsed_s if elapsed_s > 0 else 0.0
        resting_w = power_w if self._rest_w is None else min(power_w, self._rest_w)
        resting_j = resting_w * max(0.0, elapsed_s - work_ms / 1e3)
        self.price = (used - resting_j) / work_ms
        for seq in working:
            seq.energy_j += self.price * seq.work_ms
            seq.work_ms = 0.0
        self.nobodys_j += resting_j + self.price * self._gone_ms - self._gone_j
        self._gone_ms = self._gone_j = 0.0
        self._was_idle = False

    def _rest(self, used: float, elapsed_s: float) -> None:
        self.nobodys_j += used
        if self._was_idle and elapsed_s > 0:  # else the end of some work may be in it
            self._rest_w = used / elapsed_s
            self.price = self.price or self._rest_w / 1e3  # before the first work: at least that much
        self._was_idle = True

    def so_far(self, seq: Sequence) -> float:
        """Return what a sequence has used, the newest part by the last price."""
        return seq.energy_j + self.price * seq.work_ms

    def end(self, seq: Sequence) -> None:
        """Have a sequence that ends pay for all of its work."""
        owed = self.price * seq.work_ms
        self._gone_ms += seq.work_ms
        self._gone_j += owed
        seq.energy_j += owed
        seq.work_ms = 0.0
        self.paid_j += seq.energy_j
