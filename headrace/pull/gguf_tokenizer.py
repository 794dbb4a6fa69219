"""tokenizer.json and tokenizer_config.json, rebuilt from the metadata of a GGUF file.

Two kinds exist: byte-level BPE with stored merges (`gpt2`), and SentencePiece BPE with scores (`llama`, Gemma), whose
merges follow from the scores.
"""

from __future__ import annotations

from typing import Any

from headrace.pull.errors import PullError
from headrace.pull.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from model_svc.weights.gguf_header import GgufHeader

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type
_P = "tokenizer.ggml."
# Control tokens that end an answer, whatever the file names as eos (llama.cpp keeps the same kind of list).
_END_OF_ANSWER = frozenset(
    "<|im_end|> <|endoftext|> <|eot_id|> <|eom_id|> <|end_of_text|> <|end|> <end_of_turn> <EOT> </s> "
    "<|END_OF_TURN_TOKEN|> <|end_of_role|> <end_of_utterance> <|return|> <|call|>".split()
)
# Where answers end with these (gpt-oss), `<|end|>` ends only one of their parts.
_AFTER_PARTS = frozenset(("<|return|>", "<|call|>"))


def tokenizer_json(header: GgufHeader, *, pre: str | None = None) -> dict[str, Any]:
    """Build the content of tokenizer.json.

    `pre` overrides the file's pre-tokenizer name. Raises PullError for an unknown or missing one, and for vocabularies
    of other kinds.
    """
    kind = header.value(_P + "model", str)
    if kind == "gpt2":
        return _assemble(header, **_byte_level(header, _pre_tokenizer(header, pre)))
    if kind == "llama":
        return _assemble(header, **_sentencepiece(header))
    raise PullError(f"{header.path}: tokenizers of kind {kind!r} are not supported; known are 'gpt2' and 'llama'")


def tokenizer_config(header: GgufHeader) -> dict[str, Any]:
    """Build the content of tokenizer_config.json, with the chat template if the file has one."""
    tokens = header.value(_P + "tokens", list)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": adds_bos(header),
        "add_eos_token": bool(header.value(_P + "add_eos_token", bool, False)),
        "clean_up_tokenization_spaces": False,
    }
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = token_id_of(header, theirs)
        if token_id is not None:
            config[f"{ours}_token"] = tokens[token_id]
    template = header.value("tokenizer.chat_template", str, "")
    if template:
        config["chat_template"] = template
    return config


def adds_bos(header: GgufHeader) -> bool:
    """Tell whether a plain text starts with BOS. Files without the key follow their kind (as llama.cpp does)."""
    kind, pre = header.value(_P + "model", str), header.value(_P + "pre", str, "")
    usual = kind == "llama" or pre in ("llama-bpe", "llama3", "llama-v3", "tekken")
    return bool(header.value(_P + "add_bos_token", bool, usual))


def token_id_of(header: GgufHeader, role: str) -> int | None:
    """Return the id of bos, eos, unknown or padding. Raises PullError for an id outside the vocabulary."""
    token_id = header.metadata.get(f"{_P}{role}_token_id")
    if token_id is None:
        return None
    if not isinstance(token_id, int) or not 0 <= token_id < len(header.value(_P + "tokens", list)):
        raise PullError(f"{header.path}: {role}_token_id {token_id!r} is not in the vocabulary")
    return token_id


def end_of_answer_ids(header: GgufHeader) -> list[int]:
    """Return every id that ends an answer: eos first, then eot, then control tokens known to end turns."""
    tokens = header.value(_P + "tokens", list)
    types = _types(header)
    ids = [token_id_of(header, role) for role in ("eos", "eot", "eom")]
    ids += [n for n, text in enumerate(tokens) if types[n] in (CONTROL, USER_DEFINED) and text in _END_OF_ANSWER]
    found = list(dict.fromkeys(n for n in ids if n is not None))
    in_parts = {tokens[n] for n in found} >= _AFTER_PARTS
    return [n for n in found if not (in_parts and tokens[n] == "<|end|>")]


def _pre_tokenizer(header: GgufHeader, override: str | None) -> PreTokenizer:
    """Find the cuts. A silent default would give other ids than the model was trained on, so there is none."""
    name = override or header.value(_P + "pre", str, "")
    if not name:
        raise PullError(
            f"{header.path}: the file does not name its pre-tokenizer (tokenizer.ggml.pre is missing); "
            f"pass the right one with --pre, for example --pre llama-bpe"
        )
    if name not in PRE_TOKENIZERS:
        raise PullError(
            f"{header.path}: pre-tokenizer {name!r} is not known; known are {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return PRE_TOKENIZERS[name]


def _types(header: GgufHeader) -> list[int]:
    tokens = header.value(_P + "tokens", list)
    types: list[int] = header.value(_P + "token_type", list, [NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise PullError(f"{header.path}: {len(tokens)} tokens but {len(types)} token types")
    return types


def _vocab(header: GgufHeader) -> dict[str, int]:
    tokens = header.value(_P + "tokens", list)
    vocab = {text: n for n, text in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise PullError(f"{header.path}: the vocabulary holds a token twice")
    return vocab


def _assemble(header: GgufHeader, **parts: Any) -> dict[str, Any]:
    types = _types(header)
    added = [
        {
            "id": n,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": types[n] != USER_DEFINED,
        }
        for n, text in enumerate(header.value(_P + "tokens", list))
        if types[n] in (CONTROL, USER_DEFINED) or (types[n] == UNKNOWN and text.startswith("<"))
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": _bos_processor(header),
        **parts,
    }


def _bos_processor(header: GgufHeader) -> dict[str, Any] | None:
    bos = token_id_of(header, "bos")
    if not adds_bos(header) or bos is None:
        return None
    text = header.value(_P + "tokens", list)[bos]
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": text, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {text: {"id": text, "ids": [bos], "tokens": [text]}},
    }


def _byte_level(header: GgufHeader, pre: PreTokenizer) -> dict[str, Any]:
    def merge(text: str) -> list[str]:
        left, _, right = text.partition(" ")
        if not left or not right:
            raise PullError(f"{header.path}: {text!r} is no pair of merged tokens")
        return [left, right]

    cuts = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in pre.patterns
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cuts, byte_level]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre.ignore_merges,
            "vocab": _vocab(header),
            "merges": [merge(text) for text in header.value(_P + "merges", list)],
        },
    }


def _sentencepiece(header: GgufHeader) -> dict[str, Any]:
    prefix = bool(header.value(_P + "add_space_prefix", bool, True))
    unknown = token_id_of(header, "unknown")
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Prepend", "prepend": "▁"}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    vocab = _vocab(header)
    return {
        "normalizer": {"type": "Sequence", "normalizers": [prepend, replace]} if prefix else replace,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None if unknown is None else header.value(_P + "tokens", list)[unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": _merges_from_scores(header, vocab),
        },
    }


def _merges_from_scores(header: GgufHeader, vocab: dict[str, int]) -> list[list[str]]:
    """Derive merges: every split of a token into two tokens, best score first (SentencePiece merges the best pair)."""
    scores = header.value(_P + "scores", list)
    types = _types(header)
    if len(scores) != len(types):
        raise PullError(f"{header.path}: {len(types)} tokens but {len(scores)} scores")
    found: list[tuple[float, int, int, str, str]] = []
    for text, n in vocab.items():
        if types[n] not in (NORMAL, USER_DEFINED):
            continue
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in vocab and right in vocab:
                found.append((-scores[n], vocab[left], vocab[right], left, right))
    found.sort(key=lambda item: item[:3])
    return [[left, right] for _, _, _, left, right in found]
