"""The request, as the edge admits it: record field `request`, written once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from wire.messages.images import ImageRef, joined, parts_of


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
    `Prompt.bad_word_ids` of them). `num_draft_tokens` is the most tokens that are guessed ahead, None what the replica
    likes; guesses never change what is drawn. `include_stop`: the stop string or token is shown.
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
    num_draft_tokens: int | None = None
    include_stop: bool = False


class ToolForm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client calls a tool that its model knows as a function of another name or kind.

    `custom`: it is called with free text, which is the function's one argument, `input`; `grammar` is what a client
    says that this text looks like.
    """

    name: str
    namespace: str = ""
    custom: bool = False
    grammar: Grammar | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function call the assistant made; `arguments` is JSON text. `form`: what its client calls it, if otherwise."""

    id: str
    name: str
    arguments: str
    form: ToolForm | None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a conversation. `item_id` is the history desk's name for it, if it has one.

    `images`: where pictures stand in `content`, in their order.
    """

    role: str
    content: str = ""
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str = ""
    item_id: str | None = None
    images: tuple[ImageRef, ...] = ()

    @property
    def parts(self) -> list[str | ImageRef]:
        """What it consists of, in order: texts, none of them empty, and pictures."""
        return parts_of(self.content, self.images)

    def saying(self, parts: Iterable[str | ImageRef]) -> ChatMessage:
        """Return the message with other parts."""
        content, images = joined(parts)
        return msgspec.structs.replace(self, content=content, images=images)


class ConversationRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which stored conversation a request continues, and whether its turn is stored.

    Exactly one of `conversation_id` and `previous_response_id` may be set. `response_id` names the turn to be stored.
    """

    conversation_id: str | None = None
    previous_response_id: str | None = None
    store: bool = False
    response_id: str = ""
    truncation: Literal["auto", "disabled"] = "auto"


class Pairs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the inputs of a request go together: the first `num_queries` with the documents behind them.

    One query goes with all documents, several go with one each. `query`, `document`: what the client calls them.
    """

    num_queries: int = 1
    query: str = "query"
    document: str = "documents"


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record field `request`: what the client wants, in our words. Written once by the edge.

    Exactly one of `messages`, `prompt_text`, `prompt_ids` and `inputs` (texts or ids) is meaningful, by `kind`;
    `dimensions` is the length of embeddings if they shall be shorter than the model's, `cut_at` the number of tokens
    that is kept of a longer input (0: as many as the model takes; None: none is cut). `instructions` is a system
    message for this turn only (Responses API); it is not stored. `budget_tokens` wins over `effort`. Lower `priority`
    goes first. `return_best` k > 0: of the `sampling.n` choices only the k of the highest mean log-probability are
    shown (best_of). `include_reasoning` False: thinking is counted and not shown. `reply` is what the edge's answer
    repeats (ids, times, echoed fields), so that another edge can go on with it. `parallel_tool_calls` False: an answer
    ends with its first whole call. `key_id` names the API key it came with (not the key itself). `prediction` is what
    the client thinks the answer will be like. `continues`: the last message is an answer that was begun, to go on with.
    `tool_forms`: by name, the functions that the client calls otherwise. `pairs`: the inputs are queries and documents;
    a request of kind "score" wants one number for each pair, one of kind "embedding" a vector for each input.
    `adapter_of`: `model` is an adapter of that one, whose desks and replicas see to it; one that came at run time is an
    `adapter_id` to them. `unread_limit_s`: an answer of the background is cancelled when nobody has read it for so long
    (0: it needs no reader).
    """

    kind: Literal["chat", "text", "ids", "embedding", "score"] = "chat"
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
    prediction: str = ""
    continues: bool = False
    cut_at: int | None = None
    tool_forms: dict[str, ToolForm] = {}
    pairs: Pairs | None = None
    adapter_of: str = ""
    adapter_id: str = ""
    unread_limit_s: float = 0.0

    @property
    def base(self) -> str:
        """The model whose desks and replicas see to it."""
        return self.adapter_of or self.model

    @property
    def adapter(self) -> str:
        """The adapter that it wants, "" for the model alone."""
        return self.adapter_id or self.model if self.adapter_of else ""

    @property
    def is_encoded(self) -> bool:
        """Whether its inputs are read and not gone on with."""
        return self.kind in ("embedding", "score")

    def place_of_input(self, at: int) -> str:
        """Return what the client calls an input."""
        name, count = "input", len(self.inputs)
        if self.pairs is not None:
            num_queries = self.pairs.num_queries
            is_query = at < num_queries
            name, count = (self.pairs.query, num_queries) if is_query else (self.pairs.document, count - num_queries)
            at -= 0 if is_query else num_queries
        return f"{name}[{at}]" if count > 1 else name
