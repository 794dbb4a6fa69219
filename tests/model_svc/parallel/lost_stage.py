"""A process that loses one of its two stages: `python -m tests.model_svc.parallel.lost_stage MODEL_DIR DEVICE HOW`.

It tells the error that this comes to, and that it has closed. A process of its own, since a device may be left waiting.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from model_svc.engine.plan import NewSequence, Runner, SequenceStep, StepPlan
from model_svc.layers.group import Group
from model_svc.parallel import crew
from model_svc.parallel.load import load_runner
from model_svc.parallel.pipeline import PipelineRunner
from model_svc.runner.load import load_runner as load_alone
from wire.messages import SamplingParams, pack_ids


def fail(*_: object) -> None:
    raise RuntimeError("no memory")


def first_fails(path: Path, *, group: Group, **options: Any) -> Runner:
    """Load a stage, the first of which cannot compute: the other waits for it until it is killed."""
    runner = load_alone(path, group=group, **options)
    if group.is_first:
        runner.submit = fail  # type: ignore[assignment, method-assign]
    return runner


def last_fails(path: Path, *, group: Group, **options: Any) -> Runner:
    """Load a stage, the last of which cannot read what it drew."""
    runner = load_alone(path, group=group, **options)
    if group.is_last:
        runner.collect = fail  # type: ignore[assignment, method-assign]
    return runner


def main(path: Path, device: str, how: str) -> None:
    """Compute a prompt, again and again, until that fails."""
    options: dict[str, Any] = {"num_blocks": 400, "max_num_seqs": 4, "max_num_batched_tokens": 64, "device": device}
    if how == "first_fails":
        crew._GRACE_S = 0.2  # which is waited out twice, for a stage that does not end
    if how != "killed":
        options["factory"] = f"tests.model_svc.parallel.lost_stage:{how}"
    runner = load_runner(path, pipeline_parallel=2, dtype="float32", **options)
    assert isinstance(runner, PipelineRunner)
    ids = pack_ids(range(60))
    new = NewSequence(sampling=SamplingParams(temperature=0.0), seed=0, prompt_ids=ids)
    prompt = SequenceStep(slot=0, start=0, num_tokens=60, token_ids=ids, new_blocks=(0, 1, 2, 3), new=new)
    try:
        for step in range(3):
            runner.collect(runner.submit(StepPlan(step=step, sequences=(prompt,))))
            runner._crew._processes[0].kill()
    except Exception as error:
        sys.stdout.write(f"{error}\n")
    runner.close()
    sys.stdout.write("closed\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
