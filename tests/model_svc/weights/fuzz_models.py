"""Load and run models whose files were tampered with: `python fuzz_models.py FOLDER ISA [ROUNDS] [SEED]`.

Each round changes bytes of a small GGUF file's header or data, cuts it, or changes sizes in config.json. The model must
be refused by CheckpointError or RunnerConfigError, or run: kernels see nothing that they do not fit, which sanitizers
watch. Says how often each came about; the seed, told on stderr as a sanitizer ends the process, does it all again.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
import torch

from kernels import dispatch
from kernels.native.library import using
from model_svc.runner.load import RunnerConfigError, load_runner
from model_svc.weights.errors import CheckpointError
from tests.model_svc.paged import RunnerDriver, Tracked
from tests.model_svc.weights.gguf_files import tiny_llama, write_llama

_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings", "hidden_act",
)  # fmt: skip
_VALUES = (
    0,
    1,
    2,
    3,
    4,
    8,
    16,
    31,
    32,
    33,
    64,
    96,
    128,
    1024,
    1 << 20,
    (1 << 31) - 1,
    1 << 63,
    -1,
    0.5,
    1e30,
    None,
    "x",
)
_NUMBERS = (0, 1, 2, 7, 31, 32, 63, 255, 256, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
_FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "Q4_K", "Q5_K", "Q6_K")


def _blocks(data: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Return random blocks, as the gguf package cannot quantize to every format; halves in them are below one."""
    if kind == gguf.GGMLQuantizationType.F32:
        return data
    values, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    return np.random.default_rng(1).integers(0, 0x3C, (len(data), data.shape[1] // values * num_bytes), dtype=np.uint8)


def write_whole(folder: Path, name: str) -> None:
    """Write a model directory that is as it should be."""
    wide = name.endswith("K")
    model = tiny_llama(
        **({"hidden_size": 256, "intermediate_size": 256} if wide else {}), tie_word_embeddings=name == "Q8_0"
    )
    with patch.object(gguf.quants, "quantize", _blocks):
        write_llama(folder / "model.gguf", model, name)
    config = model.config.to_dict() | {"architectures": ["LlamaForCausalLM"], "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(config, default=str))


def tamper(rng: random.Random, folder: Path) -> None:
    """Change something in a model directory."""
    path = folder / "model.gguf"
    raw = bytearray(path.read_bytes())
    head = min(raw.rfind(b"output_norm.weight") + 64, len(raw) - 1)  # about where the header ends
    what = rng.choice(["byte", "number", "data", "cut", "config", "config"])
    if len(raw) <= 64:  # cut before, and hardly anything is left to change
        what = "config"
    if what == "byte":
        raw[rng.randrange(head)] = rng.randrange(256)
    elif what == "number":
        at, width = rng.randrange(24, head), rng.choice([4, 8])
        raw[at : at + width] = (rng.choice(_NUMBERS) % (1 << 8 * width)).to_bytes(width, "little")
    elif what == "data":
        for _ in range(64):
            raw[rng.randrange(head, len(raw))] = rng.choice([0, 255, 127, 128, rng.randrange(256)])
    elif what == "cut":
        del raw[rng.randrange(len(raw)) :]
    else:
        config = json.loads((folder / "config.json").read_text())
        config[rng.choice(_SIZES)] = rng.choice(_VALUES)
        (folder / "config.json").write_text(json.dumps(config))
    path.write_bytes(raw)


def attempt(folder: Path) -> str:
    """Load the model and follow two prompts; return what came of it."""
    try:
        runner: Any = load_runner(
            folder, dtype="int8", num_blocks=32, max_num_seqs=4, max_model_len=64, block_size=4, threads=2
        )
        if runner.info.max_model_len < 16:
            return "short"
        driver = RunnerDriver(runner)
        driver.generate([Tracked(slot=n, ids=[1, 95, 3 + n, 1 << 20][: 3 + n % 2]) for n in range(3)], 4)
    except (CheckpointError, RunnerConfigError) as error:
        return type(error).__name__
    except AssertionError as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        if where.line != "assert not output.failed_slots":
            raise
        return "ran to NaN"  # which the engine is told of
    return "ran"


def main(folder: str, isa: str, rounds: str = "200", seed: str = "") -> None:
    """Tamper and try, a bounded number of times."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    seed = seed or str(random.getrandbits(32))
    sys.stderr.write(f"seed {seed}\n")
    rng = random.Random(int(seed))
    outcomes: Counter[str] = Counter()
    with using(isa, Path(folder)), dispatch.forced("native"), tempfile.TemporaryDirectory() as place:
        whole = {name: Path(place, name) for name in _FORMATS}
        for name, model in whole.items():
            model.mkdir()
            write_whole(model, name)
            assert attempt(model).startswith("ran"), name
        for number in range(int(rounds)):
            model = Path(place, f"round{number}")
            model.mkdir()
            for part in rng.choice(list(whole.values())).iterdir():
                (model / part.name).write_bytes(part.read_bytes())
            for _ in range(rng.randint(1, 2)):
                tamper(rng, model)
            try:
                outcomes[attempt(model)] += 1
            except Exception as error:
                sys.stdout.write(f"round {number}: {error!r}\n{traceback.format_exc(limit=-2)}")
                outcomes["unclean"] += 1
    sys.stdout.write(f"{dict(outcomes)}\n")
    if not outcomes["unclean"]:
        sys.stdout.write("all well\n")


if __name__ == "__main__":
    main(*sys.argv[1:5])
