"""Unpacks a step that came to the device as one integer buffer into what the model and the sampler read.

One launch instead of a dozen gathers, with sizes fixed by the buffers, so that a CUDA graph can hold it. `packed` is
int32: T ids (-1: the token last drawn in the sequence's slot), T sequence numbers (-1: padding), then for S sequences
slot (-1: padding), start, S + 1 query starts, a new block (-1: none) for position `start`, the output index (-1: does
not sample), and what rotary positions are more than places in the sequence; last the line that `token_feedback` writes
to, which nothing here reads. `state` holds one row per slot: last token, top-k, the seed's halves, six float
parameters, the adapter's number (`adapter_index` reads it), and from column TABLE on its block table.
"""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import dispatch
from kernels.language import cdiv, jit_alike, tl

LAST_TOKEN, TOP_K, SEED, PARAMS, ADAPTER, TABLE = 0, 1, 2, 4, 10, 16


@dataclass(frozen=True)
class StepInputs:
    """What a step is unpacked into, at least T tokens and S sequences long.

    `ids` int32, `positions` (rotary), `slot_mapping` int64 [T]; `block_tables` int32 [S, M], `query_start` int32
    [S + 1], `context_lens` int32, `last_rows` int64 (each sequence's last row), `temperature`, `top_p`, `min_p`
    float32, `top_k` int32, `seeds`, `counters` int64 [S].
    """

    ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    query_start: Tensor
    context_lens: Tensor
    last_rows: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor
    seeds: Tensor
    counters: Tensor


def packed_size(T: int, S: int) -> int:
    """Return how many integers a step of T tokens and S sequences packs into."""
    return 2 * T + 6 * S + 2


def step_inputs(packed: Tensor, state: Tensor, T: int, S: int, block_size: int, out: StepInputs) -> None:
    """Unpack `packed` int32 into `out`; new blocks are entered in `state` int32 [slots, TABLE + M], too."""
    if packed.dtype != torch.int32 or packed.numel() < packed_size(T, S):
        raise ValueError(f"packed is {packed.dtype} of {packed.numel()}; it must be int32, {packed_size(T, S)} long")
    if state.dim() != 2 or state.dtype != torch.int32 or not state.is_contiguous() or state.shape[1] % 2:
        raise ValueError(f"state is {state.dtype} {tuple(state.shape)}; it must be contiguous int32 [slots, even]")
    if out.block_tables.shape[1] < state.shape[1] - TABLE:
        raise ValueError(f"block_tables has {out.block_tables.shape[1]} columns; it must have those of state")
    if dispatch.form(state) == "triton":
        _launch(packed, state, T, S, block_size, out)
    else:
        reference(packed, state, T, S, block_size, out)


def adapter_index(packed: Tensor, state: Tensor, T: int, S: int) -> Tensor:
    """Return the number of each token's adapter, int32 [T]; 0 for padding.

    In plain torch, as few steps ask for it; products in place of `torch.where`, which would copy its 0 to the device.
    """
    sequence, slots = packed[T : 2 * T], packed[2 * T : 2 * T + S]
    numbers = state[:, ADAPTER].index_select(0, slots.clamp(min=0)) * (slots >= 0)
    return numbers.index_select(0, sequence.clamp(min=0)) * (sequence >= 0)


