"""Models that see, next to transformers: the same features, and the same logits however a prompt is cut and cached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.native.library import built
from model_svc.engine.drafter import Drafter
from model_svc.engine.engine import Engine
from model_svc.engine.request import EngineRequest
from model_svc.models.decoder import Decoder
from model_svc.models.load import load_model
from model_svc.runner.load import make_runner
from tests.model_svc.engine.guessers import Parrot
from tests.model_svc.vision.seeing import BLOCK, SIZES, VOCAB, Asked, Seeing, picture_of, save

BEGIN, END = [1, 2, 3, 4, 5], [7, 8, 9]
RUNNERS: dict[str, dict[str, bool]] = {"exact": {}, "of GPUs": {"packed": True}} | (
    {"native": {"native_kernels": True}} if built() else {}
)


@pytest.fixture(scope="module", params=["Gemma3", "Idefics3", "Llava", "Mistral3", "Qwen2_5_VL", "Qwen3VL", "SmolVLM"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return save(tmp_path_factory.mktemp("seeing"), request.param)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return save(tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def model(seeing: Seeing) -> Decoder:
    return loaded(seeing.directory)


def loaded(directory: Path) -> Decoder:
    return load_model(directory, dtype=torch.float32, device=torch.device("cpu"))


def engine_of(model: Decoder, kind: str = "exact", **options: Any) -> Engine:
    sizes: dict[str, Any] = {"num_blocks": 200, "max_num_seqs": 8, "block_size": BLOCK, **RUNNERS[kind], **options}
    return Engine(make_runner(model, **sizes), token_bytes=lambda _: b"x")


def answers(engine: Engine, *requests: EngineRequest) -> dict[str, tuple[list[int], Tensor, int]]:
    """Return each answer's ids, what was held likely at them [n, V], and how much of the prompt was cached."""
    found: dict[str, tuple[list[int], Tensor, int]] = {}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for chunk in engine.step():
            ids, logprobs, cached = found.get(chunk.request_id, ([], torch.zeros(0, VOCAB), chunk.num_cached_tokens))
            rows = torch.zeros(len(chunk.logprobs), VOCAB)
            for row, told in zip(rows, chunk.logprobs, strict=True):
                row[list(told.top_ids)] = torch.tensor(told.top_logprobs)
            found[chunk.request_id] = [*ids, *chunk.token_ids], torch.cat([logprobs, rows]), cached
        engine.events()
        engine.check_invariants()
    return found


def check(seeing: Seeing, engine: Engine, *asked: Asked, atol: float = 1e-4) -> list[int]:
    """Assert that answers are the oracle's; returns how many tokens of each prompt were cached."""
    found = answers(engine, *(each.request for each in asked))
    for each in asked:
        ids, logprobs, _ = found[each.request.request_id]
        assert len(ids) == 5
        torch.testing.assert_close(logprobs, seeing.logprobs(each, ids), rtol=0, atol=atol)
    return [found[each.request.request_id][2] for each in asked]


def test_features_are_those_of_the_whole_model(family: Seeing) -> None:
    model = loaded(family.directory)
    assert model.vision is not None
    for number in range(len(SIZES)):
        image = picture_of(number)
        picture = family.picture(image)
        tiles = torch.frombuffer(bytearray(picture.tiles), dtype=torch.uint8)
        with torch.inference_mode():
            features = family.oracle.model.get_image_features(**family.shown([image]))
            parts = features.pooler_output, *getattr(features, "deepstack_features", ())
            wanted = torch.cat([torch.cat(list(part)) for part in parts], 1)
            found = model.vision(tiles.view(picture.num_tiles, picture.height, picture.width, 3))
        assert len(found) == picture.num_features
        assert wanted.std() > 0.5
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", RUNNERS)
@pytest.mark.parametrize("num_tokens", [256, 7], ids=["whole", "chunks within pictures"])
def test_a_prompt_with_pictures_gets_the_logits_of_the_whole_model(
    seeing: Seeing, model: Decoder, kind: str, num_tokens: int
) -> None:
    engine = engine_of(model, kind, max_num_batched_tokens=num_tokens)
    close = 3e-2 if kind == "native" else 1e-4  # keys and values in float16
    one, again = (seeing.request(name, BEGIN, 0, END) for name in ("one", "again"))
    other = seeing.request("other", BEGIN, 1, END)
    assert other.ids == one.ids
    check(seeing, engine, one, seeing.request("none", BEGIN, END), atol=close)
    assert check(seeing, engine, again, other, atol=close) == [len(one.ids) // BLOCK * BLOCK, BLOCK]
    check(seeing, engine, seeing.request("two", END, 1, BEGIN, 2), seeing.request("text", END, BEGIN), atol=close)


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_prompt_may_end_in_a_picture_and_its_last_token_be_computed_alone(
    seeing: Seeing, model: Decoder, kind: str
) -> None:
    engine = engine_of(model, kind, max_num_batched_tokens=4, max_num_seqs=4)
    shown = seeing.request("shown", 1)
    assert len(shown.ids) % 4 == 1
    check(seeing, engine, seeing.request("text", BEGIN), atol=3e-2)  # whose steps of one token may be recorded
    check(seeing, engine, shown, atol=3e-2)


@pytest.mark.parametrize("kind", RUNNERS)
def test_guesses_of_others_are_checked_beside_pictures(seeing: Seeing, model: Decoder, kind: str) -> None:
    engine = engine_of(model, kind, max_num_batched_tokens=24, max_drafts=8)
    engine.scheduler.drafter = Drafter(Parrot(1, 2, 3), max_length=3, max_drafts=8, adaptive=False)
    check(seeing, engine, seeing.request("text", BEGIN), seeing.request("shown", BEGIN, 0, END), atol=3e-2)


def test_few_blocks_preempt_and_pictures_are_merged_again(seeing: Seeing, model: Decoder) -> None:
    engine = engine_of(model, num_blocks=27, max_num_batched_tokens=32, max_num_seqs=3)
    asked = [seeing.request(name, BEGIN, number, END) for name, number in (("a", 0), ("b", 1), ("c", 1))]
    check(seeing, engine, *asked)
