"""What crosses a process: every message and every field of the job record, as frozen msgspec Structs.

New fields come last and have a default. The envelope (`Job`) stays small; what grows lives in the job record, one Redis
hash per request, each field one of the Structs below (see `RECORD_FIELDS`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, Literal

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base of everything that travels on a stream; the tag is the class name."""


def pack_ids(token_ids: Iterable[int]) -> bytes:
    """Pack token ids as little-endian int32."""
    return array("i", token_ids).tobytes()


def unpack_ids(raw: bytes) -> list[int]:
    """Undo `pack_ids`."""
    ids = array("i")
    ids.frombytes(raw)
    return ids.tolist()


# --- the request, as the edge admits it -------------------------------------------------------------------------------


class Grammar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an answer must look like; thinking before it is free. Checked by the edge before it is admitted.

    `source` by kind: the schema as JSON text, the pattern, the grammar in llguidance's Lark dialect (which can embed
    schemas: `%json {...}`), a JSON array of strings, and for `json_object` nothing. `lenient`: keywords of a schema
    that cannot be enforced are passed over instead of refused. `field` is where in the request it came from; "": tools.
    """

    kind: Literal["json_object", "json_schema", "regex", "lark", "choice"]
    source: str = ""
    lenient: bool = False
    field: str = ""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose tokens. Validated by the edge; the engine re-checks ranges.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 are off. `logprobs` None is off, n gives the chosen token and the
    n most likely; `prompt_logprobs` does the same for the prompt's own tokens. `max_tokens` None means up to the
    context's end. `allowed_token_ids` None allows all. `bad_words` are never said (the tokenizer desk makes
    `Prompt.bad_word_ids` of them).
    """

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None
    deterministic: bool = False
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function call the assistant made; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a conversation. `item_id` is the history desk's name for it, if it has one."""

    role: str
    content: str = ""
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str = ""
    item_id: str | None = None


class ConversationRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which stored conversation a request continues, and whether its turn is stored.

    Exactly one of `conversation_id` and `previous_response_id` may be set. `response_id` names the turn to be stored.
    """

    conversation_id: str | None = None
    previous_response_id: str | None = None
    store: bool = False
    response_id: str = ""
    truncation: Literal["auto", "disabled"] = "auto"


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record field `request`: what the client wants, in our words. Written once by the edge.

    Exactly one of `messages`, `prompt_text`, `prompt_ids` and `inputs` (texts or ids) is meaningful, by `kind`;
    `dimensions` is the length of embeddings if they shall be shorter than the model's. `instructions` is a system
    message for this turn only (Responses API); it is not stored. `budget_tokens` wins over `effort`. Lower `priority`
    goes first. `return_best` k > 0: of the `sampling.n` choices only the k of the highest mean log-probability are
    shown (best_of). `include_reasoning` False: thinking is counted and not shown. `reply` is what the edge's answer
    repeats (ids, times, echoed fields), so that another edge can go on with it. `parallel_tool_calls` False: an answer
    ends with its first whole call. `key_id` names the API key it came with (not the key itself).
    """

    kind: Literal["chat", "text", "ids", "embedding"] = "chat"
    model: str
    messages: tuple[ChatMessage, ...] = ()
    instructions: str | None = None
    prompt_text: str = ""
    prompt_ids: bytes = b""
    tools: tuple[dict[str, Any], ...] = ()
    template_kwargs: dict[str, Any] = {}
    sampling: SamplingParams = SamplingParams()
    effort: str | None = None
    budget_tokens: int | None = None
    conversation: ConversationRef | None = None
    tenant: str = ""
    cache_salt: str = ""
    created_at: float = 0.0
    priority: int = 0
    return_best: int = 0
    include_reasoning: bool = True
    reply: dict[str, Any] = {}
    inputs: tuple[str | tuple[int, ...], ...] = ()
    dimensions: int | None = None
    parallel_tool_calls: bool = True
    key_id: str = ""
    prompt_cache_key: str = ""


class Recalled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record field `recalled` (history desk): the earlier messages, oldest first, and the ids of the newest turn.

    `prompt_ids` are the token ids of prompt and answer of the newest turn, exactly as the engine saw them; `covers` is
    how many of `messages` they hold. The tokenizer splices them, so that the next prompt is the cached one.
    """

    messages: tuple[ChatMessage, ...] = ()
    prompt_ids: bytes = b""
    covers: int = 0
    conversation_id: str | None = None
    version: int = 0


class ReasoningPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How this request thinks.

    `budget` None: no limit; 0: no thinking. `starts_open`: the prompt ends inside a think block. Tags are bytes,
    matched on the bytes of tokens (a tag may be split over tokens or merged with what follows); `close_ids` is what the
    engine forces when the budget is spent (a bridging sentence and the tag). In the last `landing` tokens of the budget
    the first of `landing_ids`, the tag alone, is made likelier where a sentence has ended; when it is drawn there, the
    others follow. 0 or no ids: no soft landing. `closes_at_stop`: a model that ends its turn while it thinks has
    thought enough; `landing_ids` take the place of its end token, and the answer follows.
    """

    budget: int | None = None
    starts_open: bool = False
    open_tag: bytes = b"<think>"
    close_tag: bytes = b"</think>"
    close_ids: tuple[int, ...] = ()
    landing: int = 0
    landing_ids: tuple[int, ...] = ()
    closes_at_stop: bool = False


