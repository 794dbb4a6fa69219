"""Stop strings: never shown, not even their beginning, and nothing after them counts."""

from __future__ import annotations

import pytest

from tests.gateway.edge.asks import both, refused, still_serves, streamed, whole
from tests.ring import Ring
from tests.script import Script, say, tag, think

pytestmark = pytest.mark.anyio


async def test_a_stop_string_over_several_tokens_is_never_shown(ring: Ring) -> None:
    ring.replica.play(*say("x", "EN", "D-", "OF", "!"))
    assert await both(ring, stop=["END-OF"]) == ("x", "", "stop")


async def test_text_held_for_a_stop_string_is_let_go_when_it_does_not_come(ring: Ring) -> None:
    ring.replica.play(*say("x", "EN", "joy"))
    assert (await both(ring, stop=["END-OF"]))[0] == "xENjoy"


async def test_a_stop_string_ends_the_work_of_the_replica(ring: Ring) -> None:
    ring.replica.play(*say("x", "EN", "D-", "OF"), finish=None)
    assert (await whole(ring, stop=["END-OF"]))["choices"][0]["finish_reason"] == "stop"
    (cancel,) = await ring.replica.cancelled()
    assert cancel.choice is None
    await ring.until_idle()


async def test_a_stop_string_in_one_choice_ends_only_that_choice(ring: Ring) -> None:
    ring.replica.script = Script(choices={0: say("x", "EN", "D-", "OF", "!"), 1: say("one ", "two ")})
    stream = await streamed(ring, n=2, stop="END-OF")
    assert (stream.text(0), stream.text(1)) == ("x", "one two ")
    await ring.replica.cancelled()  # it may come when all is said
    await ring.until_idle()
    assert [cancel.choice for cancel in ring.replica.cancels] in ([0], [0, None], [None])


async def test_a_stop_string_within_min_tokens_is_text_for_each_choice_by_itself(ring: Ring) -> None:
    early, late = say("x", "EN", "D", "y", "EN", "D", "!"), say("a", "b", "c", "EN", "D", "!")
    ring.replica.script = Script(choices={0: early, 1: late})
    stream = await streamed(ring, n=2, stop="END", min_tokens=3)
    assert (stream.text(0), stream.text(1)) == ("xENDy", "abc")
    answer = await whole(ring, n=2, stop="END", min_tokens=3)
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["xENDy", "abc"]
    assert answer["usage"]["completion_tokens"] == 6 + 5
    ring.replica.play(*early)
    assert await both(ring, stop=["END"], min_tokens=5) == ("xENDy", "", "stop")
    assert await both(ring, stop=["END"], min_tokens=6) == ("xENDyEND!", "", "stop")


async def test_the_stop_string_is_shown_if_that_is_asked_for(ring: Ring) -> None:
    ring.replica.play(*say("x", "EN", "D-", "OF", "!"))
    fields = {"stop": ["END-OF"], "include_stop_str_in_output": True}
    assert await both(ring, **fields) == ("xEND-OF", "", "stop")
    choice = (await whole(ring, **fields, logprobs=True))["choices"][0]
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == "xEND-OF"
    answer = await ring.http.post("/v1/completions", json={"model": "tiny", "prompt": "ab", **fields})
    assert answer.json()["choices"][0]["text"] == "xEND-OF"


async def test_text_ids_log_probabilities_and_usage_end_at_the_same_token(ring: Ring) -> None:
    ring.replica.play(*say("x", "EN", "D-", "OF", "!", "joy"), per_chunk=6)
    answer = await whole(ring, stop=["END-OF"], logprobs=True)
    choice = answer["choices"][0]
    assert choice["message"]["content"] == "x"
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["x"]
    assert answer["usage"]["completion_tokens"] == 4


async def test_a_stop_string_does_not_match_inside_reasoning(ring: Ring) -> None:
    ring.replica.play(*think("plan: Q: x"), *tag("</think>"), *say("yes Q: no"))
    assert await both(ring, stop=["Q:"]) == ("yes ", "plan: Q: x", "stop")


@pytest.mark.parametrize("stop", ["", ["", "Z"]])
async def test_an_empty_stop_string_is_refused(ring: Ring, stop: object) -> None:
    await refused(ring, "stop", stop=stop)
    await still_serves(ring)


@pytest.mark.parametrize("stop", [[], None])
async def test_no_stop_string_is_no_stop(ring: Ring, stop: object) -> None:
    ring.replica.play(*say("one ", "two "))
    assert (await both(ring, stop=stop))[0] == "one two "
