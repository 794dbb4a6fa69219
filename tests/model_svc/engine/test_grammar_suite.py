"""The JSON-Schema test suite through the engine: whatever a model draws, what comes out validates.

`json_schema_suite.jsonl` holds the schemas of the suite's draft 2020-12 that llguidance enforces (163 of 368; it
refuses the others, most of them for unevaluated*, contains, dependent* and if/then). Source: json-schema-org, with its
licence beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from model_svc.engine.matchers import LlguidanceMatchers
from tests.model_svc.engine.driver import EOS, Driver, one_byte
from tests.model_svc.scripted_runner import hashed_reply
from wire.grammar import grammar_tokenizer
from wire.messages import Grammar
from wire.vocabulary import Vocabulary

VOCAB_SIZE = 300
SUITE = Path(__file__).parent / "json_schema_suite.jsonl"
CASES: list[dict[str, Any]] = [json.loads(line) for line in SUITE.read_text(encoding="utf-8").splitlines()]
_CLOSERS = (EOS, *b'"]}@.:/a0')
_by_chance = hashed_reply(VOCAB_SIZE)


def ends_in_time(context: Sequence[int], index: int, seed: int) -> int:
    """Draw by chance, and after a while only what may bring the answer to its end."""
    drawn = _by_chance(context, index, seed)
    assert drawn is not None
    return drawn if index < 40 else _CLOSERS[drawn % len(_CLOSERS)]


@pytest.fixture(scope="module")
def matchers() -> Iterator[LlguidanceMatchers]:
    vocabulary = Vocabulary([one_byte(n) for n in range(VOCAB_SIZE)], {"<eos>": EOS})
    made = LlguidanceMatchers(lambda: grammar_tokenizer(vocabulary, [EOS], VOCAB_SIZE))
    yield made
    made.close()


@pytest.mark.parametrize("seed", [0, 1])
def test_every_answer_validates(matchers: LlguidanceMatchers, seed: int) -> None:
    driver = Driver(ends_in_time, matchers=matchers, depth=seed, num_blocks=512, max_model_len=512)
    for case in CASES:
        grammar = Grammar(kind="json_schema", source=json.dumps(case["schema"]))
        driver.ask(case["case"], [1], max_tokens=400, grammar=grammar, seed=seed)
    driver.run(limit=20_000)
    for case in CASES:
        text = bytes(token for token in driver.ids(case["case"]) if token < 256).decode()
        assert driver.reason(case["case"]) == "stop", (case, text)
        Draft202012Validator(case["schema"]).validate(json.loads(text))
