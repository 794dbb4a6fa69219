"""Blocks that left the cache come back from memory or a file bit for bit, after a restart too, or are computed."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.native.library import built
from model_svc.engine.engine import Engine
from model_svc.engine.plan import BlockCopy, Runner, StepPlan
from model_svc.engine.request import EngineRequest
from model_svc.models.decoder import Decoder, KvShape
from model_svc.runner import tier_copies
from model_svc.runner.block_file import BlockFile, places_in
from model_svc.runner.kept_blocks import HostMemory
from model_svc.runner.kv_cache import KvCache
from model_svc.runner.load import load_runner, make_runner
from model_svc.runner.precision import RunnerConfigError
from model_svc.runner.tier import TierOptions
from model_svc.runner.tier_copies import TierCopies, bytes_of_block
from tests.model_svc.no_waiting import no_waiting
from tests.model_svc.saved_llama import save_tiny
from tests.model_svc.soon_copied import soon_copied
from tests.model_svc.tiny import tiny_llama
from wire import block_hash
from wire.messages import Prompt, SamplingParams, TokenChunk, pack_ids

__all__ = ["soon_copied"]

BLOCK, MIB = 4, 1 << 20
SIZES: dict[str, Any] = {"num_blocks": 14, "block_size": BLOCK, "max_num_seqs": 4, "max_num_batched_tokens": 24}
ROOT = block_hash.root(b"secret", model="tiny", block_size=BLOCK)
SHAPES = [KvShape(3, 20), KvShape(1, 7), KvShape(3, 20)]  # layers that differ, and no power of two anywhere
CONVERSATIONS = [[random.Random(n).randrange(64) for _ in range(41)] for n in range(4)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return save_tiny(tmp_path / "model")


def answers(runner: Runner, *, turns: int = 2, deterministic: bool = False) -> tuple[list[list[TokenChunk]], Engine]:
    """Let each conversation come `turns` times; the pool has room for one."""
    engine = Engine(runner, token_bytes=lambda _: b"x")
    found = []
    for turn in range(turns):
        for n, ids in enumerate(CONVERSATIONS):
            prompt = Prompt(
                token_ids=pack_ids(ids), num_tokens=len(ids), block_root=ROOT, block_size=BLOCK, max_tokens=6
            )
            sampling = SamplingParams(temperature=0.0, logprobs=2, deterministic=deterministic)
            engine.add(EngineRequest(request_id=f"{turn}.{n}", prompt=prompt, sampling=sampling))
            found.append(finished(engine))
    return found, engine


def finished(engine: Engine) -> list[TokenChunk]:
    chunks = []
    while engine.has_work:
        chunks += engine.step()
        engine.check_invariants()
        engine.events()
    return chunks


def said(chunks: list[TokenChunk]) -> tuple[list[int], list[Any]]:
    return [i for chunk in chunks for i in chunk.token_ids], [one for chunk in chunks for one in chunk.logprobs]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_conversation_that_was_evicted_is_answered_to_the_bit_as_before(
    tiny_model: Decoder, packed: bool, deterministic: bool
) -> None:
    runner = make_runner(tiny_model, **SIZES, packed=packed, depth=int(packed), tier=TierOptions(ram_bytes=MIB))
    found, engine = answers(runner, deterministic=deterministic)
    load = engine.load()
    assert load.num_loaded_blocks >= 4 * 8
    assert load.num_prefilled_tokens < 4 * 41 + 4 * 12
    for n in range(4):
        assert said(found[n])[0] == said(found[4 + n])[0]
        assert found[4 + n][0].num_cached_tokens == 40
    alone = make_runner(tiny_model, **SIZES, packed=packed, depth=int(packed))
    assert [said(one)[0] for one in answers(alone, deterministic=deterministic)[0]] == [said(one)[0] for one in found]
    runner.close()
    alone.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_conversation_that_was_evicted_from_a_card_is_answered_as_before(deterministic: bool) -> None:
    runner = make_runner(tiny_llama("cuda"), **SIZES, tier=TierOptions(ram_bytes=MIB))
    found, engine = answers(runner, deterministic=deterministic)
    assert engine.load().num_loaded_blocks >= 4 * 8
    assert runner.info.tier_block_ms > 0
    for n in range(4):
        assert said(found[n])[0] == said(found[4 + n])[0]
        assert found[4 + n][0].num_cached_tokens == 40
    runner.close()


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_conversations_outlive_the_replica_in_a_file(directory: Path, tmp_path: Path, dtype: str) -> None:
    if dtype == "int8" and not built():
        pytest.skip("native kernels are not built")
    options: dict[str, Any] = {**SIZES, "dtype": dtype, "kv_disk_bytes": MIB, "kv_disk_dir": str(tmp_path / "kv")}
    first = load_runner(directory, **options)
    before, _ = answers(first, turns=1)
    first.close()
    again = load_runner(directory, **options)
    after, engine = answers(again, turns=1)
    assert [said(one)[0] for one in after] == [said(one)[0] for one in before]
    assert all(chunks[0].num_cached_tokens == 40 for chunks in after)
    assert engine.load().num_saved_blocks == 0
    again.close()
    assert (tmp_path / "kv" / "blocks-0").stat().st_mode & 0o077 == 0


def test_a_file_of_other_states_is_begun_anew(directory: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {**SIZES, "kv_disk_bytes": MIB, "kv_disk_dir": str(tmp_path / "kv")}

    def num_kept(**changes: Any) -> int:
        runner = load_runner(directory, **(options | changes))
        _, engine = answers(runner, turns=1)
        num_saved = engine.load().num_saved_blocks
        runner.close()
        return num_saved

    assert num_kept() > 0
    assert num_kept() == 0
    assert num_kept(kv_disk_bytes=2 * MIB) > 0
    assert num_kept(kv_disk_bytes=2 * MIB) == 0
    config = (directory / "config.json").read_text()
    (directory / "config.json").write_text(config + "\n")  # as if other weights had come under the name
    assert num_kept(kv_disk_bytes=2 * MIB) > 0


def test_what_is_torn_is_computed(directory: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {**SIZES, "kv_disk_bytes": MIB, "kv_disk_dir": str(tmp_path / "kv")}
    first = load_runner(directory, **options)
    before, _ = answers(first, turns=1)
    first.close()
    path = tmp_path / "kv" / "blocks-0"
    data = bytearray(path.read_bytes())
    stride = (len(data) - 4096) // places_in(MIB, bytes_of_block_of(directory))
    for at in range(len(data) - 1, 4096 * 3, -stride // 2):
        data[at - 4000] ^= 1
    path.write_bytes(data)
    again = load_runner(directory, **options)
    after, engine = answers(again, turns=1)
    assert [said(one)[0] for one in after] == [said(one)[0] for one in before]
    assert engine.load().num_saved_blocks > 0
    again.close()


def bytes_of_block_of(directory: Path) -> int:
    runner = load_runner(directory, **SIZES)
    assert runner.info.kv is not None
    runner.close()
    return runner.info.kv.block_bytes


def test_replicas_of_one_state_directory_have_files_of_their_own(tmp_path: Path) -> None:
    files = [BlockFile(tmp_path, 3, 100, "model") for _ in range(2)]
    rows = torch.arange(300, dtype=torch.int64).to(torch.uint8).view(3, 100)
    copies = [BlockCopy(block=0, place=place, name=bytes([place + 1]) * 16) for place in (2, 0, 1)]
    files[0].put(copies, rows)
    assert sorted(files[0].names()) == [(bytes([place + 1]) * 16, place) for place in range(3)]
    assert not list(files[1].names())
    back = torch.empty_like(rows)
    files[0].get(copies, back)
    assert torch.equal(back, rows)
    for file in files:
        file.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_place_whose_block_is_being_replaced_has_no_name(tmp_path: Path) -> None:
    file = BlockFile(tmp_path, 1, 100, "model")
    row = torch.zeros(1, 100, dtype=torch.uint8)
    file.put([BlockCopy(block=0, place=0, name=b"a" * 16)], row)
    assert file.is_sound(0)

    def fails(data: object, at: int) -> None:
        if at > 4096 + 32:
            raise OSError("the disk is gone")
        writes(data, at)

    writes, file._write = file._write, fails  # type: ignore[method-assign]
    with pytest.raises(OSError, match="gone"):
        file.put([BlockCopy(block=0, place=0, name=b"b" * 16)], row)
    assert not list(file.names())
    assert not file.is_sound(0)
    file.close()


def test_what_finds_no_room_is_refused_by_the_settings_name(
    tiny_model: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**options: Any) -> str:
        with pytest.raises(RunnerConfigError) as caught:
            make_runner(tiny_model, **SIZES, tier=TierOptions(**options))
        return str(caught.value)

    assert refused(ram_bytes=10).startswith("kv_ram_gib has no room for one block")
    assert refused(ram_bytes=1 << 60).startswith("kv_ram_gib: 1073741824.0 GiB are asked for")
    assert refused(disk_bytes=10, disk_dir=str(tmp_path)).startswith("kv_disk_gib has no room for one block")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    options = {"disk_bytes": MIB, "disk_dir": str(tmp_path / "kv"), "directories": (tmp_path,)}
    assert "No space left" in refused(**options)
    assert not list((tmp_path / "kv").glob("*.tmp"))


def cache(*, heads_first: bool, dtype: torch.dtype, on: str = "cpu") -> KvCache:
    made = KvCache(SHAPES, 9, BLOCK, dtype, torch.device(on), heads_first=heads_first)
    for layer in made.layers:
        for tensor in layer:
            tensor.copy_(torch.randn(tensor.shape).to(dtype))
    return made


def exchange(
    kept: KvCache, copies: TierCopies, guard: Callable[[], AbstractContextManager[None]] = nullcontext
) -> None:
    """Save, overwrite, load and save in plans that follow one another without a wait; check what came of it."""
    before = [[tensor.clone() for tensor in layer] for layer in kept.layers]

    def plan(*, saves: dict[int, int] | None = None, loads: dict[int, int] | None = None) -> None:
        def listed(what: dict[int, int] | None) -> tuple[BlockCopy, ...]:
            return tuple(BlockCopy(block=block, place=place, name=b"") for block, place in (what or {}).items())

        with guard():
            copies.run(StepPlan(step=0, sequences=(), saves=listed(saves), loads=listed(loads)))

    plan(saves={7: 0, 0: 3, 4: 1, 5: 2, 6: 4})
    plan(loads={4: 0, 7: 1, 1: 3, 2: 3})
    plan(saves={4: 3, 8: 5}, loads={0: 0, 8: 2})  # what was loaded goes where a load has read
    plan(loads={3: 3, 5: 5})
    if kept.layers[0][0].is_cuda:
        torch.cuda.synchronize()
    wanted = [7, 0, 0, 7, 7, 8, 6, 4, 5]  # whose content each block has now
    for now, was in zip(kept.layers, before, strict=True):
        for tensor, old in zip(now, was, strict=True):
            assert torch.equal(tensor, old[wanted])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 100])
def test_copies_keep_the_order_of_plans_whatever_the_buffer_holds(
    heads_first: bool, dtype: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = cache(heads_first=heads_first, dtype=dtype)
    monkeypatch.setattr(tier_copies, "_BUFFER_BYTES", rows * bytes_of_block(kept))
    exchange(kept, TierCopies(kept, HostMemory(6, bytes_of_block(kept), pinned=False)))


def test_a_trial_in_which_others_had_the_processor_does_not_count(
    soon_copied: Callable[[TierCopies], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, took = cache(heads_first=False, dtype=torch.float32), [5.0, 9.0, 0.016, 7.0, 8.0]
    clock = iter([moment for at, one in enumerate(took) for moment in (at * 10.0, at * 10.0 + one)])
    monkeypatch.setattr(tier_copies, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    copies = TierCopies(kept, HostMemory(16, bytes_of_block(kept), pinned=False))
    assert soon_copied(copies) == pytest.approx(0.016 * 1e3 / 8)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 100])
def test_copies_keep_the_order_of_plans_between_streams(
    dtype: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = cache(heads_first=False, dtype=dtype, on="cuda")
    monkeypatch.setattr(tier_copies, "_BUFFER_BYTES", rows * bytes_of_block(kept))
    torch.cuda.synchronize()
    heard: list[object] = []
    copies = TierCopies(kept, HostMemory(6, bytes_of_block(kept), pinned=True), torch.cuda.Stream(), heard.append)
    for guard in (nullcontext, no_waiting, no_waiting):  # the first time compiles
        exchange(kept, copies, guard)
    assert heard
    assert copies.time_ms() > 0
    copies.close()
