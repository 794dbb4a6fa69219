"""Sampling fields that dialects share: OpenAI's, and extensions that open servers agree on; and their ranges."""

from __future__ import annotations

from typing import Any

import msgspec

from wire.errors import InvalidRequestError
from wire.messages import SamplingParams
from wire.model_card import ModelCard

MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_BAD_WORDS = 1024
MAX_TOP_LOGPROBS = 20
MAX_DRAFT_TOKENS = 64
_INT64 = 2**63
_UNLIMITED = 2**31 - 1  # tokens; no context is as long

# field -> (lowest, highest); both are allowed
RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "seed": (-_INT64, _INT64 - 1),
    "top_logprobs": (0, MAX_TOP_LOGPROBS),
    "num_draft_tokens": (0, MAX_DRAFT_TOKENS),
}
_GREEDY_BELOW = 1e-5  # dividing logits by less overflows float32


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """What an answer must look like, in vLLM's words; at most one of them."""

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """The fields as clients write them; null is the same as absent."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    top_logprobs: int | None = None
    deterministic: bool | None = None
    num_draft_tokens: int | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    def guided(self) -> StructuredOutputs:
        """Return vLLM's older fields as the newer one."""
        return StructuredOutputs(
            json=self.guided_json, regex=self.guided_regex, choice=self.guided_choice, grammar=self.guided_grammar
        )


def fail(param: str, message: str) -> InvalidRequestError:
    """Return the error for a field; the message starts with its name."""
    return InvalidRequestError(f"{param}: {message}", param=param)


def num_choices(n: int | None, most: int) -> int:
    """Return how many answers a request wants: one if it does not say."""
    wanted = 1 if n is None else n
    if not 1 <= wanted <= most:
        raise fail("n", f"must lie between 1 and {most}, not {wanted}.")
    return wanted


