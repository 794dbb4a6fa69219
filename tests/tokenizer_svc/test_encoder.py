"""Encoding is near-linear, leaves other threads alone, and keeps control tokens apart from text."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import anyio
import pytest

from tests.tokenizer_svc.model_directories import write_inst
from tokenizer_svc.encoder import Encoder
from tokenizer_svc.prompt import PromptBuilder
from wire.vocabulary import Vocabulary

RUNS = {
    "underscores": "_",
    "letters": "a",
    "spaces": " ",
    "newlines": "\n",
    "random letters": "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=4096)),
    "ideographs": "中文字",
}


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    path = write_inst(tmp_path_factory.mktemp("inst"))
    return Encoder(path, Vocabulary.load(path))


# A busy machine may keep a thread from its turn for as long as an encoding takes, but not so often.
TRIES = range(50)


def encode_time_s(encoder: Encoder, text: str) -> float:
    """The least of three: what the machine does beside it only adds."""
    times = []
    for _ in range(3):
        started = time.process_time()
        encoder.encode(text)
        times.append(time.process_time() - started)
    return min(times)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("kind", ["smollm2", "sentencepiece"])
def test_a_run_without_spaces_costs_near_linear_time(name: str, kind: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(kind)
    encoder = model._encoder if isinstance(model, PromptBuilder) else model
    unit = RUNS[name]
    short, long = (unit * (length // len(unit)) for length in (25_000, 200_000))
    # Eight times the text: linear cost is 8 times, quadratic 64; half of that leaves room for what shares the cache.
    # Two seconds of CPU pass whatever the ratio: quadratic merging of 200,000 characters takes minutes.
    assert encode_time_s(encoder, long) < max(32 * encode_time_s(encoder, short), 2.0)


def test_encoding_lets_other_threads_run(smollm2: PromptBuilder) -> None:
    text = RUNS["random letters"] * 100
    turns = 0
    done = threading.Event()

    def count() -> None:
        nonlocal turns
        while not done.wait(0.001):
            turns += 1

    counter = threading.Thread(target=count)
    counter.start()
    during = 0
    try:
        for _ in TRIES:
            before = turns
            smollm2._encoder.encode(text)
            during = max(during, turns - before)
            if during >= 3:
                break
    finally:
        done.set()
        counter.join()
    assert during >= 3, "the encoder held the interpreter's lock"


@pytest.mark.anyio
async def test_a_small_text_does_not_wait_for_a_long_one(smollm2: PromptBuilder) -> None:
    encoder = smollm2._encoder

    async def first() -> str:
        order: list[str] = []

        async def encode(name: str, text: str) -> None:
            await anyio.to_thread.run_sync(encoder.encode, text)
            order.append(name)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(encode, "long", RUNS["random letters"] * 80)
            await anyio.lowlevel.checkpoint()
            tasks.start_soon(encode, "small", "hello")
        return order[0]

    for _ in TRIES:
        if await first() == "small":
            return
    raise AssertionError("the small one always waits")


def test_every_control_token_is_one_id_in_place_and_many_as_text(smollm2: PromptBuilder) -> None:
    encoder = smollm2._encoder
    for text in encoder.marks.placeholders:
        assert len(encoder.encode(encoder.marks.place(text))) == 1
        assert not encoder.control_ids.intersection(encoder.encode(text))


def test_text_after_a_control_token_is_encoded_as_in_one_piece(smollm2: PromptBuilder, sentencepiece: Encoder) -> None:
    for encoder in (smollm2._encoder, sentencepiece):
        for text, word in encoder.marks.placeholders.items():
            for rest in ("", " a", "a b", "\n\nx", "  "):
                whole = encoder.encode("before" + word + rest)
                token_id = encoder.encode(word)[0]
                assert whole[whole.index(token_id) + 1 :] == encoder.encode_after(token_id, rest), (text, rest)


def test_ordinary_added_tokens_stay_ordinary(tmp_path: Path) -> None:
    import json

    path = write_inst(tmp_path)
    file = path / "tokenizer.json"
    data = json.loads(file.read_text())
    size = max(item["id"] for item in data["added_tokens"]) + len(data["model"]["vocab"])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    data["added_tokens"] += [flags | {"id": size, "content": "    "}, flags | {"id": size + 1, "content": "<table>"}]
    file.write_text(json.dumps(data))
    encoder = Encoder(path, Vocabulary.load(path))
    assert len(encoder.control_ids) == 3
    assert len(encoder.encode("<table>")) <= 2
