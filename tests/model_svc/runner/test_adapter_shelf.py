"""Adapters that come while a runner works: they say what they would if they had been there from the start."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kernels.native.library import built
from model_svc.engine.engine import Engine
from model_svc.engine.request import EngineRequest
from model_svc.engine_adapters import EngineAdapters
from model_svc.engine_messages import AdapterDone, DropAdapter, LoadAdapter
from model_svc.layers.adapters import AdapterRoom
from model_svc.runner import adapter_shelf
from model_svc.runner.adapter_shelf import AdapterShelf
from model_svc.runner.load import make_runner
from model_svc.weights.adapter import AdapterCheckpoint
from model_svc.weights.adapter_copy import copied
from model_svc.weights.errors import CheckpointError
from tests.lora import write_adapter
from tests.model_svc.paged import RunnerDriver, Tracked, token_ids
from tests.model_svc.tiny import TINY, tiny_llama
from wire import block_hash
from wire.adapters import WEIGHTS
from wire.errors import ModelNotFoundError
from wire.messages import Prompt, SamplingParams, pack_ids

PROMPT = [5, 9, 14, 3, 60, 22, 41]
ROOM = AdapterRoom(2, 20)
FORMS: dict[str, dict[str, Any]] = {"eager": {}, "packed": {"packed": True}, "native": {"native_kernels": True}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("adapters")
    shape = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY))
    write_adapter(made / "one", shape, seed=1, spread=0.4)
    write_adapter(made / "two", shape, targets=("q_proj", "up_proj"), seed=2, rank=20, spread=0.4)
    write_adapter(made / "high", shape, targets=("q_proj",), seed=3, rank=21)
    return made


def _runner(room: AdapterRoom | None = ROOM, *given: AdapterCheckpoint, device: str = "cpu", **options: Any) -> Any:
    sizes: dict[str, Any] = {"num_blocks": 96, "block_size": 4, "max_num_seqs": 8}
    return make_runner(tiny_llama(device, adapters=given, room=room), **(sizes | options))


@pytest.fixture(params=FORMS)
def runner(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "native" and not built():
        pytest.skip("native kernels are not built")
    made = _runner(**FORMS[request.param])
    yield made
    made.close()


def _says(runner: Any, *adapters: str) -> list[list[int]]:
    sequences = [Tracked(n, list(PROMPT), adapter=name) for n, name in enumerate(adapters)]
    found = token_ids(RunnerDriver(runner).generate(sequences, 8))
    return [found[n] for n in range(len(adapters))]


def _end(shelf: AdapterShelf) -> str:
    """Do what is left of a load; returns the digest."""
    while (digest := shelf.advance()) is None:
        if shelf._reading is not None:
            wait([shelf._reading])
    return digest


def _load(runner: Any, name: str, directory: Path) -> str:
    runner.adapter_places.begin(name, str(directory))
    return f"{name}@{_end(runner.adapter_places)}"


@pytest.fixture(scope="module")
def truth(folder: Path) -> dict[str, list[int]]:
    """What the exact runner says that had all of them from the start."""
    names = ("one", "two")
    made = _runner(None, *(AdapterCheckpoint(name, folder / name) for name in names))
    said = dict(zip(("", *names), _says(made, "", *names), strict=True))
    assert len({tuple(ids) for ids in said.values()}) == 3
    return said


def test_one_that_came_says_what_one_from_the_start_does(
    runner: Any, folder: Path, truth: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In steps that were recorded before it came, too, and in a place that another had before."""
    monkeypatch.setattr(adapter_shelf, "_PIECE_BYTES", 1)
    one = _load(runner, "one", folder / "one")
    assert _says(runner, one, "") == [truth["one"], truth[""]]
    two = _load(runner, "two", folder / "two")
    assert _says(runner, two, one) == [truth["two"], truth["one"]]
    with pytest.raises(CheckpointError, match="max_adapters is 2"):
        runner.adapter_places.begin("three", str(folder / "one"))
    runner.adapter_places.drop(one)
    again = _load(runner, "again", folder / "two")
    assert _says(runner, again, two, "") == [truth["two"], truth["two"], truth[""]]


