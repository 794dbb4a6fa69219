"""How much memory the KV cache of a GPU may take: what is free once the largest step has been seen to run."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernels.lora import LoraRows
from model_svc.engine.plan import RunnerInfo
from model_svc.layers.step import StepBatch
from model_svc.models.decoder import Decoder
from model_svc.runner.graphs import LONGEST_RECORDED
from model_svc.runner.kv_cache import KvCache
from model_svc.runner.memory_note import MemoryUse, memory_note, read_note, write_note
from model_svc.runner.state_pool import StatePool

_SHARE_OF_FREE = 0.95  # the allocator's rounding, libraries' workspaces
_MOST_KEPT = 2 << 30  # more than libraries and kernels keep: another process took or gave memory meanwhile
_RECORDING_BYTES = 8 << 20  # what the driver keeps of a recorded step


def largest_step(model: Decoder, kv_dtype: torch.dtype, num_tokens: int, num_sequences: int) -> Callable[[], None]:
    """Return what runs the largest step over a cache of one block, which is read and never written."""
    device = model.device
    states = StatePool(model.state_shapes(), 0, 0, device)
    cache = KvCache(model.kv_shapes(), 1, 16, kv_dtype, device, states=states)
    num_blocks = -(-num_tokens // cache.block_size)  # all of them the same one
    zeros, group = torch.zeros(num_tokens, dtype=torch.int64, device=device), model.group
    batch = StepBatch(
        positions=torch.arange(num_tokens, device=device).clamp(max=model.max_len - 1),
        slot_mapping=zeros - 1,
        block_tables=torch.zeros(1, num_blocks, dtype=torch.int32, device=device),
        query_start=torch.tensor([0, num_tokens], dtype=torch.int32, device=device),
        context_lens=torch.tensor([num_tokens], dtype=torch.int32, device=device),
        slots=torch.full((1,), -1, dtype=torch.int32, device=device),
        max_query_len=num_tokens,
        max_context_len=num_tokens,
        adapters=LoraRows(zeros.int() + 1) if model.adapters is not None else None,
    )

    def run() -> None:
        taken = (num_tokens, model.config.hidden_size)
        inputs = zeros.int() if group.is_first else torch.zeros(taken, dtype=model.dtype, device=device)
        hidden = model.forward(inputs, batch, cache.layers)[:num_sequences]
        if not group.is_last:
            return
        logits = torch.empty(len(hidden), model.config.vocab_size, dtype=torch.float32, device=device)
        model.logits_into(hidden, logits)

    return run


@torch.inference_mode()
def step_bytes(model: Decoder, kv_dtype: torch.dtype, num_tokens: int, num_sequences: int) -> int:
    """Run the largest step and return its peak above what was in use before. Raises torch.OutOfMemoryError."""
    device = model.device
    run = largest_step(model, kv_dtype, num_tokens, num_sequences)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with model.group.silent():  # another rank may know from its note what the step takes
        run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def too_large(what: str, needs: int, remedy: str) -> str:
    """Say that something does not fit on the GPU: how much it takes, how much there is and who has it, what to do."""
    gib = 1 << 30
    free, total = torch.cuda.mem_get_info()
    ours = torch.cuda.memory_reserved()
    takes = f" take {needs / gib:.1f} GiB and" if needs else ""
    others = max(0, total - free - ours)
    return (
        f"{what}{takes} do not fit: the GPU has {total / gib:.1f} GiB, {free / gib:.1f} GiB are free, "
        f"{ours / gib:.1f} GiB are this engine's and {others / gib:.1f} GiB another process's or the driver's; {remedy}"
    )


def recordings_bytes(step: int, num_tokens: int, num_recordings: int) -> int:
    """Return what to leave for recorded steps, most of which are made when the cache has its memory already.

    `step` bytes are the peak of the largest step, of `num_tokens`; the largest one recorded is `LONGEST_RECORDED`.
    """
    return step * min(LONGEST_RECORDED, num_tokens) // num_tokens + num_recordings * _RECORDING_BYTES


def free_on_gpu(device: torch.device) -> int:
    """Return how many bytes are free on a GPU."""
    free, _ = torch.cuda.mem_get_info(device)
    return free


def kv_bytes(model: Decoder, kv_dtype: torch.dtype, info: RunnerInfo, *, free: int, num_recordings: int = 0) -> int:
    """Return how many bytes the KV cache may take on the model's GPU, of which `free` were free before any step ran.

    The largest step is run unless a note tells what it takes. Raises MemoryError that says what is there, what that
    step takes and which setting makes it smaller.
    """
    gib, num_tokens = 1 << 30, info.max_num_batched_tokens
    note = memory_note(model, kv_dtype, info)
    use = read_note(note)
    if use is None:
        use = _measured(model, kv_dtype, info, free)
        if 0 < use.kept_bytes <= _MOST_KEPT:
            write_note(note, use)
    step, free = use.step_bytes, free - use.kept_bytes
    left = int(free * _SHARE_OF_FREE) - step - recordings_bytes(step, num_tokens, num_recordings)
    if left <= 0:
        raise MemoryError(
            f"no room for a KV cache: the GPU has {_have(model)}, {free / gib:.1f} GiB are free and a step of "
            f"{num_tokens} tokens takes {step / gib:.1f} GiB; lower max_num_batched_tokens, or take a smaller model"
        )
    return left


def _measured(model: Decoder, kv_dtype: torch.dtype, info: RunnerInfo, free: int) -> MemoryUse:
    try:
        step = step_bytes(model, kv_dtype, info.max_num_batched_tokens, info.max_num_seqs)
    except torch.OutOfMemoryError as error:
        raise MemoryError(
            f"a step of {info.max_num_batched_tokens} tokens does not fit: the GPU has {_have(model)} and "
            f"{free / (1 << 30):.1f} GiB are free; lower max_num_batched_tokens, or take a smaller model or another "
            "dtype"
        ) from error
    torch.cuda.empty_cache()
    return MemoryUse(step_bytes=step, kept_bytes=max(0, free - free_on_gpu(model.device)))


def _have(model: Decoder) -> str:
    gib = 1 << 30
    _, total = torch.cuda.mem_get_info(model.device)
    weights = torch.cuda.memory_allocated(model.device)
    return f"{total / gib:.1f} GiB, of which the weights take {weights / gib:.1f} GiB"
