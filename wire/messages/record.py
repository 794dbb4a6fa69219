"""The other fields of the job record: what each desk finds out about a request."""

from __future__ import annotations

from typing import Any

import msgspec

from wire.messages.images import Images, ImageSpan
from wire.messages.request import ChatMessage, Request
from wire.messages.tokens import PhaseMark, PromptNote


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
    thought enough; `landing_ids` take the place of its end token, and the answer follows. `channels`: there are no tags
    but messages (wire.harmony). `leads`: the others of `landing_ids` follow wherever the model draws the first of them.
    `barred_ids` cannot be drawn right behind what the engine put there to end thinking: it would begin again.
    """

    budget: int | None = None
    starts_open: bool = False
    open_tag: bytes = b"<think>"
    close_tag: bytes = b"</think>"
    close_ids: tuple[int, ...] = ()
    landing: int = 0
    landing_ids: tuple[int, ...] = ()
    closes_at_stop: bool = False
    channels: bool = False
    leads: bool = False
    barred_ids: tuple[int, ...] = ()


class Prompt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record field `prompt` (tokenizer desk). `token_ids` packed int32; `block_hashes` 16 bytes each, concatenated.

    The inputs of an embedding request lie in `token_ids` one after another; `lengths` are their numbers of tokens. Of a
    request for scores these are the beginnings of all pairs, one for each query, and their ends, one for each document.
    `longest`: the tokens of its longest input, or pair.
    `prediction_ids` packed int32: the client's guess at the answer. `images`: where pictures stand, in their order;
    their bytes are in the record's `images` or `recalled_images`.
    `adapter`: only replicas that have it can answer.
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
    prediction_ids: bytes = b""
    longest: int | None = None
    images: tuple[ImageSpan, ...] = ()
    adapter: str = ""

    @property
    def note(self) -> PromptNote:
        """Return what the bill says of the prompt besides its length."""
        return PromptNote(self.messages_dropped, self.reasoning.budget if self.reasoning else None)


class Match(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many leading tokens of the prompt a replica holds in its KV cache."""

    replica_id: str
    num_tokens: int


class Matches(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record field `matches` (prefix desk): the longest cached prefix of each replica that has any."""

    replicas: tuple[Match, ...] = ()


PROOF_TOKENS = 16
"""What has gained so many goes on, whatever ended its replica; what kills may well get a token or two first."""

_SUSPECT_LOSSES = 2


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Another replica that holds the prompt's first `num_tokens`, whole blocks, and gives them away at `address`."""

    replica_id: str
    address: str
    num_tokens: int


class Prefilled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record field `prefilled` (a prefill replica): it has computed the prompt's first `num_tokens`, whole blocks.

    `energy_j` is what it used for them, if it has a meter.
    """

    replica_id: str
    num_tokens: int
    energy_j: float | None = None


class Placement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record field `placement` (balancer).

    `num_tokens` had been generated when the job was placed; `losses`: how many replicas were lost with it since it last
    gained `PROOF_TOKENS`. What `source` holds is fetched rather than computed. `prefill`: only the prompt is wanted;
    then the job comes back to the balancer.
    """

    replica_id: str
    attempt: int
    cached_tokens: int = 0
    num_tokens: int = 0
    losses: int = 0
    source: Source | None = None
    prefill: bool = False

    @property
    def is_suspect(self) -> bool:
        """Whether it may be what those replicas were lost by. It is tried apart then, and only trials count."""
        return self.losses >= _SUSPECT_LOSSES


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record field `trial` (replica): in this attempt the job has begun to run apart from others."""

    attempt: int


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record field `checkpoint`: generated ids per choice, packed, from which another replica goes on.

    A replica writes it now and then; when it is lost, the balancer puts what the edge has in its place. `marks`: where
    the phase of these tokens changes (`index` counts from the first one). Nobody wants more of the choices in `ended`.
    """

    attempt: int
    token_ids: dict[int, bytes] = {}
    marks: dict[int, tuple[PhaseMark, ...]] = {}
    ended: tuple[int, ...] = ()


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


class Read(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record field `read` (edge): somebody read the events of a response at this Unix time in seconds.

    The clock is that of the edge where it was read: a new value is news, its distance to other times says nothing.
    """

    at: float


RECORD_FIELDS: dict[str, type[Any]] = {
    "request": Request,
    "recalled": Recalled,
    "prompt": Prompt,
    "matches": Matches,
    "placement": Placement,
    "prefilled": Prefilled,
    "checkpoint": Checkpoint,
    "closed": Closed,
    "holder": Holder,
    "read": Read,
    "trial": Trial,
    "images": Images,
    "recalled_images": Images,
}
