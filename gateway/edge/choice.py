"""One choice of a request: its tokens in, what the client may see of it out, and how it ended."""

from __future__ import annotations

from gateway.edge.reply import ChoiceUpdate
from gateway.postprocess.pipeline import Pipeline
from wire.messages import TokenChunk


class Choice:
    """A choice. `clean`: its text is exactly the text of its token ids, so the ids may be kept for the next turn.

    `stopped`: it ended before the replica said so, by a stop string or a rule; what the replica still does is in vain.
    """

    __slots__ = (
        "_told", "clean", "energy_j", "finish_reason", "num_accepted_drafts", "num_rejected_drafts", "pipeline",
        "reasoning_ended_by", "stopped",
    )  # fmt: skip

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.finish_reason: str | None = None
        self._told: str | None = None  # the replica's finish reason; text may still be held for safety rules
        self.clean = False
        self.stopped = False
        self.reasoning_ended_by: str | None = None
        self.num_accepted_drafts = 0
        self.num_rejected_drafts = 0
        self.energy_j: dict[int, float] = {}  # by attempt: one that was lost has used some, too

    def feed(self, chunk: TokenChunk, update: ChoiceUpdate) -> None:
        """Take the next tokens, and add to the update what may be shown now."""
        pipeline = self.pipeline
        if chunk.energy_j is not None:
            self.energy_j[chunk.attempt] = chunk.energy_j
        self.reasoning_ended_by = chunk.reasoning_ended_by or self.reasoning_ended_by
        if chunk.num_accepted_drafts or chunk.num_rejected_drafts:
            self.num_accepted_drafts = max(self.num_accepted_drafts, chunk.num_accepted_drafts)
            self.num_rejected_drafts = max(self.num_rejected_drafts, chunk.num_rejected_drafts)
        update.deltas += pipeline.feed(chunk)
        finish_reason = pipeline.finish_reason
        self.stopped = self._told is None and finish_reason is not None
        if not self.stopped:
            self._told = self._told or chunk.finish_reason
            if self._told is not None:
                update.deltas += pipeline.close(self._told)
                finish_reason = pipeline.finish_reason
        self.finish_reason = update.finish_reason = finish_reason
        if self.finish_reason is not None and not self.stopped and pipeline.stop_string is None:
            rewritten = any(hit.action != "flag" for hit in pipeline.hits)
            self.clean = self.finish_reason in (self._told, "tool_calls") and not rewritten
        update.num_tokens = pipeline.num_tokens
        update.stop = pipeline.stop_string
