"""Joins the inputs of all waiting requests into steps, one of each in turn: a long list delays nobody else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import anyio

from model_svc.embedding.inputs import Input
from wire.threads import in_thread


class Embeds(Protocol):
    """What the batcher needs of an embedder or a cross-encoder."""

    def embed(self, inputs: Sequence[Input]) -> list[bytes]:
        """Return a vector for each input; a score is one of one number."""
        ...


class _Asked:
    """One request's inputs and the vectors that are there already."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        self.inputs = inputs
        self.vectors = [b""] * len(inputs)
        self.num_taken = 0
        self.num_left = len(inputs)
        self.gone = False
        self.error: Exception | None = None
        self.done = anyio.Event()


class Batcher:
    """The one loop that computes. A step has at most `max_tokens` tokens (one input may have more by itself).

    `on_step` is called when a step begins, and when there is none: the load is another one then.
    """

    def __init__(self, embedder: Embeds, *, max_tokens: int, on_step: Callable[[], None] = lambda: None) -> None:
        self._embedder = embedder
        self._max_tokens = max_tokens
        self._on_step = on_step
        self._waiting: deque[_Asked] = deque()
        self._came = anyio.Event()
        self.num_running = 0

    @property
    def num_waiting(self) -> int:
        """Inputs that no step has taken yet."""
        return sum(len(asked.inputs) - asked.num_taken for asked in self._waiting)

    @property
    def num_waiting_tokens(self) -> int:
        """Their tokens."""
        return sum(one.num_tokens for asked in self._waiting for one in asked.inputs[asked.num_taken :])

    async def embed(self, inputs: Sequence[Input]) -> list[bytes]:
        """Return the vectors of a request's inputs; cancelled, what is not computed yet is left out."""
        asked = _Asked(inputs)
        self._waiting.append(asked)
        self._came.set()
        try:
            await asked.done.wait()
        finally:
            asked.gone = True
        if asked.error is not None:
            raise asked.error
        return asked.vectors

    async def run(self) -> None:
        """Compute until cancelled. A step that fails fails its own requests."""
        while True:
            step = self._next_step()
            self.num_running = len(step)
            self._on_step()
            if not step:
                self._came = anyio.Event()
                await self._came.wait()
                continue
            try:
                inputs = [asked.inputs[index] for asked, index in step]
                vectors = await in_thread(self._embedder.embed, inputs)
            except Exception as error:
                for asked, _ in step:
                    asked.error, asked.gone = error, True
                    asked.done.set()
            else:
                for (asked, index), vector in zip(step, vectors, strict=True):
                    self._put(asked, index, vector)

    def _next_step(self) -> list[tuple[_Asked, int]]:
        step: list[tuple[_Asked, int]] = []
        num_tokens = 0
        while self._waiting:
            asked = self._waiting[0]
            if asked.gone or asked.num_taken == len(asked.inputs):
                self._waiting.popleft()
                continue
            num_tokens += asked.inputs[asked.num_taken].num_tokens
            if step and num_tokens > self._max_tokens:
                break
            step.append((asked, asked.num_taken))
            asked.num_taken += 1
            self._waiting.rotate(-1)
        return step

    @staticmethod
    def _put(asked: _Asked, index: int, vector: bytes) -> None:
        asked.vectors[index] = vector
        asked.num_left -= 1
        if asked.num_left == 0:
            asked.done.set()