class Prompt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record field `prompt` (tokenizer desk). `token_ids` packed int32; `block_hashes` 16 bytes each, concatenated.

    The inputs of an embedding request lie in `token_ids` one after another; `lengths` are their numbers of tokens.
    """

    token_ids: bytes
    num_tokens: int
    block_root: bytes = b""
    block_hashes: bytes = b""
    block_size: int = 16
    max_tokens: int = 16
    stop_token_ids: tuple[int, ...] = ()
    reasoning: ReasoningPlan | None = None
    messages_dropped: int = 0
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    lengths: tuple[int, ...] = ()


class Match(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many leading tokens of the prompt a replica holds in its KV cache."""

    replica_id: str
    num_tokens: int


class Matches(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record field `matches` (prefix desk): the longest cached prefix of each replica that has any."""

    replicas: tuple[Match, ...] = ()


class Placement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record field `placement` (balancer)."""

    replica_id: str
    attempt: int
    cached_tokens: int = 0


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record field `checkpoint` (edge): generated ids per choice that the client has been shown."""

    attempt: int
    token_ids: dict[int, bytes] = {}


class Closed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record field `closed` (edge): where the client ended the thinking of each choice, in generated tokens.

    Another attempt closes at the same place, so that what it says goes on from what the client has seen.
    """

    at: dict[int, tuple[int, ...]] = {}


class Holder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record field `holder` (edge): the inbox of the edge that answers the client now, and what else the envelope says.

    `Job.edge` is where the request was admitted. An edge that takes it over writes itself here, for replicas that get
    the job later.
    """

    edge: str
    deadline: float
    traceparent: str = ""
    tracestate: str = ""


RECORD_FIELDS: dict[str, type[Any]] = {
    "request": Request,
    "recalled": Recalled,
    "prompt": Prompt,
    "matches": Matches,
    "placement": Placement,
    "checkpoint": Checkpoint,
    "closed": Closed,
    "holder": Holder,
}

# --- with the ring ----------------------------------------------------------------------------------------------------


class Job(Message, frozen=True, kw_only=True):
    """The envelope of a request on its way round the ring.

    `deadline` is Unix time in seconds. `timings_ms` collects `<desk>.wait` and `<desk>.work` of the desks passed.
    Requests with the same `affinity` are placed together if they can.
    `edge` is the inbox that gets tokens and failures. `traceparent`/`tracestate`: W3C context of the request span.
    """

    request_id: str
    partition: int
    model: str
    edge: str
    deadline: float
    attempt: int = 0
    traceparent: str = ""
    tracestate: str = ""
    timings_ms: dict[str, float] = {}
    affinity: str = ""


class Turn(Message, frozen=True, kw_only=True):
    """Edge -> history at the end of a stored request: what was said, and its token ids. Idempotent by `response_id`.

    `status` is completed, incomplete (max tokens, client gone) or failed. `prompt_ids` holds prompt and answer ids.
    """

    request_id: str
    attempt: int
    partition: int
    model: str
    tenant: str
    response_id: str
    conversation: ConversationRef
    input: tuple[ChatMessage, ...]
    output: tuple[ChatMessage, ...]
    prompt_ids: bytes = b""
    status: str = "completed"
    usage: dict[str, Any] = {}
    created_at: float = 0.0
    response: dict[str, Any] = {}


# --- against the ring -------------------------------------------------------------------------------------------------


class Cancel(Message, frozen=True, kw_only=True):
    """Edge -> replica: stop this request (all its choices, or one)."""

    request_id: str
    attempt: int
    reason: str = "client_gone"
    choice: int | None = None


class EndReasoning(Message, frozen=True, kw_only=True):
    """Edge -> replica: close the open think block at the next step."""

    request_id: str


class Resubscribe(Message, frozen=True, kw_only=True):
    """Edge -> replica: send this request's tokens again from `from_index` on, to `edge` from now on.

    A replica that knows nothing of the request says so with a Failure of this `attempt`; -1: it stays silent, for it
    may be about to get the job.
    """

    request_id: str
    edge: str
    choice: int = 0
    from_index: int = 0
    attempt: int = -1


class Failure(Message, frozen=True, kw_only=True):
    """Any desk -> edge: the request ends here with an error (see wire.errors for the code)."""

    request_id: str
    attempt: int
    code: str
    message: str
    param: str | None = None
    desk: str = ""


# --- replica -> edge --------------------------------------------------------------------------------------------------

ANSWER, REASONING, MARKUP = 0, 1, 2  # phases of generated bytes; MARKUP (think tags) is never shown


class PhaseMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From byte `offset` of the chunk's token number `index` on (0 = first of this chunk), the phase is `phase`."""

    index: int
    offset: int
    phase: int


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log probability of the chosen token and of the most likely ones: (ids, values), best first."""

    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class TokenChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """New tokens of one choice. They come by the thousand and hold no cycles: the collector need not look at them.

    `index` is the position of the first one in the answer (repeats are dropped, gaps are asked for again).
    `phase` holds for the first byte; `marks` tell where it changes. `finish_reason` (stop, length, cancelled, error)
    comes with the last chunk, `stop_token` says that the last token id is a stop token whose text is not shown.
    The first chunk of a choice carries `num_cached_tokens`; first and last carry `timings_ms` (queue, prefill, decode).
    The first chunk of choice 0 carries `prompt_logprobs`, if asked for: one entry for each prompt token but the first.
    `closed_at` >= 0: after so many generated tokens the client's wish closed the thinking (see Closed).
    """

    request_id: str
    attempt: int
    index: int
    choice: int = 0
    token_ids: tuple[int, ...] = ()
    phase: int = ANSWER
    marks: tuple[PhaseMark, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    stop_token: bool = False
    num_cached_tokens: int = 0
    num_prompt_tokens: int = 0
    num_reasoning_tokens: int = 0
    reasoning_ended_by: str | None = None
    timings_ms: dict[str, float] = {}
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    closed_at: int = -1


class TokenBatch(Message, frozen=True, kw_only=True):
    """Everything one engine step produced for one edge."""

    replica_id: str
    step: int
    chunks: tuple[TokenChunk, ...]


class Embeddings(Message, frozen=True, kw_only=True):
    """Replica -> edge: vectors of the inputs from number `index` on, each of `dimensions` little-endian float32.

    `num_tokens` is that of all inputs of the request.
    """

    request_id: str
    attempt: int
    index: int
    dimensions: int
    vectors: bytes
    num_tokens: int = 0


# --- beside the ring --------------------------------------------------------------------------------------------------


class ReplicaStatus(Message, frozen=True, kw_only=True):
    """A replica's heartbeat, twice a second and at every change of `state` (loading, ready, draining, gone).

    `kv_waste` is the share of held KV room that holds no token; `num_preemptions` and `num_prefilled_tokens` (of
    prompts) count since the replica's start.
    """

    replica_id: str
    model: str
    state: str
    sent_at: float
    block_size: int = 16
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_waiting_tokens: int = 0
    max_model_len: int = 0
    max_num_seqs: int = 0
    interval_s: float = 0.5
    device: str = ""
    kv_waste: float = 0.0
    num_preemptions: int = 0
    num_prefilled_tokens: int = 0


class BlocksStored(Message, frozen=True, kw_only=True):
    """These blocks (16-byte names, concatenated) are in the replica's cache. `reset`: forget all earlier ones first."""

    replica_id: str
    sequence: int
    hashes: bytes
    reset: bool = False


class BlocksEvicted(Message, frozen=True, kw_only=True):
    """These blocks left the replica's cache."""

    replica_id: str
    sequence: int
    hashes: bytes


class ReportBlocks(Message, frozen=True, kw_only=True):
    """Prefix desk -> replica: a gap in your events was seen (or I am new); send a full `BlocksStored(reset=True)`."""

    replica_id: str


class HistoryCall(Message, frozen=True, kw_only=True):
    """Edge -> history: a query outside a chat request. `op` names the operation, `args` its arguments."""

    call_id: str
    edge: str
    op: str
    tenant: str
    args: dict[str, Any] = {}
    deadline: float = 0.0


class HistoryReply(Message, frozen=True, kw_only=True):
    """History -> edge: `result`, or an error code with a message."""

    call_id: str
    result: Any = None
    code: str | None = None
    message: str = ""
    param: str | None = None


class SafetyEvent(Message, frozen=True, kw_only=True):
    """Edge -> audit log: a safety rule acted on characters start .. end - 1 of a text. The text is not in it.

    `digest` is a keyed hash of what matched. `failed`: the rule's judge gave no verdict, and that is why it acted.
    """

    request_id: str
    rule: str
    action: str
    direction: str
    start: int
    end: int
    digest: str = ""
    failed: bool = False
    tenant: str = ""
    model: str = ""
    choice: int = 0
    at: float = 0.0


class TokenizeCall(Message, frozen=True, kw_only=True):
    """Edge -> tokenizer: what are the ids of this request's text, or of its conversation?

    `add_special_tokens` is for texts, `add_generation_prompt` for conversations: do the ids go on to the place where an
    answer begins?
    """

    call_id: str
    edge: str
    request: Request
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    deadline: float = 0.0


class TokenizeReply(Message, frozen=True, kw_only=True):
    """Tokenizer -> edge: packed `token_ids`, or an error code with a message."""

    call_id: str
    token_ids: bytes = b""
    code: str | None = None
    message: str = ""
    param: str | None = None


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
    | HistoryCall
    | HistoryReply
    | SafetyEvent
    | TokenizeCall
    | TokenizeReply
)
