"""What a runner thinks of answers that were given: they cannot part, however its numbers round."""

from __future__ import annotations

import msgspec
import torch

from model_svc.engine.plan import Runner
from tests.model_svc.paged import RunnerDriver, Tracked
from tests.model_svc.tiny import VOCAB
from wire.messages import SamplingParams


def forced_logprobs(runner: Runner, num_sequences: int) -> torch.Tensor:
    """Return log-probabilities [steps, sequences]: prompts first, then 39 decode steps, most of them recorded."""
    driver = RunnerDriver(runner)
    sampling = SamplingParams(temperature=0.0, logprobs=0)
    sequences = [Tracked(n, [1 + n, 2, 3, 4 + n], sampling=sampling) for n in range(num_sequences)]
    found = []
    for step in range(40):
        shares = []
        for seq in sequences:
            token = (7 * step + seq.slot) % VOCAB
            share = driver.dealer.share(seq, len(seq.ids) - seq.computed, fed=step > 0)
            shares.append(msgspec.structs.replace(share, forced_id=token))
            seq.ids.append(token)
        found.append([token.logprob for token in driver.run(*shares).tokens])
    driver.run(freed_slots=tuple(range(num_sequences)))
    return torch.tensor(found)
