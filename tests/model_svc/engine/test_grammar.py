"""Grammars in the engine: what is drawn fits, thinking is free, and no way through the engine loses the place."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from model_svc.engine.matchers import LlguidanceMatchers
from tests.model_svc.engine.driver import EOS, Driver
from tests.model_svc.scripted_runner import Reply, hashed_reply, scripted_reply
from wire.errors import InvalidRequestError
from wire.grammar import grammar_tokenizer
from wire.messages import ANSWER, Grammar, ReasoningPlan
from wire.vocabulary import Vocabulary

VOCAB_SIZE = 300
THINK, END_THINK, MERGED = 257, 258, 259
_BYTES = {**{n: bytes([n]) for n in range(256)}, THINK: b"<think>", END_THINK: b"</think>", MERGED: b">\n\n"}
OBJECT = Grammar(
    kind="json_schema",
    source=json.dumps({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 5}, "n": {"enum": [1, 22]}},
        "required": ["name", "n"],
        "additionalProperties": False,
    }),
)  # fmt: skip
YES_NO = Grammar(kind="choice", source='["yes","no"]')


def token_bytes(token_id: int) -> bytes:
    return _BYTES.get(token_id, b"")


@pytest.fixture(scope="module")
def matchers() -> Iterator[LlguidanceMatchers]:
    special = {"<eos>": EOS, "<think>": THINK, "</think>": END_THINK}
    tokens = [b"" if n in special.values() else token_bytes(n) for n in range(VOCAB_SIZE)]
    vocabulary = Vocabulary(tokens, special)
    made = LlguidanceMatchers(lambda: grammar_tokenizer(vocabulary, [EOS], VOCAB_SIZE))
    yield made
    made.close()


@pytest.fixture
def drive(matchers: LlguidanceMatchers) -> Callable[..., Driver]:
    return lambda reply, **sizes: Driver(reply, token_bytes=token_bytes, matchers=matchers, **sizes)


Drive = Callable[..., Driver]


def spell(text: str) -> list[int]:
    return list(text.encode())


def text_of(driver: Driver, request_id: str = "r", choice: int = 0) -> str:
    """The bytes of the answer, without thinking, tags and the end."""
    answer = driver.received[request_id, choice].answer
    shown = b"".join(token_bytes(token_id) for token_id in answer.token_ids if token_id not in (EOS, THINK, END_THINK))
    return shown.decode()


def answer_text(driver: Driver, request_id: str = "r") -> str:
    """What the client sees: the bytes of the answer phase."""
    answer = driver.received[request_id, 0].answer
    pairs = zip(answer.token_ids, answer.phases, strict=True)
    shown = [zip(token_bytes(token), phases, strict=False) for token, phases in pairs]
    return bytes(byte for token in shown for byte, phase in token if phase == ANSWER).decode()


def lengths(depth: int) -> dict[str, int]:
    return {"depth": depth, "max_model_len": 512, "num_blocks": 128}


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_drawn_the_answer_is_valid_json(drive: Drive, depth: int, seed: int) -> None:
    driver = drive(hashed_reply(VOCAB_SIZE), **lengths(depth))
    driver.ask("r", [1, 2, 3], max_tokens=200, grammar=OBJECT, seed=seed)
    driver.run()
    assert driver.reason("r") == "stop"
    value = json.loads(text_of(driver))
    assert set(value) == {"name", "n"} and value["n"] in (1, 22)


def test_the_end_may_be_drawn_only_where_the_grammar_accepts(drive: Drive) -> None:
    driver = drive(scripted_reply(*spell("aa"), EOS))
    driver.ask("r", [1], grammar=Grammar(kind="regex", source="a{3}b*"))
    driver.run()
    assert text_of(driver) == "aaa"  # the end came too early, and the next id after it that fits is "a"
    assert driver.reason("r") == "stop"


def test_an_answer_that_cannot_go_on_ends_without_a_draw_for_its_end(drive: Drive) -> None:
    driver = drive(scripted_reply(*spell("no"), 1), max_num_batched_tokens=8)
    driver.ask("r", [1], grammar=YES_NO)
    driver.run()
    assert driver.ids("r") == spell("no")
    assert driver.reason("r") == "stop"


@pytest.mark.parametrize("sampling", [{"ignore_eos": True}, {"min_tokens": 6}])
def test_a_whole_answer_ends_though_the_end_is_ignored_or_too_early(drive: Drive, sampling: dict[str, Any]) -> None:
    driver = drive(scripted_reply(*spell("yes"), EOS))
    driver.ask("r", [1], max_tokens=20, grammar=YES_NO, **sampling)
    driver.run()
    assert (text_of(driver), driver.reason("r")) == ("yes", "stop")


def test_the_last_allowed_token_may_make_the_answer_whole(drive: Drive) -> None:
    driver = drive(scripted_reply(*spell("yes")))
    driver.ask("r", [1], max_tokens=3, grammar=YES_NO)
    driver.run()
    assert driver.reason("r") == "stop"


def test_an_answer_cut_by_its_length_says_so(drive: Drive) -> None:
    driver = drive(scripted_reply(*spell("yes")))
    driver.ask("r", [1], max_tokens=2, grammar=YES_NO)
    driver.run()
    assert driver.reason("r") == "length"


def test_a_stop_id_of_the_client_still_ends_the_answer(drive: Drive) -> None:
    driver = drive(scripted_reply(*spell("aab")))
    driver.ask("r", [1], grammar=Grammar(kind="regex", source="[ab]*"), stop_token_ids=(ord("b"),))
    driver.run()
    assert driver.reason("r") == "stop"
    assert driver.ids("r") == spell("aab")


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_thinking_is_free_and_the_answer_is_not(drive: Drive, depth: int) -> None:
    script = [*spell("well {..."), END_THINK, *spell("maybe")]
    driver = drive(scripted_reply(*script), **lengths(depth))
    driver.ask("r", [1], max_tokens=40, grammar=YES_NO, reasoning=ReasoningPlan(starts_open=True))
    driver.run()
    assert driver.ids("r")[:10] == [*spell("well {..."), END_THINK]
    assert answer_text(driver) in ("yes", "no")
    assert driver.reason("r") == "stop"


@pytest.mark.parametrize("depth", [0, 1])
def test_a_budget_forces_the_close_and_the_grammar_goes_on_from_there(drive: Drive, depth: int) -> None:
    plan = ReasoningPlan(starts_open=True, budget=6, close_ids=(*spell("\n"), END_THINK, *spell("\n")))
    driver = drive(hashed_reply(250), **lengths(depth))
    driver.ask("r", [1], max_tokens=200, grammar=OBJECT, reasoning=plan)
    driver.run()
    assert driver.ids("r")[6:9] == [10, END_THINK, 10]
    assert set(json.loads(answer_text(driver))) == {"name", "n"}
    assert driver.reason("r") == "stop"


@pytest.mark.parametrize("script", [[THINK], spell("<think>")], ids=["one token", "letter by letter"])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_model_may_open_its_thinking_itself_before_the_answer(drive: Drive, script: list[int], depth: int) -> None:
    driver = drive(scripted_reply(*script, *spell("hm"), END_THINK, *spell("yes")), **lengths(depth))
    driver.ask("r", [1], max_tokens=40, grammar=YES_NO, reasoning=ReasoningPlan())
    driver.run()
    assert answer_text(driver) == "yes"
    assert driver.received["r", 0].answer.token_ids[: len(script)] == script


@pytest.mark.parametrize("depth", [0, 1])
def test_an_end_drawn_while_thinking_leads_to_the_answer(drive: Drive, depth: int) -> None:
    script = [*spell("hm"), EOS, *spell("yes")]
    for plan, thought in (
        (ReasoningPlan(starts_open=True, closes_at_stop=True, landing_ids=(END_THINK,)), [*spell("hm"), END_THINK]),
        (ReasoningPlan(starts_open=True), spell("hm")),  # the model must close its thinking itself
    ):
        driver = drive(scripted_reply(*script, END_THINK, *spell("no")), **lengths(depth))
        driver.ask("r", [1], max_tokens=40, grammar=YES_NO, reasoning=plan)
        driver.run()
        assert driver.ids("r")[: len(thought)] == thought
        assert EOS not in driver.ids("r")
        assert answer_text(driver) in ("yes", "no")
        assert driver.reason("r") == "stop"


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_thinking_that_the_model_has_just_opened_does_not_end_the_answer(drive: Drive, depth: int) -> None:
    """With steps in flight the mask of that draw is made when the tag is known, and the plan did not know of it."""
    driver = drive(scripted_reply(THINK, EOS, *spell("m"), END_THINK, *spell("yes")), **lengths(depth))
    driver.ask("r", [1], max_tokens=40, grammar=YES_NO, reasoning=ReasoningPlan())
    driver.run()
    assert EOS not in driver.ids("r")
    assert answer_text(driver).endswith("yes")
    assert driver.reason("r") == "stop"


def test_thinking_that_is_not_wanted_cannot_be_opened(drive: Drive) -> None:
    driver = drive(scripted_reply(THINK, *spell("yes")))
    driver.ask("r", [1], grammar=YES_NO, reasoning=ReasoningPlan(budget=0))
    driver.run()
    assert THINK not in driver.ids("r")
    assert answer_text(driver) in ("yes", "no")


def test_a_tag_inside_the_answer_is_text(drive: Drive) -> None:
    word = "<think>x</think>"
    driver = drive(scripted_reply(*spell(f'"{word}"')))
    driver.ask("r", [1], max_tokens=40, grammar=Grammar(kind="json_schema", source='{"type":"string"}'),
               reasoning=ReasoningPlan(budget=0))  # fmt: skip
    driver.run()
    assert json.loads(answer_text(driver)) == word


def test_blanks_merged_with_the_close_tag_do_not_break_the_answer(drive: Drive) -> None:
    script = [*spell("hm</think"), MERGED, *spell("yes")]
    driver = drive(scripted_reply(*script))
    driver.ask("r", [1], max_tokens=40, grammar=YES_NO, reasoning=ReasoningPlan(starts_open=True))
    driver.run()
    assert answer_text(driver).strip() == "yes"
    assert driver.reason("r") == "stop"


def test_choices_of_one_request_follow_the_grammar_each_on_its_own(drive: Drive) -> None:
    driver = drive(hashed_reply(VOCAB_SIZE), **lengths(0))
    driver.ask("r", [1, 2, 3, 4, 5], max_tokens=200, grammar=OBJECT, n=4)
    driver.run()
    texts = [text_of(driver, choice=choice) for choice in range(4)]
    assert all(set(json.loads(text)) == {"name", "n"} for text in texts)
    assert len(set(texts)) > 1


@pytest.mark.parametrize("depth", [0, 1])
def test_preempted_and_cached_sequences_keep_their_place(drive: Drive, depth: int) -> None:
    driver = drive(hashed_reply(VOCAB_SIZE), depth=depth, num_blocks=60, max_model_len=240)
    for n in range(6):
        driver.ask(f"r{n}", [1, 2, 3, 4, 5, n // 2], max_tokens=200, grammar=OBJECT, seed=n)
    driver.run()
    assert driver.engine.load().num_preemptions > 0
    for n in range(6):
        assert driver.reason(f"r{n}") == "stop"
        assert set(json.loads(text_of(driver, f"r{n}"))) == {"name", "n"}


PLANS: list[ReasoningPlan | None] = [
    None,
    ReasoningPlan(),
    ReasoningPlan(starts_open=True, budget=5, close_ids=(END_THINK, 10)),
]


def mixed(seed: int) -> Reply:
    """Draws by chance, with now and then a tag."""
    by_chance = hashed_reply(VOCAB_SIZE)
    return lambda context, index, _seed: by_chance(context, index, seed) if index != 2 else END_THINK


@pytest.mark.parametrize("plan", PLANS, ids=["no thinking", "may open", "budget"])
def test_another_attempt_goes_on_where_the_first_was_cut_wherever_that_is(
    drive: Drive, plan: ReasoningPlan | None
) -> None:
    said = [*spell("so"), END_THINK, *spell('{"name": "ab", "n": 22}')]
    opened = [THINK] if plan is not None and not plan.starts_open else []
    reply = mixed(3) if plan is None else scripted_reply(*opened, *said)
    whole = drive(reply, **lengths(0))
    whole.ask("r", [1, 2], max_tokens=120, grammar=OBJECT, reasoning=plan)
    whole.run()
    ids = whole.ids("r")
    assert whole.reason("r") == "stop"
    for cut in range(len(ids) + 1):
        again = drive(reply, **lengths(cut % 2))
        again.ask("r", [1, 2], max_tokens=120, grammar=OBJECT, reasoning=plan, attempt=1, checkpoint={0: ids[:cut]})
        again.run()
        assert (again.ids("r"), again.reason("r")) == (ids, "stop"), f"cut at {cut}"


def test_a_checkpoint_that_the_grammar_forbids_ends_in_an_error(drive: Drive) -> None:
    driver = drive(scripted_reply(*spell("yes")))
    driver.ask("r", [1], grammar=YES_NO, attempt=1, checkpoint={0: spell("ma")})
    driver.run()
    assert driver.reason("r") == "error"


def test_forced_tokens_are_not_drawn_one_by_one(drive: Drive) -> None:
    driver = drive(scripted_reply(ord("a")))
    driver.ask("r", [1], max_tokens=40, grammar=Grammar(kind="regex", source="abcdefghij(x|y)"))
    driver.run()
    assert text_of(driver)[:10] == "abcdefghij"
    drawn = [item for plan in driver.runner.plans for item in plan.sequences if item.sample]
    assert len(drawn) < 6
    assert driver.reason("r") == "stop"


def test_forced_tokens_are_drawn_where_their_log_probabilities_are_wanted(drive: Drive) -> None:
    driver = drive(scripted_reply(ord("a")))
    driver.ask("r", [1], max_tokens=40, grammar=Grammar(kind="regex", source="abcdefghij"), logprobs=0)
    driver.run()
    assert len([item for plan in driver.runner.plans for item in plan.sequences if item.sample]) == 10


FORBID_E = [{"allowed_token_ids": tuple(b"abcdfghij")}, {"bad_words": [tuple(b"e")]}, {"bad_words": [tuple(b"de")]}]


@pytest.mark.parametrize("rule", FORBID_E, ids=["allowed", "word of one", "word of two"])
def test_what_another_rule_forbids_is_not_said_though_the_grammar_forces_it(drive: Drive, rule: dict[str, Any]) -> None:
    driver = drive(scripted_reply(ord("a")))
    driver.ask("r", [1], max_tokens=40, grammar=Grammar(kind="regex", source="abcdefghij"), **rule)
    driver.run()
    assert text_of(driver).startswith("abcd")
    assert ord("e") not in driver.ids("r")
    assert driver.reason("r") == "error"


def test_no_draw_is_wasted_that_could_not_be_masked_yet(drive: Drive) -> None:
    driver = drive(hashed_reply(VOCAB_SIZE), **lengths(1))
    driver.ask("r", [1], max_tokens=100, grammar=OBJECT, logprobs=0)
    driver.run()
    drawn = [item for plan in driver.runner.plans for item in plan.sequences if item.sample]
    assert len(drawn) == len(driver.ids("r"))
    assert sum(item.mask_follows for item in drawn) == len(drawn) - 1  # computed before the mask was known


def test_a_grammar_that_comes_to_a_dead_end_ends_its_own_answer_only(drive: Drive) -> None:
    driver = drive(scripted_reply(ord("a")))
    driver.ask("bad", [1], grammar=Grammar(kind="lark", source='start: "a" x\nx: x "b"'))
    driver.ask("good", [2], max_tokens=4)
    driver.run()
    assert (driver.ids("bad"), driver.reason("bad")) == (spell("a"), "error")
    assert (text_of(driver, "good"), driver.reason("good")) == ("aaaa", "length")


def test_a_grammar_that_cannot_be_compiled_ends_the_answer_in_an_error(drive: Drive) -> None:
    driver = drive(scripted_reply(ord("a")))
    driver.ask("r", [1], grammar=Grammar(kind="json_schema", source='{"type":"nope"}'))
    driver.run()
    assert driver.reason("r") == "error"


def test_others_are_served_while_a_grammar_compiles(drive: Drive, matchers: LlguidanceMatchers) -> None:
    driver = drive(scripted_reply(ord("n"), ord("o")))
    slow = Grammar(kind="json_schema", source=json.dumps({"properties": {f"p{n}": {} for n in range(300)}}))
    matchers.start(slow, VOCAB_SIZE)
    driver.ask("masked", [1], grammar=YES_NO)
    driver.ask("free", [2], max_tokens=2)
    driver.run()
    assert (text_of(driver, "masked"), text_of(driver, "free")) == ("no", "no")


def test_a_request_with_a_grammar_is_refused_where_none_can_be_kept() -> None:
    driver = Driver(scripted_reply(1))
    with pytest.raises(InvalidRequestError) as caught:
        driver.ask("r", [1], grammar=Grammar(kind="json_object", field="response_format"))
    assert caught.value.param == "response_format"


def test_blanks_between_tokens_are_bounded(drive: Drive) -> None:
    def loves_blanks(context: Any, index: int, seed: int) -> int:
        del context, index, seed
        return ord("\n")

    driver = drive(loves_blanks, **lengths(0))
    driver.ask("r", [1], max_tokens=400, grammar=OBJECT)
    driver.run()
    assert driver.reason("r") == "stop"
    assert len(driver.ids("r")) < 250
    json.loads(text_of(driver))
    text = "a  b" + " " * 40
    driver.ask("text", [1], max_tokens=100, grammar=Grammar(kind="choice", source=json.dumps([text])))
    driver.run()
    assert text_of(driver, "text") == text, "blanks inside of texts are no white space"


@pytest.mark.parametrize("seed", range(8))
def test_by_chance_cancelled_cut_closed_and_moved_what_ends_is_valid(drive: Drive, seed: int) -> None:
    """Requests of every kind share a small pool; some are cancelled, told to stop thinking, or begun again."""
    chance = random.Random(seed)
    driver = drive(hashed_reply(VOCAB_SIZE), depth=seed % 3, num_blocks=90, max_model_len=300, max_num_seqs=5)
    plans = [*PLANS, ReasoningPlan(budget=4, close_ids=(END_THINK,)), ReasoningPlan(budget=0)]
    asked: dict[str, dict[str, Any]] = {}
    told: set[str] = set()
    for n in range(14):
        asked[f"r{n}"] = {
            "prompt_ids": [1, 2, 3, 4, 5, chance.randrange(3)] * chance.randint(1, 3),
            "max_tokens": chance.choice([40, 250]),
            "grammar": chance.choice([OBJECT, YES_NO, OBJECT, None]),
            "reasoning": chance.choice(plans),
            "seed": n,
            "min_tokens": chance.choice([0, 0, 9]),
            "logprobs": chance.choice([None, None, 1]),
        }
        driver.ask(f"r{n}", **asked[f"r{n}"])
        for _ in range(chance.randrange(12)):
            if driver.engine.has_work:
                driver.step()
        name = f"r{chance.randrange(n + 1)}"
        match chance.randrange(4):
            case 0:
                driver.engine.cancel(name)
            case 1:
                driver.engine.end_reasoning(name)
                told.add(name)
            case 2 if not driver.reason(name) and name not in told:
                shown = list(driver.received[name, 0].rewind(chance.randrange(5)))
                phases = driver.received[name, 0].answer.phases
                driver.ask(name, **asked[name], attempt=n + 1, checkpoint={0: shown})
                driver.received[name, 0].answer.phases += phases
    driver.run()
    for name, fields in asked.items():
        assert driver.reason(name) in ("stop", "length", "cancelled")
        if driver.reason(name) == "stop" and fields["grammar"] is OBJECT:
            assert set(json.loads(answer_text(driver, name))) == {"name", "n"}
        elif driver.reason(name) == "stop" and fields["grammar"] is YES_NO:
            assert answer_text(driver, name) in ("yes", "no")


@pytest.mark.parametrize(
    ("rules", "stuck"),
    [
        ({"grammar": YES_NO, "allowed_token_ids": (7, *b"es")}, True),
        ({"grammar": YES_NO, "allowed_token_ids": (7, *b"yes")}, False),  # then the numbers were not finite
        ({"allowed_token_ids": (EOS,), "stop_token_ids": (7,), "min_tokens": 0}, False),
        ({}, False),
    ],
)
def test_an_error_tells_whether_the_requests_rules_left_no_token(
    drive: Drive, rules: dict[str, Any], stuck: bool
) -> None:
    driver = drive(scripted_reply(None))
    driver.ask("r", [1, 2], **rules)
    driver.run()
    [last] = [chunk for chunk in driver.chunks if chunk.finish_reason is not None]
    assert (last.finish_reason, last.stuck) == ("error", stuck)
