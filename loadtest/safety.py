"""What the safety rules cost and hold: `python -m loadtest.safety [--litellm PYTHON]`.

A made text of common words with secrets and forbidden words planted in it is cut into pieces of about a token. Measured
are processor time for a token, how many tokens end with text held back, and for each character how many tokens later
than it came it leaves. With the Python of a venv that has LiteLLM its content filter runs over the same pieces.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from gateway.postprocess.safety.detectors import DETECTORS
from gateway.postprocess.safety.filter import SafetyFilter
from gateway.postprocess.safety.policy import Rule, SafetyPolicy

_COMMON = (
    "the of and to in is that it was for on are as with his they at be this have from or one had by word but not what "
    "all were we when your can said there use an each which she do how their if will up other about out many then them "
    "these so some her would make like him into time has look two more write go see number no way could people my than "
    "first water been call who oil its now find long down day did get come made may part river stone light model answer"
).split()
_PATTERNS = ("email", "us_phone", "visa", "mastercard", "ipv4", "ipv6", "iban", "aws_access_key", "github_token")
_SECRETS = (
    "anna.b@example.org", "4111 1111 1111 1111", "5555555555554444", "192.168.17.4", "AKIAIOSFODNN7EXAMPLE",
    "555-867-5309", "GB82WEST12345698765432", "ghp_" + "a1B2" * 9, "2001:db8:85a3::8a2e:370:7334",
    "DE89 3704 0044 0532 0130 00",
)  # fmt: skip


class Run(NamedTuple):
    """One filter over the pieces: seconds of the best round, and (pieces in by then, text) of everything that left."""

    seconds: float
    arrivals: list[tuple[int, str]]


def forbidden_words(rng: random.Random, count: int) -> list[str]:
    """Return made-up words, all different."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return sorted({"".join(rng.choices(letters, k=rng.randint(6, 12))) for _ in range(2 * count)})[:count]


def make_text(rng: random.Random, num_words: int, planted: list[str]) -> str:
    """Return sentences of common words, with `planted` spread evenly over them."""
    words: list[str] = []
    every = max(num_words // (len(planted) + 1), 1) if planted else num_words + 1
    queue = list(planted)
    for number in range(1, num_words + 1):
        word = rng.choice(_COMMON)
        words.append(word + rng.choice(("", "", "", "", "", "", ".", ",")))
        if number % every == 0 and queue:
            words.append(queue.pop(0))
    return " ".join(words)


def pieces_of(text: str) -> list[str]:
    """Cut a text about as a tokenizer does: words with the space before them, long ones in parts."""
    return re.findall(r" ?[A-Za-z]{1,7}| ?\d{1,3}|\s|[^\sA-Za-z\d]", text)


def run(policy: SafetyPolicy, pieces: list[str], rounds: int) -> Run:
    """Filter the pieces, some times over; the first rounds fill the automaton."""
    seconds: list[float] = []
    arrivals: list[tuple[int, str]] = []
    for _ in range(rounds):
        safety, arrivals = SafetyFilter(policy, "answer"), []
        started = time.process_time()
        for number, piece in enumerate(pieces, start=1):
            shown = safety.feed(piece, final=number == len(pieces))
            if shown:
                arrivals.append((number, shown))
        seconds.append(time.process_time() - started)
    return Run(min(seconds), arrivals)


def delays(pieces: list[str], arrivals: list[tuple[int, str]]) -> list[int]:
    """Return for each character of an unchanged text how many pieces later than it came it left."""
    came = [number for number, piece in enumerate(pieces, start=1) for _ in piece]
    left = [number for number, text in arrivals for _ in text]
    return [there - here for here, there in zip(came, left, strict=True)]


def leaks(arrivals: list[tuple[int, str]], secrets: list[str]) -> list[str]:
    """Return the secrets that can be read in what left."""
    text = "".join(text for _, text in arrivals).lower()
    return [secret for secret in secrets if secret.lower() in text]


def run_litellm(python: str, words: list[str], pieces: list[str], rounds: int) -> tuple[Run, str]:
    """Run the peer in its own interpreter."""
    task = json.dumps({"words": words, "patterns": _PATTERNS, "pieces": pieces, "rounds": rounds})
    script = str(Path(__file__).with_name("litellm_filter.py"))
    done = subprocess.run([python, script], input=task, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return Run(min(found["seconds"]), [(number, text) for number, text in found["arrivals"]]), found["version"]


def _line(name: str, ran: Run, pieces: list[str], secrets: list[str]) -> str:
    shown = f"{name:34} {ran.seconds / len(pieces) * 1e6:9.2f} us/token"
    if secrets:
        missed = leaks(ran.arrivals, secrets)
        return f"{shown}   leaked {len(missed)} of {len(secrets)} {missed or ''}"
    late = delays(pieces, ran.arrivals)
    share = sum(delay > 0 for delay in late) / len(late)
    ordered = sorted(late)
    return (
        f"{shown}   {share:6.1%} of characters later than they came; in tokens: mean {statistics.mean(late):.2f}, "
        f"p99 {ordered[int(0.99 * len(ordered))]}, most {ordered[-1]}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--litellm", metavar="PYTHON", help="the Python of a venv with litellm")
    parser.add_argument("--words", type=int, default=4000, help="length of the text")
    parser.add_argument("--terms", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rng = random.Random(6)
    words = forbidden_words(rng, args.terms)
    terms = Rule(id="terms", kind="terms", action="redact", terms=tuple(words), whole_words=True)
    anywhere = Rule(id="terms", kind="terms", action="redact", terms=tuple(words))
    every = Rule(id="all", kind="detect", action="redact", detect=tuple(DETECTORS))
    no_mail = Rule(
        id="all", kind="detect", action="redact", detect=tuple(name for name in DETECTORS if name != "email")
    )
    policies = {
        f"{args.terms} terms": [terms],
        f"{args.terms} terms, inside words too": [anywhere],
        "all detectors": [every],
        "terms and detectors but email": [terms, no_mail],
        "terms and all detectors": [terms, every],
    }
    planted = [*_SECRETS, *words[::97], "".join("\u200b" + char for char in words[5]), words[7].replace("a", "а")]
    for title, hidden in (("nothing to find", []), ("secrets planted", planted)):
        pieces = pieces_of(make_text(rng, args.words, hidden))
        sys.stdout.write(f"\n{title}: {len(pieces)} tokens, {sum(map(len, pieces))} characters\n")
        for name, rules in policies.items():
            secrets = hidden if name == "terms and all detectors" else []
            if secrets or not hidden:
                sys.stdout.write(_line(name, run(SafetyPolicy(rules), pieces, args.rounds), pieces, secrets) + "\n")
        if args.litellm:
            ran, version = run_litellm(args.litellm, words, pieces, 1)
            sys.stdout.write(_line(f"LiteLLM {version} content filter", ran, pieces, hidden) + "\n")


if __name__ == "__main__":
    main()
