"""The engine's own check of a request: what passes here can always finish, whatever the edge let through.

A request that could never fit the KV pool would wait at the head of the queue for ever, and everybody behind it too.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable

import numpy as np

from model_svc.engine.plan import RunnerInfo
from model_svc.engine.request import EngineRequest
from model_svc.engine.stopping import StopRule
from wire.errors import ContextLengthExceededError, InvalidRequestError, ModelNotFoundError
from wire.messages import ID_BYTES, SamplingParams

MAX_CHOICES = 128


def max_total_tokens(info: RunnerInfo) -> int:
    """Return how many tokens, prompt and answer, one sequence can have: the context, or what fits the whole pool.

    The last token is never computed, so its KV needs no room: the balancer counts so, too.
    """
    return min(info.max_model_len, info.num_blocks * info.block_size + 1)


def check(
    request: EngineRequest, info: RunnerInfo, eos_token_ids: Iterable[int] = (), adapters: Container[str] = ()
) -> int:
    """Validate a request and return how many tokens each choice may generate.

    `max_tokens` past the room that is left is cut down to it: such an answer ends with `length`.

    Raises InvalidRequestError naming the field, ContextLengthExceededError with both counts, ModelNotFoundError for an
    adapter that is none of `adapters`.
    """
    if request.adapter and request.adapter not in adapters:
        raise ModelNotFoundError(f"this replica has no adapter {request.adapter[:80]!r} (any more)", param="model")
    num_prompt_tokens = _check_packed(request.prompt.token_ids, info.vocab_size, "prompt")
    if not num_prompt_tokens:
        raise InvalidRequestError("the prompt is empty; send at least one token", param="prompt")
    if request.prompt.reasoning is not None:
        _check_ids(request.prompt.reasoning.close_ids, info.vocab_size, "reasoning")
    for packed in request.checkpoint.values():
        _check_packed(packed, info.vocab_size, "checkpoint")
    _check_packed(request.prompt.prediction_ids, info.vocab_size, "prediction")
    for word in request.prompt.bad_word_ids:
        _check_ids(word, info.vocab_size, "bad_words")
    _check_sampling(request.sampling, info.vocab_size)
    _check_choice_is_left(request, eos_token_ids, info.vocab_size)
    if request.prompt.max_tokens < 1:
        raise InvalidRequestError("max_tokens must be at least 1", param="max_tokens")
    room = max_total_tokens(info) - num_prompt_tokens
    if room < 1:
        raise ContextLengthExceededError(_too_long(num_prompt_tokens, info), param="messages")
    return min(request.prompt.max_tokens, room)


def _check_choice_is_left(request: EngineRequest, eos_token_ids: Iterable[int], vocab_size: int) -> None:
    """Refuse rules that leave no token to say from the first one on."""
    sampling, prompt = request.sampling, request.prompt
    barred = {word[0] for word in prompt.bad_word_ids if len(word) == 1}
    allowed = set(sampling.allowed_token_ids) - barred if sampling.allowed_token_ids is not None else None
    if allowed is not None and not allowed:
        raise InvalidRequestError("bad_words forbid all that allowed_token_ids allows", param="bad_words")
    if sampling.min_tokens > 0:
        stops = StopRule(sampling, prompt, eos_token_ids, 0).stop_ids
        if not allowed - stops if allowed is not None else len(stops | barred) >= vocab_size:
            message = "min_tokens must be 0 where every token that is allowed ends the answer"
            raise InvalidRequestError(message, param="min_tokens")


def _too_long(num_prompt_tokens: int, info: RunnerInfo) -> str:
    pool = info.num_blocks * info.block_size
    if info.max_model_len <= pool:
        limit = f"this model's context holds {info.max_model_len}, and one must be left for the answer"
    else:
        limit = f"this replica's KV cache holds {pool}"
    return f"the prompt has {num_prompt_tokens} tokens; {limit}"


def _check_packed(token_ids: bytes, vocab_size: int, param: str) -> int:
    """Check packed ids at once, not one by one: a prompt may be long; returns how many they are."""
    if len(token_ids) % ID_BYTES:
        raise InvalidRequestError(f"{len(token_ids)} bytes are no token ids of {ID_BYTES} bytes each", param=param)
    ids = np.frombuffer(token_ids, dtype=np.int32)
    if len(ids):
        _check_ids((int(ids.min()), int(ids.max())), vocab_size, param)
    return len(ids)


def _check_ids(token_ids: Iterable[int], vocab_size: int, param: str) -> None:
    ids = token_ids if isinstance(token_ids, list) else list(token_ids)
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        raise InvalidRequestError(f"token ids must lie in 0..{vocab_size - 1}", param=param)


def _check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    if not 1 <= sampling.n <= MAX_CHOICES:
        raise InvalidRequestError(f"n must lie in 1..{MAX_CHOICES}", param="n")
    _check_ids(sampling.logit_bias, vocab_size, "logit_bias")
    _check_ids(sampling.stop_token_ids, vocab_size, "stop_token_ids")
    if sampling.allowed_token_ids is not None:
        if not sampling.allowed_token_ids:
            raise InvalidRequestError("allowed_token_ids must allow at least one", param="allowed_token_ids")
        _check_ids(sampling.allowed_token_ids, vocab_size, "allowed_token_ids")
    ranges = (
        ("temperature", sampling.temperature, 0.0, math.inf),
        ("top_p", sampling.top_p, 0.0, 1.0),
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("presence_penalty", sampling.presence_penalty, -math.inf, math.inf),
        ("frequency_penalty", sampling.frequency_penalty, -math.inf, math.inf),
        ("repetition_penalty", sampling.repetition_penalty, 0.0, math.inf),
        *(("logit_bias", bias, -math.inf, math.inf) for bias in sampling.logit_bias.values()),
    )
    for param, value, low, high in ranges:
        # NaN fails every comparison, so it is asked for by name: one such value poisons the whole batch.
        if not math.isfinite(value) or not low <= value <= high:
            raise InvalidRequestError(f"{param} must be a finite number in {low}..{high}", param=param)
    if sampling.repetition_penalty == 0.0:
        raise InvalidRequestError("repetition_penalty must be above 0", param="repetition_penalty")
    if sampling.min_tokens < 0 or sampling.top_k < -1:
        param = "min_tokens" if sampling.min_tokens < 0 else "top_k"
        raise InvalidRequestError(f"{param} must not be negative", param=param)
    for param in ("logprobs", "prompt_logprobs"):
        value = getattr(sampling, param)
        if value is not None and not 0 <= value <= vocab_size:
            raise InvalidRequestError(f"{param} must lie in 0..{vocab_size}", param=param)
