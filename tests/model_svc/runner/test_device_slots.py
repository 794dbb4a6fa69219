"""The slots' state: what a flush leaves on the device is what was written, however much it was."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.step_inputs import TABLE
from model_svc.engine.plan import NewSequence, SequenceStep, StepPlan
from model_svc.runner.device_slots import DeviceSlots
from wire.messages import SamplingParams

NUM_SLOTS, MAX_BLOCKS = 20, 30
HUGE = SamplingParams(temperature=1e300)


def newcomer(slot: int, seed: int, blocks: tuple[int, ...]) -> SequenceStep:
    sampling = SamplingParams(temperature=0.5 + slot, top_p=0.25, min_p=0.125, top_k=slot + 1)
    new = NewSequence(sampling=sampling, seed=seed, prompt_ids=b"")
    return SequenceStep(slot=slot, start=0, num_tokens=1, new=new, new_blocks=blocks)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.integers(0, NUM_SLOTS - 1),
        st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(2, MAX_BLOCKS)),
        min_size=1,
    )
)
def test_a_flush_leaves_what_was_written(wanted: dict[int, tuple[int, int]]) -> None:
    slots = DeviceSlots(NUM_SLOTS, 100, MAX_BLOCKS, torch.device("cpu"), num_buffers=2)
    slots.state.fill_(-7)
    items = [newcomer(slot, seed, tuple(range(slot, slot + count))) for slot, (seed, count) in wanted.items()]
    slots.begin(StepPlan(step=0, sequences=tuple(items)))
    slots.enter_blocks(items, block_size=16)
    slots.flush()
    for slot, (seed, count) in wanted.items():
        assert slots.top_k[slot] == slot + 1
        assert slots.seeds[slot] == seed
        assert slots.params[:3, slot].tolist() == [0.5 + slot, 0.25, 0.125]
        assert slots.block_tables[slot, :count].tolist() == list(range(slot, slot + count))
        assert (slots.block_tables[slot, count:] == -7).all()
        assert slots.last_token[slot] == -7
    others = [slot for slot in range(NUM_SLOTS) if slot not in wanted]
    assert (slots.state[others] == -7).all()


def test_a_number_too_large_for_the_device_fails_nobody() -> None:
    slots = DeviceSlots(2, 100, MAX_BLOCKS, torch.device("cpu"))
    item = msgspec.structs.replace(newcomer(0, 1, (3,)), new=NewSequence(sampling=HUGE, seed=1, prompt_ids=b""))
    slots.begin(StepPlan(step=0, sequences=(item,)))
    slots.enter_blocks([item], block_size=16)
    slots.flush()
    assert slots.params[0, 0] == float("inf")


def test_what_a_table_grows_by_lands_behind_it() -> None:
    slots = DeviceSlots(2, 100, MAX_BLOCKS, torch.device("cpu"))
    slots.begin(StepPlan(step=0, sequences=(first := newcomer(1, 3, (5, 6)),)))
    slots.enter_blocks([first], block_size=16)
    slots.flush()
    more = SequenceStep(slot=1, start=16, num_tokens=40, new_blocks=(8, 9))
    assert slots.enter_blocks([more], block_size=16) == [-1]
    slots.flush()
    slots.flush()
    assert slots.block_tables[1, :4].tolist() == [5, 6, 8, 9]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_more_newcomers_than_buffers_hold_lose_nothing_on_a_card() -> None:
    slots = DeviceSlots(256, 100, 500, torch.device("cuda"), num_buffers=2)
    items = [newcomer(slot, slot, tuple(range(slot, slot + 500))) for slot in range(256)]
    slots.begin(StepPlan(step=0, sequences=tuple(items)))
    slots.enter_blocks(items, block_size=16)
    slots.flush()
    tables = slots.state[:, TABLE : TABLE + 500].cpu().numpy()
    assert (tables == np.arange(256)[:, None] + np.arange(500)).all()
