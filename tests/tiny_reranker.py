"""Tiny random cross-encoders of each family, and an encoder of such a body, written by transformers as on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaTokenizer,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
    XLMRobertaTokenizer,
)

from model_svc.embedding.inputs import Input

MODEL = "tiny-reranker"
MAX_LEN = 64
FAMILIES = ("bert", "roberta", "xlm-roberta")
WORDS = ("the", "sky", "is", "blue", "deep", "sea")
_SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "num_labels": 1,
    "initializer_range": 0.3,  # scores that lie apart
}


def _tokenizer(family: str) -> Any:
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    if family == "bert":
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", "[", "]", "sep", "."]
        return BertTokenizer(vocab={text: at for at, text in enumerate(words)})
    if family == "roberta":
        words = [*special, "<mask>", *sorted(ByteLevel.alphabet()), "th", "the"]
        merges: Any = [("t", "h"), ("th", "e")]
        return RobertaTokenizer(vocab={text: at for at, text in enumerate(words)}, merges=merges)
    pieces = [*(f"▁{word}" for word in WORDS), "▁", *"abcdefghijklmnopqrstuvwxyz</>."]
    vocab = [
        *((text, 0.0) for text in special),
        *((text, -1.0 - at) for at, text in enumerate(pieces)),
        ("<mask>", 0.0),
    ]
    return XLMRobertaTokenizer(vocab=vocab)


def write_tiny_reranker(path: Path, family: str = "bert", *, embeds: bool = False, **config: Any) -> Path:
    """Write a model directory and return its path. `embeds`: XLM-RoBERTa's body alone."""
    tokenizer = _tokenizer(family)
    sizes = {"vocab_size": len(tokenizer), **_SIZES, **config}
    torch.manual_seed(11)
    if family == "bert":
        model: Any = BertForSequenceClassification(BertConfig(max_position_embeddings=MAX_LEN, **sizes))
    elif family == "roberta":
        model = RobertaForSequenceClassification(
            RobertaConfig(max_position_embeddings=MAX_LEN + 2, type_vocab_size=1, **sizes)
        )
    else:
        kind = XLMRobertaModel if embeds else XLMRobertaForSequenceClassification
        model = kind(XLMRobertaConfig(max_position_embeddings=MAX_LEN + 2, type_vocab_size=1, **sizes))
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


class Oracle:
    """What transformers makes of pairs."""

    def __init__(self, path: Path) -> None:
        """Load the model and its tokenizer."""
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        self._model = AutoModelForSequenceClassification.from_pretrained(path)

    def logit(self, query: str, document: str, **options: Any) -> float:
        """Return the logit of a pair; `options` are the tokenizer's."""
        with torch.inference_mode():
            return float(self._model(**self.tokenizer(query, document, return_tensors="pt", **options)).logits[0, 0])

    def score(self, query: str, document: str, **options: Any) -> float:
        """Return the score of a pair."""
        return float(torch.tensor(self.logit(query, document, **options)).sigmoid())

    def input(self, query: str, document: str) -> Input:
        """Return a pair as our encoders take it."""
        encoded = self.tokenizer(query, document)
        second = encoded.sequence_ids(0).index(1)
        return Input(encoded["input_ids"][second:], encoded["input_ids"][:second])
