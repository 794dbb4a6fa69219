"""Model directories without weights, for desks that only need a vocabulary, a template and limits.

The byte-level one holds all 256 bytes and the multi-byte pieces that scripts emit as single tokens; the other one marks
spaces as SentencePiece does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from wire.vocabulary import byte_alphabet

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{{ message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

PIECES: tuple[bytes, ...] = (
    *(bytes.fromhex(text) for text in ("F09F", "9880", "E4", "BDA0", "C2", "85")),
    *(text.encode() for text in ("EN", "D-", "OF", "joy", "ok ", " end", "plan: Q: x", "yes Q: no", " world", "hello")),
    *(text.encode() for text in ("hidden ", "thought", "the answer", "zorg", "blat", " fine", "one ", "two ")),
    *(text.encode() for text in ("three ", "\u2028", "\r\n", "<think>", "</think>", "answer", "</")),
)


def write_tiny_model(
    path: Path,
    *,
    pieces: Iterable[bytes] = PIECES,
    max_model_len: int = 2048,
    special: Sequence[str] = SPECIAL,
    template: str = CHATML,
) -> Path:
    """Write a byte-level model directory and return its path; the last two special tokens are its begin and its end."""
    symbols = {byte: char for char, byte in byte_alphabet().items()}
    texts = [symbols[byte] for byte in range(256)]
    texts += [text for piece in pieces if (text := "".join(symbols[byte] for byte in piece)) not in texts]
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": _added(len(texts), special),
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {text: at for at, text in enumerate(texts)}, "merges": []},
    }
    return _write(path, tokenizer, vocab_size=len(texts) + len(special), max_model_len=max_model_len, template=template)


SEEING = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endif %}{{ '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_seeing_model(path: Path) -> Path:
    """Write a model directory of one that sees pictures, as SmolVLM does, in tiles of 32 pixels and 4 tokens."""
    tokens = ("<fake_token_around_image>", "<image>", "<global-img>")
    write_tiny_model(path, special=(*tokens, *SPECIAL), template=SEEING)
    config = json.loads((path / "config.json").read_text()) | {
        "architectures": ["SmolVLMForConditionalGeneration"],
        "vision_config": {"image_size": 32, "patch_size": 8},
        "scale_factor": 2,
    }
    (path / "config.json").write_text(json.dumps(config))
    processor = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}
    (path / "preprocessor_config.json").write_text(json.dumps(processor))
    return path


def write_metaspace_model(path: Path, words: Iterable[str]) -> Path:
    """Write a model directory whose tokens mark spaces with `▁` and spell unknown bytes as `<0xNN>`."""
    texts = [f"<0x{byte:02X}>" for byte in range(256)] + ["▁", *words]
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": _added(len(texts)),
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "vocab": {text: at for at, text in enumerate(texts)},
            "merges": [],
            "byte_fallback": True,
            "fuse_unk": True,
        },
    }
    return _write(path, tokenizer, vocab_size=len(texts) + len(SPECIAL), max_model_len=2048)


def _added(first: int, special: Sequence[str] = SPECIAL) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": first + at, "content": text, **flags} for at, text in enumerate(special)]


def _write(
    path: Path, tokenizer: dict[str, Any], *, vocab_size: int, max_model_len: int, template: str = CHATML
) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    begin, end = (item["content"] for item in tokenizer["added_tokens"][-2:])
    eos = vocab_size - 1
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "max_position_embeddings": max_model_len,
        "eos_token_id": eos,
        "bos_token_id": eos - 1,
    }
    files = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": eos, "bos_token_id": eos - 1},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": begin,
            "eos_token": end,
            "add_bos_token": False,
        },
    }
    for name, value in files.items():
        (path / name).write_text(json.dumps(value), encoding="utf-8")
    (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    return path
