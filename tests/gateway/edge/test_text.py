"""Bytes of tokens become text once, whole and streamed alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.gateway.edge.asks import ASK, CHAT, both, still_serves, streamed, whole
from tests.ring import MakeRing, Ring
from tests.script import Piece, Script, say, tag, think
from tests.tiny_model import write_metaspace_model
from wire.errors import InternalError

pytestmark = pytest.mark.anyio

EMOJI = say(bytes.fromhex("F09F"), bytes.fromhex("9880"))
CJK = say(bytes.fromhex("E4"), bytes.fromhex("BDA0"))


@pytest.mark.parametrize(("pieces", "text"), [(EMOJI, "😀"), (CJK, "你")])
async def test_a_character_split_over_tokens_arrives_whole(ring: Ring, pieces: list[Piece], text: str) -> None:
    ring.replica.play(*pieces)
    assert (await both(ring))[0] == text


async def test_a_cut_inside_a_character_ends_alike_in_both_modes_and_leaks_into_no_other_request(ring: Ring) -> None:
    ring.replica.play(*EMOJI)
    content, _, reason = await both(ring, max_tokens=1)
    assert (content, reason) == ("\ufffd", "length")
    ring.replica.play(*say(bytes.fromhex("9880")[1:], "ok "))
    assert (await both(ring))[0] == "\ufffdok "


async def test_spaces_of_a_metaspace_vocabulary_survive_streaming(make_ring: MakeRing, tmp_path: Path) -> None:
    model = write_metaspace_model(tmp_path / "spaced", ["▁red", "▁blue", "▁sky", "▁▁▁▁if"])
    oracle = Tokenizer.from_file(str(model / "tokenizer.json"))
    async with make_ring(model_path=model) as ring:
        for words in ([" red", " blue", " sky"], ["    if", " red"]):
            ring.replica.play(*say(*words))
            whole_list = oracle.decode([ring.replica.token_id(word.encode()) for word in words])
            assert (await both(ring, model="spaced"))[0] == whole_list


async def test_log_probabilities_show_the_true_bytes_of_half_characters(ring: Ring) -> None:
    ring.replica.play(*say("ok "), *EMOJI)
    answer = await whole(ring, logprobs=True, top_logprobs=2)
    choice = answer["choices"][0]
    raw = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
    assert raw == choice["message"]["content"].encode() == "ok 😀".encode()
    assert choice["logprobs"]["content"][1]["bytes"] == [0xF0, 0x9F]


@pytest.mark.parametrize("reasoning", [False, True])
async def test_a_byte_that_is_never_valid_is_replaced_and_the_rest_kept(ring: Ring, reasoning: bool) -> None:
    bad = ("ok ", b"\xff", " end")
    ring.replica.play(*((*think(*bad), *tag("</think>"), *say(*bad)) if reasoning else say(*bad)))
    content, thought, reason = await both(ring)
    assert (content, reason) == ("ok \ufffd end", "stop")
    assert thought == ("ok \ufffd end" if reasoning else "")
    await still_serves(ring)


async def test_an_error_that_quotes_bad_text_is_one_event_and_harms_nobody(ring: Ring) -> None:
    quoted = "the parser failed at ok \ufffd\u2028 \x00\r\n<end>"
    ring.replica.script = Script(say("ok ", b"\xff"), error=InternalError(quoted))
    stream = await streamed(ring)
    assert stream.text() == "ok \ufffd"
    assert stream.events[-2].json()["error"]["message"] == quoted
    assert stream.events[-1].data == "[DONE]"
    response = await ring.http.post(CHAT, json=ASK)
    assert (response.status_code, response.json()["error"]["message"]) == (500, quoted)
    ring.replica.play(*say("one "))
    await still_serves(ring)


async def test_line_separators_and_control_characters_arrive_as_they_are(ring: Ring) -> None:
    text = "a\u2028b\u2029c\u0085d\r\ne\rf\ng\x00h\ufeffi\x0bj\x0ck"
    ring.replica.play(*say(*[bytes([byte]) for byte in text.encode()]))
    assert (await both(ring))[0] == text
    stream = await streamed(ring)
    assert all(len(event.fields) == 1 for event in stream.events), "one data line per event"