def test_steps_go_on_while_files_are_read(
    folder: Path, truth: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, may_read = _runner(packed=True), threading.Event()
    monkeypatch.setattr("model_svc.runner.adapter_shelf.copied", _behind(may_read, copied))
    made.adapter_places.begin("one", str(folder / "one"))
    assert made.adapter_places.is_reading and made.adapter_places.advance() is None
    assert _says(made, "") == [truth[""]]
    assert made.adapter_places.is_reading and made.adapter_places.advance() is None
    may_read.set()
    assert _says(made, f"one@{_end(made.adapter_places)}") == [truth["one"]]
    made.close()


def _behind(event: threading.Event, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        assert event.wait(300)
        return function(*args)

    return call


def test_the_same_files_under_one_name_are_one_adapter_and_other_files_another(folder: Path, tmp_path: Path) -> None:
    made = _runner()
    shutil.copytree(folder / "one", tmp_path / "copy")
    first = _load(made, "one", folder / "one")
    assert _load(made, "one", tmp_path / "copy") == first
    second = _load(made, "one", folder / "two")
    assert second != first and second.startswith("one@")
    assert sorted(made._slots.adapters) == sorted((first, second))
    made.close()


def test_what_does_not_fit_is_refused_and_leaves_its_place_free(folder: Path, tmp_path: Path) -> None:
    made = _runner(AdapterRoom(1, 20))
    cut = tmp_path / "cut"
    shutil.copytree(folder / "one", cut)
    (cut / WEIGHTS).write_bytes((folder / "one" / WEIGHTS).read_bytes()[:-9])
    (tmp_path / "pickled").mkdir()
    shutil.copy(folder / "one" / "adapter_config.json", tmp_path / "pickled")
    (tmp_path / "pickled" / "adapter_model.bin").touch()
    huge = tmp_path / "huge"
    shutil.copytree(folder / "one", huge)
    with (huge / WEIGHTS).open("ab") as file:
        file.truncate(1 << 26)
    for directory, said in (
        (folder / "high", r"^adapter_config.json: r: .* rank 21; max_adapter_rank is 20"),
        (cut, r"^adapter_model.safetensors: "),
        (huge, r"^adapter_model.safetensors: is larger than"),
        (tmp_path / "pickled", r"^adapter_model.safetensors: adapter_model.bin can run code"),
        (tmp_path / "nobody", r"^nobody: is no directory"),
        (tmp_path / ("x" * 300), r"cannot be read: OSError"),
    ):
        with pytest.raises(CheckpointError, match=said):
            _load(made, "wrong", directory)
    assert _load(made, "one", folder / "one") in made._slots.adapters
    made.close()


class Pipe:
    """Keeps what an engine would send."""

    def __init__(self) -> None:
        self.sent: list[AdapterDone] = []

    def send(self, *messages: AdapterDone) -> None:
        self.sent += messages


def test_answers_of_an_adapter_that_goes_end_well_and_only_then_is_its_place_free(
    folder: Path, truth: dict[str, list[int]]
) -> None:
    made, pipe = _runner(AdapterRoom(1, 20)), Pipe()
    engine = Engine(made, token_bytes=lambda _: b"x")
    orders = EngineAdapters(pipe, engine, made.adapter_places)  # type: ignore[arg-type]

    def load(name: str, path: str, digest: str = "") -> AdapterDone:
        orders.load(LoadAdapter(revision=name, name=name, directory=str(folder / path), digest=digest))
        while orders.is_loading:
            orders.advance()
        return pipe.sent[-1]

    first = load("one", "one")
    one = f"one@{first.digest}"
    engine.add(_request("a", one))
    found = [token for chunk in engine.step() for token in chunk.token_ids]
    orders.drop(DropAdapter(name=one))
    with pytest.raises(ModelNotFoundError, match="any more"):
        engine.add(_request("b", one))
    assert "max_adapters is 1" in load("two", "two").fault
    while engine.has_work:
        found += [token for chunk in engine.step() for token in chunk.token_ids]
        engine.events()
        orders.advance()
    assert found == truth["one"]
    assert "other replicas" in load("two", "two", digest=first.digest).fault
    assert load("two", "two").digest
    engine.add(_request("c", f"two@{pipe.sent[-1].digest}"))
    made.close()


def _request(request_id: str, adapter: str) -> EngineRequest:
    root = block_hash.root(b"k" * 32, model="m", block_size=4, adapter=adapter)
    prompt = Prompt(
        token_ids=pack_ids(PROMPT), num_tokens=len(PROMPT), block_root=root, block_size=4, max_tokens=8,
        block_hashes=b"".join(block_hash.chain(root, PROMPT, 4)),
    )  # fmt: skip
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    return EngineRequest(request_id=request_id, prompt=prompt, adapter=adapter, sampling=sampling)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_one_that_came_is_served_by_steps_recorded_before(folder: Path, truth: dict[str, list[int]]) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    made = _runner(device="cuda")
    assert made._recorded._adapted.all_made
    one = _load(made, "one", folder / "one")
    assert _says(made, one, "") == [truth["one"], truth[""]]
    two = _load(made, "two", folder / "two")
    assert _says(made, two, one) == [truth["two"], truth["one"]]
    made.close()
