"""What to ask: prompts of a wanted length, drawn by seed; no two share a prefix unless that is asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

_WORDS = (
    "river mill wheel stone water channel gate weir turbine grain field bridge valley stream current lever shaft gear "
    "miller flour sack winter spring meadow willow heron trout bank ferry lock sluice pond dam spill course bed source"
).split()


def _text(random_: random.Random, words: int) -> str:
    return " ".join(random_.choice(_WORDS) for _ in range(words))


def chat_bodies(
    model: str,
    *,
    seed: int,
    input_words: tuple[int, int],
    output_tokens: tuple[int, int],
    shared_words: int = 0,
    temperature: float = 0.0,
) -> Iterator[dict[str, Any]]:
    """Yield request bodies for ever: a user text of input_words (low, high) words, output_tokens (low, high) long."""
    random_ = random.Random(seed)
    shared = _text(random_, shared_words) + "\n" if shared_words else ""
    number = 0
    while True:
        number += 1
        text = f"{shared}Request {seed}.{number}: " + _text(random_, random_.randint(*input_words))
        yield {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": random_.randint(*output_tokens),
            "temperature": temperature,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
