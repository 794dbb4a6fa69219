"""A conversation that outgrew the context loses whole turns, oldest first, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenizer_svc.model_directories import builder, write_chatml
from tokenizer_svc.chat_encoder import Encoded
from tokenizer_svc.prompt import PromptBuilder
from tokenizer_svc.truncation import num_out_of_reach, num_to_drop, num_turns, without_oldest
from wire.errors import ContextLengthExceededError
from wire.messages import ChatMessage, ConversationRef, Prompt, Request, SamplingParams, ToolCall, unpack_ids

SYSTEM = ChatMessage(role="system", content="be kind")


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def said(text: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=text)


CALL = ChatMessage(role="assistant", tool_calls=(ToolCall(id="c", name="f", arguments="{}"),))
RESULT = ChatMessage(role="tool", content="r", tool_call_id="c")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> PromptBuilder:
    path: Path = tmp_path_factory.mktemp("small")
    return builder(write_chatml(path, max_model_len=512))


def build(
    model: PromptBuilder,
    *messages: ChatMessage,
    truncation: str = "auto",
    max_tokens: int | None = 32,
    room: int | None = None,
) -> Prompt:
    conversation = ConversationRef(conversation_id="c", truncation=truncation)  # type: ignore[arg-type]
    sampling = SamplingParams(max_tokens=max_tokens)
    return model.build(Request(model="m", messages=messages, conversation=conversation, sampling=sampling), room=room)


def text_of(model: PromptBuilder, prompt: Prompt) -> str:
    return model._vocabulary.decode_bytes(unpack_ids(prompt.token_ids)).decode()


def forty_turns() -> list[ChatMessage]:
    turns = ((user(f"question number {n}?"), said(f"answer number {n}.")) for n in range(40))
    return [message for turn in turns for message in turn]


def test_turns_are_a_user_message_and_all_that_follows() -> None:
    messages = [SYSTEM, said("hello"), user("a"), CALL, RESULT, said("b"), user("c")]
    assert num_turns(messages) == 3
    assert without_oldest(messages, 1) == [SYSTEM, user("a"), CALL, RESULT, said("b"), user("c")]
    assert without_oldest(messages, 2) == [SYSTEM, user("c")]


def test_whole_turns_go_oldest_first_and_system_and_the_last_user_message_stay(small: PromptBuilder) -> None:
    messages = [SYSTEM, *forty_turns(), user("the last one")]
    prompt = build(small, *messages)
    text = text_of(small, prompt)
    assert "be kind" in text
    assert "the last one" in text
    assert prompt.messages_dropped > 0
    assert prompt.messages_dropped % 2 == 0
    first_kept = prompt.messages_dropped // 2
    assert f"question number {first_kept}?" in text
    assert f"answer number {first_kept - 1}." not in text
    assert prompt.num_tokens + 32 <= 512


def test_a_conversation_that_fits_is_left_alone(small: PromptBuilder) -> None:
    assert build(small, SYSTEM, *forty_turns()[:4], user("x")).messages_dropped == 0


def test_the_cut_stays_where_it_is_for_several_turns(small: PromptBuilder) -> None:
    messages = [SYSTEM, *forty_turns()]
    dropped = []
    for n in range(12):
        messages += [user(f"more {n}"), said("yes")]
        dropped.append(build(small, *messages, user("x")).messages_dropped)
    assert dropped == sorted(dropped)
    assert len(set(dropped)) <= 3


def test_a_call_and_its_result_are_never_parted(small: PromptBuilder) -> None:
    exchange = [user("look it up " * 5), CALL, RESULT, said("found " * 5)]
    prompt = build(small, SYSTEM, *(exchange * 15), user("so?"))
    assert prompt.messages_dropped % 4 == 0
    assert prompt.messages_dropped > 0


@pytest.mark.parametrize(
    "messages",
    [
        [SYSTEM, user("x"), CALL, ChatMessage(role="tool", content="data " * 900, tool_call_id="c")],
        [ChatMessage(role="system", content="rule " * 600), user("x")],
        [user("a"), said("b"), user("word " * 900)],
    ],
)
def test_what_cannot_fit_is_refused_with_both_numbers(small: PromptBuilder, messages: list[ChatMessage]) -> None:
    with pytest.raises(ContextLengthExceededError, match=r"512 tokens .* the prompt has (at least )?\d+ tokens"):
        build(small, *messages)


def test_without_truncation_a_long_conversation_is_refused(small: PromptBuilder) -> None:
    messages = [SYSTEM, *forty_turns(), user("the last one")]
    with pytest.raises(ContextLengthExceededError):
        build(small, *messages, truncation="disabled")
    with pytest.raises(ContextLengthExceededError):
        small.build(Request(model="m", messages=tuple(messages)))


def test_a_last_turn_that_leaves_little_room_is_still_answered(small: PromptBuilder) -> None:
    prompt = build(small, *forty_turns(), user("a b " * 150), max_tokens=None)
    assert prompt.messages_dropped == 80
    assert 0 < prompt.max_tokens == 512 - prompt.num_tokens < 128


def test_a_conversation_is_cut_to_what_replicas_have_room_for(small: PromptBuilder) -> None:
    prompt = build(small, SYSTEM, *forty_turns(), user("x"), room=200)
    assert 0 < prompt.num_tokens <= 200 - 32
    assert (
        build(small, SYSTEM, user("x"), max_tokens=None, room=200).max_tokens
        == 200 - build(small, SYSTEM, user("x")).num_tokens
    )
    assert build(small, SYSTEM, user("x"), room=9_999).max_tokens == 32, "the model's context counts where it is less"


def test_a_conversation_of_any_length_is_cut_and_not_refused(
    small: PromptBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    encode = small._chats.encode

    def watched(request: Request, messages: Sequence[ChatMessage], *rest: Any, **options: Any) -> Encoded:
        encoded.append(sum(len(message.content) for message in messages))
        return encode(request, messages, *rest, **options)

    monkeypatch.setattr(small._chats, "encode", watched)
    long = [message for _ in range(300) for message in (user("question " * 90), said("answer " * 90))]
    dropped = []
    for _ in range(8):
        prompt = build(small, SYSTEM, *long, user("the last one"))
        assert prompt.num_tokens + 32 <= 512
        assert "the last one" in text_of(small, prompt) and "be kind" in text_of(small, prompt)
        dropped.append(prompt.messages_dropped)
        long += [user("question "), said("answer ")]
    assert len(set(dropped)) <= 2, "the cut stays where it is"
    assert max(encoded) <= 16 * 512, "what cannot stay is not even counted"
    with pytest.raises(ContextLengthExceededError, match="at least"):
        build(small, *long, user("word " * 100_000))


def test_thousands_of_turns_of_a_letter_are_cut_and_not_refused_for_their_markup(small: PromptBuilder) -> None:
    prompt = build(small, *[user("a"), said("b")] * 3000, user("the last one"))
    assert prompt.num_tokens + 32 <= 512


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(4, 400))
def test_turns_out_of_reach_are_as_few_as_the_next_quarter_wants(sizes: list[int], characters: int) -> None:
    messages = [SYSTEM, *(user("x" * size) for size in sizes)]
    dropped = num_out_of_reach(messages, characters=characters)
    excess = sum(sizes) + len(SYSTEM.content) - characters
    wanted = -(-excess // max(1, characters // 4)) * max(1, characters // 4) if excess > 0 else 0
    assert dropped < len(sizes)
    assert dropped == len(sizes) - 1 or sum(sizes[:dropped]) >= wanted
    assert dropped == 0 or sum(sizes[: dropped - 1]) < wanted


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(20, 400), st.integers(1, 100))
def test_no_more_goes_than_the_next_quarter(sizes: list[int], context: int, room: int) -> None:
    turns = len(sizes)
    asked: list[int] = []

    def count(dropped: int) -> int:
        asked.append(dropped)
        return sum(sizes[dropped:])

    dropped = num_to_drop(turns, count, context=context, room=room)
    excess = sum(sizes) + room - context
    assert len(set(asked)) <= 14
    if excess <= 0:
        assert dropped == 0
    elif sum(sizes[:-1]) < excess:
        assert dropped == turns - 1
    else:
        assert sum(sizes[:dropped]) >= excess
        step = max(1, context // 4)
        assert dropped == 0 or sum(sizes[: dropped - 1]) < -(-excess // step) * step
