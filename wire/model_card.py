"""What the desks must know of a model, read from its directory in Hugging Face form; no weights are touched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from wire.model_files import ModelCardError, read
from wire.pictures import PictureForm, read_form
from wire.tool_style import SCAFFOLD, tool_style
from wire.usual_text import usual_text

__all__ = ["CROSS_ENCODERS", "ENCODERS", "SAMPLING", "ModelCard", "ModelCardError", "first_position"]

ENCODERS = frozenset({"BertModel", "RobertaModel", "XLMRobertaModel"})
"""Architectures that make one vector of a text instead of going on with it."""

CROSS_ENCODERS = frozenset({f"{family}ForSequenceClassification" for family in ("Bert", "Roberta", "XLMRoberta")})
"""Architectures that read two texts as one and say how well they go together."""


SAMPLING: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-6, 1.0),
    "top_k": (0, 2**31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, 10.0),
}
"""What generation_config.json may say of how a model is best sampled, and the range in which it is heeded."""


Count = Annotated[int, msgspec.Meta(ge=1)]


class _TextConfig(msgspec.Struct):
    model_type: Any = None
    vocab_size: Count | None = None
    max_position_embeddings: Count | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    bos_token_id: int | tuple[int, ...] | None = None
    pad_token_id: Any = None


class _Config(_TextConfig):
    """config.json; a model of more than text has what concerns text in a part of its own."""

    architectures: tuple[str, ...] | None = None
    text_config: _TextConfig | None = None


class _GenerationConfig(msgspec.Struct):
    eos_token_id: int | tuple[int, ...] | None = None
    bos_token_id: int | tuple[int, ...] | None = None
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    min_p: Any = None
    repetition_penalty: Any = None


class _Token(msgspec.Struct):
    content: str


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct):
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    add_bos_token: bool | None = None
    chat_template: str | tuple[_NamedTemplate, ...] | None = None


class _TemplateFile(msgspec.Struct):
    """What models that see had before chat_template.jinja; it goes before the tokenizer's."""

    chat_template: str | tuple[_NamedTemplate, ...] | None = None


class _SentenceConfig(msgspec.Struct):
    max_seq_length: int | None = None


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """Names and limits of a model.

    `max_model_len` is the longest sequence in tokens (prompt and answer). `chat_template` is Jinja source or None.
    `eos_token_ids` end an answer. `tool_style` is how it writes tool calls; `tool_tags` are the control tokens in them,
    by text (known where the vocabulary is at hand). `sampling` is what its makers advise, by the names of a request.
    `adapter_of` is the model that an adapter changes; all else of its card is that model's. `pictures` says how it sees
    some, None: it reads texts alone.
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
    adapter_of: str = ""
    pictures: PictureForm | None = None

    @property
    def kind(self) -> Literal["chat", "embedding", "rerank"]:
        """What the model makes of texts: more text, vectors, or scores of pairs."""
        if self.architecture in ENCODERS:
            return "embedding"
        return "rerank" if self.architecture in CROSS_ENCODERS else "chat"

    @classmethod
    def load(cls, path: Path, name: str | None = None) -> ModelCard:
        """Read config.json, generation_config.json, tokenizer_config.json and the chat template's own file.

        Raises ModelCardError that names the file at fault, and the field.
        """
        path = Path(path)
        config = read(path / "config.json", _Config)
        of_text = config.text_config or config
        usual = usual_text(str(of_text.model_type)) if config.text_config is not None else {}
        generation = read(path / "generation_config.json", _GenerationConfig, missing=_GenerationConfig())
        tokenizer = read(path / "tokenizer_config.json", _TokenizerConfig, missing=_TokenizerConfig())
        vocab_size = of_text.vocab_size or config.vocab_size or usual.get("vocab_size")
        if vocab_size is None:
            raise ModelCardError(f"{path / 'config.json'}: vocab_size is missing")
        bos = _ids(of_text.bos_token_id if generation.bos_token_id is None else generation.bos_token_id)
        chat_template = _chat_template(path, tokenizer)
        architecture = next(iter(config.architectures or ()), "unknown")
        positions = of_text.max_position_embeddings or usual.get("max_position_embeddings", 2048)
        return cls(
            name=name or path.name,
            path=path,
            architecture=architecture,
            max_model_len=_max_len(path, positions - first_position(architecture, of_text.pad_token_id)),
            vocab_size=vocab_size,
            eos_token_ids=_ids(of_text.eos_token_id if generation.eos_token_id is None else generation.eos_token_id),
            bos_token=_token_text(tokenizer.bos_token),
            eos_token=_token_text(tokenizer.eos_token),
            bos_token_id=bos[0] if bos else None,
            add_bos_token=bool(tokenizer.add_bos_token),
            chat_template=chat_template,
            created=int((path / "config.json").stat().st_mtime),
            tool_style=tool_style(chat_template),
            sampling=_sampling(generation),
            pictures=read_form(path, architecture),
        )


def first_position(architecture: str, pad_token_id: Any) -> int:
    """Return the position of a text's first token: RoBERTa counts from behind its padding's id, others from 0."""
    if not architecture.startswith(("Roberta", "XLMRoberta")):
        return 0
    return pad_token_id + 1 if type(pad_token_id) is int and pad_token_id >= 0 else 2


def _sampling(generation: _GenerationConfig) -> dict[str, float]:
    """Return the advised values; one that makes no sense is left out rather than held against every request."""
    values = {name: getattr(generation, name) for name in SAMPLING}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, (int, float)) and SAMPLING[name][0] <= value <= SAMPLING[name][1]
    }


def _max_len(path: Path, longest: int) -> int:
    """Return the context; embedding models say how much of it they were trained for."""
    trained = read(path / "sentence_bert_config.json", _SentenceConfig, missing=_SentenceConfig()).max_seq_length
    return min(longest, trained) if trained is not None and trained > 0 else longest


def _ids(value: int | tuple[int, ...] | None) -> tuple[int, ...]:
    return () if value is None else value if isinstance(value, tuple) else (value,)


def _token_text(value: str | _Token | None) -> str | None:
    return value.content if isinstance(value, _Token) else value


def _chat_template(path: Path, tokenizer: _TokenizerConfig) -> str | None:
    file = path / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ModelCardError(f"{file}: {error}") from error
    template = read(path / "chat_template.json", _TemplateFile, missing=_TemplateFile()).chat_template
    template = tokenizer.chat_template if template is None else template
    if isinstance(template, tuple):  # several named ones: the one called default
        return next((one.template for one in template if one.name == "default"), None)
    return template
