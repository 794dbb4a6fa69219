"""What grammars cost: the vocabulary once, a compilation for each new grammar, a mask for each token.

    python -m loadtest.grammar MODEL_DIR

Follows answers that a model might write, in its own tokens. Times are processor time of one thread; the engine pays it
between two steps, less what overlaps with steps in flight. Then grammars that are made to hurt, as the edge tries them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer
from tokenizers import Tokenizer

from gateway.edge.grammar_trial import walk
from gateway.edge.schema.grammar import check_lark, check_schema
from model_svc.engine.matchers import LlguidanceMatcher
from wire.errors import InvalidRequestError
from wire.grammar import GrammarError, grammar_tokenizer, start_matcher
from wire.messages import Grammar
from wire.model_card import ModelCard
from wire.vocabulary import Vocabulary

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
_TREE = {
    "$defs": {"n": {"type": "object", "properties": {"v": {}, "c": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}}
}
_SAID = {"name": "Ada Lovelace", "age": 36, "tags": ["mathematics", "poetry of science", "the first program"]}
_WIDE = {"type": "object", "properties": {f"field_{n}": {"type": "string"} for n in range(200)}}


def _schema(schema: Any) -> Grammar:
    return Grammar(kind="json_schema", source=json.dumps(schema))


def _either(n: int) -> dict[str, Any]:
    return {"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]}


def _patterns(count: int) -> dict[str, Any]:
    return {"properties": {f"p{n}": {"type": "string", "pattern": f"^a{n}[b-z]*$"} for n in range(count)}}


CASES: dict[str, tuple[Grammar, str]] = {
    "json_object": (Grammar(kind="json_object"), json.dumps(_SAID)),
    "a person, one line": (_schema(_PERSON), json.dumps(_SAID)),
    "a person, indented": (_schema(_PERSON), json.dumps(_SAID, indent=2)),
    "a tree": (
        _schema({**_TREE, "$ref": "#/$defs/n"}),
        json.dumps({"v": 1, "c": [{"v": "two", "c": [{"v": 3.5}]}, {"v": None, "c": []}]}),
    ),
    "200 optional fields": (_schema(_WIDE), json.dumps({f"field_{n}": f"value {n}" for n in range(0, 200, 20)})),
    "an enum of 1,000": (_schema({"enum": [f"value number {n}" for n in range(1000)]}), '"value number 777"'),
    "a pattern": (
        Grammar(kind="regex", source=r"[A-Z][a-z]+ \d{1,4}, [A-Z]{2}(-\d{3}){2,5}"),
        "Baker 221, LN-123-456-789",
    ),
    "a choice of 3": (Grammar(kind="choice", source='["positive","negative","neutral"]'), "negative"),
}
HOSTILE: dict[str, Grammar] = {
    "repeats of repeats": Grammar(kind="regex", source="((a{1,200}){1,200}){1,200}x"),
    "400 optional fields": _schema({"properties": {f"p{n}": {"type": "string"} for n in range(400)}}),
    "1,000 fields with patterns": _schema({"prefixItems": [_patterns(334), _patterns(333), _patterns(333)]}),
    "multiples of 99,999": _schema({"type": "integer", "multipleOf": 99_999}),
    "the same in a Lark grammar": Grammar(kind="lark", source='start: %json {"type":"integer","multipleOf":99999}'),
    "a const of 19,000 numbers": _schema({"const": list(range(19_000))}),
    "2^12 combinations": _schema({"allOf": [_either(n) for n in range(12)]}),
    "tokens of tokens": Grammar(kind="lark", source='start: A\nA: B{1000}\nB: C{1000}\nC: "x"{1000}'),
    "a pattern of 1,000": Grammar(kind="regex", source=".?" * 500 + "x"),
    "1,000 optional rules": Grammar(kind="lark", source="start: " + "a? " * 1000 + '\na: "x"'),
}  # fmt: skip


def mask_times(grammar: Grammar, text: str, tokenizer: LLTokenizer, model: Tokenizer) -> list[float]:
    """Return the microseconds that each token of an answer costs: its mask, and to take it."""
    matcher = LlguidanceMatcher(start_matcher(grammar, tokenizer), tokenizer, tokenizer.vocab_size)
    times: list[float] = []
    for token_id in model.encode(text, add_special_tokens=False).ids:
        begun = time.thread_time()
        mask = matcher.allowed()
        taken = matcher.accept(token_id)
        times.append((time.thread_time() - begun) * 1e6)
        assert mask is not None and taken, f"{text!r} does not fit its grammar"
    return times


def compile_ms(grammar: Grammar, tokenizer: LLTokenizer) -> float:
    """Return the milliseconds of a compilation, the best of three."""
    times = []
    for _ in range(3):
        begun = time.thread_time()
        start_matcher(grammar, tokenizer)
        times.append((time.thread_time() - begun) * 1e3)
    return min(times)


def main(argv: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="loadtest.grammar")
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args(argv)
    card, vocabulary = ModelCard.load(options.model), Vocabulary.load(options.model)
    model = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    for single in (False, True):
        begun = time.thread_time()
        made = grammar_tokenizer(vocabulary, card.eos_token_ids, card.vocab_size, single_bytes=single)
        kind = "single bytes (edge)" if single else "whole (engine)"
        print(f"vocabulary of {card.vocab_size}, {kind}: {(time.thread_time() - begun) * 1e3:.0f} ms")  # noqa: T201
        if single:
            edge = made
        else:
            engine = made
    print("\n| grammar | compile | mask p50 | p99 | max |\n|---|---|---|---|---|")  # noqa: T201
    for name, (grammar, text) in CASES.items():
        times = [us for _ in range(options.rounds) for us in mask_times(grammar, text, engine, model)]
        cuts = statistics.quantiles(times, n=100)
        masks = f"{cuts[49]:.0f} us | {cuts[98]:.0f} us | {max(times):.0f} us"
        print(f"| {name} | {compile_ms(grammar, engine):.1f} ms | {masks} |")  # noqa: T201
    print("\n| made to hurt | admission | outcome |\n|---|---|---|")  # noqa: T201
    for name, grammar in HOSTILE.items():
        begun = time.thread_time()
        try:
            if grammar.kind == "json_schema":
                check_schema(json.loads(grammar.source), "")
            elif grammar.kind == "lark":
                check_lark(grammar.source, "")
            walk(start_matcher(grammar, edge))
            outcome = "passes"
        except (GrammarError, InvalidRequestError) as error:
            outcome = str(error)[:60]
        print(f"| {name} | {(time.thread_time() - begun) * 1e3:.0f} ms | {outcome} |")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
