"""An 8B model's start on a GPU: from the process's start to its first token, with weights in the page cache.

    python -m loadtest.start [--shape llama-8b] [--rounds 2]

Writes a checkpoint of random weights once (16 GB of sharded safetensors), then starts the engine's process as a replica
does and sends it a prompt of 100 tokens: first with an empty cache of compiled kernels, as on a new machine, then with
the cache that this left. The engine itself says what the parts took. Then come a first request with penalties, biases
and log-probabilities and a first deterministic one, of three tokens each; such prompts as the first are timed before
and after a pause, in which an idle engine records steps of prompts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from loadtest.shapes import SHAPES
from model_svc.engine.request import EngineRequest
from model_svc.engine_link import EngineLink
from model_svc.engine_messages import Progress, Ready
from model_svc.settings import ModelSettings
from wire.messages import Prompt, SamplingParams, pack_ids
from wire.vocabulary import byte_alphabet

_SHARD_BYTES = 5 << 30
_PIECE = 32 << 20
_PAUSE_S = 5.0
_RARE = {
    "first with penalties": SamplingParams(
        temperature=1.0, frequency_penalty=0.5, repetition_penalty=1.1, logit_bias={5: 1.0}, logprobs=5, ignore_eos=True
    ),
    "first deterministic": SamplingParams(temperature=1.0, deterministic=True, ignore_eos=True),
}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama-8b")
    parser.add_argument("--dir", type=Path, help="/tmp and the shape's name by default")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=2, help="starts with the cache kept")
    parser.add_argument(
        "--state", type=Path, default=Path("/tmp/headrace-start"), help="state directory; emptied first"
    )
    args = parser.parse_args()
    args.dir = args.dir or Path("/tmp") / args.shape
    began = time.perf_counter()
    if not (args.dir / "config.json").exists():
        write_checkpoint(args.dir, {**SHAPES[args.shape], "tie_word_embeddings": False})
        say(f"wrote {args.dir} in {time.perf_counter() - began:.1f} s")
    os.environ.pop("TRITON_CACHE_DIR", None)  # the state directory's is measured
    shutil.rmtree(args.state, ignore_errors=True)
    settings = ModelSettings(
        model_dir=str(args.dir.parent), models=(args.dir.name,), state_dir=str(args.state), device=args.device,
        dtype="bfloat16", max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=16384, log_level="warning",
    )  # fmt: skip
    for number in range(args.rounds + 1):
        found = anyio.run(start, settings)
        kind = "kept" if number else "empty"
        say(f"compiled kernels {kind}: first token after {found.pop('first token'):.2f} s; {parts(found)}")


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def parts(seconds: dict[str, float]) -> str:
    """Return the parts as one line."""
    return ", ".join(f"{name} {value:.2f}" if value > 0.1 else f"{name} {value:.4f}" for name, value in seconds.items())


async def start(settings: ModelSettings) -> dict[str, float]:
    """Start an engine process, ask for one token, and a few times more; returns seconds by part."""
    began = time.perf_counter()
    found: dict[str, float] = {}
    async with EngineLink.open(settings) as link:
        while not found:
            for message in await link.receive():
                if isinstance(message, Ready):
                    found = {**message.seconds, "ready": time.perf_counter() - began}
        await ask(link, "first")
        found["first token"] = time.perf_counter() - began
        for name, sampling in _RARE.items():
            asked = time.perf_counter()
            await ask(link, name, sampling, 3)
            found[name] = time.perf_counter() - asked
        found["next prompts"] = await median(link, "next")
        await anyio.sleep(_PAUSE_S)
        found["prompts after a pause"] = await median(link, "later")
    return found


async def median(link: EngineLink, name: str) -> float:
    """Return what a few prompts' first tokens took, one after another."""
    took = []
    for number in range(5):
        began = time.perf_counter()
        await ask(link, f"{name}{number}")
        took.append(time.perf_counter() - began)
    return statistics.median(took)


async def ask(link: EngineLink, name: str, sampling: SamplingParams | None = None, num_tokens: int = 1) -> None:
    """Send a request of 100 tokens, greedy unless told otherwise, for one or some more and wait for these."""
    ids = [n * 104729 % 40000 for n in range(100)]
    prompt = Prompt(token_ids=pack_ids(ids), num_tokens=100, block_root=b"r" * 16, max_tokens=num_tokens)
    sampling = sampling or SamplingParams(temperature=0.0, ignore_eos=True)
    left = num_tokens
    await link.send(EngineRequest(request_id=name, prompt=prompt, sampling=sampling))
    while True:
        for message in await link.receive():
            if isinstance(message, Progress):
                left -= sum(len(chunk.token_ids) for chunk in message.chunks)
        if left <= 0:
            return


# --- the checkpoint ---


def write_checkpoint(directory: Path, shape: dict[str, Any]) -> None:
    """Write shards with an index, config.json last: a directory that has it is whole."""
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0).standard_normal(_PIECE // 2, dtype=np.float32) * 0.02
    piece = (random.view(np.uint32) >> 16).astype(np.uint16).tobytes()  # float32's upper half is bfloat16
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate(shards(shape)):
        name = f"model-{number:05}.safetensors"
        write_shard(directory / name, tensors, piece)
        weight_map |= dict.fromkeys(tensors, name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer(shape["vocab_size"])))
    (directory / "config.json").write_text(json.dumps(shape))


def shards(shape: dict[str, Any]) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yield the tensors of each file by name, with their shapes."""
    found: dict[str, tuple[int, ...]] = {}
    size = 0
    for name, dims in tensors_of(shape):
        found[name] = dims
        size += 2 * int(np.prod(dims))
        if size >= _SHARD_BYTES:
            yield found
            found, size = {}, 0
    if found:
        yield found


def tensors_of(shape: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes of a Llama's tensors."""
    E, F, V = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    kv = E // shape["num_attention_heads"] * shape["num_key_value_heads"]
    yield "model.embed_tokens.weight", (V, E)
    for layer in range(shape["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name, dims in (("q", (E, E)), ("k", (kv, E)), ("v", (kv, E)), ("o", (E, E))):
            yield f"{at}self_attn.{name}_proj.weight", dims
        for name, dims in (("gate", (F, E)), ("up", (F, E)), ("down", (E, F))):
            yield f"{at}mlp.{name}_proj.weight", dims
        yield f"{at}input_layernorm.weight", (E,)
        yield f"{at}post_attention_layernorm.weight", (E,)
    yield "model.norm.weight", (E,)
    yield "lm_head.weight", (V, E)


def write_shard(path: Path, tensors: dict[str, tuple[int, ...]], piece: bytes) -> None:
    """Write one file; norms are ones, everything else is the same random piece again and again."""
    header: dict[str, Any] = {}
    at = 0
    for name, dims in tensors.items():
        size = 2 * int(np.prod(dims))
        header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    raw = raw.ljust(-(-len(raw) // 8) * 8)  # as all writers do: numbers at odd places would have to be copied first
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for name, dims in tensors.items():
            left = 2 * int(np.prod(dims))
            if "norm" in name:
                file.write(b"\x80\x3f" * (left // 2))
                continue
            while left > 0:
                file.write(piece[: min(left, len(piece))])
                left -= len(piece)


def tokenizer(size: int) -> dict[str, Any]:
    """Return a tokenizer of single bytes, whose other ids stand for made-up words."""
    letters = sorted(byte_alphabet())
    vocab = {letter: n for n, letter in enumerate(letters)} | {f"w{n}": n for n in range(len(letters), size)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


if __name__ == "__main__":
    main()
