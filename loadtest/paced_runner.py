"""A runner that computes nothing and takes as long as it is told: the rest of a token's time is everybody else's.

`headrace up` runs it with HEADRACE_RUNNER=loadtest.paced_runner:load; LOADTEST_STEP_MS is the length of a step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_svc.engine.plan import RunnerInfo, SampledToken, StepOutput, StepPlan, slots
from wire.vocabulary import Vocabulary

TEXT = b" river"


class PacedRunner:
    """Says one token over and over; a step is a sleep."""

    def __init__(self, token_id: int, vocab_size: int, step_s: float) -> None:
        self._token_id = token_id
        self._step_s = step_s
        self.info = RunnerInfo(
            num_blocks=4096,
            block_size=32,
            max_num_seqs=256,
            max_num_batched_tokens=4096,
            max_model_len=4096,
            vocab_size=vocab_size,
            device="none",
        )

    def submit(self, plan: StepPlan) -> StepPlan:
        """Begin a step."""
        time.sleep(self._step_s)
        return plan

    def mask(self, handle: Any, masks: Mapping[int, bytes]) -> None:
        """Take no masks: nothing is drawn late."""

    def collect(self, handle: StepPlan) -> StepOutput:
        """Say the token in each slot that draws."""
        tokens = tuple(SampledToken(slot=slot, token_id=self._token_id) for slot in slots(handle))
        return StepOutput(step=handle.step, tokens=tokens)

    def close(self) -> None:
        """Free nothing."""


def spoken_id(vocabulary: Vocabulary) -> int:
    """Return the id of the token that replicas and runners without a model say."""
    return next(token_id for token_id in range(vocabulary.size) if vocabulary.token_bytes(token_id) == TEXT)


def load(model_path: Path, **_options: Any) -> PacedRunner:
    """Make the runner for a model's vocabulary."""
    vocabulary = Vocabulary.load(model_path)
    return PacedRunner(spoken_id(vocabulary), vocabulary.size, float(os.environ.get("LOADTEST_STEP_MS", "4")) / 1e3)
