"""What crosses a process stays readable: golden bytes of each message, and room for fields that do not exist yet."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire import codec
from wire.messages import (
    RECORD_FIELDS,
    AdaptersChanged,
    AnyMessage,
    BlocksEvicted,
    BlocksStored,
    Cancel,
    ChatMessage,
    Checkpoint,
    Closed,
    ConversationRef,
    Embeddings,
    EndReasoning,
    Failure,
    Grammar,
    HistoryCall,
    HistoryReply,
    Holder,
    Image,
    ImageRef,
    Images,
    ImageSpan,
    Job,
    Match,
    Matches,
    Message,
    Pairs,
    PhaseMark,
    Placement,
    Prefilled,
    Prompt,
    PromptNote,
    Read,
    ReasoningPlan,
    Recalled,
    ReplicaStatus,
    ReportBlocks,
    ReportTokens,
    Request,
    Resubscribe,
    SafetyEvent,
    SamplingParams,
    Source,
    TokenBatch,
    TokenChunk,
    TokenizeCall,
    TokenizeReply,
    TokenLogprob,
    TokenReport,
    ToolCall,
    Trial,
    Turn,
    pack_ids,
    unpack_ids,
)

CALL = ToolCall(id="call_1", name="add", arguments='{"a":1}')
SAID = ChatMessage(role="assistant", content="Grüße", tool_calls=(CALL,), reasoning="hm", item_id="msg_1")
REQUEST = Request(
    model="m",
    messages=(ChatMessage(role="user", content="hi"), SAID),
    instructions="be brief",
    tools=({"type": "function"},),
    sampling=SamplingParams(
        n=2,
        max_tokens=5,
        temperature=0.5,
        seed=7,
        stop=("END",),
        logit_bias={3: -1.0},
        grammar=Grammar(kind="choice", source='["yes","no"]'),
    ),
    effort="low",
    conversation=ConversationRef(conversation_id="conv_1", store=True, response_id="resp_1"),
    tenant="t",
    created_at=1.5,
    pairs=Pairs(num_queries=2, query="text_1"),
    adapter_of="base",
    unread_limit_s=300.0,
)
CHUNK = TokenChunk(
    request_id="r",
    attempt=1,
    index=4,
    token_ids=(5, 6),
    phase=1,
    marks=(PhaseMark(1, 2, 0),),
    logprobs=(TokenLogprob(-0.5, (5, 9), (-0.5, -1.5)),),
    finish_reason="stop",
    stop_token=True,
    num_cached_tokens=16,
    timings_ms={"prefill": 1.5},
    num_accepted_drafts=3,
    num_rejected_drafts=1,
    prompt_note=PromptNote(2, 64),
    energy_j=1.5,
)

PICTURE = Image.of("image/png", b"\x89PNG")
PICTURES: list[tuple[Any, str]] = [
    (
        Images(images=(PICTURE,)),
        "81a6696d616765739183a6646967657374c410070d3b3c795cd5e15ad12953ce31f4e3aa6d656469615f74797065a9696d616765"
        "2f706e67a464617461c40489504e47",
    ),
    (
        ChatMessage(
            role="user",
            content="hi",
            images=(ImageRef(offset=1, digest=PICTURE.digest, width=640, height=480),),
        ),
        "83a4726f6c65a475736572a7636f6e74656e74a26869a6696d616765739184a66f666673657401a6646967657374c410070d3b3c"
        "795cd5e15ad12953ce31f4e3a57769647468cd0280a6686569676874cd01e0",
    ),
    (
        Prompt(
            token_ids=pack_ids([1, 2]),
            num_tokens=2,
            images=(ImageSpan(position=0, num_tokens=2, digest=PICTURE.digest),),
        ),
        "83a9746f6b656e5f696473c4080100000002000000aa6e756d5f746f6b656e7302a6696d616765739183a8706f736974696f6e00"
        "aa6e756d5f746f6b656e7302a6646967657374c410070d3b3c795cd5e15ad12953ce31f4e3",
    ),
]

EXAMPLES: list[Any] = [
    Job(
        request_id="r",
        partition=3,
        model="m",
        edge="hr:edge:e",
        deadline=2.5,
        attempt=1,
        traceparent="00-1-2-01",
        timings_ms={"history.wait": 0.25},
    ),
    Turn(
        request_id="r",
        attempt=0,
        partition=3,
        model="m",
        tenant="t",
        response_id="resp_1",
        conversation=ConversationRef(store=True, response_id="resp_1"),
        input=(ChatMessage(role="user", content="hi"),),
        output=(SAID,),
        prompt_ids=pack_ids([1, 2]),
        status="incomplete",
        usage={"prompt_tokens": 2},
        created_at=1.5,
    ),
    Cancel(request_id="r", attempt=1, choice=2),
    EndReasoning(request_id="r"),
    Resubscribe(request_id="r", edge="hr:edge:e", choice=1, from_index=7, attempt=2),
    Failure(request_id="r", attempt=1, code="overloaded", message="full", param="model", desk="edge"),
    TokenBatch(replica_id="m-a-1", step=9, chunks=(CHUNK,)),
    Embeddings(request_id="r", attempt=1, index=2, dimensions=1, vectors=b"\0\0\x80?", num_tokens=3),
    ReplicaStatus(
        replica_id="m-a-1", model="m", state="ready", sent_at=1.5, num_blocks=8, num_free_blocks=7, num_drafts=2
    ),
    BlocksStored(replica_id="m-a-1", sequence=1, hashes=b"h" * 16, reset=True),
    BlocksEvicted(replica_id="m-a-1", sequence=2, hashes=b"h" * 16),
    ReportBlocks(replica_id="m-a-1"),
    AdaptersChanged(model="m"),
    HistoryCall(call_id="c", edge="hr:edge:e", op="get_response", tenant="t", args={"id": "resp_1"}, deadline=2.5),
    HistoryReply(call_id="c", result={"id": "resp_1"}, code="not_found", message="no", param="id"),
    SafetyEvent(
        request_id="r",
        rule="cards",
        action="redact",
        direction="answer",
        start=3,
        end=9,
        digest="ab",
        failed=True,
        tenant="t",
        model="m",
        choice=1,
        at=1.5,
    ),
    TokenizeCall(
        call_id="c",
        edge="hr:edge:e",
        request=Request(kind="text", model="m", prompt_text="hi"),
        add_special_tokens=False,
        deadline=2.5,
        recalled=Recalled(prompt_ids=pack_ids([1]), covers=1),
    ),
    TokenizeReply(call_id="c", token_ids=pack_ids([1, 2]), code="not_found", message="no", param="model"),
    ReportTokens(request_id="r", reply_to="hr:balancer:b"),
    TokenReport(
        request_id="r",
        checkpoint=Checkpoint(attempt=1, token_ids={0: pack_ids([1, 2])}, marks={0: (PhaseMark(1, 0, 1),)}),
    ),
]

GOLDEN = {
    "Job": (
        "89a474797065a34a6f62aa726571756573745f6964a172a9706172746974696f6e03a56d6f64656ca16da465646765a96872"
        "3a656467653a65a8646561646c696e65cb4004000000000000a7617474656d707401ab7472616365706172656e74a930302d"
        "312d322d3031aa74696d696e67735f6d7381ac686973746f72792e77616974cb3fd0000000000000"
    ),
    "Turn": (
        "8ea474797065a45475726eaa726571756573745f6964a172a7617474656d707400a9706172746974696f6e03a56d6f64656c"
        "a16da674656e616e74a174ab726573706f6e73655f6964a6726573705f31ac636f6e766572736174696f6e82a573746f7265"
        "c3ab726573706f6e73655f6964a6726573705f31a5696e7075749182a4726f6c65a475736572a7636f6e74656e74a26869a6"
        "6f75747075749185a4726f6c65a9617373697374616e74a7636f6e74656e74a74772c3bcc39f65aa746f6f6c5f63616c6c73"
        "9183a26964a663616c6c5f31a46e616d65a3616464a9617267756d656e7473a77b2261223a317da9726561736f6e696e67a2"
        "686da76974656d5f6964a56d73675f31aa70726f6d70745f696473c4080100000002000000a6737461747573aa696e636f6d"
        "706c657465a5757361676581ad70726f6d70745f746f6b656e7302aa637265617465645f6174cb3ff8000000000000"
    ),
    "Cancel": ("84a474797065a643616e63656caa726571756573745f6964a172a7617474656d707401a663686f69636502"),
    "EndReasoning": ("82a474797065ac456e64526561736f6e696e67aa726571756573745f6964a172"),
    "Resubscribe": (
        "86a474797065ab5265737562736372696265aa726571756573745f6964a172a465646765a968723a656467653a65a663686f"
        "69636501aa66726f6d5f696e64657807a7617474656d707402"
    ),
    "Failure": (
        "87a474797065a74661696c757265aa726571756573745f6964a172a7617474656d707401a4636f6465aa6f7665726c6f6164"
        "6564a76d657373616765a466756c6ca5706172616da56d6f64656ca46465736ba465646765"
    ),
    "TokenBatch": (
        "84a474797065aa546f6b656e4261746368aa7265706c6963615f6964a56d2d612d31a47374657009a66368756e"
        "6b7391de000faa726571756573745f6964a172a7617474656d707401a5696e64657804a9746f6b656e5f696473"
        "920506a5706861736501a56d61726b739193010200a86c6f6770726f62739193cbbfe000000000000092050992"
        "cbbfe0000000000000cbbff8000000000000ad66696e6973685f726561736f6ea473746f70aa73746f705f746f"
        "6b656ec3b16e756d5f6361636865645f746f6b656e7310aa74696d696e67735f6d7381a770726566696c6ccb3f"
        "f8000000000000b36e756d5f61636365707465645f64726166747303b36e756d5f72656a65637465645f647261"
        "66747301ab70726f6d70745f6e6f7465920240a8656e657267795f6acb3ff8000000000000"
    ),
    "Embeddings": (
        "87a474797065aa456d62656464696e6773aa726571756573745f6964a172a7617474656d707401a5696e64657802aa64696d"
        "656e73696f6e7301a7766563746f7273c4040000803faa6e756d5f746f6b656e7303"
    ),
    "ReplicaStatus": (
        "de0008a474797065ad5265706c696361537461747573aa7265706c6963615f6964a56d2d612d31a56d6f64656ca16da57374"
        "617465a57265616479a773656e745f6174cb3ff8000000000000aa6e756d5f626c6f636b7308af6e756d5f667265655f626c"
        "6f636b7307aa6e756d5f64726166747302"
    ),
    "BlocksStored": (
        "85a474797065ac426c6f636b7353746f726564aa7265706c6963615f6964a56d2d612d31a873657175656e636501a6686173"
        "686573c41068686868686868686868686868686868a57265736574c3"
    ),
    "BlocksEvicted": (
        "84a474797065ad426c6f636b7345766963746564aa7265706c6963615f6964a56d2d612d31a873657175656e636502a66861"
        "73686573c41068686868686868686868686868686868"
    ),
    "AdaptersChanged": ("82a474797065af41646170746572734368616e676564a56d6f64656ca16d"),
    "ReportBlocks": ("82a474797065ac5265706f7274426c6f636b73aa7265706c6963615f6964a56d2d612d31"),
    "HistoryCall": (
        "87a474797065ab486973746f727943616c6ca763616c6c5f6964a163a465646765a968723a656467653a65a26f70ac676574"
        "5f726573706f6e7365a674656e616e74a174a46172677381a26964a6726573705f31a8646561646c696e65cb400400000000"
        "0000"
    ),
    "HistoryReply": (
        "86a474797065ac486973746f72795265706c79a763616c6c5f6964a163a6726573756c7481a26964a6726573705f31a4636f"
        "6465a96e6f745f666f756e64a76d657373616765a26e6fa5706172616da26964"
    ),
    "SafetyEvent": (
        "8da474797065ab5361666574794576656e74aa726571756573745f6964a172a472756c65a56361726473a6616374696f6e"
        "a6726564616374a9646972656374696f6ea6616e73776572a5737461727403a3656e6409a6646967657374a26162a66661"
        "696c6564c3a674656e616e74a174a56d6f64656ca16da663686f69636501a26174cb3ff8000000000000"
    ),
    "TokenizeCall": (
        "87a474797065ac546f6b656e697a6543616c6ca763616c6c5f6964a163a465646765a968723a656467653a65a77265717565"
        "7374de0003a46b696e64a474657874a56d6f64656ca16dab70726f6d70745f74657874a26869b26164645f7370656369616c"
        "5f746f6b656e73c2a8646561646c696e65cb4004000000000000a8726563616c6c656482aa70726f6d70745f696473c40401"
        "000000a6636f7665727301"
    ),
    "ReportTokens": (
        "83a474797065ac5265706f7274546f6b656e73aa726571756573745f6964a172a87265706c795f746fad68723a62616c616e6365723a62"
    ),
    "TokenReport": (
        "83a474797065ab546f6b656e5265706f7274aa726571756573745f6964a172aa636865636b706f696e7483a7617474656d70"
        "7401a9746f6b656e5f6964738100c4080100000002000000a56d61726b7381009193010001"
    ),
    "TokenizeReply": (
        "86a474797065ad546f6b656e697a655265706c79a763616c6c5f6964a163a9746f6b656e5f696473c4080100000002000000"
        "a4636f6465a96e6f745f666f756e64a76d657373616765a26e6fa5706172616da56d6f64656c"
    ),
}

RECORDS: list[Any] = [
    REQUEST,
    Recalled(messages=(SAID,), prompt_ids=pack_ids([1]), covers=1, conversation_id="conv_1", version=2),
    Prompt(token_ids=pack_ids([1, 2]), num_tokens=2, reasoning=ReasoningPlan(budget=0, close_ids=(3,))),
    Matches(replicas=(Match(replica_id="m-a-1", num_tokens=16),)),
    Placement(
        replica_id="m-a-1",
        attempt=1,
        cached_tokens=16,
        source=Source(replica_id="m-b-2", address="tcp:10.0.0.2:7000", num_tokens=64),
    ),
    Prefilled(replica_id="m-b-2", num_tokens=64),
    Checkpoint(attempt=1, token_ids={0: pack_ids([1, 2])}, marks={0: (PhaseMark(1, 0, 1),)}, ended=(1,)),
    Closed(at={0: (12,)}),
    Holder(edge="hr:edge:e2", deadline=100.0, traceparent="00-x"),
    Read(at=100.0),
    Trial(attempt=3),
    Images(images=(PICTURE,)),
    Images(images=(PICTURE,)),
]


def test_every_message_has_an_example_and_golden_bytes() -> None:
    names = sorted(cls.__name__ for cls in get_args(AnyMessage))
    assert sorted(type(example).__name__ for example in EXAMPLES) == names
    assert sorted(GOLDEN) == names
    assert sorted(cls.__name__ for cls in Message.__subclasses__()) == names


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_a_message_has_its_golden_bytes_and_comes_back_from_them(example: Message) -> None:
    golden = bytes.fromhex(GOLDEN[type(example).__name__])
    assert codec.encode(example) == golden
    assert codec.decode_message(golden) == example


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_a_message_is_a_tagged_map_so_that_fields_of_a_later_version_are_skipped(example: Message) -> None:
    plain = msgspec.msgpack.decode(codec.encode(example))
    assert plain.pop("type") == type(example).__name__
    later = {"type": type(example).__name__, "a_field_of_tomorrow": [1], **plain}
    assert codec.decode_message(msgspec.msgpack.encode(later)) == example


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_every_optional_field_may_be_missing(example: Message) -> None:
    required = {field.name for field in msgspec.structs.fields(example) if field.required}
    plain = msgspec.msgpack.decode(codec.encode(example))
    least = {name: value for name, value in plain.items() if name in required or name == "type"}
    assert type(codec.decode_message(msgspec.msgpack.encode(least))) is type(example)


def test_there_is_an_example_of_each_record_field_and_it_comes_back() -> None:
    assert [type(example) for example in RECORDS] == list(RECORD_FIELDS.values())
    for example in RECORDS:
        assert codec.decode(codec.encode(example), type(example)) == example


@pytest.mark.parametrize(("example", "golden"), PICTURES, ids=lambda value: type(value).__name__)
def test_what_is_known_of_pictures_has_its_golden_bytes(example: Any, golden: str) -> None:
    assert codec.encode(example).hex() == golden
    assert codec.decode(bytes.fromhex(golden), type(example)) == example


def test_an_envelope_stays_small_whatever_the_request_holds() -> None:
    assert len(codec.encode(EXAMPLES[0])) < 200


def test_the_envelope_and_its_like_are_frozen() -> None:
    for example in [*EXAMPLES, *RECORDS]:
        with pytest.raises(AttributeError):
            setattr(example, msgspec.structs.fields(example)[0].name, "x")


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_packed_token_ids_are_little_endian_int32_and_come_back(ids: list[int]) -> None:
    packed = pack_ids(ids)
    assert packed == b"".join(number.to_bytes(4, "little") for number in ids)
    assert unpack_ids(packed) == ids
