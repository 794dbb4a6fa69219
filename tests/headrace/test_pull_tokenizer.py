"""tokenizer.json rebuilt from GGUF gives the ids that llama.cpp gives: real vocabulary, every kind of pre-tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from headrace.pull.errors import PullError
from headrace.pull.gguf_tokenizer import end_of_answer_ids, tokenizer_config, tokenizer_json
from headrace.pull.pretokenizers import PRE_TOKENIZERS
from model_svc.weights.gguf_header import read_header
from tests.headrace.gguf_gpt_oss import gpt_oss_vocab
from tests.headrace.gguf_vocab import CORPUS, byte_vocab, noise, sentencepiece_vocab, write

llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is built from source, and there is no C++ compiler here")


def differences(path: Path, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
    """Texts to which llama.cpp gives other ids."""
    oracle = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    try:
        return [
            text
            for text in texts
            if oracle.tokenize(text.encode(), add_bos=False, special=True)
            != tokenizer.encode(text, add_special_tokens=False).ids
        ]
    finally:
        oracle.close()


def rebuilt(path: Path, **options: Any) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer_json(read_header(path), **options)))


def test_the_real_model_s_ids_are_those_of_llama_cpp(smollm2_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2_path / "tokenizer.json"))
    assert differences(smollm2_path / "model.gguf", tokenizer, CORPUS + noise(1500)) == []


def test_ids_decode_back_to_the_text(smollm2_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2_path / "tokenizer.json"))
    for text in CORPUS + noise(200):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


KINDS = [
    "gpt-2",
    "llama-bpe",
    "qwen2",
    "qwen35",
    "default",
    "tekken",
    "gpt-4o",
    "deepseek-v3",
    "deepseek-llm",
    "dbrx",
    "seed-coder",
]


@pytest.mark.parametrize("pre", KINDS)
def test_every_kind_of_pre_tokenizer_cuts_like_llama_cpp(smollm2_path: Path, tmp_path: Path, pre: str) -> None:
    metadata = {
        key: value
        for key, value in read_header(smollm2_path / "model.gguf").metadata.items()
        if key.startswith(("general.architecture", "llama.", "tokenizer."))
    }
    path = write(tmp_path / "vocab.gguf", metadata | {"tokenizer.ggml.pre": pre})
    texts = CORPUS + noise(400)
    if pre == "deepseek-llm":  # C++'s `$` also stands before what separates lines, the model's own does not
        texts = [text for text in texts if "\u2028" not in text and "\u2029" not in text]
    assert differences(path, rebuilt(path), texts) == []


def test_the_kinds_tested_are_all_the_kinds_there_are() -> None:
    assert {PRE_TOKENIZERS[name] for name in (*KINDS, "smollm")} == set(PRE_TOKENIZERS.values())


@pytest.mark.parametrize("prefix", [True, False])
def test_merges_found_by_score_give_the_ids_of_llama_cpp(tmp_path: Path, prefix: bool) -> None:
    path = write(tmp_path / "spm.gguf", sentencepiece_vocab(prefix=prefix))
    texts = [
        "hello world",
        "the rest",
        " hello",
        "hello  hello",
        "theworld<mark>the rest",
        "z😊é",
        "hell lo ere",
        "a" * 9,
    ]
    tokenizer = rebuilt(path)
    assert differences(path, tokenizer, texts) == []
    assert tokenizer.encode("hello world").ids[0] == 2  # SentencePiece models begin with BOS
    assert tokenizer.decode(tokenizer.encode("z😊 hello").ids) == "z😊 hello"


def test_a_missing_or_unknown_pre_tokenizer_is_never_replaced_by_a_default(tmp_path: Path) -> None:
    metadata = byte_vocab()
    unknown = write(tmp_path / "unknown.gguf", metadata | {"tokenizer.ggml.pre": "klingon"})
    with pytest.raises(PullError, match="'klingon' is not known"):
        tokenizer_json(read_header(unknown))
    del metadata["tokenizer.ggml.pre"]
    missing = write(tmp_path / "missing.gguf", metadata)
    with pytest.raises(PullError, match="does not name its pre-tokenizer"):
        tokenizer_json(read_header(missing))
    assert rebuilt(missing, pre="smollm").encode("12").tokens == ["1", "2"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"tokenizer.ggml.model": "t5"}, "'t5' are not supported"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "but 2 token types"),
        ({"tokenizer.ggml.merges": ["alone"]}, "no pair of merged tokens"),
        ({"tokenizer.ggml.bos_token_id": 9999}, "bos_token_id 9999 is not in the vocabulary"),
    ],
    ids=str,
)
def test_a_vocabulary_that_contradicts_itself_is_refused(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    header = read_header(write(tmp_path / "bad.gguf", byte_vocab() | {"tokenizer.ggml.add_bos_token": True} | changes))
    with pytest.raises(PullError, match=fault):
        tokenizer_json(header)


def test_control_tokens_are_special_and_user_defined_ones_are_text(tmp_path: Path) -> None:
    content = tokenizer_json(read_header(write(tmp_path / "spm.gguf", sentencepiece_vocab(prefix=False))))
    special = {item["content"]: item["special"] for item in content["added_tokens"]}
    assert special == {"<pad>": True, "<eos>": True, "<bos>": True, "<unk>": True, "<mark>": False}


@pytest.mark.parametrize(
    ("changes", "adds"),
    [
        ({}, False),
        ({"tokenizer.ggml.pre": "llama-bpe"}, True),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, False),
        ({"tokenizer.ggml.add_bos_token": True}, True),
    ],
    ids=str,
)
def test_bos_is_added_where_the_file_or_its_kind_says_so(tmp_path: Path, changes: dict[str, Any], adds: bool) -> None:
    path = write(tmp_path / "v.gguf", byte_vocab() | changes)
    assert tokenizer_config(read_header(path))["add_bos_token"] is adds
    assert (rebuilt(path).encode("hello").ids[0] == 1) is adds
    oracle = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    assert (oracle.tokenize(b"hello", add_bos=True)[0] == 1) is adds
    oracle.close()


def test_every_id_that_ends_an_answer_is_listed_eos_first(tmp_path: Path) -> None:
    path = write(tmp_path / "v.gguf", byte_vocab())
    assert end_of_answer_ids(read_header(path)) == [2, 0]


def test_what_ends_a_part_of_an_answer_does_not_end_it(tmp_path: Path) -> None:
    """gpt-oss: each of its messages ends with `<|end|>`, an answer with `<|return|>`, one that calls `<|call|>`."""
    metadata = gpt_oss_vocab()
    path = write(tmp_path / "v.gguf", metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    found = [tokens[n] for n in end_of_answer_ids(read_header(path))]
    assert found == ["<|return|>", "<|endoftext|>", "<|im_end|>", "<|call|>"]
    for name in ("<|return|>", "<|call|>"):  # without either it is as with other models
        tokens[tokens.index(name)] = f"{name}?"
        found = [tokens[n] for n in end_of_answer_ids(read_header(write(path, metadata)))]
        assert "<|end|>" in found
        tokens[tokens.index(f"{name}?")] = name
