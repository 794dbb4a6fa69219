"""The bytes behind each token id, read from tokenizer.json.

Three desks need them: the edge to make text of ids, the engine to find the end of thinking and grammars by bytes, the
tokenizer to check its own splices. Known are byte-level BPE (GPT-2's byte alphabet) and SentencePiece style
vocabularies (`▁` for the space, `<0xNN>` for single bytes); of BERT's WordPiece only what ids mean, not how the text
was spaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from wire.errors import StartError

_BYTE_TOKEN = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")


class VocabularyError(StartError):
    """tokenizer.json is missing or not of a known kind; the message names the fault."""


@cache
def byte_alphabet() -> dict[str, int]:
    """Return GPT-2's map from printable characters to bytes (openai/gpt-2, `bytes_to_unicode`)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(256 + n): byte for n, byte in enumerate(others)})
    return alphabet


class Vocabulary:
    """Token id -> bytes. Special tokens have no bytes: they are never part of a text.

    `strips_first_space`: the decoder drops one leading space of a whole text (SentencePiece's dummy prefix).
    """

    def __init__(self, tokens: list[bytes], special: dict[str, int], *, strips_first_space: bool = False) -> None:
        self._tokens = tokens
        self.special = special
        self.strips_first_space = strips_first_space

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read tokenizer.json in a model directory (or the file itself). Raises VocabularyError."""
        file = Path(path)
        file = file / "tokenizer.json" if file.is_dir() else file
        try:
            data = msgspec.json.decode(file.read_bytes())
            return cls._from_json(data)
        except FileNotFoundError:
            raise VocabularyError(f"{file}: file is missing") from None
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise VocabularyError(f"{file}: not a tokenizer.json of a known kind ({error!r})") from error

    @classmethod
    def _from_json(cls, data: dict[str, Any]) -> Vocabulary:
        model = data["model"]
        vocab = model["vocab"]
        texts = dict(vocab) if isinstance(vocab, dict) else {item[0]: n for n, item in enumerate(vocab)}
        added = {item["content"]: item for item in data.get("added_tokens", ())}
        decoders = _decoder_kinds(data.get("decoder"))
        byte_level = "ByteLevel" in decoders
        size = 1 + max([*texts.values(), *(item["id"] for item in added.values())], default=-1)
        tokens = [b""] * size
        prefix = model.get("continuing_subword_prefix", "##") if model.get("type") == "WordPiece" else None
        for text, token_id in texts.items():
            if prefix is not None:
                tokens[token_id] = (text.removeprefix(prefix) if text.startswith(prefix) else f" {text}").encode()
            else:
                tokens[token_id] = _byte_level(text) if byte_level else _sentencepiece(text)
        special: dict[str, int] = {}
        for text, item in added.items():
            if item.get("special"):
                special[text] = item["id"]
                tokens[item["id"]] = b""
            else:
                tokens[item["id"]] = text.encode()
        return cls(tokens, special, strips_first_space=not byte_level and bool(decoders & {"Strip", "Metaspace"}))

    @property
    def size(self) -> int:
        """Return one more than the largest token id."""
        return len(self._tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes a token adds to the text; empty for special and unknown ids (padding rows of the head)."""
        return self._tokens[token_id] if 0 <= token_id < len(self._tokens) else b""

    def decode_bytes(self, token_ids: Iterable[int]) -> bytes:
        """Return the bytes of a run of tokens."""
        return b"".join(map(self.token_bytes, token_ids))


def _decoder_kinds(decoder: dict[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    if decoder["type"] == "Sequence":
        return set().union(*(_decoder_kinds(item) for item in decoder["decoders"]))
    if decoder["type"] == "Metaspace" and decoder.get("prepend_scheme") == "never":
        return set()
    return {decoder["type"]}


def _byte_level(text: str) -> bytes:
    alphabet = byte_alphabet()
    try:
        return bytes(alphabet[char] for char in text)
    except KeyError:  # an ordinary added token that sits in the vocabulary as plain text
        return text.encode()


def _sentencepiece(text: str) -> bytes:
    single = _BYTE_TOKEN.match(text)
    return bytes([int(single[1], 16)]) if single else text.replace("▁", " ").encode()
