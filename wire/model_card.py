"""What the desks must know of a model, read from its directory in Hugging Face form; no weights are touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from wire.errors import StartError
from wire.tool_style import SCAFFOLD, tool_style

ENCODERS = frozenset({"BertModel"})
"""Architectures that make one vector of a text instead of going on with it."""


SAMPLING: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-6, 1.0),
    "top_k": (0, 2**31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, 10.0),
}
"""What generation_config.json may say of how a model is best sampled, and the range in which it is heeded."""


class ModelCardError(StartError):
    """The model directory lacks a file or holds a malformed one; the message names it."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """Names and limits of a model.

    `max_model_len` is the longest sequence in tokens (prompt and answer). `chat_template` is Jinja source or None.
    `eos_token_ids` end an answer. `tool_style` is how it writes tool calls; `tool_tags` are the control tokens in them,
    by text (known where the vocabulary is at hand). `sampling` is what its makers advise, by the names of a request.
    """

    name: str
    path: Path
    architecture: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    bos_token: str | None
    eos_token: str | None
    bos_token_id: int | None
    add_bos_token: bool
    chat_template: str | None
    created: int
    tool_style: str = SCAFFOLD
    tool_tags: dict[str, int] = {}
    sampling: dict[str, float] = {}

    @property
    def embeds(self) -> bool:
        """Whether this is an embedding model."""
        return self.architecture in ENCODERS

    @classmethod
    def load(cls, path: Path, name: str | None = None) -> ModelCard:
        """Read config.json, generation_config.json, tokenizer_config.json and chat_template.jinja.

        Raises ModelCardError that names the file at fault.
        """
        path = Path(path)
        config = _read_json(path / "config.json")
        text_config = config.get("text_config") or config
        generation = _read_json(path / "generation_config.json", missing={})
        tokenizer = _read_json(path / "tokenizer_config.json", missing={})
        eos = generation.get("eos_token_id", text_config.get("eos_token_id"))
        bos = generation.get("bos_token_id", text_config.get("bos_token_id"))
        chat_template = _chat_template(path, tokenizer)
        return cls(
            name=name or path.name,
            path=path,
            architecture=str((config.get("architectures") or ["unknown"])[0]),
            max_model_len=_max_len(path, text_config),
            vocab_size=int(text_config["vocab_size"]),
            eos_token_ids=tuple(eos) if isinstance(eos, list) else (() if eos is None else (int(eos),)),
            bos_token=_token_text(tokenizer.get("bos_token")),
            eos_token=_token_text(tokenizer.get("eos_token")),
            bos_token_id=bos,
            add_bos_token=bool(tokenizer.get("add_bos_token", False)),
            chat_template=chat_template,
            created=int((path / "config.json").stat().st_mtime),
            tool_style=tool_style(chat_template),
            sampling=_sampling(generation),
        )


def _sampling(generation: dict[str, Any]) -> dict[str, float]:
    """Return the advised values; one that makes no sense is left out rather than held against every request."""
    values = {name: generation.get(name) for name in SAMPLING}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, (int, float)) and SAMPLING[name][0] <= value <= SAMPLING[name][1]
    }


def _max_len(path: Path, config: dict[str, Any]) -> int:
    """Return the context; embedding models say how much of it they were trained for."""
    longest = int(config.get("max_position_embeddings") or 2048)
    trained = _read_json(path / "sentence_bert_config.json", missing={}).get("max_seq_length")
    return min(longest, trained) if isinstance(trained, int) and trained > 0 else longest


def _read_json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        if missing is not None:
            return missing
        raise ModelCardError(f"{path}: file is missing; `headrace pull` makes a model directory") from None
    except msgspec.DecodeError as error:
        raise ModelCardError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelCardError(f"{path}: must hold a JSON object")
    return value


def _token_text(value: Any) -> str | None:
    """Return the text of a token given as a string or as an AddedToken object."""
    return value.get("content") if isinstance(value, dict) else value


def _chat_template(path: Path, tokenizer: dict[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = tokenizer.get("chat_template")
    if isinstance(template, list):  # several named ones: the one called default
        template = next((item["template"] for item in template if item.get("name") == "default"), None)
    return template if isinstance(template, str) else None
