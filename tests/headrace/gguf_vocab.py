"""Small GGUF files whose vocabulary is real, so that the `gguf` writer and llama.cpp can be oracles for ours."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np

CORPUS = [
    "1234567",
    "12 345 6",
    "don't I'LL we've 'RE",
    "a    b",
    "\ttab\t\ttabs",
    "Café déjà — 😊",
    "漢字かな交じり文 한국어 العربية",
    "a\r\nb\r\n\r\nc",
    "  lead",
    "trail   ",
    "\n\n\n",
    "x\u00a0y\u2028z",
    "👩‍👩‍👧‍👦 flags 🇩🇪",
    "١٢٣ ٤ ½ ² x²",
    " ",
    "",
    "e\u0301 ZWJ\u200d",
    "def f(x):\n    return x**2  # ok\n",
    "http://a.b/c?d=1&e=2",
    "camelCaseWORDS HTTPServer A1b2C3",
    "$5 <= ^x~ |`",
    "<|im_start|>user\nhi<|im_end|>x <|im_end|> \n",
    "<|im_start",
    "<repo_name>foo<file_sep>",
]
_RANGES = [
    *((32, 127),) * 3,
    *((160, 592), (0x300, 0x330), (0x400, 0x500), (0x600, 0x660), (0x2000, 0x2070), (0x4E00, 0x4F00)),
    *((0xAC00, 0xAC40), (0x1F600, 0x1F650), (9, 14), (48, 58)),
]


def noise(count: int) -> list[str]:
    """Random text of many scripts; the same on each run."""
    rng = random.Random(1)
    return [
        "".join(chr(rng.randrange(*rng.choice(_RANGES))) for _ in range(rng.randrange(1, 24))) for _ in range(count)
    ]


def write(
    path: Path,
    metadata: dict[str, Any],
    tensors: dict[str, np.ndarray] | None = None,
    kinds: dict[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """Write a GGUF file from plain values; float lists become float32, int lists int32. `kinds`: what is in blocks."""
    writer = gguf.GGUFWriter(str(path), metadata["general.architecture"])
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, data in (tensors or {}).items():
        writer.add_tensor(name, data, raw_dtype=(kinds or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_vocab() -> dict[str, Any]:
    """The smallest byte-level vocabulary: 256 bytes, a few merges, ChatML's control tokens."""
    from wire.vocabulary import byte_alphabet

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet(), "he", "ll", "llo", "hello", "Ġhe"]
    return {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 32,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": ["h e", "l l", "ll o", "he llo", "Ġ he"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
    }


def byte_tensors(metadata: dict[str, Any]) -> dict[str, np.ndarray]:
    """Just enough weights for a model directory."""
    return {"token_embd.weight": np.zeros((len(metadata["tokenizer.ggml.tokens"]), 32), dtype=np.float32)}


def sentencepiece_vocab(*, prefix: bool) -> dict[str, Any]:
    """A SentencePiece vocabulary with scores and byte fallback, whose merges must be found by score."""
    pieces = [
        "▁",
        *"abcdehilorstuwz",
        "he",
        "ll",
        "lo",
        "▁w",
        "or",
        "▁wor",
        "ld",
        "hell",
        "hello",
        "▁hello",
        "th",
        "▁th",
    ]
    pieces += ["▁the", "er", "re", "▁re", "est", "rest", "▁▁", "▁▁▁▁"]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{n:02X}>" for n in range(256)), "<mark>", *pieces]
    # Not in the order of length, so that rank by score and rank by id differ.
    scores = [0.0] * 261 + [-float((n * 7) % len(pieces)) - 1 for n in range(len(pieces))]
    return {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 32,
        "llama.attention.head_count": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [3, 3, 3, 2] + [6] * 256 + [4] + [1] * len(pieces),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_space_prefix": prefix,
    }
