"""The start on a card: weights read while the rest goes on, few steps recorded before the first, the others later."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from loadtest.start import write_checkpoint
from model_svc.runner.gpu_runner import GpuRunner
from model_svc.runner.graphs import checking_shapes, drawing_shapes, recorded_shapes
from model_svc.runner.load import load_runner
from model_svc.runner.packed_step import StepShape
from model_svc.weights.reading import Reading
from model_svc.weights.upload import Upload
from tests.model_svc.paged import RunnerDriver, Tracked, token_ids

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
SIZES: dict[str, Any] = {"num_blocks": 600, "max_num_seqs": 128, "max_num_batched_tokens": 1024}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    write_checkpoint(made, SHAPE)
    return made


def started(directory: Path, **options: Any) -> GpuRunner:
    runner = load_runner(directory, device="cuda", **({"dtype": "bfloat16"} | SIZES | options))
    assert isinstance(runner, GpuRunner)
    return runner


def answers(runner: GpuRunner, num_sequences: int, length: int) -> dict[int, list[int]]:
    sequences = [Tracked(n, [(7 * n + k) % 1000 for k in range(length)]) for n in range(num_sequences)]
    return token_ids(RunnerDriver(runner).generate(sequences, 12))


@pytest.mark.parametrize(("num_sequences", "length"), [(1, 20), (1, 300), (5, 60), (70, 3), (90, 2)])
def test_answers_are_the_same_before_and_after_idle_time(directory: Path, num_sequences: int, length: int) -> None:
    runner = started(directory, dtype="float32")  # more than 64 run in recordings of another size then, which may round
    before = answers(runner, num_sequences, length)
    while runner.use_idle_time():
        pass
    assert answers(runner, num_sequences, length) == before
    for shape in recorded_shapes(128, 1024):
        assert runner._recorded._usual.made(shape) is not None
    runner.close()


def test_shapes_missed_under_load_are_recorded_between_steps(directory: Path) -> None:
    runner = started(directory)
    wanted = answers(runner, 1, 20)
    for _ in range(20):
        assert answers(runner, 1, 20) == wanted
    assert runner._recorded._usual.made(runner._recorded.fit(StepShape(20, 1, False, short=True))) is not None
    runner.close()


def test_all_weights_may_arrive_after_everything_else_of_the_start(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = started(directory)
    wanted = answers(first, 3, 40)
    first.close()
    all_else_is_done, fill, wait, starter = threading.Event(), Upload.fill, Reading.wait, threading.current_thread()

    def held(self: Upload, out: torch.Tensor, source: torch.Tensor) -> None:
        assert threading.current_thread() is starter or all_else_is_done.wait(60)
        fill(self, out, source)

    def waited_for(self: Reading) -> None:
        all_else_is_done.set()
        wait(self)

    monkeypatch.setattr(Upload, "fill", held)
    monkeypatch.setattr(Reading, "wait", waited_for)
    runner = started(directory)
    assert answers(runner, 3, 40) == wanted
    runner.close()


def test_a_file_cut_short_while_it_is_read_is_the_error_of_the_start(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    shard = next(tmp_path.glob("*.safetensors"))
    fill = Upload.fill

    def cut(self: Upload, out: torch.Tensor, source: torch.Tensor) -> None:
        os.truncate(shard, 4096)
        fill(self, out, source)

    monkeypatch.setattr(Upload, "fill", cut)
    with pytest.raises(OSError, match="shorter"):
        started(tmp_path)


def test_recordings_fit_in_what_was_left_for_them(directory: Path) -> None:
    shape = SHAPE | {"num_hidden_layers": 32}
    (directory.parent / "deep").mkdir(exist_ok=True)
    write_checkpoint(directory.parent / "deep", shape)
    runner = started(directory.parent / "deep", max_drafts=16)
    steps = runner._recorded
    torch.cuda.synchronize()
    used: dict[str, list[float]] = {}
    while not steps._usual.all_made or steps._to_load or steps._rare:
        kind = "loaded steps" if steps._to_load else "rare draws" if steps._usual.all_made else "recordings"
        free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
        runner.use_idle_time()
        tensors = torch.cuda.memory_reserved() - reserved
        driver = free - torch.cuda.mem_get_info()[0] - tensors
        for name, size in ((f"{kind}, the driver's", driver), (f"{kind}, tensors", tensors)):
            used.setdefault(name, []).append(size / 2**20)
    for name, sizes in used.items():
        print(f"{name}: {len(sizes)}, MiB each {sum(sizes) / len(sizes):.2f}, at most {max(sizes):.2f}")  # noqa: T201
    taken = sum(sum(sizes) for name, sizes in used.items() if name.startswith("recordings"))
    shapes = [*recorded_shapes(128, 1024), *drawing_shapes(128), *checking_shapes(128, 1024)]
    assert taken <= 8 * len(shapes), used
    runner.close()
