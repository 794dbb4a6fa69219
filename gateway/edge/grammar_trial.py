"""Grammars are tried out before a request is admitted: compiled, and followed for some tokens, away from the loop.

The trial has the compiler's limits, and a vocabulary of single bytes, with which it takes a few milliseconds. What it
refuses is a 400 that names the field; what it lets pass may still come to a limit later, which ends that one answer.
However many requests come with a grammar, it is tried once, and how that ended is remembered.
"""

from __future__ import annotations

import hashlib
import random
from collections import OrderedDict
from collections.abc import Sequence

import anyio
import msgspec
from llguidance import LLMatcher, LLTokenizer

from gateway.edge.schema.grammar import check_lark, check_schema, check_tools, passed_over
from gateway.edge.schema.tool_grammar import argument_schemas, left_free
from gateway.edge.served import Served
from wire.errors import InvalidRequestError
from wire.grammar import GrammarError, check, grammar_tokenizer, start_matcher
from wire.messages import Grammar, Request
from wire.model_card import ModelCard
from wire.threads import in_thread
from wire.vocabulary import Vocabulary

_STEPS = 32
_MAX_KEPT = 4_096  # outcomes, of a hundred bytes or two
_SMALL = 8_192  # characters; what is longer waits for its like, so that nobody waits for what takes long


class GrammarTrial:
    """Tries grammars for one model."""

    def __init__(self, card: ModelCard, vocabulary: Vocabulary) -> None:
        self._card = card
        self._vocabulary = vocabulary
        self._tokenizer: LLTokenizer | None = None
        self._of_byte: dict[int, int] = {}  # the tokens of one byte
        self._outcomes: OrderedDict[bytes, str] = OrderedDict()  # what is wrong with a grammar, or nothing
        self._under_way: dict[bytes, anyio.Event] = {}
        self._small = anyio.CapacityLimiter(1)
        self._large = anyio.CapacityLimiter(1)

    async def admit(self, grammar: Grammar | None) -> None:
        """Raise InvalidRequestError naming the field if a grammar cannot work."""
        if grammar is None:
            return
        key = hashlib.blake2b(msgspec.msgpack.encode(grammar), digest_size=16).digest()
        while key not in self._outcomes:
            under_way = self._under_way.get(key)
            if under_way is None:
                await self._settle(key, grammar)
            else:
                await under_way.wait()  # whoever tries it may leave before the end
        self._outcomes.move_to_end(key)
        fault = self._outcomes[key]
        if fault:
            raise InvalidRequestError(fault, param=grammar.field or "tools")

    async def meet(self, grammar: Grammar, allowed_ids: Sequence[int]) -> None:
        """Raise InvalidRequestError if none of the tokens that alone are allowed can begin what a grammar wants."""
        if not await in_thread(self._can_begin, grammar, allowed_ids, limiter=self._small):
            raise InvalidRequestError(
                f"allowed_token_ids: none of them can begin what {grammar.field or 'the tools'} wants; allow what the "
                "answer needs, or leave one of the two out.",
                param="allowed_token_ids",
            )

    def _can_begin(self, grammar: Grammar, allowed_ids: Sequence[int]) -> bool:
        """Spell each token by the bytes that the trial's vocabulary has; one that cannot be spelled may be right."""
        matcher = start_matcher(grammar, self._trial_tokenizer())
        for token_id in allowed_ids:
            data = self._vocabulary.token_bytes(token_id) if token_id < self._vocabulary.size else b""
            known = [self._of_byte.get(byte) for byte in data]
            if None in known:
                return True
            spelled = [byte_id for byte_id in known if byte_id is not None] or [token_id]  # a control token is itself
            if matcher.validate_tokens(spelled) == len(spelled):
                return True
        return False

    async def _settle(self, key: bytes, grammar: Grammar) -> None:
        done = self._under_way[key] = anyio.Event()
        limiter = self._small if len(grammar.source) <= _SMALL else self._large
        try:
            self._outcomes[key] = await in_thread(self._try, grammar, limiter=limiter)
            if len(self._outcomes) > _MAX_KEPT:
                self._outcomes.popitem(last=False)
        finally:
            del self._under_way[key]
            done.set()

    def _try(self, grammar: Grammar) -> str:
        """Return what is wrong with a grammar; nothing if it can work."""
        try:
            if grammar.kind == "json_schema":
                check_schema(msgspec.json.decode(grammar.source), grammar.field, lenient=grammar.lenient)
            elif grammar.kind == "lark" and grammar.field:  # without a field it is ours, of tools that were looked at
                check_lark(grammar.source, grammar.field)
            walk(start_matcher(grammar, self._trial_tokenizer()))
        except InvalidRequestError as error:
            return error.message
        except GrammarError as error:
            return f"{grammar.field or 'tools'}: {error}"
        return ""

    def _trial_tokenizer(self) -> LLTokenizer:
        if self._tokenizer is None:
            ends, size = self._card.eos_token_ids, self._card.vocab_size
            pieces = (
                (self._vocabulary.token_bytes(number), number) for number in range(min(size, self._vocabulary.size))
            )
            self._of_byte = {data[0]: number for data, number in pieces if len(data) == 1}
            self._tokenizer = grammar_tokenizer(self._vocabulary, ends, size, single_bytes=True)
        return self._tokenizer


class GrammarTrials:
    """A trial for each model, made when its first grammar comes."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._trials: dict[str, GrammarTrial] = {}

    async def admit(self, request: Request) -> list[str]:
        """Return what of schemas that are not strict is passed over, and whether strict tools are.

        Raises InvalidRequestError naming the field if the grammar of an answer or of a tool cannot work.
        """
        name, grammar = request.model, request.sampling.grammar
        of_tools = [form.grammar for form in request.tool_forms.values() if form.grammar is not None]
        functions = [tool["function"] for tool in request.tools]
        free = left_free(functions, self._served.card(name)) if grammar is None else []
        if grammar is None and not of_tools:
            return free
        if name not in self._trials:
            model = self._served.model(name)
            self._trials[name] = GrammarTrial(model.card, model.vocabulary)
        for one in of_tools:
            await self._trials[name].admit(one)
        if grammar is None:
            return free
        schemas = [grammar] if grammar.field else argument_schemas(request.tools)
        if not grammar.field:
            await in_thread(check_tools, request.tools)
            for schema in schemas:
                await self._trials[name].admit(schema)
        await self._trials[name].admit(grammar)
        if request.sampling.allowed_token_ids is not None:
            await self._trials[name].meet(grammar, request.sampling.allowed_token_ids)
        if not any(schema.lenient for schema in schemas):
            return []
        return [said for said in await in_thread(lambda: list(map(passed_over, schemas))) if said]


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
