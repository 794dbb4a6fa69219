"""How the grammar of an answer is compiled: one way for the edge, which refuses what cannot work, and for the engine.

llguidance does the work in Rust, lazily and within limits, so that no grammar can hold up a step: what passes a limit
becomes an error of that one matcher. White space between the tokens of JSON is bounded, or a model that likes it best
would fill its whole answer with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from wire.messages import Grammar
from wire.vocabulary import Vocabulary

WHITESPACE = r"\x20|\n\x20{0,16}"
MAX_MESSAGE = 300
_TOO_COMPLEX = ("lexer ", "Too many items", "Current row has", "fuel exhausted")
_OBJECT = '{"type":"object"}'


class GrammarError(ValueError):
    """A grammar cannot be compiled, or has come to a point where it allows nothing; the message says why."""


class _Tokens:
    """A vocabulary in the shape that LLTokenizer reads."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: list[bytes], special_ids: list[int], eos_id: int) -> None:
        self.tokens = tokens
        self.special_token_ids = special_ids
        self.eos_token_id = eos_id
        self.tokenizer: LLTokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        """Spell bytes that must come by the longest tokens."""
        assert self.tokenizer is not None
        return self.tokenizer.greedy_tokenize(text)


def grammar_tokenizer(
    vocabulary: Vocabulary, eos_ids: Iterable[int], vocab_size: int, *, single_bytes: bool = False
) -> LLTokenizer:
    """Return the vocabulary as llguidance wants it; takes some 0.2 s for 50,000 tokens.

    `single_bytes` leaves only the tokens of one byte: enough to try a grammar out, and ready at once.
    """
    special = {token_id: text.encode() for text, token_id in vocabulary.special.items() if token_id < vocab_size}
    tokens = [b""] * vocab_size
    for token_id in range(min(vocab_size, vocabulary.size)):
        data = vocabulary.token_bytes(token_id)
        tokens[token_id] = special.get(token_id) or (b"" if single_bytes and len(data) > 1 else data)
    ends = [token_id for token_id in eos_ids if token_id < vocab_size]
    if not ends:
        ends = [len(tokens)]
        tokens.append(b"<end>")  # a token that no model can draw
    wrapper = _Tokens(tokens, [*special, *ends], ends[0])
    wrapper.tokenizer = LLTokenizer(wrapper, eos_token=ends)  # type: ignore[arg-type]
    return wrapper.tokenizer


def start_matcher(grammar: Grammar, tokenizer: LLTokenizer) -> LLMatcher:
    """Compile a grammar and return a matcher at its beginning; without the interpreter's lock. Raises GrammarError."""
    try:
        source = _source(grammar)
    except ValueError as error:
        raise GrammarError(str(error)[:MAX_MESSAGE]) from None
    matcher = LLMatcher(tokenizer, source, log_level=0, limits=_limits())
    check(matcher)
    return matcher


def check(matcher: LLMatcher) -> None:
    """Raise GrammarError if a matcher has come to a fault."""
    if matcher.is_error():
        raise GrammarError(message_of(matcher))


def message_of(matcher: LLMatcher) -> str:
    """Return why a matcher failed, in one line and without its inner state."""
    text = matcher.get_error()
    if text.startswith("NoExtension"):
        return "nothing can satisfy it"
    if any(sign in text for sign in _TOO_COMPLEX):
        return "it is too complex"
    first, _, rest = text.partition("\n")
    fault = rest.partition("\nerror: ")[2].partition("\n")[0]  # of a pattern, shown above it with its place marked
    line = f"{first.rstrip(':')}: {fault}" if fault else first
    return line if len(line) <= MAX_MESSAGE else line[:MAX_MESSAGE] + "..."


def _limits() -> LLParserLimits:
    """Patterns take some 50 ms at most, a step's mask 15 ms; an object may have hundreds of optional properties."""
    return LLParserLimits(
        initial_lexer_fuel=50_000, max_items_in_row=2_500, max_grammar_size=200_000, verbose_errors=False
    )


def _source(grammar: Grammar) -> str:
    match grammar.kind:
        case "json_object":
            return _json(_OBJECT, lenient=False)
        case "json_schema":
            return _json(grammar.source, lenient=grammar.lenient)
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.source)
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.source)
        case "choice":
            choices: list[Any] = json.loads(grammar.source)
            return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(choice) for choice in choices))


def _json(schema: str, *, lenient: bool) -> str:
    return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": WHITESPACE, "lenient": lenient})
