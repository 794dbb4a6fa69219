"""Text -> token ids by the model's tokenizer.json, where only chosen places can become control tokens.

The tokenizer is loaded with every control token renamed to a private word (see marking.py), ids unchanged. Text in
which the template's control tokens are replaced by these words then goes through in one piece, so pre-tokenizer, merges
and SentencePiece's first space see what they would see of the plain rendering, and the ids are the same; a control
token that a caller typed is text like any other.

`encode_batch_fast` of one text, not `encode`: the latter holds the interpreter's lock all the while (tokenizers 0.23.3:
0.6 s for 800,000 letters, all other threads standing).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from tokenizer_svc.marking import Marks
from wire.errors import InternalError
from wire.vocabulary import Vocabulary

_TAG = re.compile(r"<[|｜].*[|｜]>|\[/?[A-Z_]+\]|</?(?:think|tool_call|tool_response|tools)>")


class Encoder:
    """A model's tokenizer. `marks` tells template text from callers' text; its stand-ins are control tokens here."""

    def __init__(self, path: Path, vocabulary: Vocabulary, *, template: str = "") -> None:
        file = path / "tokenizer.json" if path.is_dir() else path
        data: dict[str, Any] = msgspec.json.decode(file.read_bytes())
        controls = {item["content"]: item["id"] for item in data.get("added_tokens", ()) if _is_control(item, template)}
        self.marks = Marks(controls)
        self._words = {text: self.marks.placeholders[text] for text in controls}
        self._word_of_id = {token_id: self._words[text] for text, token_id in controls.items()}
        self._vocabulary = vocabulary
        self.control_ids = frozenset(controls.values())
        longest = max((len(vocabulary.token_bytes(n)) for n in range(vocabulary.size)), default=1)
        self._longest = max(longest, *map(len, self._words.values()), 1)
        self._longest *= 4 if data.get("normalizer") else 1  # a normalizer may make text shorter
        self._tokenizer = Tokenizer.from_str(msgspec.json.encode(renamed(data, self._words)).decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        bare, whole = (self._tokenizer.encode("a", add_special_tokens=flag).ids for flag in (False, True))
        self.first_ids: list[int] = whole[: whole.index(bare[0])] if bare and bare[0] in whole else []
        self._check(controls)
        self.space_at_start = self._adds_space(self.encode("a"))
        after = [self.encode_after(token_id, "a") for token_id in sorted(self.control_ids)[:1]]
        self.space_after_control = any(map(self._adds_space, after))

    def _adds_space(self, ids: list[int]) -> bool:
        return self._vocabulary.decode_bytes(ids) == b" a"

    def _check(self, controls: dict[str, int]) -> None:
        for text, token_id in controls.items():
            if self.encode(self._words[text]) != [token_id]:
                raise InternalError(f"the tokenizer does not keep the control token {text!r} apart")

    def encode(self, text: str) -> list[int]:
        """Return the ids of text that may hold stand-ins. Near-linear in its length; call it from a worker thread."""
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def encode_after(self, token_id: int, text: str) -> list[int]:
        """Return the ids of text that follows a control token."""
        ids = self.encode(self._word_of_id[token_id] + text)
        if ids[0] != token_id:
            raise InternalError("a control token did not stay apart from the text after it")
        return ids[1:]

    def encode_template_text(self, text: str) -> list[int]:
        """Return the ids of text of our own, in which control tokens count."""
        return self.encode(self.marks.place(text))

    def placed_bytes(self, token_id: int) -> bytes:
        """Return a token's bytes in text with stand-ins."""
        word = self._word_of_id.get(token_id)
        return self._vocabulary.token_bytes(token_id) if word is None else word.encode()

    def at_least(self, text: str) -> int:
        """Return a number of tokens that `text` cannot have fewer of, at no cost."""
        return -(-len(text) // self._longest)


def _is_control(item: dict[str, Any], template: str) -> bool:
    """Tell whether an added token structures a prompt: it says so, the template writes it, or it looks like a tag.

    Others (runs of spaces, HTML tags) are ordinary text that has a token of its own.
    """
    text = item["content"]
    return bool(text) and bool(item.get("special") or _TAG.fullmatch(text) or (text.strip() and text in template))


def renamed(data: dict[str, Any], words: dict[str, str]) -> dict[str, Any]:
    """Return tokenizer.json with control tokens under their private words, also in the vocabulary."""
    model = dict(data["model"])
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {words.get(text, text): token_id for text, token_id in vocab.items()}
    else:
        model["vocab"] = [[words.get(text, text), score] for text, score in vocab]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = words.get(model["unk_token"], model["unk_token"])
    added = [item | {"content": words.get(item["content"], item["content"])} for item in data.get("added_tokens", ())]
    return data | {"model": model, "added_tokens": added}
