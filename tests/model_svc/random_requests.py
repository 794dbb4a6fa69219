"""Requests that ask for anything beside anything else, over a vocabulary of 67 that splits tags and characters."""

from __future__ import annotations

from random import Random
from typing import Any

from model_svc.engine.matchers import LlguidanceMatchers
from model_svc.engine.request import EngineRequest
from wire.grammar import grammar_tokenizer
from wire.messages import Grammar, Prompt, ReasoningPlan, SamplingParams, pack_ids
from wire.vocabulary import Vocabulary

VOCAB, EOS, OTHER_END = 67, 66, 65
PIECES = [bytes([code]) for code in b'abcdefghijklmnopqrstuvwxyz0123456789<>/,.:{}"[] \n!?']
PIECES += [b"<t>", b"</t>", b"</t", b"x</t>y", b">a", b"t>", b".</t>", b"ab", b"abc", b'{"', b'":']
PIECES += [b"\xf0\x9f", b"\x98\x80", b"cd"]
_ID = {piece: token_id for token_id, piece in enumerate(PIECES)}
_CLOSES = [(b"</t>",), (b".", b"</t>"), (b"</t", b">", b"\n")]
_LANDINGS = [(b"</t>",), (b"</t", b">"), (b"<", b"/", b"t>")]
_OBJECT = (
    '{"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", '
    '"abc"]}}, "required": ["a", "b"], "additionalProperties": false}'
)
GRAMMARS = [
    Grammar(kind="regex", source="([a-f]{2}hello[a-c]?){1,2}"),
    Grammar(kind="regex", source="[a-z]*"),
    Grammar(kind="regex", source="(abc|cd)+[.!]"),
    Grammar(kind="regex", source="a{30}"),
    Grammar(kind="choice", source='["yes", "no", "abcd"]'),
    Grammar(kind="json_schema", source=_OBJECT),
    Grammar(kind="json_object"),
]


def spelled(token_id: int) -> bytes:
    """Return the bytes of a token."""
    return PIECES[token_id] if token_id < len(PIECES) else b""


def matchers() -> LlguidanceMatchers:
    """Return what compiles grammars over this vocabulary."""
    vocabulary = Vocabulary([spelled(token_id) for token_id in range(VOCAB)], {"<eos>": EOS})
    return LlguidanceMatchers(lambda: grammar_tokenizer(vocabulary, [EOS], VOCAB))


def random_request(rng: Random, name: str) -> EngineRequest:
    """Return a request; many begin alike."""
    shared = Random(rng.choice([1, 2, 3]))
    prompt = [shared.randrange(65) for _ in range(48)][: rng.choice([0, 0, 4, 8, 16, 24, 40])]
    prompt += [rng.randrange(65) for _ in range(rng.choice([1, 1, 2, 3, 4, 5, 9, 20]))]
    bias = {EOS: rng.choice([1.0, 2.0, 3.0])} if rng.random() < 0.5 else {}
    plan = _plan(rng, bias) if rng.random() < 0.6 else None
    words = [tuple(rng.randrange(65) for _ in range(rng.choice([1, 2, 3]))) for _ in range(3)]
    return EngineRequest(
        request_id=name,
        priority=rng.choice([0, 0, 0, -1, 2]),
        tenant=rng.choice(["", "a", "b"]),
        prompt=Prompt(
            token_ids=pack_ids(prompt),
            num_tokens=len(prompt),
            block_root=rng.choice([b"", b"one", b"one", b"one"]),
            max_tokens=rng.choice([1, 2, 3, 8, 16, 30, 60]),
            reasoning=plan,
            bad_word_ids=tuple(words) if rng.random() < 0.2 else (),
            prediction_ids=pack_ids([rng.randrange(65) for _ in range(10)]) if rng.random() < 0.2 else b"",
            stop_token_ids=rng.choice([(), (), (OTHER_END,)]),
        ),
        sampling=SamplingParams(**_sampling(rng), logit_bias=bias),
    )


def _plan(rng: Random, bias: dict[int, float]) -> ReasoningPlan:
    for piece in (b"<t>", b"</t>", b"</t", b"x</t>y", b".", b".</t>"):
        if rng.random() < 0.6:
            bias[_ID[piece]] = rng.choice([1.0, 2.0, 3.0])
    budget = rng.choice([None, 0, 1, 2, 5, 9, 14])
    return ReasoningPlan(
        budget=budget,
        starts_open=rng.random() < 0.6,
        open_tag=b"<t>",
        close_tag=b"</t>",
        close_ids=tuple(_ID[piece] for piece in rng.choice(_CLOSES)),
        landing=rng.choice([0, 0, 3, 8]) if budget else 0,
        landing_ids=tuple(_ID[piece] for piece in rng.choice(_LANDINGS)),
        closes_at_stop=rng.random() < 0.3,
    )


def _sampling(rng: Random) -> dict[str, Any]:
    often: dict[str, tuple[float, list[Any]]] = {
        "temperature": (1.0, [0.0, 0.0, 0.5, 1.0, 1.5]),
        "seed": (0.5, [4, 5, 6]),
        "n": (0.3, [2, 3]),
        "top_k": (0.2, [1, 3, 8]),
        "top_p": (0.2, [0.3, 0.9]),
        "min_p": (0.1, [0.1]),
        "presence_penalty": (0.2, [-0.5, 1.0]),
        "frequency_penalty": (0.2, [-0.5, 0.7]),
        "repetition_penalty": (0.2, [0.9, 1.3]),
        "min_tokens": (0.2, [1, 3, 8]),
        "stop_token_ids": (0.2, [(7,), (1, 5, 20, 33, 60)]),
        "ignore_eos": (0.15, [True]),
        "logprobs": (0.25, [0, 2]),
        "prompt_logprobs": (0.12, [0, 2]),
        "allowed_token_ids": (0.15, [tuple(range(0, 67, 3)), (0, 1, 2, 41, 42, EOS)]),
        "grammar": (0.3, GRAMMARS),
        "num_draft_tokens": (0.15, [0, 1, 3]),
        "deterministic": (0.1, [True]),
    }
    return {name: rng.choice(values) for name, (chance, values) in often.items() if rng.random() < chance}
