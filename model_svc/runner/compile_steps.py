"""Compile all kernels of a model before its first step, all at once, so that it takes as long as the slowest of them.

It needs neither the memory profile nor the KV cache's size: a cache of one block stands for it.
"""

from __future__ import annotations

import msgspec
import torch

from kernels.compile_ahead import compile_ahead, note_for, write_note
from model_svc.engine.plan import RunnerInfo
from model_svc.models.decoder import Decoder
from model_svc.runner import start_times
from model_svc.runner.gpu_runner import GpuRunner
from model_svc.runner.kv_cache import KvCache
from model_svc.runner.memory import largest_step
from model_svc.runner.memory_note import sources
from model_svc.runner.state_pool import StatePool


def compile_steps(model: Decoder, kv_dtype: torch.dtype, info: RunnerInfo) -> None:
    """Compile what the steps of a runner on a GPU may launch, unless a note says that this has been done."""
    info = msgspec.structs.replace(info, num_blocks=1)
    note = note_for(model.config.raw, info, kv_dtype, model.group.stage, sources())
    if note is None or note.exists():
        return
    try:
        with start_times.part("compile"):
            states = StatePool(model.state_shapes(), 0, 0, model.device)
            cache = KvCache(model.kv_shapes(), 1, info.block_size, kv_dtype, model.device, states=states)
            stand_in = GpuRunner(model, cache, info, graphs=False)
            with compile_ahead(), model.group.silent(), torch.inference_mode():
                largest_step(model, kv_dtype, info.max_num_batched_tokens, info.max_num_seqs)()
                stand_in.go_through()
            stand_in.close()
    except torch.OutOfMemoryError:
        return  # the memory profile says what is wrong
    write_note(note)