def translate_sampling(
    body: SamplingFields,
    card: ModelCard,
    *,
    n: int = 1,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """Check all ranges and return the parameters in our words; what is not given is what the model's makers advise.

    Raises InvalidRequestError naming the field.
    """
    for name, (lowest, highest) in RANGES.items():
        value = getattr(body, name)
        if value is not None and not lowest <= value <= highest:
            raise fail(name, f"must lie between {lowest:g} and {highest:g}, not {value}.")
    temperature, top_p, top_k, min_p, repetition_penalty = _said_or_advised(body, card)
    if body.min_tokens is not None and not 0 <= body.min_tokens <= (max_tokens or card.max_model_len):
        raise fail("min_tokens", f"must lie between 0 and the token limit, not {body.min_tokens}.")
    return SamplingParams(
        n=n,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        temperature=_temperature(temperature),
        top_p=_top_p(top_p),
        top_k=_top_k(None if top_k is None else int(top_k), card.vocab_size),
        min_p=min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=_repetition_penalty(repetition_penalty),
        seed=body.seed,
        stop=_stop(body.stop),
        stop_token_ids=_stop_token_ids(body.stop_token_ids, card.vocab_size),
        ignore_eos=bool(body.ignore_eos),
        logit_bias=_logit_bias(body.logit_bias, card.vocab_size),
        allowed_token_ids=_allowed_token_ids(body.allowed_token_ids, card.vocab_size),
        bad_words=_bad_words(body.bad_words),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        deterministic=bool(body.deterministic),
        num_draft_tokens=body.num_draft_tokens,
        include_stop=bool(body.include_stop_str_in_output),
    )


def _said_or_advised(body: SamplingFields, card: ModelCard) -> list[float | None]:
    return [
        card.sampling.get(name) if getattr(body, name) is None else getattr(body, name)
        for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    ]


def _temperature(value: float | None) -> float:
    if value is None:
        return 1.0
    return 0.0 if value < _GREEDY_BELOW else value


def check_prompt_logprobs(value: int | None, *, stream: bool) -> int | None:
    """Return the number of alternatives for each prompt token; vLLM's field, for whole answers only."""
    if value is not None and not 0 <= value <= MAX_TOP_LOGPROBS:
        raise fail("prompt_logprobs", f"must lie between 0 and {MAX_TOP_LOGPROBS}, not {value}.")
    if value is not None and stream:
        raise fail("prompt_logprobs", "is only allowed without stream: true.")
    return value


def token_limit(**limits: int | None) -> int | None:
    """Return the smallest of the limits given under several names. Raises InvalidRequestError for one below 1."""
    for name, value in limits.items():
        if value is not None and value < 1:
            raise fail(name, f"must be at least 1, not {value}.")
    return min((min(value, _UNLIMITED) for value in limits.values() if value is not None), default=None)


def _top_p(value: float | None) -> float:
    if value is not None and not 0.0 < value <= 1.0:
        raise fail("top_p", f"must be above 0 and at most 1, not {value}.")
    return 1.0 if value is None else value


def _top_k(value: int | None, vocab_size: int) -> int:
    """0 and -1 switch it off; more than the vocabulary is no limit either."""
    if value is not None and value < -1:
        raise fail("top_k", f"must be at least 1, or 0 or -1 for no limit, not {value}.")
    return 0 if value is None or value < 1 or value >= vocab_size else value


def _repetition_penalty(value: float | None) -> float:
    if value is not None and not 0.0 < value <= 10.0:
        raise fail("repetition_penalty", f"must be above 0 and at most 10, not {value}.")
    return 1.0 if value is None else value


def _stop(value: str | list[str] | None) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else tuple(value or ())
    if len(stops) > MAX_STOP_STRINGS:
        raise fail("stop", f"at most {MAX_STOP_STRINGS} strings, not {len(stops)}.")
    for text in stops:
        if not text:
            raise fail("stop", "an empty string would stop everything.")
        if len(text) > MAX_STOP_LENGTH:
            raise fail("stop", f"a string may have {MAX_STOP_LENGTH} characters at most.")
    return stops


def _stop_token_ids(value: list[int] | None, vocab_size: int) -> tuple[int, ...]:
    for token_id in value or ():
        if not 0 <= token_id < vocab_size:
            raise fail("stop_token_ids", f"{token_id} is no token id; the vocabulary has {vocab_size}.")
    return tuple(dict.fromkeys(value or ()))


def _allowed_token_ids(value: list[int] | None, vocab_size: int) -> tuple[int, ...] | None:
    """The ids that may be drawn, the end of the answer among them or not; an empty list would allow nothing."""
    if value is None:
        return None
    if not value:
        raise fail("allowed_token_ids", "must allow at least one token.")
    for token_id in value:
        if not 0 <= token_id < vocab_size:
            raise fail("allowed_token_ids", f"{token_id} is no token id; the vocabulary has {vocab_size}.")
    return tuple(dict.fromkeys(value))


def _bad_words(value: list[str] | None) -> tuple[str, ...]:
    words = tuple(value or ())
    if len(words) > MAX_BAD_WORDS:
        raise fail("bad_words", f"at most {MAX_BAD_WORDS} words, not {len(words)}.")
    for word in words:
        if not word.strip(" "):
            raise fail("bad_words", "a word must hold more than spaces.")
        if len(word) > MAX_STOP_LENGTH:
            raise fail("bad_words", f"a word may have {MAX_STOP_LENGTH} characters at most.")
    return words


def _logit_bias(value: dict[str, float] | None, vocab_size: int) -> dict[int, float]:
    biases: dict[int, float] = {}
    for key, bias in (value or {}).items():
        if not (key.isascii() and key.isdigit()) or len(key) > 10 or int(key) >= vocab_size:
            raise fail("logit_bias", f"{key[:40]!r} is no token id; the vocabulary has {vocab_size}.")
        if not -100 <= bias <= 100:
            raise fail("logit_bias", f"a bias must lie between -100 and 100, not {bias}.")
        biases[int(key)] = bias
    return biases


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
RESERVED_TEMPLATE_NAMES = frozenset({"chat_template", "messages", "tools", "add_generation_prompt", "tokenize"})


def check_effort(value: str | None, param: str) -> str | None:
    """Return the effort, "max" being xhigh, or raise InvalidRequestError for a word that is none."""
    if value is not None and value not in EFFORTS:
        raise fail(param, f"must be one of {', '.join(EFFORTS)}, not {value[:40]!r}.")
    return "xhigh" if value == "max" else value


def check_budget(value: int | None, param: str = "thinking_token_budget") -> int | None:
    """Return the thinking budget in tokens, or raise InvalidRequestError for a negative one."""
    if value is not None and not 0 <= value < 2**31:
        raise fail(param, f"must be 0 or more, not {value}.")
    return value


def check_template_kwargs(value: dict[str, Any] | None) -> dict[str, Any]:
    """Return the template's extra names; those that would replace our own are refused."""
    for name in value or {}:
        if name in RESERVED_TEMPLATE_NAMES:
            raise fail(f"chat_template_kwargs.{name}", "is reserved.")
    return value or {}
