"""One request in the hands of a scripted replica."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import anyio

from tests.script import Script
from wire.messages import Image, Job, Prompt, Request, TokenChunk, TokenLogprob, unpack_ids


class Running:
    """One request in the replica's hands."""

    def __init__(self, job: Job, request: Request, prompt: Prompt | None, script: Script) -> None:
        self.job = job
        self.request = request
        self.prompt = prompt
        self.script = script
        self.images: list[Image] = []
        self.edge = job.edge
        self.scope = anyio.CancelScope()
        self.choice_scopes: dict[int, anyio.CancelScope] = defaultdict(anyio.CancelScope)
        self.sent: dict[int, list[TokenChunk]] = defaultdict(list)
        self.ended = anyio.Event()

    @property
    def limit(self) -> int:
        """Return how many tokens may be generated."""
        if self.prompt is not None:
            return self.prompt.max_tokens
        return self.request.sampling.max_tokens or 100_000

    @property
    def num_prompt_tokens(self) -> int:
        """Return the length of the prompt."""
        return self.prompt.num_tokens if self.prompt is not None else 7

    def logprobs(self, token_ids: Iterable[int]) -> tuple[TokenLogprob, ...]:
        """Return what was asked for of each token."""
        count = self.request.sampling.logprobs
        if count is None:
            return ()
        return tuple(
            TokenLogprob(-0.25, tuple([token_id, 65, 66, 67][:count]), (-0.25, -2.0, -3.0, -4.0)[:count])
            for token_id in token_ids
        )

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob, ...]:
        """The n-th prompt token has the log probability -n."""
        count = self.request.sampling.prompt_logprobs
        if count is None or self.prompt is None:
            return ()
        return tuple(
            TokenLogprob(-float(at), tuple([token_id, 65, 66][:count]), (-float(at), -20.0, -30.0)[:count])
            for at, token_id in enumerate(unpack_ids(self.prompt.token_ids)[1:], 1)
        )
