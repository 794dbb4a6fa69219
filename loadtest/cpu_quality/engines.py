"""The engines under loadtest.cpu_quality: what each would have taken along given answers, and its losses over a text.

It runs as a file for llama.cpp, in whichever environment has it: a line of JSON comes in, one goes out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

Answers = list[list[int]]
_PIECE = 256  # tokens of the text whose logits llama.cpp holds at a time
_BLOCKS = 128  # of 16 tokens at least: for text and answers


class Taken(NamedTuple):
    """What an engine would take at each place of the answers, and its losses over the text (of all but its first)."""

    tokens: Answers
    losses: list[float]


def headrace(model: Path, prompts: Answers, answers: Answers, text: list[int]) -> Taken:
    """Ask our runner, one token a step."""
    from model_svc.runner.load import load_runner

    runner: Any = load_runner(model, dtype="auto", num_blocks=_BLOCKS, max_num_seqs=1, max_model_len=2048)
    number = 0

    def step(start: int, ids: list[int], targets: list[int]) -> Any:
        from model_svc.engine.plan import NewSequence, SequenceStep, StepPlan
        from wire.messages import SamplingParams, pack_ids

        nonlocal number
        number += 1
        packed, fresh = pack_ids(ids), start == 0
        new = NewSequence(sampling=SamplingParams(temperature=0.0), seed=0, prompt_ids=packed) if fresh else None
        share = SequenceStep(
            slot=0, start=start, num_tokens=len(ids), token_ids=packed, new=new, sample=not targets,
            new_blocks=tuple(range(_BLOCKS)) if fresh else (), targets=pack_ids(targets),
        )  # fmt: skip
        return runner.collect(runner.submit(StepPlan(step=number, sequences=(share,))))

    taken: Answers = []
    for prompt, answer in zip(prompts, answers, strict=True):
        start, ids, row = 0, prompt, []
        for following in answer:
            row.append(int(step(start, ids, []).tokens[0].token_id))
            start, ids = start + len(ids), [following]
        taken.append(row)
    entries = step(0, text, text[1:]).targets[0].entries if text else ()
    return Taken(taken, [-float(entry.logprob) for entry in entries])


def llama_cpp(model: Path, prompts: Answers, answers: Answers, text: list[int]) -> Taken:
    """Ask llama.cpp, one token at a time as it decodes."""
    import ctypes

    import llama_cpp as api  # type: ignore[import-not-found,unused-ignore]
    import numpy as np

    quiet = api.llama_log_callback(lambda *_: None)
    api.llama_log_set(quiet, ctypes.c_void_p(0))
    loaded = api.llama_model_load_from_file(str(next(model.glob("*.gguf"))).encode(), api.llama_model_default_params())
    params = api.llama_context_default_params()
    params.n_ctx, params.n_batch = 2048, 1024
    params.n_threads = params.n_threads_batch = 1  # what it says does not depend on it, and its threads spin
    context = api.llama_init_from_model(loaded, params)
    size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(loaded))
    batch = api.llama_batch_init(1024, 0, 1)

    def decode(start: int, ids: list[int], every: bool) -> list[Any]:
        if start == 0:
            api.llama_memory_clear(api.llama_get_memory(context), True)
        batch.n_tokens = len(ids)
        for n, token in enumerate(ids):
            batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.seq_id[n][0] = token, start + n, 1, 0
            batch.logits[n] = every or n == len(ids) - 1
        if api.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        places = range(len(ids)) if every else (-1,)
        return [np.ctypeslib.as_array(api.llama_get_logits_ith(context, n), shape=(size,)) for n in places]

    taken: Answers = []
    for prompt, answer in zip(prompts, answers, strict=True):
        start, ids, row = 0, prompt, []
        for following in answer:
            row.append(int(decode(start, ids, every=False)[0].argmax()))
            start, ids = start + len(ids), [following]
        taken.append(row)
    losses: list[float] = []
    for at in range(0, len(text) - 1, _PIECE):
        rows = decode(at, text[at : at + _PIECE], every=True)
        for row, following in zip(rows, text[at + 1 : at + 1 + _PIECE], strict=False):
            top = float(row.max())
            losses.append(top + float(np.log(np.exp(row - top).sum(dtype=np.float64))) - float(row[following]))
    return Taken(taken, losses)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(llama_cpp(Path(sys.argv[1]), *json.load(sys.stdin))) + "\n")
