"""No step meets a kernel that was not compiled ahead, whatever its draws ask for: whoever waits would wait for seconds.

Without a card launches are only written down, in a process of its own: in this one Triton interprets.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from model_svc.engine.plan import SequenceStep
from model_svc.models.decoder import Decoder
from model_svc.runner import compile_steps
from model_svc.runner.gpu_runner import GpuRunner
from model_svc.runner.load import make_runner
from tests.model_svc.paged import GREEDY, RunnerDriver, Tracked
from tests.model_svc.tiny import EXPERTS, tiny_llama
from wire.messages import SamplingParams, pack_ids

SIZES: dict[str, Any] = {
    "num_blocks": 300, "block_size": 16, "max_num_seqs": 80, "max_num_batched_tokens": 2056, "max_drafts": 48,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "even": {"vocab_size": 1024, "hidden_size": 128, "intermediate_size": 128, "head_dim": 64},
    "one KV head": {"vocab_size": 1024, "hidden_size": 128, "head_dim": 64, "num_key_value_heads": 1},
    "float8": {"vocab_size": 1024, "hidden_size": 128, "intermediate_size": 128, "head_dim": 64, "float8": True},
    "experts": {"vocab_size": 1024, "hidden_size": 128, "head_dim": 64, **EXPERTS},
    "float4 experts": {
        "vocab_size": 1024, "hidden_size": 128, "head_dim": 64, **EXPERTS, "moe_intermediate_size": 64, "float4": True,
    },
    "odd": {"vocab_size": 1003, "head_dim": 80, "num_key_value_heads": 4},
}  # fmt: skip
PLAIN = SamplingParams(temperature=1.0)
SAMPLINGS = [
    GREEDY,
    PLAIN,
    SamplingParams(temperature=0.9, top_k=9, top_p=0.9, min_p=0.05),
    SamplingParams(temperature=1.0, frequency_penalty=0.7),
    SamplingParams(temperature=1.0, repetition_penalty=1.2, logit_bias={3: 4.0}),
    SamplingParams(temperature=1.0, logit_bias=dict.fromkeys(range(16), -1.0)),
    SamplingParams(temperature=0.0, logprobs=0),
    SamplingParams(temperature=1.0, logprobs=1),
    SamplingParams(temperature=1.0, logprobs=20, presence_penalty=0.5),
    SamplingParams(temperature=1.0, logprobs=100),
    SamplingParams(temperature=1.0, min_tokens=4),
    SamplingParams(temperature=1.0, allowed_token_ids=tuple(range(40))),
    SamplingParams(temperature=1.0, deterministic=True),
    SamplingParams(temperature=1.0, deterministic=True, logprobs=3, repetition_penalty=1.2),
]
LENGTHS = (1, 2, 16, 33, 130, 300, 512, 600, 1100, 2050)
WIDTHS = (1, 2, 3, 9, 17, 40, 80)


@contextmanager
def launches(*, run: bool) -> Iterator[set[tuple[str, str]]]:
    """Collect the variants of kernels that are launched; without `run` nothing is compiled or launched."""
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    launch, seen = JITFunction.run, set()

    def noted(self: Any, *args: Any, **options: Any) -> Any:
        binder = self.device_caches[driver.active.get_current_device()][-1]
        names = {name: value for name, value in options.items() if name not in ("grid", "warmup")}
        _, specialization, chosen = binder(*args, **({"debug": False} | names))
        seen.add((self.fn.__qualname__, f"{specialization} {chosen}"))
        return launch(self, *args, **options) if run else None

    JITFunction.run = noted
    try:
        yield seen
    finally:
        JITFunction.run = launch


class Asker:
    """Takes every kind of step through a runner, whose tokens may be without meaning."""

    def __init__(self, runner: GpuRunner) -> None:
        self.runner = runner
        self._fresh()

    def _fresh(self) -> None:
        self.driver = RunnerDriver(self.runner)

    def every_kind(self) -> None:
        for length, width in product(LENGTHS, WIDTHS):
            if length * width <= 2056:
                self._answers([PLAIN] * width, length)
        for length in (3, 600):
            for sampling in SAMPLINGS:
                self._answers([sampling], length)
        for width in WIDTHS:
            self._answers([SAMPLINGS[n % len(SAMPLINGS)] for n in range(width)], 5)
            for changes in self._rules():
                self._answers([PLAIN] * width, 3, **changes)
        for sampling, width, guesses in product(SAMPLINGS, (1, 3, 12, 40), (1, 5, 20)):
            if width * guesses <= 48:
                self._answers([sampling] * width, 3, guesses=guesses)
        for length, top, sampling in product((2, 3, 20, 40, 600), (0, 100), (PLAIN, SAMPLINGS[-1])):
            self._answers([sampling], length, targets=pack_ids([1] * length), num_top=top)

    def _rules(self) -> list[dict[str, Any]]:
        words = np.full(-(-self.runner.info.vocab_size // 32), -1, dtype=np.int32).tobytes()
        return [
            {"allow_bitmask": words}, {"forced_id": 5}, {"barred_ids": (3, 4)}, {"landing_id": 7, "landing_bias": 1.0},
            {"allow_bitmask": words, "landing_id": 7}, {"allow_bitmask": words, "barred_ids": (3,), "forced_id": 5},
        ]  # fmt: skip

    def _answers(self, samplings: list[SamplingParams], length: int, *, guesses: int = 0, **changes: Any) -> None:
        """A prompt of each, and two tokens behind it."""
        self._fresh()
        words = np.full(-(-self.runner.info.vocab_size // 32), -1, dtype=np.int32).tobytes()
        sequences = [
            Tracked(slot, [1] * length, sampling=sampling, sentence_ends=words if "landing_id" in changes else b"")
            for slot, sampling in enumerate(samplings)
        ]
        for step in range(3):
            with torch.inference_mode():
                self.runner._slots.last_token.zero_()  # which nobody has drawn, perhaps
            shares = [self._share(seq, length if step == 0 else 1, guesses if step else 0) for seq in sequences]
            if changes.get("targets") and step:
                break
            self.driver.run(*(msgspec.structs.replace(share, **changes) for share in shares))

    def _share(self, seq: Tracked, num_tokens: int, guesses: int) -> SequenceStep:
        seq.ids += [1] * (seq.computed + num_tokens + guesses - len(seq.ids))
        share = self.driver.dealer.share(seq, num_tokens + guesses, fed=num_tokens == 1 and not guesses, sample=True)
        if share.new is not None:
            share = msgspec.structs.replace(share, new=msgspec.structs.replace(share.new, stop_token_ids=(2, 9)))
        return msgspec.structs.replace(share, num_drafts=guesses)


def without_a_card(shape: str, fused: bool) -> None:
    """Print what steps launch that going through all steps does not."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    from kernels import dispatch, few_rows

    class Card:
        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, _: int) -> int:
            return 0

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cpu")

        def get_device_interface(self) -> Any:
            return torch.cuda

    driver.set_active(Card())
    torch.set_num_threads(1)
    # Products on the CPU were half of the time, and what is computed has no meaning here.
    torch.nn.functional.linear = lambda x, weight, *_: x.new_zeros(*x.shape[:-1], len(weight))
    torch.Tensor.addmm_ = lambda self, *_, **__: self  # type: ignore[method-assign]
    if fused:
        few_rows.fits = lambda x, num_rows: 0 < num_rows <= few_rows.MAX_ROWS and not dispatch.fixed()  # noqa: ARG005
    runner = make_runner(model_of(shape, "cpu"), dtype=torch.float16, packed=True, **SIZES)
    assert isinstance(runner, GpuRunner)
    with dispatch.forced("triton"), launches(run=False) as seen:
        runner.go_through()
        ahead = set(seen)
        Asker(runner).every_kind()
    for name, key in sorted(seen - ahead):
        print("met:", name, key)  # noqa: T201
    print("ahead:", len(ahead))  # noqa: T201


