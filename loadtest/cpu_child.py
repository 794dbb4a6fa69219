"""One engine under the orders of loadtest.cpu: a test comes as a line of JSON, the seconds of its steps go back.

It runs as a file, in whichever environment has the engine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Steps of a test: streams, context, tokens, count -> seconds of each.
Measure = Callable[[int, int, int, int], list[float]]
_WARM = 3


def headrace(model: Path, threads: int) -> tuple[str, Measure]:
    """Load our runner; a step is submit and collect of a plan."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from kernels.native.library import library
    from model_svc.engine.plan import NewSequence, SequenceStep, StepPlan
    from model_svc.runner.load import load_runner
    from wire.messages import SamplingParams, pack_ids

    runner = load_runner(model, dtype="auto", num_blocks=1024, max_num_seqs=32, max_model_len=1024, threads=threads)
    greedy = SamplingParams(temperature=0.0)
    number = 0

    def measure(streams: int, context: int, tokens: int, count: int) -> list[float]:
        nonlocal number
        ids = [pack_ids([(s * 7919 + n * 104729) % 40000 + 100 for n in range(1024)]) for s in range(streams)]
        at = [0] * streams
        blocks = 1024 // 32

        def step(size: int, sample: bool, fresh: bool) -> float:
            nonlocal number
            shares = []
            for s in range(streams):
                end = at[s] + size
                new = NewSequence(sampling=greedy, seed=0, prompt_ids=ids[s][: 4 * end]) if fresh else None
                shares.append(
                    SequenceStep(
                        slot=s, start=at[s], num_tokens=size, token_ids=ids[s][4 * at[s] : 4 * end], new=new,
                        new_blocks=tuple(range(s * blocks, (s + 1) * blocks)) if fresh else (), sample=sample,
                    )
                )  # fmt: skip
                at[s] = end
            number += 1
            begin = time.perf_counter()
            runner.collect(runner.submit(StepPlan(step=number, sequences=tuple(shares))))
            return time.perf_counter() - begin

        if not context:
            seconds = []
            for _ in range(count):
                at[:] = [0] * streams
                seconds.append(step(tokens, True, True))
            return seconds
        step(context, False, True)
        return [step(tokens, True, False) for _ in range(count + _WARM)][_WARM:]

    return library().isa, measure


def llama_cpp(model: Path, threads: int) -> tuple[str, Measure]:
    """Load llama.cpp through its C interface, which batches several sequences; a step ends with its best ids."""
    import ctypes

    import llama_cpp as api  # type: ignore[import-not-found,unused-ignore]
    import numpy as np

    quiet = api.llama_log_callback(lambda *_: None)  # `measure` holds it: it must outlive every call
    api.llama_log_set(quiet, ctypes.c_void_p(0))
    weights = api.llama_model_default_params()
    # Its AMX buffers crash on some virtual machines (0.3.36 on a Xeon guest); Q4_1 has no other repacked form.
    weights.use_extra_bufts = not os.environ.get("LLAMA_PLAIN_BUFFERS")
    loaded = api.llama_model_load_from_file(str(next(model.glob("*.gguf"))).encode(), weights)
    params = api.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 32 * 640, 8192, 512, 32
    params.n_threads = params.n_threads_batch = threads
    context_of = api.llama_init_from_model(loaded, params)
    size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(loaded))
    batch = api.llama_batch_init(8192, 0, 1)

    def decode(streams: int, start: int, tokens: int, last: bool) -> float:
        begin = time.perf_counter()
        batch.n_tokens = 0
        for s in range(streams):
            for n in range(start, start + tokens):
                at = batch.n_tokens
                batch.token[at], batch.pos[at] = (s * 7919 + n * 104729) % 40000 + 100, n
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, s
                batch.logits[at] = last and n == start + tokens - 1
                batch.n_tokens += 1
        if api.llama_decode(context_of, batch):
            raise RuntimeError("llama_decode failed")
        if last:
            for s in range(streams):
                logits = api.llama_get_logits_ith(context_of, (s + 1) * tokens - 1)
                int(np.ctypeslib.as_array(logits, shape=(size,)).argmax())
        return time.perf_counter() - begin

    def measure(streams: int, context: int, tokens: int, count: int, _quiet: Any = quiet) -> list[float]:
        memory = api.llama_get_memory(context_of)
        api.llama_memory_clear(memory, True)
        if not context:
            seconds = []
            for _ in range(count):
                api.llama_memory_clear(memory, True)
                seconds.append(decode(streams, 0, tokens, True))
            return seconds
        decode(streams, 0, context, False)
        return [decode(streams, context + n, tokens, True) for n in range(count + _WARM)][_WARM:]

    return api.llama_print_system_info().decode(), measure


def main(engine: str, model: str, threads: str) -> None:
    """Say what is measured, then measure what is asked for until the input ends."""

    def answer(value: Any) -> None:
        sys.stdout.write(json.dumps({"answer": value}) + "\n")
        sys.stdout.flush()

    about, measure = (headrace if engine == "headrace" else llama_cpp)(Path(model), int(threads))
    answer(about)
    for line in sys.stdin:
        _, streams, context, tokens, count = json.loads(line)
        answer(measure(streams, context, tokens, count))


if __name__ == "__main__":
    main(*sys.argv[1:4])
