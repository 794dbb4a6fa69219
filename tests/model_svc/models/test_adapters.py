"""LoRA adapters against transformers with the same parts merged into its weights: all logits, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kernels.native.library import built
from model_svc.layers.group import Group
from model_svc.models.load import load_model
from model_svc.quant.native import Native
from model_svc.weights.adapter import AdapterCheckpoint
from model_svc.weights.errors import CheckpointError
from tests.lora import ALL, merged, write_adapter
from tests.model_svc.models.test_parity import BASE, EXPERTS, GROUPED, LATENTS, VOCAB
from tests.model_svc.models.test_quantized_models import IDS, made
from tests.model_svc.paged import ModelDriver, Tracked
from tests.model_svc.parallel.ranks import ranks

CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "llama": ("Llama", {}, ALL),
    "llama_biases": ("Llama", {"attention_bias": True, "mlp_bias": True}, ("q_proj", "v_proj", "down_proj")),
    "qwen3": ("Qwen3", {"head_dim": 32}, ("k_proj", "o_proj", "up_proj")),
    "phi3": ("Phi3", {"sliding_window": None}, ("qkv_proj", "gate_up_proj", "o_proj")),
    "gemma3": (
        "Gemma3Text", {"head_dim": 32, "sliding_window": 64, "query_pre_attn_scalar": 24}, ALL,
    ),
    "cohere": ("Cohere2", {"sliding_window": 64, "logit_scale": 0.5}, ALL),
    "starcoder2": ("Starcoder2", {"sliding_window": None}, ("q_proj", "c_fc", "c_proj")),
    "qwen3_moe": ("Qwen3Moe", {**EXPERTS, "head_dim": 16}, ("q_proj", "v_proj")),
    "deepseek_v3": ("DeepseekV3", {**GROUPED, **LATENTS}, ("q_b_proj", "q_a_proj", "kv_a_proj_with_mqa", "o_proj")),
}  # fmt: skip


def _build(kind: str, changes: dict[str, Any]) -> Any:
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**(BASE | changes))
    return getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config).eval()


@pytest.mark.parametrize("case", CASES)
def test_logits_of_a_mixed_batch_are_those_of_the_merged_models(case: str, tmp_path: Path) -> None:
    kind, changes, targets = CASES[case]
    model = _build(kind, changes)
    model.save_pretrained(tmp_path / "base")
    ends = {"q_proj": 7} if "q_proj" in targets else {}
    one = write_adapter(tmp_path / "one", model, targets=targets, seed=1, ranks=ends, alpha_pattern={targets[-1]: 3.0})
    two = write_adapter(tmp_path / "two", model, targets=targets[:1], seed=2, rank=20, use_rslora=True)
    checkpoints = [AdapterCheckpoint("one", one), AdapterCheckpoint("two", two)]
    ours = load_model(tmp_path / "base", dtype=torch.float32, device=torch.device("cpu"), adapters=checkpoints)
    driver = ModelDriver(ours)
    oracles = [model, merged(model, one), merged(model, two), model]
    ids = [torch.randint(3, VOCAB, (n,)).tolist() for n in (13, 9, 11, 5)]
    seqs = [Tracked(slot=n, ids=list(own)) for n, own in enumerate(ids)]
    driver.adapter_of = {1: 1, 2: 2}
    first = driver.logits(*((seq, 4) for seq in seqs))  # chunks, then what is left, then all at once
    rest = driver.logits(*((seq, len(seq.ids) - 4) for seq in seqs))
    for begun, ended, oracle, own in zip(first, rest, oracles, ids, strict=True):
        with torch.no_grad():
            truth = oracle(torch.tensor([own])).logits[0]
        torch.testing.assert_close(torch.cat([begun, ended]), truth, rtol=2e-3, atol=2e-3)
    assert not torch.allclose(rest[0][:1], rest[3][:1])


def test_an_adapter_of_what_makes_keys_and_values_of_latents_is_refused_by_name(tmp_path: Path) -> None:
    model = _build("DeepseekV3", {**GROUPED, **LATENTS})
    model.save_pretrained(tmp_path / "base")
    place = write_adapter(tmp_path / "one", model, targets=("kv_b_proj", "o_proj"))
    with pytest.raises(CheckpointError, match=r"self_attn\.kv_b_proj"):
        load_model(
            tmp_path / "base", dtype=torch.float32, device=torch.device("cpu"),
            adapters=[AdapterCheckpoint("one", place)],
        )  # fmt: skip


@pytest.mark.parametrize("form", ["dequantized", "native"])
def test_a_quantized_base_stays_as_it_is_and_the_part_is_added_apart(form: str, tmp_path: Path) -> None:
    """Native products round activations to 8 bits, so that their logits are only near."""
    if form == "native" and not built():
        pytest.skip("native kernels are not built")
    model = made(tmp_path, "awq_32")
    place = write_adapter(tmp_path / "one", model, seed=1, spread=0.1)
    method = Native() if form == "native" else None
    ours = load_model(
        tmp_path, dtype=torch.float32, device=torch.device("cpu"), method=method,
        adapters=[AdapterCheckpoint("one", place)],
    )  # fmt: skip
    driver = ModelDriver(ours)
    driver.adapter_of = {1: 1}
    seqs = [Tracked(slot=slot, ids=list(IDS)) for slot in (0, 1)]
    found = driver.logits(*((seq, len(IDS)) for seq in seqs))
    for logits, oracle in zip(found, (model, merged(model, place)), strict=True):
        with torch.no_grad():
            truth = oracle(torch.tensor([IDS])).logits[0]
        assert float((logits - truth).norm() / truth.norm()) < (0.08 if form == "native" else 1e-4)


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("case", ["llama_biases", "phi3"])
def test_ranks_have_their_part_of_an_adapter(case: str, staged: bool, tmp_path: Path) -> None:
    kind, changes, targets = CASES[case]
    model = _build(kind, changes)
    model.save_pretrained(tmp_path / "base")
    place = write_adapter(tmp_path / "one", model, targets=targets, seed=1)
    ids = list(range(5, 20))
    with torch.no_grad():
        truth = merged(model, place)(torch.tensor([ids])).logits[0]

    def logits(group: Group) -> list[torch.Tensor]:
        checkpoints = [AdapterCheckpoint("one", place)]
        ours = load_model(
            tmp_path / "base", dtype=torch.float32, device=torch.device("cpu"), group=group, adapters=checkpoints
        )
        driver = ModelDriver(ours)
        driver.adapter_of = {1: 1}
        with torch.inference_mode():
            return driver.logits((Tracked(slot=1, ids=ids), len(ids)))

    with ranks(2, staged=staged) as threads:
        found = threads.each(logits)
    assert [len(each) for each in found] == ([0, 1] if staged else [1, 1])
    for each in found:
        for rows in each:
            torch.testing.assert_close(rows, truth, rtol=2e-3, atol=2e-3)
