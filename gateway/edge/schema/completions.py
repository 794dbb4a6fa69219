"""POST /v1/completions, inwards: text or token ids -> one wire.messages.Request for each prompt.

Control tokens in a text are only text; who wants them sends ids. `max_tokens` is 16 unless given, as OpenAI has it;
0 is allowed with `echo`, where the prompt is the answer (one token is computed and not shown).
"""

from __future__ import annotations

import time
from typing import Any

from gateway.edge.schema.chat import StreamOptions, check_cache_key, check_salt
from gateway.edge.schema.grammar import bind_format
from gateway.edge.schema.sampling import (
    MAX_TOP_LOGPROBS,
    SamplingFields,
    check_prompt_logprobs,
    fail,
    num_choices,
    token_limit,
    translate_sampling,
)
from gateway.edge.schema.tier import priority_of
from wire.errors import ContextLengthExceededError
from wire.messages import Request, pack_ids
from wire.model_card import ModelCard
from wire.vocabulary import Vocabulary

DEFAULT_MAX_TOKENS = 16
_INT32 = 2**31


class CompletionRequest(SamplingFields, kw_only=True):
    """The body; what is not listed is refused or ignored by unknown.py."""

    model: str
    prompt: str | list[str | int | list[int]]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    user: str | None = None
    cache_salt: str | None = None
    response_format: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    priority: int | None = None

    @property
    def hides_answer(self) -> bool:
        """Tell whether only the prompt is wanted."""
        return bool(self.echo) and self.max_tokens == 0


def translate_completions(
    body: CompletionRequest, card: ModelCard, *, max_choices: int, max_prompts: int
) -> list[Request]:
    """Check the body and return a request for each prompt. Raises InvalidRequestError naming the field."""
    _refuse_unsupported(body)
    n = num_choices(body.n, max_choices)
    best_of = _best_of(body, n, max_choices)
    sampling = translate_sampling(
        body,
        card,
        n=best_of,
        max_tokens=_max_tokens(body),
        logprobs=(body.logprobs or 0) if best_of > n else body.logprobs,
        prompt_logprobs=_prompt_logprobs(body),
    )
    sampling = bind_format(sampling, body, body.response_format, "response_format")
    prompts = _prompts(body.prompt, max_prompts)
    place = "prompt[{}]" if len(prompts) > 1 else "prompt"
    salt, key, now = check_salt(body.cache_salt), check_cache_key(body.prompt_cache_key), time.time()
    priority = priority_of(body.service_tier, body.priority)
    return [
        Request(
            kind="text" if isinstance(prompt, str) else "ids",
            model=card.name,
            prompt_text=prompt if isinstance(prompt, str) else "",
            prompt_ids=b"" if isinstance(prompt, str) else _packed(prompt, card, place.format(at)),
            sampling=sampling,
            return_best=n if best_of > n else 0,
            cache_salt=salt,
            prompt_cache_key=key,
            priority=priority,
            created_at=now,
        )
        for at, prompt in enumerate(prompts)
    ]


def _refuse_unsupported(body: CompletionRequest) -> None:
    if body.suffix:
        raise fail("suffix", "is not supported: the models served here continue a text, they do not fill a gap.")
    if body.stream_options is not None and not body.stream:
        raise fail("stream_options", "is only allowed with stream: true.")
    if body.top_logprobs:
        raise fail("top_logprobs", "belongs to chat completions; here logprobs is the number of alternatives.")
    if body.logprobs is not None and not 0 <= body.logprobs <= MAX_TOP_LOGPROBS:
        raise fail("logprobs", f"must lie between 0 and {MAX_TOP_LOGPROBS}, not {body.logprobs}.")


def _best_of(body: CompletionRequest, n: int, max_choices: int) -> int:
    """Return how many answers are generated, of which the best `n` are returned."""
    best_of = n if body.best_of is None else body.best_of
    if not n <= best_of <= max_choices:
        raise fail("best_of", f"must lie between n ({n}) and {max_choices}, not {best_of}.")
    if best_of > n and body.stream:
        raise fail("best_of", "above n is only allowed without stream: true; which is best is known at the end.")
    return best_of


def prompt_text(request: Request, vocabulary: Vocabulary) -> str:
    """Return the text of a prompt, for `echo`; control tokens among the ids have none."""
    if request.kind == "text":
        return request.prompt_text
    ids = memoryview(request.prompt_ids).cast("i")
    return vocabulary.decode_bytes(ids).decode("utf-8", "replace")


def _max_tokens(body: CompletionRequest) -> int:
    if body.hides_answer:
        return 1
    given = token_limit(max_tokens=body.max_tokens, max_completion_tokens=body.max_completion_tokens)
    return DEFAULT_MAX_TOKENS if given is None else given


def _prompt_logprobs(body: CompletionRequest) -> int | None:
    """Those that the client asks for, or those that an echo shows."""
    given = check_prompt_logprobs(body.prompt_logprobs, stream=bool(body.stream))
    return max(given or 0, body.logprobs) if body.echo and body.logprobs is not None else given


def _prompts(value: str | list[str | int | list[int]], max_prompts: int) -> list[str | list[int]]:
    """Return the prompts: one text, one list of ids, or a list of either."""
    if isinstance(value, str):
        return [value]
    ids = [item for item in value if isinstance(item, int)]
    if ids and len(ids) == len(value):
        return [ids]
    prompts = [item for item in value if not isinstance(item, int)]
    kinds = {type(item) for item in value}
    if not prompts or len(kinds) > 1:
        raise fail("prompt", "must be a string, an array of token ids, or an array of strings or of such arrays.")
    if len(prompts) > max_prompts:
        raise fail("prompt", f"at most {max_prompts} prompts, not {len(prompts)}.")
    return prompts


def _packed(ids: list[int], card: ModelCard, param: str) -> bytes:
    if len(ids) >= card.max_model_len:
        raise ContextLengthExceededError(
            f"{param}: the model's context is {card.max_model_len} tokens and needs one for the answer; "
            f"the prompt has {len(ids)} tokens.",
            param=param,
        )
    for token_id in (min(ids), max(ids)) if ids else ():
        if not 0 <= token_id < min(card.vocab_size, _INT32):
            raise fail(param, f"{token_id} is no token id; the vocabulary has {card.vocab_size}.")
    return pack_ids(ids)
