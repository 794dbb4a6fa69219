"""Raw completions and Anthropic's dialect with the real model."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import openai
import pytest
from anthropic.types import MessageParam

from tests.e2e.house import House

MODEL = "smollm2-135m-instruct"
PROMPT = "The capital of France is"


@pytest.fixture
def client(house: House) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_an_echoed_text_has_the_log_probabilities_it_had_when_it_was_generated(
    house: House, client: openai.OpenAI
) -> None:
    first = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=8, temperature=0, logprobs=1)
    said = first.choices[0]
    with house.client() as http:
        ids = http.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
        whole = http.post("/tokenize", json={"prompt": PROMPT + said.text}).json()["tokens"]
        assert http.post("/detokenize", json={"tokens": whole}).json()["prompt"] == PROMPT + said.text
    assert whole[: len(ids)] == ids and len(whole) == len(ids) + 8
    again = client.completions.create(model=MODEL, prompt=[whole], max_tokens=0, echo=True, logprobs=1).choices[0]
    assert again.text == PROMPT + said.text
    assert again.logprobs is not None and said.logprobs is not None
    assert again.logprobs.token_logprobs is not None and said.logprobs.token_logprobs is not None
    assert again.logprobs.tokens[-8:] == said.logprobs.tokens  # type: ignore[index]
    assert again.logprobs.token_logprobs[-8:] == pytest.approx(said.logprobs.token_logprobs, abs=0.05)
    assert again.logprobs.token_logprobs[0] is None
    assert again.logprobs.text_offset[-8:] == [at + len(PROMPT) for at in said.logprobs.text_offset or ()]


def test_prompts_of_one_answer_say_what_they_say_alone(client: openai.OpenAI) -> None:
    prompts = [PROMPT, "Two plus two is"]
    alone = [
        client.completions.create(model=MODEL, prompt=prompt, max_tokens=6, temperature=0).choices[0].text
        for prompt in prompts
    ]
    together = client.completions.create(model=MODEL, prompt=prompts, max_tokens=6, temperature=0)
    assert [choice.text for choice in together.choices] == alone


def test_the_likeliest_of_several_is_at_least_as_likely_as_any(client: openai.OpenAI) -> None:
    fields = {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "temperature": 1.5, "seed": 5, "logprobs": 0}
    every = client.completions.create(**fields, n=4)  # type: ignore[call-overload]
    best = client.completions.create(**fields, n=1, best_of=4)  # type: ignore[call-overload]
    means = [sum(one.logprobs.token_logprobs) / len(one.logprobs.token_logprobs) for one in every.choices]
    assert best.choices[0].text == every.choices[means.index(max(means))].text


def test_anthropics_client_gets_an_answer_and_its_count(house: House) -> None:
    with anthropic.Anthropic(base_url=house.url, api_key="none", max_retries=0, timeout=120) as client:
        messages: list[MessageParam] = [{"role": "user", "content": "Name a colour."}]
        counted = client.messages.count_tokens(model=MODEL, messages=messages, system="Be brief.")
        with client.messages.stream(model=MODEL, messages=messages, system="Be brief.", max_tokens=12) as stream:
            final = stream.get_final_message()
    [block] = final.content
    assert block.type == "text" and block.text
    assert final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) == counted.input_tokens
