"""The fast CPU path on the real model: as good as float32, the same bits in any batch, taped or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from kernels import dispatch
from kernels.native.library import built
from kernels.native.tape import Tape
from model_svc.engine.plan import Runner
from model_svc.runner import cpu_runner
from model_svc.runner import runner as any_runner
from model_svc.runner.cpu_runner import CpuRunner
from model_svc.runner.load import RunnerConfigError, load_runner, make_runner
from model_svc.runner.runner import TorchRunner
from tests.model_svc.paged import ModelDriver, RunnerDriver, Tracked, token_ids
from tests.model_svc.tiny import tiny_llama
from tests.model_svc.weights import gguf_files
from tests.model_svc.weights.quantized_models import CASES, write_quantized
from wire.messages import SamplingParams, pack_ids

pytestmark = pytest.mark.skipif(not built(), reason="native kernels are not built")

LICENSE = Path(__file__).parents[3] / "LICENSE"  # a text that stays as it is
PROMPTS = (
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a short poem about autumn.<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n\t# returns the n-th number\n",
    "The three laws of thermodynamics say that",
)
_SIZES: dict[str, Any] = {"num_blocks": 200, "max_num_seqs": 8, "max_model_len": 2048, "threads": 1}


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2_path / "tokenizer.json"))


@pytest.fixture(scope="module")
def fast(smollm2_path: Path) -> CpuRunner:
    runner = load_runner(smollm2_path, dtype="auto", **_SIZES)
    assert isinstance(runner, CpuRunner)
    return runner


@pytest.fixture(scope="module")
def exact(smollm2_path: Path) -> TorchRunner:
    runner = load_runner(smollm2_path, dtype="float32", **_SIZES)
    assert type(runner) is TorchRunner
    return runner


def _generate(runner: Runner, prompts: list[list[int]], count: int) -> list[list[int]]:
    """Follow prompts together, greedily."""
    seqs = [Tracked(slot=n, ids=list(ids)) for n, ids in enumerate(prompts)]
    return list(token_ids(RunnerDriver(runner).generate(seqs, count)).values())


def _cross_entropy(runner: TorchRunner, ids: list[int]) -> float:
    """Return the mean negative log-likelihood of a text, computed as one prompt."""
    model = runner._model
    driver = ModelDriver(model, num_blocks=128, block_size=16)
    logits = driver.logits((Tracked(slot=0, ids=ids), len(ids)))[0]
    return float(functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])))


def test_perplexity_is_within_half_a_percent_of_float32(
    fast: CpuRunner, exact: TorchRunner, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode(LICENSE.read_text()).ids[:1500]
    assert len(ids) == 1500
    quick = _cross_entropy(fast, ids)
    with dispatch.on_cpu("reference"):
        truth = _cross_entropy(exact, ids)
    print(f"cross entropy {quick:.4f}, in float32 {truth:.4f}")  # noqa: T201 - shown with a failure
    assert abs(quick - truth) < 0.005  # of the logarithm: half a percent of the perplexity


def test_greedy_answers_are_nearly_those_of_the_exact_mode(
    fast: CpuRunner, exact: TorchRunner, tokenizer: Tokenizer
) -> None:
    prompts = [tokenizer.encode(text).ids for text in PROMPTS]
    pairs = list(zip(_generate(fast, prompts, 24), _generate(exact, prompts, 24), strict=True))
    agreeing = [next((n for n, (a, b) in enumerate(zip(*pair, strict=True)) if a != b), 24) for pair in pairs]
    print("equal tokens of 24, per prompt:", agreeing)  # noqa: T201 - shown with a failure
    assert sum(agreeing) >= 0.5 * 24 * len(PROMPTS)


def test_an_answer_does_not_depend_on_what_else_is_in_the_batch(fast: CpuRunner, tokenizer: Tokenizer) -> None:
    prompts = [tokenizer.encode(text).ids for text in PROMPTS]
    together = _generate(fast, prompts, 12)
    assert [_generate(fast, [ids], 12)[0] for ids in prompts] == together


def test_taped_steps_have_the_bits_of_eager_ones(smollm2_path: Path, tokenizer: Tokenizer) -> None:
    prompts = [tokenizer.encode(text).ids for text in PROMPTS]
    answers = []
    for tapeable in (True, False):
        runner = load_runner(smollm2_path, dtype="int8", **_SIZES)
        assert isinstance(runner, CpuRunner)
        runner._tapeable = tapeable
        seqs = [Tracked(slot=n, ids=list(ids), sampling=SamplingParams(logprobs=2)) for n, ids in enumerate(prompts)]
        answers.append(RunnerDriver(runner).generate(seqs, 8))
        assert bool(runner._tapes) == tapeable
    assert answers[0] == answers[1]  # ids and log-probabilities


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Cohere2ForCausalLM", "GraniteForCausalLM"])
def test_torch_operations_within_a_layer_go_on_the_tape(architecture: str) -> None:
    model = tiny_llama(architectures=[architecture])
    runner = make_runner(model, num_blocks=32, max_num_seqs=4, native_kernels=True)
    other = make_runner(model, num_blocks=32, max_num_seqs=4)
    assert isinstance(runner, CpuRunner)
    prompts = [[5, 6, 7], [9, 8]]
    assert _generate(runner, prompts, 12) == _generate(other, prompts, 12)
    assert runner._tapeable
    assert any(runner._tapes.values())


def test_inputs_that_a_weight_has_in_another_order_are_put_so_on_the_tape(tmp_path: Path) -> None:
    write_quantized(tmp_path, gguf_files.tiny_llama(), CASES["gptq_4_activation_order"])
    answers = []
    for tapeable in (True, False):
        runner = load_runner(tmp_path, dtype="int8", num_blocks=32, max_num_seqs=4, threads=1)
        assert isinstance(runner, CpuRunner)
        runner._tapeable = tapeable
        answers.append(_generate(runner, [[5, 6, 7], [9, 8]], 12))
        assert bool(runner._tapes) == tapeable
        runner.close()
    assert answers[0] == answers[1]


def test_int8_without_kernels_is_refused(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model_svc.quant.native.library.built", lambda: False)
    with pytest.raises(RunnerConfigError, match="int8"):
        load_runner(smollm2_path, dtype="int8")


@pytest.mark.parametrize(
    ("dtype", "fault"), [("packed", "needs a GPU"), ("int3", "'int3' is not supported; known are")]
)
def test_a_dtype_that_a_cpu_has_not_is_refused(smollm2_path: Path, dtype: str, fault: str) -> None:
    with pytest.raises(RunnerConfigError, match=fault):
        load_runner(smollm2_path, dtype=dtype)


def test_keys_and_values_take_two_bytes_and_four_in_the_exact_mode() -> None:
    model = tiny_llama()
    fast, exact = (make_runner(model, num_blocks=4, max_num_seqs=1, native_kernels=kind) for kind in (True, False))
    assert 2 * fast.info.kv_bytes_per_token == exact.info.kv_bytes_per_token
    assert {cache.dtype for cache in fast._cache.layers[0]} == {torch.float16}
    assert {cache.dtype for cache in exact._cache.layers[0]} == {torch.float32}


def test_targets_of_a_prompt_are_the_models_own(fast: CpuRunner, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(PROMPTS[0]).ids
    (logits,) = ModelDriver(fast._model).logits((Tracked(slot=0, ids=ids), len(ids)))
    wanted = logits.log_softmax(-1)
    driver = RunnerDriver(fast)
    share = driver.dealer.share(Tracked(slot=0, ids=list(ids)), len(ids))
    share = msgspec.structs.replace(share, targets=pack_ids(ids[1:]), num_top=2)
    (found,) = driver.run(share, freed_slots=()).targets
    assert len(found.entries) == len(ids) - 1
    for position, entry in enumerate(found.entries):
        # The driver keeps float32 keys and values, the runner float16 ones; what is unlikely differs by more, and on
        # processors without VNNI by half a nat.
        assert entry.logprob == pytest.approx(float(wanted[position, ids[position + 1]]), abs=0.3, rel=0.1)
        assert entry.top_logprobs == pytest.approx(wanted[position].topk(2).values.tolist(), abs=0.3, rel=0.1)


def test_a_continued_answer_has_the_bits_of_the_undisturbed_one(fast: CpuRunner, tokenizer: Tokenizer) -> None:
    """What `deterministic` promises on a CPU, for everybody: other chunks, other company, computed again, the same."""
    prompt = tokenizer.encode(PROMPTS[1]).ids
    sampling = SamplingParams(temperature=1.0, seed=3, logprobs=3)
    alone = RunnerDriver(fast).generate([Tracked(slot=0, ids=list(prompt), sampling=sampling, seed=3)], 16)[0]
    said = [token.token_id for token in alone]
    for kept in (1, 7, 15):
        moved = Tracked(slot=2, ids=prompt + said[:kept], sampling=sampling, seed=3)
        moved.num_prompt = len(prompt)
        others = [Tracked(slot=n, ids=tokenizer.encode(PROMPTS[n]).ids) for n in (0, 3)]
        drawn = RunnerDriver(fast).generate([others[0], moved, others[1]], 16 - kept, chunk=5)[2]
        assert [(t.token_id, t.logprob, t.top_logprobs) for t in drawn] == [
            (t.token_id, t.logprob, t.top_logprobs) for t in alone[kept:]
        ]


def test_a_steps_spare_time_lies_behind_its_products_and_before_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner(tiny_llama(), num_blocks=32, max_num_seqs=4, native_kernels=True)
    assert isinstance(runner, CpuRunner)
    order: list[str] = []
    runner.spare.use = lambda: order.append("spare")
    for owner, name in ((Tape, "replay"), (any_runner, "flatten"), (cpu_runner, "draw_all")):
        monkeypatch.setattr(owner, name, _noted(getattr(owner, name), name, order))
    _generate(runner, [[5, 6, 7]], 4)  # the prompt, a step met eagerly, one recorded, one replayed
    assert order == [*["spare", "flatten", "draw_all"] * 3, "replay", "spare", "draw_all"]


def _noted(function: Callable[..., Any], name: str, order: list[str]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        order.append(name)
        return function(*args)

    return call
