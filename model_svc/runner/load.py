"""Make a runner for a model directory: choose dtype and device, load the weights, size the KV cache by what is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch

from kernels.native.library import set_threads
from model_svc.engine.plan import Runner, RunnerInfo
from model_svc.layers.adapters import AdapterRoom
from model_svc.layers.group import ALONE, Group
from model_svc.models.decoder import Decoder
from model_svc.models.load import load_model
from model_svc.runner import start_times
from model_svc.runner.compile_steps import compile_steps
from model_svc.runner.cpu_runner import CpuRunner
from model_svc.runner.device import device_named
from model_svc.runner.gpu_runner import GpuRunner
from model_svc.runner.graphs import adapted_shapes, checking_shapes, drawing_shapes, recorded_shapes
from model_svc.runner.kept_blocks import Store
from model_svc.runner.kv_cache import KvCache, bytes_per_token, free_bytes
from model_svc.runner.kv_transfer import layout_of
from model_svc.runner.memory import free_on_gpu, kv_bytes, too_large
from model_svc.runner.precision import RunnerConfigError as RunnerConfigError
from model_svc.runner.precision import kv_dtype_of, precision_of
from model_svc.runner.runner import TorchRunner
from model_svc.runner.sight import sight_bytes, with_sight
from model_svc.runner.state_pool import StatePool, row_bytes
from model_svc.runner.state_room import as_least, states_bytes, with_states
from model_svc.runner.tier import NO_TIER, TierOptions, make_store
from model_svc.runner.warm_up import warm_up
from model_svc.weights.adapter import AdapterCheckpoint
from model_svc.weights.reading import Reading

_WEIGHTS = (".safetensors", ".gguf")


def load_runner(
    model_path: str | Path,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    kv_dtype: str = "auto",
    num_blocks: int | None = None,
    kv_memory_bytes: int | None = None,
    block_size: int = 16,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 512,
    max_model_len: int | None = None,
    threads: int | None = None,
    max_drafts: int = 0,
    kv_ram_bytes: int = 0,
    kv_disk_bytes: int = 0,
    kv_disk_dir: str = "",
    group: Group = ALONE,
    adapters: Sequence[tuple[str, str]] = (),
    max_adapters: int = 0,
    max_adapter_rank: int = 16,
) -> Runner:
    """Load a model and return its runner. float32 on the CPU is the exact mode.

    `dtype` auto is bfloat16 on a GPU, with FP8 weights as they are stored on a Hopper card; on a CPU it computes with
    the weights' own blocks by native kernels (int8 in the products, float32 between them) where these are built, else
    in float32. int8 insists on them, fp8 on FP8. packed is bfloat16 on a GPU with all quantized weights of safetensors
    as they are stored, instead of the numbers made of them.

    `kv_dtype` fp8 keeps keys and values in 8 bits. `num_blocks` sizes the KV cache directly, `kv_memory_bytes` by
    memory, neither by what is free after loading. Up to `max_drafts` guesses can be checked in a step. On a GPU most
    weights are read while the start goes on, and some steps are recorded later, when the runner is told to use idle
    time. Of a `group` of ranks each loads its part, and all get as many blocks as there is room for with the one that
    has least.

    `adapters` are names and directories of LoRA adapters that sequences can ask for; while the runner works
    `max_adapters` more may come, of `max_adapter_rank`. A second tier keeps blocks in
    `kv_ram_bytes` of the host's memory, of all ranks together, or on a CPU in a file of `kv_disk_bytes` in
    `kv_disk_dir`.

    Raises CheckpointError (the model's files) or RunnerConfigError (a setting).
    """
    path, where = Path(model_path), device_named(device)
    precision = precision_of(dtype, where)
    kept = kv_dtype_of(kv_dtype, precision, where)
    _set_threads(threads, native_kernels=precision.native_kernels)
    added = [AdapterCheckpoint(name, Path(directory)) for name, directory in adapters]
    with _reading(path, where) as reading:
        with start_times.part("weights"), _named_out_of_memory(path):
            model = load_model(
                path, dtype=precision.dtype, device=where, max_len=max_model_len,
                method=precision.method(where, reading), group=group, adapters=added,
                room=AdapterRoom(max_adapters, max_adapter_rank),
            )  # fmt: skip
        runner = make_runner(
            model, dtype=precision.dtype, kv_dtype=kept, native_kernels=precision.native_kernels,
            num_blocks=num_blocks, kv_memory_bytes=kv_memory_bytes, block_size=block_size, max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens, max_drafts=max_drafts, late=True,
            tier=TierOptions(
                kv_ram_bytes, kv_disk_bytes, kv_disk_dir, (path, *(Path(directory) for _, directory in adapters)), dtype
            ),
        )  # fmt: skip
    if where.type == "cuda":
        with start_times.part("first steps"):
            warm_up(runner)
    return runner


@contextmanager
def _reading(model_path: Path, where: torch.device) -> Iterator[Reading | None]:
    """Read weights to a GPU beside what is done inside; at the end all have arrived."""
    if where.type != "cuda":
        yield None
        return
    with start_times.part("device"):
        made = Reading(where)
    with made:
        yield made
        with start_times.part("wait for weights"), _named_out_of_memory(model_path):
            made.wait()


def _set_threads(threads: int | None, *, native_kernels: bool) -> None:
    if native_kernels:
        # What is left to torch is small; its threads would only spin beside ours.
        torch.set_num_threads(1)
    elif threads is not None:
        torch.set_num_threads(threads)
    set_threads(threads)


@contextmanager
def _named_out_of_memory(model_path: Path) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        needs = sum(file.stat().st_size for file in model_path.iterdir() if file.suffix in _WEIGHTS)
        remedy = "end what else runs there, or take a smaller model or one of fewer bits"
        raise RunnerConfigError(too_large("the weights", needs, remedy)) from error


def make_runner(
    model: Decoder,
    *,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    num_blocks: int | None = None,
    kv_memory_bytes: int | None = None,
    block_size: int = 16,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 512,
    depth: int | None = None,
    packed: bool | None = None,
    native_kernels: bool = False,
    max_drafts: int = 0,
    late: bool = False,
    tier: TierOptions = NO_TIER,
) -> TorchRunner | GpuRunner:
    """Return a runner of a model that is loaded already. Raises RunnerConfigError.

    `depth` is how many steps may be in flight: by default none on the CPU, which computes at once, and one on a GPU.
    Of a model with states guesses are not checked, as states cannot be rolled back.
    `native_kernels` picks the runner of these, with keys and values in float16, `packed` the one made for GPUs;
    elsewhere it works without graphs, for tests. `late` leaves part of the recording to the GPU runner's idle time.
    """
    on_gpu = model.device.type == "cuda"
    kv_dtype = kv_dtype or (torch.float16 if native_kernels else dtype)
    info = RunnerInfo(
        num_blocks=1,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=model.max_len,
        vocab_size=model.config.vocab_size,
        depth=(model.group.stages - 1 or int(on_gpu)) if depth is None else depth,
        stages=model.group.stages,
        device=_device_name(model.device),
        kv_bytes_per_token=bytes_per_token(model.kv_shapes(), kv_dtype),
        weight_bytes=model.weight_bytes,
        max_drafts=0 if model.keeps_state(model.config) else max_drafts,
        state_bytes=row_bytes(model.state_shapes()),
        cards=_cards(model),
        adapters=model.adapters.names if model.adapters is not None else (),
        adapter_room=model.adapters.room.count if model.adapters is not None else 0,
    )
    info = with_sight(info, model)
    free = free_on_gpu(model.device) if on_gpu else free_bytes()
    if on_gpu and packed is not False:
        compile_steps(model, kv_dtype, info)
    if num_blocks is None:
        if kv_memory_bytes is None:
            beside = tier.buffer_bytes(info) + sight_bytes(model)
            kv_memory_bytes = _gpu_bytes(model, kv_dtype, info, free) - beside if on_gpu else free
        info = as_least(with_states(info, kv_memory_bytes), model.group)
        num_blocks = _num_blocks(info, kv_memory_bytes - states_bytes(info))
    else:
        info = with_states(info, None)
    info = msgspec.structs.replace(info, num_blocks=model.group.least(num_blocks))
    cache = _cache(model, info, kv_dtype, heads_first=native_kernels)
    # A rank has only its heads of each block, a stage its layers; and blocks alone are of no use without a state.
    if model.group.size == model.group.stages == 1 and not model.keeps_state(model.config):
        info = msgspec.structs.replace(info, kv=layout_of(cache))
    store = make_store(tier, cache, model)
    if native_kernels:
        return CpuRunner(model, cache, info, store)
    if on_gpu if packed is None else packed:
        return _packed(model, cache, info, store, late=late)
    return TorchRunner(model, cache, info, store)


def _num_blocks(info: RunnerInfo, memory: int) -> int:
    """Return how many blocks so many bytes hold; more than every slot at full length is of use to nobody."""
    useful = info.max_num_seqs * -(-info.max_model_len // info.block_size)
    return min(memory // (info.kv_bytes_per_token * info.block_size), useful)


def _cache(model: Decoder, info: RunnerInfo, dtype: torch.dtype, *, heads_first: bool) -> KvCache:
    if info.num_blocks < 1:
        raise RunnerConfigError(
            f"the KV cache has no room for one block of {info.block_size} tokens ({info.kv_bytes_per_token} bytes each)"
        )
    try:
        states = StatePool(model.state_shapes(), info.max_num_seqs, info.num_snapshots, model.device)
        return KvCache(
            model.kv_shapes(), info.num_blocks, info.block_size, dtype, model.device, heads_first=heads_first,
            states=states,
        )  # fmt: skip
    except torch.OutOfMemoryError as error:
        needs = info.num_blocks * info.block_size * info.kv_bytes_per_token + states_bytes(info)
        remedy = "lower num_blocks or kv_memory_bytes, or set neither to take what is free"
        raise RunnerConfigError(too_large(f"{info.num_blocks} KV blocks", needs, remedy)) from error


def _packed(model: Decoder, cache: KvCache, info: RunnerInfo, store: Store | None, *, late: bool) -> GpuRunner:
    try:
        return GpuRunner(model, cache, info, store, late=late)
    except torch.OutOfMemoryError as error:
        remedy = "lower kv_memory_bytes or num_blocks, max_num_seqs or max_num_batched_tokens"
        raise RunnerConfigError(too_large("the steps that are recorded", 0, remedy)) from error


def _gpu_bytes(model: Decoder, kv_dtype: torch.dtype, info: RunnerInfo, free: int) -> int:
    T, S = info.max_num_batched_tokens, info.max_num_seqs
    shapes = [*recorded_shapes(S, T), *drawing_shapes(S), *(checking_shapes(S, T) if info.max_drafts else ())]
    shapes += adapted_shapes(S, T) if info.has_adapters else []
    try:
        with start_times.part("memory profile"):
            return kv_bytes(model, kv_dtype, info, free=free, num_recordings=len(shapes))
    except MemoryError as error:
        raise RunnerConfigError(str(error)) from error


def _cards(model: Decoder) -> tuple[str, ...]:
    """Return the UUIDs of the cards of all ranks, which stand one behind the other from rank 0's on."""
    if model.device.type != "cuda":
        return ()
    first = model.device.index if model.device.index is not None else torch.cuda.current_device()
    end = min(first + max(model.group.size, model.group.stages), torch.cuda.device_count())
    return tuple(f"GPU-{torch.cuda.get_device_properties(card).uuid}" for card in range(first, end))


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
