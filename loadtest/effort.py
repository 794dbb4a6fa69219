"""What thinking buys: a small set of arithmetic at each reasoning effort, against a running server.

    python -m loadtest.effort --url http://127.0.0.1:8000 --model smollm2-135m-instruct [--questions 24]
        [--max-tokens 384] [--concurrency 8] [--markdown table.md] [--svg plot.svg]

Greedy answers; right is an answer whose last number is the sum asked for. `max_tokens` counts thinking and answer, so
the budgets are the effort's share of it.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec

from loadtest.client import new_client

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*")
_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 240, 56, 32


class Question(msgspec.Struct, frozen=True):
    """A text and the number that answers it."""

    text: str
    answer: int


class Reply(msgspec.Struct, frozen=True):
    """What came of one question."""

    right: bool
    thinking: int
    answer: int
    budget: int | None
    ended_by: str | None


class Row(msgspec.Struct, frozen=True):
    """An effort's figures: shares in percent, tokens as means, the longest thinking and the budget it had."""

    effort: str
    right: float
    thinking: float
    longest: int
    budget: int | None
    answer: float
    by_budget: float


def questions(count: int, seed: int = 1) -> list[Question]:
    """Return sums and products of small numbers, some in words; the same for one seed."""
    draw = random.Random(seed)
    found = []
    for n in range(count):
        a, b, c = draw.randint(2, 20), draw.randint(2, 20), draw.randint(2, 9)
        found.append(
            (
                Question(f"What is {a} + {b}?", a + b),
                Question(f"What is {a + b} - {b}?", a),
                Question(f"What is {c} times {b}?", c * b),
                Question(f"Tom has {a} apples and buys {b} more. How many apples does he have now?", a + b),
            )[n % 4]
        )
    return found


def is_right(text: str, answer: int) -> bool:
    """Tell whether the last number of an answer is the right one."""
    numbers = _NUMBER.findall(text)
    return bool(numbers) and int(numbers[-1].replace(",", "")) == answer


async def ask(client: httpx.AsyncClient, model: str, question: Question, effort: str, max_tokens: int) -> Reply:
    """Ask one question. Raises httpx.HTTPStatusError."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": f"{question.text} Answer with the number."}],
        "reasoning_effort": effort,
        "temperature": 0,
        "max_tokens": max_tokens,
    }
    reply = await client.post("/v1/chat/completions", json=body)
    reply.raise_for_status()
    whole = reply.json()
    usage = whole["usage"]
    reasoning = usage["headrace"]["reasoning"]
    return Reply(
        is_right(whole["choices"][0]["message"]["content"] or "", question.answer),
        reasoning["used"],
        usage["completion_tokens"] - reasoning["used"],
        reasoning["budget"],
        reasoning["ended_by"],
    )


def row(effort: str, replies: Sequence[Reply]) -> Row:
    """Return an effort's figures."""
    thought = [reply for reply in replies if reply.thinking]
    return Row(
        effort,
        100 * statistics.fmean(reply.right for reply in replies),
        statistics.fmean(reply.thinking for reply in replies),
        max(reply.thinking for reply in replies),
        replies[0].budget,
        statistics.fmean(reply.answer for reply in replies),
        100 * statistics.fmean(reply.ended_by == "budget" for reply in thought) if thought else 0.0,
    )


def table(rows: Sequence[Row]) -> str:
    """Return the figures as a Markdown table."""
    lines = ["| effort | budget | right | thinking tokens, mean / longest | answer tokens | ended by the budget |"]
    lines.append("|---|---|---|---|---|---|")
    for r in rows:
        budget = "none asked" if r.budget is None else str(r.budget)
        thinking = f"{r.thinking:.0f} / {r.longest}"
        lines.append(f"| {r.effort} | {budget} | {r.right:.0f} % | {thinking} | {r.answer:.0f} | {r.by_budget:.0f} % |")
    return "\n".join(lines) + "\n"


def plot(rows: Sequence[Row], title: str) -> str:
    """Return the figures as an SVG: bars of thinking and answer tokens, and how many answers were right above them."""
    most = max(1.0, *(r.thinking + r.answer for r in rows))
    step = (_WIDTH - _LEFT) / len(rows)
    scale = (_HEIGHT - 2 * _TOP) / most
    base = _HEIGHT - _TOP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/><text x="8" y="16">{title}</text>',
        f'<text x="8" y="{base}">0</text><text x="8" y="{_TOP + 8}">{most:.0f} tok</text>',
    ]
    for n, r in enumerate(rows):
        x = _LEFT + n * step + step / 6
        thinking, answer, width = r.thinking * scale, r.answer * scale, step * 2 / 3
        top = base - thinking - answer
        parts.append(
            f'<rect x="{x:.1f}" y="{base - thinking:.1f}" width="{width:.1f}" height="{thinking:.1f}" fill="#0d7480"/>'
            f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{answer:.1f}" fill="#b8d8dc"/>'
            f'<text x="{x:.1f}" y="{top - 4:.1f}">{r.right:.0f} % right</text>'
            f'<text x="{x:.1f}" y="{base + 14}">{r.effort}</text>'
        )
    parts.append(
        f'<text x="{_LEFT}" y="{_HEIGHT - 4}" fill="#0d7480">thinking (dark) and answer tokens, mean</text></svg>'
    )
    return "\n".join(parts) + "\n"


async def run(args: argparse.Namespace) -> list[Row]:
    """Ask everything, effort by effort."""
    asked, rows = questions(args.questions), []
    limiter = anyio.CapacityLimiter(args.concurrency)
    async with new_client(args.url, args.concurrency, args.api_key) as client:
        for effort in EFFORTS:
            replies: list[Reply] = []

            async def one(question: Question, effort: str = effort, replies: list[Reply] = replies) -> None:
                async with limiter:
                    replies.append(await ask(client, args.model, question, effort, args.max_tokens))

            async with anyio.create_task_group() as tasks:
                for question in asked:
                    tasks.start_soon(one, question)
            rows.append(row(effort, replies))
    return rows


def main() -> None:
    """Print the table; write it and the plot where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=384)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--api-key")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--svg", type=Path)
    args = parser.parse_args()
    rows = anyio.run(run, args)
    text = table(rows)
    print(text)  # noqa: T201
    if args.markdown:
        args.markdown.write_text(text)
    if args.svg:
        args.svg.write_text(plot(rows, f"{args.model}: {args.questions} questions of arithmetic by effort"))


if __name__ == "__main__":
    main()
