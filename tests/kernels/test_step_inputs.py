"""A step's one buffer is unpacked into what model and sampler read, and drawn tokens are fed back."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.step_inputs import (
    ADAPTER,
    PARAMS,
    SEED,
    TABLE,
    TOP_K,
    StepInputs,
    adapter_index,
    packed_size,
    step_inputs,
)
from kernels.token_feedback import token_feedback

B, M, SLOTS = 4, 6, 5


def buffers(T: int, S: int, device: str) -> StepInputs:
    def full(*size: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.full(size, 77, dtype=dtype, device=device)

    return StepInputs(
        full(T), full(T, dtype=torch.int64), full(T, dtype=torch.int64), full(S, M), full(S + 1), full(S),
        full(S, dtype=torch.int64), full(S, dtype=torch.float32), full(S, dtype=torch.float32),
        full(S, dtype=torch.float32), full(S), full(S, dtype=torch.int64), full(S, dtype=torch.int64),
    )  # fmt: skip


def made_state(device: str) -> Tensor:
    state = torch.zeros(SLOTS, TABLE + M, dtype=torch.int32)
    state[:, 0] = torch.arange(100, 100 + SLOTS)
    state[:, TOP_K] = torch.arange(SLOTS)
    state[:, SEED : SEED + 2] = torch.tensor([[-(1 << 60) + n] for n in range(SLOTS)]).view(torch.int32)
    state[:, PARAMS : PARAMS + 3] = (torch.rand(SLOTS, 3) + 0.1).view(torch.int32)
    state[:, TABLE:] = torch.randperm(SLOTS * M).view(SLOTS, M)
    return state.to(device)


@pytest.mark.parametrize("padding", [(0, 0), (3, 2), (200, 1)])
def test_a_mixed_step_is_unpacked(device: str, padding: tuple[int, int]) -> None:
    # Slot 3: a chunk at positions 6..10; slot 1: fed back at 8, where its new block 50 begins; slot 4: one token at 3,
    # which pictures before it have set back to 1 for its rotation.
    lengths, slots, starts, new, outputs = [5, 1, 1], [3, 1, 4], [6, 8, 3], [-1, 50, -1], [-1, 4, 0]
    shifts = [0, 0, -2]
    ids = [9, 8, 7, 6, 5, -1, 42]
    T, S = 7 + padding[0], 3 + padding[1]
    begins = [0, 5, 6, 7]
    packed = np.concatenate([
        ids, [0] * padding[0], np.repeat(range(3), lengths), [-1] * padding[0],
        slots, [-1] * padding[1], starts, [-1] * padding[1], begins, [7] * padding[1], new, [-1] * padding[1],
        outputs, [-1] * padding[1], shifts, [0] * padding[1], [9],
    ]).astype(np.int32)  # fmt: skip
    assert len(packed) == packed_size(T, S)
    state, out = made_state(device), buffers(T, S, device)
    before = state.clone()
    step_inputs(torch.from_numpy(packed).to(device), state, T, S, B, out)
    assert state[1, TABLE + 2] == 50
    before[1, TABLE + 2] = 50
    assert torch.equal(state, before)
    assert out.ids.tolist() == [9, 8, 7, 6, 5, 101, 42] + [0] * padding[0]
    assert out.positions.tolist() == [6, 7, 8, 9, 10, 8, 1] + [0] * padding[0]
    table = before[:, TABLE:].tolist()
    where = [(3, n) for n in range(6, 11)] + [(1, 8), (4, 3)]
    assert out.slot_mapping.tolist() == [table[s][n // B] * B + n % B for s, n in where] + [-1] * padding[0]
    assert out.query_start.tolist() == begins + [7] * padding[1]
    assert out.context_lens.tolist() == [11, 9, 4] + [0] * padding[1]
    assert out.last_rows[:3].tolist() == [4, 5, 6]
    assert out.counters.tolist() == outputs + [-1] * padding[1]
    for row, (slot, context) in enumerate(zip(slots, [11, 9, 4], strict=True)):
        count = -(-context // B)
        assert out.block_tables[row, :count].tolist() == table[slot][:count]
    assert out.top_k.tolist() == slots + [0] * padding[1]
    assert out.seeds[:3].tolist() == [-(1 << 60) + slot for slot in slots]
    params = before[:, PARAMS : PARAMS + 3].contiguous().view(torch.float32)
    for n, column in enumerate((out.temperature, out.top_p, out.min_p)):
        assert torch.equal(column[:3], params[slots, n])
        assert not column[3:].any()


def test_tokens_go_to_their_slots_and_unsound_rows_are_told(device: str) -> None:
    state = made_state(device)
    before = state.clone()
    logits, hidden = torch.randn(4, 33, device=device), torch.randn(4, 70, device=device)
    hidden[1, 69] = float("nan")
    logits[2, 5] = float("inf")
    tokens = torch.tensor([32, 4, 5, 6], device=device)
    slots = torch.tensor([2, 0, 1, -1], dtype=torch.int32, device=device)
    out = torch.full((3, 6), 77, dtype=torch.int32, pin_memory=device == "cuda")
    line = torch.tensor([5, 1], dtype=torch.int32, device=device)[1:]
    token_feedback(tokens, logits, hidden, slots, torch.tensor([3, -1, 0, -1], device=device), state, out, line)
    before[2, 0], before[1, 0] = 32, 5
    assert torch.equal(state, before)  # waits for the card
    assert out.tolist() == [[77] * 6, [32, -1, -1, 77, 77, 77], [77] * 6]


def test_wrong_arguments_are_named() -> None:
    out, state = buffers(4, 2, "cpu"), made_state("cpu")
    with pytest.raises(ValueError, match="packed"):
        step_inputs(torch.zeros(5, dtype=torch.int32), state, 4, 2, B, out)
    with pytest.raises(ValueError, match="state"):
        step_inputs(torch.zeros(50, dtype=torch.int32), state.long(), 4, 2, B, out)
    narrow = dataclasses.replace(out, block_tables=torch.zeros(2, 1, dtype=torch.int32))
    with pytest.raises(ValueError, match="block_tables"):
        step_inputs(torch.zeros(50, dtype=torch.int32), state, 4, 2, B, narrow)


def test_each_token_has_the_adapter_of_its_slot_and_padding_has_none(device: str) -> None:
    state = torch.zeros(5, TABLE + 2, dtype=torch.int32, device=device)
    state[:, ADAPTER] = torch.tensor([9, 2, 9, 0, 1], dtype=torch.int32)
    sequence, slots = [0, 0, 1, 2, -1, -1], [1, 3, 4, -1]
    packed = torch.tensor([*[7] * 6, *sequence, *slots, *[0] * 18], dtype=torch.int32, device=device)
    assert adapter_index(packed, state, 6, 4).tolist() == [2, 2, 0, 1, 0, 0]
    assert adapter_index(packed, state, 6, 4).dtype == torch.int32