def model_of(shape: str, device: str) -> Decoder:
    kind = torch.bfloat16 if device == "cuda" else torch.float16
    return tiny_llama(device, kind, torch.bfloat16, **{"max_position_embeddings": 4096} | SHAPES[shape])


@pytest.mark.parametrize(
    ("shape", "fused"), [("even", True), ("one KV head", False), ("float8", True), ("experts", True), ("odd", False)]
)
def test_no_step_meets_a_kernel_that_going_through_all_did_not(shape: str, fused: bool) -> None:
    environ = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-m", "tests.model_svc.runner.test_variants", shape, str(int(fused))],
        env=environ, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *met, ahead = done.stdout.splitlines()
    assert not met, "\n".join(met)
    assert int(ahead.removeprefix("ahead: ")) > 20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("shape", SHAPES)
def test_no_step_on_a_card_meets_a_kernel_that_the_start_did_not_compile(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead: set[tuple[str, str]] = set()
    with launches(run=True) as seen:
        monkeypatch.setattr(compile_steps, "note_for", lambda *_: tmp_path / "note")
        monkeypatch.setattr(compile_steps, "write_note", lambda _: ahead.update(seen))
        runner = make_runner(model_of(shape, "cuda"), dtype=torch.bfloat16, **SIZES)
        assert ahead
        Asker(runner).every_kind()  # type: ignore[arg-type]
    runner.close()
    assert not seen - ahead, "\n".join(f"{name} {key}" for name, key in sorted(seen - ahead))


if __name__ == "__main__":
    without_a_card(sys.argv[1], sys.argv[2] == "1")
