"""Drives an engine over the scripted runner, for tests that look at one thing at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from model_svc.engine.drafter import Drafter
from model_svc.engine.engine import Engine
from model_svc.engine.grammar import Matchers
from model_svc.engine.plan import Picture
from model_svc.engine.request import EngineRequest
from tests.model_svc.engine.oracle import Received
from tests.model_svc.scripted_runner import Reply, ScriptedRunner
from wire.messages import ImageSpan, Prompt, ReasoningPlan, SamplingParams, TokenChunk, pack_ids

EOS = 256


def one_byte(token_id: int) -> bytes:
    """Ids 0..255 are bytes, the others have none."""
    return bytes([token_id]) if token_id < 256 else b""


class Driver:
    """An engine, its runner, and all that came out."""

    def __init__(self, reply: Reply, *, policy: str = "fcfs", token_bytes: Any = one_byte, inter_token_ms: float = 0.0,
                 matchers: Matchers | None = None, drafter: Drafter | None = None, patience_s: float = 30.0,
                 **sizes: int) -> None:  # fmt: skip
        self.runner = ScriptedRunner(reply, **sizes)
        self.now = 0.0
        self.engine = Engine(
            self.runner,
            token_bytes=token_bytes,
            eos_token_ids=(EOS,),
            policy=policy,
            inter_token_ms=inter_token_ms,
            clock=lambda: self.now,
            matchers=matchers,
            drafter=drafter,
            patience_s=patience_s,
        )
        self.chunks: list[TokenChunk] = []
        self.received: dict[tuple[str, int], Received] = {}
        self._token_bytes = token_bytes

    def ask(
        self,
        request_id: str,
        prompt_ids: list[int],
        *,
        max_tokens: int = 8,
        root: bytes = b"root",
        reasoning: ReasoningPlan | None = None,
        attempt: int = 0,
        checkpoint: dict[int, list[int]] | None = None,
        priority: int = 0,
        tenant: str = "",
        closed_at: dict[int, tuple[int, ...]] | None = None,
        bad_words: Sequence[tuple[int, ...]] = (),
        block_hashes: bytes = b"",
        block_size: int = 16,
        images: Sequence[ImageSpan] = (),
        **sampling: Any,
    ) -> EngineRequest:
        """Add a request; its pictures make as many features as they have image tokens."""
        request = EngineRequest(
            request_id=request_id,
            attempt=attempt,
            priority=priority,
            tenant=tenant,
            prompt=Prompt(
                token_ids=pack_ids(prompt_ids),
                num_tokens=len(prompt_ids),
                block_root=root,
                block_hashes=block_hashes,
                block_size=block_size,
                max_tokens=max_tokens,
                reasoning=reasoning,
                bad_word_ids=tuple(bad_words),
                images=tuple(images),
            ),
            sampling=SamplingParams(**sampling),
            checkpoint={choice: pack_ids(ids) for choice, ids in (checkpoint or {}).items()},
            closed_at=closed_at or {},
            pictures=tuple(
                Picture(
                    name=span.digest,
                    tiles=b"",
                    num_tiles=1,
                    height=1,
                    width=1,
                    num_features=prompt_ids[span.position :][: span.num_tokens].count(self.runner.info.image_token_id),
                )
                for span in images
            ),
        )
        for choice in range(request.sampling.n):
            received = self.received[request_id, choice] = Received(self._token_bytes)
            received.answer.token_ids += (checkpoint or {}).get(choice, [])
        self.engine.add(request)
        return request

    def step(self) -> list[TokenChunk]:
        """Run one step; a second passes."""
        self.now += 1.0
        chunks = self.engine.step()
        self.chunks += chunks
        for chunk in chunks:
            self.received[chunk.request_id, chunk.choice].add(chunk)
        self.engine.check_invariants()
        return chunks

    def run(self, limit: int = 2000) -> None:
        """Run until nothing is left to do."""
        for _ in range(limit):
            if not self.engine.has_work:
                return
            self.step()
            self.engine.events()
        raise AssertionError("no end: a deadlock or a livelock")

    def ids(self, request_id: str, choice: int = 0) -> list[int]:
        """The ids of a choice so far."""
        return self.received[request_id, choice].answer.token_ids

    def reason(self, request_id: str, choice: int = 0) -> str:
        """The finish reason of a choice, "" while it runs."""
        return self.received[request_id, choice].answer.finish_reason

    def cached(self, request_id: str, choice: int = 0) -> int | None:
        """The cached prompt tokens that the first chunk named."""
        return self.received[request_id, choice].num_cached_tokens

    def preemptions(self) -> dict[str, int]:
        """How many were preempted so far, by reason."""
        return {reason: count for reason, count in self.engine.load().preemptions.items() if count}
