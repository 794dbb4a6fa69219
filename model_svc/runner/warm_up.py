"""One short answer before the first request, so that no caller waits for what is loaded on first use.

On a GPU that is a quarter of a second of modules and pinned memory. Nothing remains of it: the slot is freed, and the
block it wrote to is known to nobody.
"""

from __future__ import annotations

from model_svc.engine.plan import NewSequence, Runner, SequenceStep, StepPlan
from wire.messages import SamplingParams, pack_ids


def warm_up(runner: Runner) -> None:
    """Run a prompt of two tokens and a step of its answer."""
    ids = pack_ids([0, 0])
    new = NewSequence(sampling=SamplingParams(temperature=0.0), seed=0, prompt_ids=ids)
    prompt = SequenceStep(slot=0, start=0, num_tokens=2, token_ids=ids, new_blocks=(0,), new=new)
    answer = SequenceStep(slot=0, start=2, num_tokens=1, from_device=True, output_index=1)
    for plan in (
        StepPlan(step=0, sequences=(prompt,)),
        StepPlan(step=0, sequences=(answer,)),
        StepPlan(step=0, sequences=(), freed_slots=(0,)),
    ):
        runner.collect(runner.submit(plan))
