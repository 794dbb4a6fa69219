"""Grammars are tried out before a request is admitted: compiled, and followed for some tokens, away from the loop.

The trial has the compiler's limits, and a vocabulary of single bytes, with which it takes a few milliseconds. What it
refuses is a 400 that names the field; what it lets pass may still come to a limit later, which ends that one answer.
"""

from __future__ import annotations

import random
from collections import OrderedDict

import anyio
import anyio.to_thread
import msgspec
from llguidance import LLMatcher, LLTokenizer

from gateway.edge.schema.grammar import check_schema
from gateway.edge.schema.tool_grammar import argument_schemas
from gateway.edge.served import Served
from wire.errors import InvalidRequestError
from wire.grammar import GrammarError, check, grammar_tokenizer, start_matcher
from wire.messages import Grammar, Request
from wire.model_card import ModelCard
from wire.vocabulary import Vocabulary

_STEPS = 32
_MAX_KEPT = 256
_THREADS = 2  # requests with new grammars wait for one another, nobody else waits for them


class GrammarTrial:
    """Tries grammars for one model."""

    def __init__(self, card: ModelCard, vocabulary: Vocabulary) -> None:
        self._card = card
        self._vocabulary = vocabulary
        self._tokenizer: LLTokenizer | None = None
        self._passed: OrderedDict[Grammar, None] = OrderedDict()
        self._threads = anyio.CapacityLimiter(_THREADS)

    async def admit(self, grammar: Grammar | None) -> None:
        """Raise InvalidRequestError naming the field if a grammar cannot work."""
        if grammar is None or grammar in self._passed:
            return
        try:
            await anyio.to_thread.run_sync(self._try, grammar, limiter=self._threads)
        except GrammarError as error:
            field = grammar.field or "tools"
            raise InvalidRequestError(f"{field}: {error}", param=field) from None
        self._passed[grammar] = None
        if len(self._passed) > _MAX_KEPT:
            self._passed.popitem(last=False)

    def _try(self, grammar: Grammar) -> None:
        if grammar.kind == "json_schema":
            check_schema(msgspec.json.decode(grammar.source), grammar.field)
        if self._tokenizer is None:
            self._tokenizer = grammar_tokenizer(
                self._vocabulary, self._card.eos_token_ids, self._card.vocab_size, single_bytes=True
            )
        walk(start_matcher(grammar, self._tokenizer))


class GrammarTrials:
    """A trial for each model, made when its first grammar comes."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._trials: dict[str, GrammarTrial] = {}

    async def admit(self, request: Request) -> None:
        """Raise InvalidRequestError naming the field if the grammar of an answer or of a tool cannot work."""
        name, grammar = request.model, request.sampling.grammar
        if name not in self._trials:
            model = self._served.model(name)
            self._trials[name] = GrammarTrial(model.card, model.vocabulary)
        if grammar is not None and not grammar.field:
            for schema in argument_schemas(request.tools):
                await self._trials[name].admit(schema)
        await self._trials[name].admit(grammar)


def walk(matcher: LLMatcher, num_steps: int = _STEPS) -> None:
    """Follow a grammar along a way chosen by chance, the same each time. Raises GrammarError at a dead end."""
    chance = random.Random(0)
    for _ in range(num_steps):
        if matcher.is_stopped():
            break
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        check(matcher)
        if not bits:
            raise GrammarError("nothing can satisfy it")
        matcher.consume_token(_pick(bits, chance))
        check(matcher)
    check(matcher)


def _pick(bits: int, chance: random.Random) -> int:
    """Return the position of one of the set bits."""
    below = bits & ((1 << chance.randrange(1, bits.bit_length() + 1)) - 1)
    return (below or bits & -bits).bit_length() - 1
