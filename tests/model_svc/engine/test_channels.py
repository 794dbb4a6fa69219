"""Thinking in messages with channels: found by control tokens, closed by a frame, never in a grammar's way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from model_svc.engine.drafter import Drafter
from model_svc.engine.matchers import LlguidanceMatchers
from tests.harmony import SPECIAL, marked, tokens
from tests.model_svc.engine.driver import EOS, Driver
from tests.model_svc.engine.guessers import Oracle
from tests.model_svc.scripted_runner import hashed_reply, scripted_reply
from wire.grammar import grammar_tokenizer
from wire.messages import ANSWER, MARKUP, REASONING, Grammar, ReasoningPlan
from wire.vocabulary import Vocabulary

SIZE = 300
IDS = {text: 257 + at for at, text in enumerate(SPECIAL) if text != "<|return|>"} | {"<|return|>": EOS}
BYTES = {**{n: bytes([n]) for n in range(256)}, **{number: text.encode() for text, number in IDS.items()}}
THINK, FINAL = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
YES_NO = Grammar(kind="choice", source='["yes","no"]', field="response_format")


def ids(text: str) -> tuple[int, ...]:
    return tuple(IDS[raw.decode()] if raw.decode("latin-1") in IDS else raw[0] for raw in tokens(text))


def text_of(token_ids: Sequence[int]) -> str:
    return b"".join(map(token_bytes, token_ids)).decode("latin-1")


def token_bytes(token_id: int) -> bytes:
    return BYTES.get(token_id, b"")


@pytest.fixture(scope="module")
def matchers() -> Iterator[LlguidanceMatchers]:
    vocabulary = Vocabulary([b"" if n in IDS.values() else token_bytes(n) for n in range(SIZE)], IDS)
    made = LlguidanceMatchers(lambda: grammar_tokenizer(vocabulary, [EOS], SIZE))
    yield made
    made.close()


def plan(budget: int | None = None, *, leads: bool = False, bridge: str = "", **fields: Any) -> ReasoningPlan:
    return ReasoningPlan(
        budget=budget,
        starts_open=leads,
        open_tag=b"",
        close_tag=b"",
        close_ids=ids(bridge + FINAL),
        landing_ids=ids(FINAL) if leads else (),
        channels=True,
        leads=leads,
        **fields,
    )


def answer(*, depth: int = 0, pieces: str, reasoning: ReasoningPlan, guesses: bool = False, **options: Any) -> Driver:
    reply = scripted_reply(*ids(pieces), EOS)
    known = [(1, 2, 3, *ids(pieces))]
    drafter = Drafter(Oracle(lambda: known, SIZE), max_length=6, max_drafts=64, adaptive=False) if guesses else None
    matchers = options.pop("matchers", None)
    driver = Driver(
        reply,
        depth=depth,
        token_bytes=token_bytes,
        matchers=matchers,
        drafter=drafter,
        num_blocks=128,
        max_model_len=512,
    )
    driver.ask("r", [1, 2, 3], reasoning=reasoning, **{"max_tokens": 200, **options})
    driver.run()
    return driver


def said(driver: Driver, phase: int) -> str:
    found = driver.received["r", 0].answer
    shown = [token for token, phases in zip(found.token_ids, found.phases, strict=True) if phases[:1] == [phase]]
    return text_of(shown)


@pytest.mark.parametrize(
    ("text", "thoughts"),
    [
        (f"{THINK}ab{FINAL}cd", "ab"),
        ("<|channel|>final<|message|>cd", ""),
        (f"{THINK}ab<|end|><|start|>assistant{THINK}cd{FINAL}e", "abcd"),
        (f"{THINK}ab<|channel|>final<|message|>cd", "ab"),
        (f"{THINK}ab<|start|>assistant<|channel|>final<|message|>cd", "ab"),
        (f"{THINK}a<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{{}}", "a"),
        (f"{THINK}a<|end|><|start|>assistant<|channel|>commentary<|message|>so{FINAL}b", "a"),
        ("<|channel|>analysis to=python code<|message|>1+1", "1+1"),
        ("<|channel|>secret<|message|>b<|end|>c", "b"),
        ("<|start|>user<|message|>b<|end|>c", "b"),
        (f"{THINK}ab", "ab"),
        ("<|channel|>analysis", ""),
        ("nothing at all", ""),
    ],
)
def test_what_stands_in_other_channels_than_the_users_is_thinking(text: str, thoughts: str) -> None:
    for words in ((), ("analysis", "final", "assistant", "commentary"), ("ab", "cd")):
        found = marked(tokens(text, *words))
        phases = b"".join(raw for raw, runs in found if runs == ((0, REASONING),))
        assert phases.decode() == thoughts
        assert all(runs in (((0, REASONING),), ((0, ANSWER),)) for _, runs in found), "tokens are of one phase, whole"


def test_text_that_only_spells_a_control_token_is_text() -> None:
    raw = [*tokens(THINK), *(bytes([byte]) for byte in b"<|end|>x"), *tokens(FINAL)]
    assert b"".join(token for token, runs in marked(raw) if runs == ((0, REASONING),)) == b"<|end|>x"


@pytest.mark.parametrize("guesses", [False, True])
@pytest.mark.parametrize("depth", [0, 1])
class TestBudget:
    """Over the whole engine, at both depths, with guesses and without."""

    def think(self, depth: int, guesses: bool, pieces: str, reasoning: ReasoningPlan, **options: Any) -> Driver:
        return answer(depth=depth, guesses=guesses, pieces=pieces, reasoning=reasoning, **options)

    def test_what_is_left_alone_goes_its_own_way(self, depth: int, guesses: bool) -> None:
        text = f"{THINK}ab{FINAL}yes"
        driver = self.think(depth, guesses, text, plan(20))
        found = driver.received["r", 0].answer
        assert text_of(driver.ids("r")) == f"{text}<|return|>"
        assert (found.num_reasoning_tokens, found.ended_by, found.finish_reason) == (2, "model", "stop")

    def test_its_end_closes_the_message_and_opens_the_answer(self, depth: int, guesses: bool) -> None:
        driver = self.think(depth, guesses, f"{THINK}abc{'.' * len(ids(FINAL))}yes", plan(3))
        found = driver.received["r", 0].answer
        assert text_of(driver.ids("r")) == f"{THINK}abc{FINAL}yes<|return|>"
        assert (found.num_reasoning_tokens, found.ended_by) == (3, "budget")
        assert said(driver, REASONING) == "abc" and said(driver, MARKUP) == ""

    def test_none_closes_what_the_model_opens_at_once_again_and_again(self, depth: int, guesses: bool) -> None:
        dots = "." * len(ids(FINAL))
        driver = self.think(depth, guesses, f"{THINK}{dots}a<|end|>{THINK}{dots}b", plan(0))
        assert text_of(driver.ids("r")) == f"{THINK}{FINAL}a<|end|>{THINK}{FINAL}b<|return|>"
        assert driver.received["r", 0].answer.num_reasoning_tokens == 0

    def test_a_bridge_is_neither_thinking_nor_answer(self, depth: int, guesses: bool) -> None:
        reasoning = plan(2, bridge="\nEnough.")
        driver = self.think(depth, guesses, f"{THINK}ab{'.' * len(reasoning.close_ids)}c", reasoning)
        assert text_of(driver.ids("r")) == f"{THINK}ab\nEnough.{FINAL}c<|return|>"
        assert said(driver, MARKUP) == "\nEnough." and driver.received["r", 0].answer.num_reasoning_tokens == 2

    @pytest.mark.parametrize("max_tokens", range(11, 50, 3))
    def test_a_forced_close_may_be_cut_anywhere(self, depth: int, guesses: bool, max_tokens: int) -> None:
        driver = self.think(depth, guesses, f"{THINK}{'.' * 60}", plan(3, bridge="\nOh"), max_tokens=max_tokens)
        assert text_of(driver.ids("r")) == f"{THINK}...\nOh{FINAL}{'.' * 60}"[: len(text_of(driver.ids("r")))]
        assert len(driver.ids("r")) == max_tokens and driver.reason("r") == "length"

    def test_behind_its_end_a_model_may_call_but_not_think_again(self, depth: int, guesses: bool) -> None:
        close = ids("<|end|><|start|>assistant<|channel|>")
        reasoning = msgspec.structs.replace(plan(2), close_ids=close, barred_ids=(ord("a"),))
        for said, came in (("analysis", "bnalysis"), ("commentary", "commentary"), ("final", "final")):
            text = f"{THINK}ab{'.' * len(close)}{said}<|message|>so<|end|>a{THINK}"
            driver = self.think(depth, guesses, text, reasoning, max_tokens=len(ids(text)))
            # What is no name of a channel that is known is thinking, too, and its budget is spent.
            rest = "so<|end|>a" if came == said else "<|end|><|start|>assistant<|channel|>"
            assert text_of(driver.ids("r")).startswith(
                f"{THINK}ab<|end|><|start|>assistant<|channel|>{came}<|message|>{rest}"
            )

    def test_what_closes_thinking_leads_to_what_a_grammar_governs(
        self, depth: int, guesses: bool, matchers: LlguidanceMatchers
    ) -> None:
        for budget, thoughts in ((None, "a<|start|>b"), (3, "abc"), (0, "")):
            dots = "." * (len(ids(FINAL)) - (budget is None))
            text = f"{thoughts}{'<|end|>' if budget is None else ''}{dots}maybe"
            reasoning = plan(budget, leads=True)
            driver = self.think(depth, guesses, text, reasoning, grammar=YES_NO, matchers=matchers)
            whole = text_of(driver.ids("r"))
            assert whole.startswith(thoughts + FINAL) and whole.removeprefix(thoughts + FINAL) in ("yes", "no")
            assert driver.received["r", 0].answer.ended_by == ("model" if budget is None else "budget")

    def test_a_replica_that_takes_over_goes_on_in_the_same_place(
        self, depth: int, guesses: bool, matchers: LlguidanceMatchers
    ) -> None:
        rest = "." * (len(ids(FINAL)) - 1)
        for text, reasoning, options in (
            (f"abc<|end|>{rest}no", plan(9, leads=True), {"grammar": YES_NO, "matchers": matchers}),
            (f"{THINK}abc{rest}.yes", plan(3), {}),
        ):
            whole = self.think(depth, guesses, text, reasoning, **options)
            for cut in range(0, len(whole.ids("r")), 3):
                kept = {0: whole.ids("r")[:cut]}
                moved = self.think(depth, guesses, text, reasoning, attempt=1, checkpoint=kept, **options)
                assert moved.ids("r") == whole.ids("r"), cut


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_model_draws_its_answer_stands_behind_the_frame(seed: int, matchers: LlguidanceMatchers) -> None:
    driver = Driver(
        hashed_reply(SIZE), depth=1, token_bytes=token_bytes, matchers=matchers, num_blocks=128, max_model_len=512
    )
    driver.ask("r", [1, 2, 3], reasoning=plan(20, leads=True), max_tokens=200, seed=seed, grammar=YES_NO)
    driver.run()
    before, frame, behind = text_of(driver.ids("r")).partition(FINAL)
    assert frame and behind in ("yes", "no") and "<|end|>" not in before
    assert driver.received["r", 0].answer.num_reasoning_tokens <= 20


def test_thoughts_land_softly_with_the_frame_behind_them() -> None:
    soft = plan(12, leads=False, landing=8)
    reasoning = ReasoningPlan(
        **{name: getattr(soft, name) for name in soft.__struct_fields__} | {"landing_ids": ids(FINAL)}
    )
    driver = Driver(
        scripted_reply(*ids(f"{THINK}One. Two. Three. Four. {'.' * 40}yes"), EOS),
        depth=1, token_bytes=token_bytes, num_blocks=128, max_model_len=512,
    )  # fmt: skip
    driver.ask("r", [1, 2, 3], reasoning=reasoning, max_tokens=60)
    driver.run()
    found = driver.received["r", 0].answer
    assert text_of(found.token_ids).startswith(f"{THINK}One. Two.{FINAL}")
    assert (found.num_reasoning_tokens, found.ended_by) == (9, "budget")


def test_the_client_can_end_thinking(matchers: LlguidanceMatchers) -> None:
    del matchers
    driver = Driver(
        scripted_reply(*ids(f"{THINK}{'.' * 60}")), token_bytes=token_bytes, num_blocks=128, max_model_len=512
    )
    driver.ask("r", [1], reasoning=plan(), max_tokens=60)
    while text_of(driver.ids("r")) != f"{THINK}...":
        driver.step()
    driver.engine.end_reasoning("r")
    driver.run()
    assert text_of(driver.ids("r")).startswith(f"{THINK}...{FINAL}.")
    assert driver.received["r", 0].answer.ended_by == "client"
