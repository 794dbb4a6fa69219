"""What crosses a process: every message and every field of the job record, as frozen msgspec Structs.

New fields come last and have a default. The envelope (`Job`) stays small; what grows lives in the job record, one Redis
hash per request, each field one of the Structs in `request` and `record`.
"""

from __future__ import annotations

from wire.messages.base import ID_BYTES, Message, pack_ids, unpack_ids
from wire.messages.calls import MAX_METADATA, HistoryCall, HistoryReply, SafetyEvent, TokenizeCall, TokenizeReply
from wire.messages.fleet import (
    AdapterOutcome,
    AdaptersChanged,
    BlocksEvicted,
    BlocksStored,
    ReplicaStatus,
    ReportBlocks,
)
from wire.messages.images import PICTURE_DIGEST_BYTES, Image, ImageRef, Images, ImageSpan
from wire.messages.record import (
    PROOF_TOKENS,
    RECORD_FIELDS,
    Checkpoint,
    Closed,
    Holder,
    Match,
    Matches,
    Placement,
    Prefilled,
    Prompt,
    Read,
    ReasoningPlan,
    Recalled,
    Source,
    Trial,
)
from wire.messages.request import (
    ChatMessage,
    ConversationRef,
    Grammar,
    Pairs,
    Request,
    SamplingParams,
    ToolCall,
    ToolForm,
)
from wire.messages.ring import Cancel, EndReasoning, Failure, Job, ReportTokens, Resubscribe, TokenReport, Turn
from wire.messages.tokens import (
    ANSWER,
    MARKUP,
    REASONING,
    Embeddings,
    PhaseMark,
    PromptNote,
    TokenBatch,
    TokenChunk,
    TokenLogprob,
)

AnyMessage = (
    Job
    | Turn
    | Cancel
    | EndReasoning
    | Resubscribe
    | Failure
    | TokenBatch
    | Embeddings
    | ReplicaStatus
    | BlocksStored
    | BlocksEvicted
    | ReportBlocks
    | AdaptersChanged
    | HistoryCall
    | HistoryReply
    | SafetyEvent
    | TokenizeCall
    | TokenizeReply
    | ReportTokens
    | TokenReport
)

__all__ = [
    "ANSWER",
    "ID_BYTES",
    "MARKUP",
    "MAX_METADATA",
    "PICTURE_DIGEST_BYTES",
    "PROOF_TOKENS",
    "REASONING",
    "RECORD_FIELDS",
    "AdapterOutcome",
    "AdaptersChanged",
    "AnyMessage",
    "BlocksEvicted",
    "BlocksStored",
    "Cancel",
    "ChatMessage",
    "Checkpoint",
    "Closed",
    "ConversationRef",
    "Embeddings",
    "EndReasoning",
    "Failure",
    "Grammar",
    "HistoryCall",
    "HistoryReply",
    "Holder",
    "Image",
    "ImageRef",
    "ImageSpan",
    "Images",
    "Job",
    "Match",
    "Matches",
    "Message",
    "Pairs",
    "PhaseMark",
    "Placement",
    "Prefilled",
    "Prompt",
    "PromptNote",
    "Read",
    "ReasoningPlan",
    "Recalled",
    "ReplicaStatus",
    "ReportBlocks",
    "ReportTokens",
    "Request",
    "Resubscribe",
    "SafetyEvent",
    "SamplingParams",
    "Source",
    "TokenBatch",
    "TokenChunk",
    "TokenLogprob",
    "TokenReport",
    "TokenizeCall",
    "TokenizeReply",
    "ToolCall",
    "ToolForm",
    "Trial",
    "Turn",
    "pack_ids",
    "unpack_ids",
]
