"""A tiny random BERT with a WordPiece vocabulary, written by transformers and tokenizers: files as the hub has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("the", "sky", "is", "blue", "deep", "sea", "##s", "a", "b", "[", "]", "sep", "cls", ".")
MODEL = "tiny-bert"
MAX_LEN = 24


def write_tiny_bert(path: Path, *, pooling: str = "mean", normalize: bool = True, **config: Any) -> Path:
    """Write a model directory and return its path."""
    vocab = {text: at for at, text in enumerate(SPECIAL + WORDS)}
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    torch.manual_seed(7)
    BertModel(BertConfig(vocab_size=len(vocab), max_position_embeddings=64, **{**sizes, **config})).save_pretrained(
        path
    )
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.enable_truncation(8)  # published files hold such leftovers; nobody's text may be cut by them
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(path / "tokenizer.json"))
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalize else [])]
    kinds = [{"path": folder, "type": f"sentence_transformers.models.{kind}"} for folder, kind in modules]
    (path / "modules.json").write_text(json.dumps(kinds))
    (path / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{mode}": mode.startswith(pooling) for mode in ("cls_token", "mean_tokens", "max_tokens")}
    (path / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": MAX_LEN}))
    return path
