"""What a GPU without room says. The card is played; the model's step is not run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from model_svc.engine.plan import RunnerInfo
from model_svc.models.decoder import Decoder
from model_svc.runner import load, memory, memory_note
from model_svc.runner.load import RunnerConfigError

GIB = 1 << 30
INFO = RunnerInfo(
    num_blocks=1, block_size=16, max_num_seqs=64, max_num_batched_tokens=8192, max_model_len=256, vocab_size=67
)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of 80 GiB with 20 free and weights of 16."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (20 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 50 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 16 * GIB)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


@pytest.mark.usefixtures("card")
def test_the_cache_takes_what_the_largest_step_leaves(tiny_model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "step_bytes", lambda *_: 3 * GIB)
    left = memory.kv_bytes(tiny_model, torch.bfloat16, INFO, free=20 * GIB)
    assert left == 16 * GIB - 3 * GIB // 16  # of 95 % of 20; the longest step to record has a 16th of the tokens
    assert memory.kv_bytes(tiny_model, torch.bfloat16, INFO, free=20 * GIB, num_recordings=50) == left - 50 * (8 << 20)


@pytest.mark.usefixtures("card")
def test_without_room_the_message_gives_the_numbers_and_the_setting(
    tiny_model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "step_bytes", lambda *_: 25 * GIB)
    with pytest.raises(RunnerConfigError, match=r"80.0 GiB.*16.0 GiB.*20.0 GiB.*25.0 GiB.*max_num_batched_tokens"):
        load._gpu_bytes(tiny_model, torch.bfloat16, INFO, 20 * GIB)


@pytest.mark.usefixtures("card")
def test_a_step_that_does_not_fit_says_so(tiny_model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(memory, "step_bytes", fail)
    with pytest.raises(RunnerConfigError, match=r"8192 tokens does not fit.*max_num_batched_tokens"):
        load._gpu_bytes(tiny_model, torch.bfloat16, INFO, 20 * GIB)


@pytest.mark.usefixtures("card")
def test_a_later_start_takes_what_an_earlier_one_measured(
    tiny_model: Decoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured: list[None] = []

    def step_bytes(*_: object) -> int:
        measured.append(None)
        return 3 * GIB

    monkeypatch.setattr(memory, "step_bytes", step_bytes)
    monkeypatch.setattr(memory_note, "note_for", lambda *what: tmp_path / "cache" / f"compiled-{abs(hash(repr(what)))}")
    # One GiB less is free behind the step than before it: kernels and libraries. A later start sees that one free, too.
    found = [memory.kv_bytes(tiny_model, torch.bfloat16, INFO, free=21 * GIB) for _ in range(2)]
    assert found[0] == found[1] == 16 * GIB - 3 * GIB // 16
    assert len(measured) == 1
    fewer = msgspec.structs.replace(INFO, max_num_seqs=8)
    memory.kv_bytes(tiny_model, torch.bfloat16, fewer, free=21 * GIB)
    assert len(measured) == 2
    for note in (tmp_path / "cache").iterdir():
        note.write_bytes(b"{")
    # Another process takes memory meanwhile, or gives some: that is nothing to remember.
    for free in (23 * GIB, 20 * GIB, 21 * GIB, 21 * GIB):
        memory.kv_bytes(tiny_model, torch.bfloat16, INFO, free=free)
    assert len(measured) == 5


def out_of_memory(*_: object, **__: object) -> int:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.usefixtures("card")
def test_weights_that_do_not_fit_say_how_large_they_are_and_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(64 * GIB)
    monkeypatch.setattr(load, "load_model", out_of_memory)
    said = r"weights take 64.0 GiB.*80.0 GiB, 20.0 GiB are free, 50.0 GiB are this.*10.0 GiB another.*smaller model"
    with pytest.raises(RunnerConfigError, match=said):
        load.load_runner(tmp_path, dtype="bfloat16")


@pytest.mark.usefixtures("card")
def test_a_cache_that_was_asked_for_and_does_not_fit_names_its_settings(
    tiny_model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "KvCache", out_of_memory)
    with pytest.raises(RunnerConfigError, match=r"1000000 KV blocks take \d.*20.0 GiB are free.*num_blocks"):
        load.make_runner(tiny_model, num_blocks=1000000)


@pytest.mark.usefixtures("card")
def test_steps_that_there_is_no_room_to_record_name_the_settings(
    tiny_model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "GpuRunner", out_of_memory)
    with pytest.raises(RunnerConfigError, match=r"steps that are recorded do not fit.*20.0 GiB are free.*max_num_seqs"):
        load.make_runner(tiny_model, num_blocks=8, packed=True)
