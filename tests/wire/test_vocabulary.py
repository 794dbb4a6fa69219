"""Bytes of tokens, against the `tokenizers` library's own decoding."""

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from wire.vocabulary import Vocabulary, VocabularyError, byte_alphabet

TEXTS = ["The mill turns.", "naïve café — 😊", "  indented\n\tcode", "水车 1234", "a\u2028b"]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return tokenizer


def sentencepiece() -> Tokenizer:
    pieces = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁The", "▁mill", "▁turns", ".", "<unk>"]
    tokenizer = Tokenizer(
        models.BPE({piece: n for n, piece in enumerate(pieces)}, [], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def metaspace(prepend_scheme: str = "always") -> Tokenizer:
    tokenizer = sentencepiece()
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=prepend_scheme, split=False)]
    )
    return tokenizer


def metaspace_without_prefix() -> Tokenizer:
    return metaspace("never")


@pytest.fixture(params=[byte_level, sentencepiece, metaspace, metaspace_without_prefix])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    made: Tokenizer = request.param()
    return made


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_the_ids_are_the_text(tokenizer: Tokenizer, tmp_path: Path, text: str) -> None:
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = Vocabulary.load(tmp_path)
    ids = tokenizer.encode(text).ids
    raw = vocabulary.decode_bytes(ids)
    expected = tokenizer.decode(ids).encode()
    assert (raw.removeprefix(b" ") if vocabulary.strips_first_space else raw) == expected


def test_special_tokens_have_no_bytes_but_plain_added_ones_do(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    vocabulary = Vocabulary.load(tmp_path)
    assert vocabulary.token_bytes(vocabulary.special["<|im_end|>"]) == b""
    assert vocabulary.token_bytes(vocabulary.size - 1) == b"<tool>"


def test_ids_beyond_the_vocabulary_have_no_bytes(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    vocabulary = Vocabulary.load(tmp_path)
    assert vocabulary.token_bytes(vocabulary.size) == vocabulary.token_bytes(-1) == b""


def test_the_byte_alphabet_is_the_librarys() -> None:
    assert set(byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))


@pytest.mark.parametrize("content", [None, "", "{}", '{"model": {"vocab": 7}}', "[1]"])
def test_a_broken_file_is_refused_by_name(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(VocabularyError, match=r"tokenizer\.json"):
        Vocabulary.load(tmp_path)