def reference(packed: Tensor, state: Tensor, T: int, S: int, block_size: int, out: StepInputs) -> None:
    """Unpack with plain torch."""
    ids, sequence, slot, start, query_start, new_block, counter, shift, _ = torch.split(
        packed[: packed_size(T, S)], [T, T, S, S, S + 1, S, S, S, 1]
    )
    live = slot >= 0
    row = torch.where(live, slot, 0).long()
    entered = (live & (new_block >= 0)).nonzero()[:, 0]
    state[row[entered], TABLE + (start[entered] // block_size).long()] = new_block[entered]
    lines = state[row]
    out.block_tables[:S, : state.shape[1] - TABLE] = lines[:, TABLE:]
    out.query_start[: S + 1] = query_start
    out.context_lens[:S] = torch.where(live, start + query_start[1:] - query_start[:-1], 0)
    out.last_rows[:S] = (query_start[1:] - 1).clamp(min=0)
    params = lines[:, PARAMS : PARAMS + 3].view(torch.float32)
    for n, column in enumerate((out.temperature, out.top_p, out.min_p)):
        column[:S] = torch.where(live, params[:, n], 0.0)
    out.top_k[:S] = torch.where(live, lines[:, TOP_K], 0)
    out.seeds[:S] = lines[:, SEED : SEED + 2].contiguous().view(torch.int64)[:, 0]
    out.counters[:S] = counter
    real = sequence >= 0
    of = torch.where(real, sequence, 0).long()
    position = torch.arange(T, device=packed.device) - query_start[of] + start[of]
    out.ids[:T] = torch.where(ids >= 0, ids, lines[of, LAST_TOKEN])
    block = lines[of, TABLE + torch.where(real, position // block_size, 0)].long()
    out.positions[:T] = torch.where(real, position + shift[of], 0)
    out.slot_mapping[:T] = torch.where(real, block * block_size + position % block_size, -1)


_TOKENS = 128  # tokens of a program
_ENTRIES = 512  # entries of a block table a program copies at a time: one 16-byte load a thread


def _launch(packed: Tensor, state: Tensor, T: int, S: int, block_size: int, out: StepInputs) -> None:
    if T == 0 or S == 0:
        return
    _step_inputs_kernel[(S + cdiv(T, _TOKENS),)](
        packed, state, T, S, state.shape[1], out.ids, out.positions, out.slot_mapping, out.block_tables,
        out.block_tables.stride(0), out.query_start, out.context_lens, out.last_rows, out.temperature, out.top_p,
        out.min_p, out.top_k, out.seeds, out.counters, B=block_size, TOKENS=_TOKENS, ENTRIES=_ENTRIES, num_warps=4,
    )  # fmt: skip


_TABLE = tl.constexpr(TABLE)


@jit_alike("T", "S")
def _step_inputs_kernel(
    packed_ptr, state_ptr, T, S, width, ids_ptr, positions_ptr, slots_ptr, tables_ptr, table_stride, query_start_ptr,
    context_ptr, rows_ptr, temperature_ptr, top_p_ptr, min_p_ptr, top_k_ptr, seeds_ptr, counters_ptr,
    B: tl.constexpr, TOKENS: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """The first S programs take a sequence each, the others tokens; a new block is taken from `packed` by both."""
    program = tl.program_id(0)
    slot_ptr = packed_ptr + 2 * T
    starts_ptr = slot_ptr + S
    begins_ptr = starts_ptr + S
    blocks_ptr = begins_ptr + S + 1
    if program < S:
        slot = tl.load(slot_ptr + program).to(tl.int64)
        live = slot >= 0
        start, begin = tl.load(starts_ptr + program), tl.load(begins_ptr + program)
        end, new_block = tl.load(begins_ptr + program + 1), tl.load(blocks_ptr + program)
        line = state_ptr + slot * width
        floats = line.to(tl.pointer_type(tl.float32))
        context = tl.where(live, start + end - begin, 0)
        tl.store(query_start_ptr + program, begin)
        if program == S - 1:
            tl.store(query_start_ptr + S, end)
        tl.store(context_ptr + program, context)
        tl.store(rows_ptr + program, tl.maximum(end - 1, 0).to(tl.int64))
        tl.store(temperature_ptr + program, tl.load(floats + 4, mask=live, other=0.0))
        tl.store(top_p_ptr + program, tl.load(floats + 5, mask=live, other=0.0))
        tl.store(min_p_ptr + program, tl.load(floats + 6, mask=live, other=0.0))
        tl.store(top_k_ptr + program, tl.load(line + 1, mask=live, other=0))
        tl.store(seeds_ptr + program, tl.load(line.to(tl.pointer_type(tl.int64)) + 1, mask=live, other=0))
        tl.store(counters_ptr + program, tl.load(blocks_ptr + S + program).to(tl.int64))
        entered = tl.where(live & (new_block >= 0), start // B, -1)
        tl.store(line + _TABLE + entered, new_block, mask=entered >= 0)
        to = tables_ptr + program.to(tl.int64) * table_stride
        for base in range(0, (context + B - 1) // B, ENTRIES):
            column = base + tl.arange(0, ENTRIES)
            inside = column < (context + B - 1) // B
            block = tl.load(line + _TABLE + column, mask=inside, other=0)
            tl.store(to + column, tl.where(column == entered, new_block, block), mask=inside)
    else:
        token = (program - S) * TOKENS + tl.arange(0, TOKENS)
        sequence = tl.load(packed_ptr + T + token, mask=token < T, other=-1)
        real = sequence >= 0
        slots = tl.load(slot_ptr + sequence, mask=real, other=0).to(tl.int64)
        starts = tl.load(starts_ptr + sequence, mask=real, other=0)
        position = token - tl.load(begins_ptr + sequence, mask=real, other=0) + starts
        entries = tl.load(blocks_ptr + sequence, mask=real, other=-1)
        lines = state_ptr + slots * width
        blocks = tl.load(lines + _TABLE + position // B, mask=real, other=0)
        blocks = tl.where((entries >= 0) & (position // B == starts // B), entries, blocks).to(tl.int64)
        ids = tl.load(packed_ptr + token, mask=token < T, other=0)
        last = tl.load(lines, mask=real, other=0)
        tl.store(ids_ptr + token, tl.where(real & (ids < 0), last, ids), mask=token < T)
        turned = position + tl.load(blocks_ptr + 2 * S + sequence, mask=real, other=0)
        tl.store(positions_ptr + token, tl.where(real, turned, 0).to(tl.int64), mask=token < T)
        tl.store(slots_ptr + token, tl.where(real, blocks * B + position % B, -1), mask=token < T)
