"""Requests share steps in turn; one that fails or leaves harms nobody else."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from model_svc.embedding.batcher import Batcher
from model_svc.embedding.inputs import Input

pytestmark = pytest.mark.anyio


class Recorder:
    """An embedder whose vectors name the input; it keeps its steps, and fails on an input of 13."""

    def __init__(self) -> None:
        self.steps: list[list[int]] = []

    def embed(self, inputs: Sequence[Input]) -> list[bytes]:
        names = [one.ids[0] for one in inputs]
        self.steps.append(names)
        if 13 in names:
            raise ValueError("thirteen")
        return [bytes([name]) for name in names]


def texts(*inputs: list[int]) -> list[Input]:
    return list(map(Input, inputs))


async def test_a_long_list_lets_a_short_one_through_and_each_gets_its_own_vectors() -> None:
    recorder = Recorder()
    batcher = Batcher(recorder, max_tokens=4)
    found: dict[str, list[bytes]] = {}

    async def ask(name: str, inputs: list[list[int]]) -> None:
        found[name] = await batcher.embed(texts(*inputs))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, "long", [[n] for n in range(20, 32)])
        tasks.start_soon(ask, "short", [[1], [2]])
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        assert (batcher.num_waiting, batcher.num_waiting_tokens) == (14, 14)
        tasks.start_soon(batcher.run)
        with anyio.fail_after(60):
            while len(found) < 2:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert recorder.steps[0] == [20, 1, 21, 2]
    assert all(len(step) <= 4 for step in recorder.steps)
    assert found == {"long": [bytes([n]) for n in range(20, 32)], "short": [b"\1", b"\2"]}


async def test_an_input_longer_than_a_step_gets_a_step_of_its_own() -> None:
    recorder = Recorder()
    batcher = Batcher(recorder, max_tokens=4)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batcher.run)
        with anyio.fail_after(60):
            assert await batcher.embed(texts([1] * 9, [2])) == [b"\1", b"\2"]
        tasks.cancel_scope.cancel()
    assert recorder.steps == [[1], [2]]


async def test_a_step_that_fails_fails_its_requests_and_the_next_goes_on() -> None:
    batcher = Batcher(Recorder(), max_tokens=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batcher.run)
        with anyio.fail_after(60):
            with pytest.raises(ValueError, match="thirteen"):
                await batcher.embed(texts([13], [14]))
            assert await batcher.embed(texts([5])) == [b"\5"]
        tasks.cancel_scope.cancel()


async def test_inputs_of_a_request_that_left_are_not_computed() -> None:
    recorder = Recorder()
    batcher = Batcher(recorder, max_tokens=8)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await batcher.embed(texts([7], [8]))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batcher.run)
        with anyio.fail_after(60):
            assert await batcher.embed(texts([9])) == [b"\t"]
        tasks.cancel_scope.cancel()
    assert recorder.steps == [[9]]


async def test_the_load_is_told_as_each_step_begins_and_when_nothing_is_left() -> None:
    """Noted when a request came, a list of thousands looked like an idle replica until it was done."""
    loads: list[tuple[int, int, int]] = []

    def note() -> None:
        loads.append((batcher.num_running, batcher.num_waiting, batcher.num_waiting_tokens))

    batcher = Batcher(Recorder(), max_tokens=4, on_step=note)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(batcher.run)
        with anyio.fail_after(60):
            await batcher.embed(texts(*([n, n] for n in range(20, 25))))
            while loads[-1] != (0, 0, 0):
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert loads[-4:] == [(2, 3, 6), (2, 1, 2), (1, 0, 0), (0, 0, 0)]
