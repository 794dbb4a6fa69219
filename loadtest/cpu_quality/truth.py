"""What transformers says in float32 on a GGUF file's dequantized weights: what loadtest.cpu_quality counts by.

All prompts are answered together, so a large head is read once a token and not once a prompt; a text's losses come in
pieces, as the logits of all its tokens would not fit beside the weights. What was found is kept under
~/.cache/headrace/loadtest by the file's digest.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.cpu_models import CACHE

PIECE = 256  # tokens of the text whose logits are held at a time
Answers = list[list[int]]


class Truth(NamedTuple):
    """Greedy answers, at each place the best logit less the second, and the text's losses (of all but its first)."""

    answers: Answers
    margins: list[list[float]]
    losses: list[float]


def truth(model: Path, prompts: Answers, count: int, text: list[int]) -> Truth:
    """Return what is known of this file, prompts and text, or find it out."""
    file = next(model.glob("*.gguf"))
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256")
    digest.update(json.dumps([prompts, count, text]).encode())
    known = CACHE / f"float32-{digest.hexdigest()[:16]}.json"
    if not known.exists():
        found = _ask(model, file.name, prompts, count, text)
        known.parent.mkdir(parents=True, exist_ok=True)
        part = known.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.rename(known)
    return Truth(*json.loads(known.read_text()))


def _ask(model: Path, file: str, prompts: Answers, count: int, text: list[int]) -> Truth:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)  # more of them spin for one another: beside other jobs two take ten times as long as one
    whole: Any = AutoModelForCausalLM.from_pretrained(model, gguf_file=file, dtype=torch.float32)
    whole.eval()
    with torch.inference_mode():
        return Truth(*_greedy(whole, prompts, count), _losses(whole, text))


def _greedy(whole: Any, prompts: Answers, count: int) -> tuple[Answers, list[list[float]]]:
    """Answer the prompts together, the shorter ones padded on the left."""
    import torch

    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    seen = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    places, cache = (seen.cumsum(1) - 1).clamp(min=0), None
    answers, margins = [], []
    for _ in range(count):
        out = whole(
            ids, attention_mask=seen, position_ids=places, cache=cache, use_cache=True, logits_to_keep=1
        )  # fmt: skip
        best = out.logits[:, -1].topk(2)
        cache, ids, places = out.cache, best.indices[:, :1], places[:, -1:] + 1
        seen = torch.cat([seen, torch.ones_like(ids)], 1)
        answers.append(best.indices[:, 0])
        margins.append(best.values[:, 0] - best.values[:, 1])
    return torch.stack(answers, 1).tolist(), torch.stack(margins, 1).tolist()


def _losses(whole: Any, text: list[int]) -> list[float]:
    import torch

    losses: list[float] = []
    cache = None
    for at in range(0, len(text) - 1, PIECE):
        ids, following = text[at : at + PIECE], text[at + 1 : at + PIECE + 1]
        out = whole(torch.tensor([ids]), cache=cache, use_cache=True)
        cache = out.cache
        logits = out.logits[0, : len(following)]
        losses += torch.nn.functional.cross_entropy(logits, torch.tensor(following), reduction="none").tolist()
    return losses
