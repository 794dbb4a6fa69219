"""A house whose model sees: pictures come as data: URLs by the official client, and answers are transformers' own."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
import transformers
from PIL import Image as Pil
from tokenizers import Tokenizer
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from tests.e2e.house import headrace_up
from tests.model_svc.vision.seeing import SEES, TEXT
from tests.tiny_model import write_seeing_model

MODEL = "tiny"
LETTERS = list(range(97, 123))  # ids of the vocabulary's bytes
TOKENS = ("<fake_token_around_image>", "<image>", "<global-img>")
SIZES = [(70, 51), (51, 70), (30, 29)]


def png(number: int) -> bytes:
    """Return the picture of this number, of noise."""
    width, height = SIZES[number]
    out = io.BytesIO()
    Pil.fromarray(np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def save_weights(path: Path) -> Any:
    """Write random weights to the model directory of a vocabulary; returns the same model in transformers."""
    vocabulary = json.loads((path / "tokenizer.json").read_text())
    vocab_size = json.loads((path / "config.json").read_text())["vocab_size"]
    ids = {item["content"]: item["id"] for item in vocabulary["added_tokens"]}
    text = TEXT | {"vocab_size": vocab_size, "max_position_embeddings": 1024, "eos_token_id": vocab_size - 1}
    config = transformers.SmolVLMConfig(
        text_config=text, vision_config=SEES | {"image_size": 32, "patch_size": 8}, scale_factor=2,
        image_token_id=ids["<image>"], tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(4)
    oracle = transformers.SmolVLMForConditionalGeneration(config).eval()
    oracle.save_pretrained(path)
    return oracle


class Served:
    """The house by its client, and what it should say."""

    def __init__(self, url: str, path: Path, oracle: Any) -> None:
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        self._tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        self._processor: Any = SmolVLMImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
        self._oracle = oracle

    def ask(self, *parts: str | bytes, num_tokens: int = 12) -> Any:
        """Ask with texts and pictures, greedily, for an answer in letters."""
        messages: Any = [{"role": "user", "content": [part_of(part) for part in parts]}]
        return self.client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=num_tokens, temperature=0,
            extra_body={"allowed_token_ids": LETTERS, "ignore_eos": True},
        )  # fmt: skip

    @torch.inference_mode()
    def truth(self, *parts: str | bytes, num_tokens: int = 12) -> str:
        """Return what transformers answers."""
        text, tiles = "", []
        for part in parts:
            if isinstance(part, str):
                text += part
                continue
            shown = self._processor([Pil.open(io.BytesIO(part))], return_tensors="pt", return_row_col_info=True)
            tiles.append(shown["pixel_values"][0])
            text += get_image_prompt_string(shown["rows"][0][0], shown["cols"][0][0], 4, *TOKENS)
        prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        ids = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        begin, numbers = len(ids), torch.cat(tiles)[None]
        for _ in range(num_tokens):
            logits = self._oracle(torch.tensor([ids]), pixel_values=numbers).logits[0, -1]
            ids.append(max(LETTERS, key=lambda n: float(logits[n])))
        return bytes(ids[begin:]).decode()


def part_of(said: str | bytes) -> dict[str, Any]:
    """Return a part of a message."""
    if isinstance(said, str):
        return {"type": "text", "text": said}
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(said).decode()}"}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("pictures")
    path = write_seeing_model(folder / MODEL)
    oracle = save_weights(path)
    environ = {"HEADRACE_DTYPE": "float32", "HEADRACE_SPECULATE": "off"}
    with headrace_up(folder / "state", f"--model={MODEL}", f"--model-dir={folder}", environ=environ) as house:
        yield Served(house.url, path, oracle)


def test_pictures_are_seen_and_only_the_same_ones_are_found_cached(served: Served) -> None:
    questions = [("what is ", png(0), " this?"), ("what is ", png(1), " this?"), (png(2), "and ", png(0), " here?")]
    truths = [served.truth(*parts) for parts in questions]
    assert len(set(truths)) == 3
    cached = []
    for parts, truth in [*zip(questions, truths, strict=True), (questions[0], truths[0])]:
        answer = served.ask(*parts)
        assert answer.choices[0].message.content == truth
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert cached[0] == cached[2] == 0
    assert cached[1] < 32 < cached[3]


def test_a_picture_that_only_looks_like_one_is_refused_by_name(served: Served) -> None:
    damaged = png(0)[:400]  # its header is sound
    with pytest.raises(openai.BadRequestError, match=r"picture 1 .* cannot be decoded"):
        served.ask("what is ", damaged)
    assert served.ask("what is ", png(0), " this?").choices[0].message.content
