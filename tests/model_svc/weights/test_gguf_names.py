"""GGUF's names become those of Hugging Face, and what the converter did to a tensor goes with its name."""

from __future__ import annotations

import pytest

from model_svc.weights.gguf_names import Change, Renamed, rename


def test_names_we_do_not_know_stay_and_so_turn_up_as_unused() -> None:
    assert rename("blk.3.ssm_a.weight", "llama", 4, 2).name == "blk.3.ssm_a.weight"  # type: ignore[union-attr]
    assert rename("rope_freqs.weight", "llama", 4, 2) is None


def test_gemma_norms_are_stored_plus_one_and_have_names_of_their_own() -> None:
    for theirs, ours in {
        "output_norm.weight": "model.norm.weight",
        "blk.2.attn_norm.weight": "model.layers.2.input_layernorm.weight",
        "blk.2.attn_q_norm.weight": "model.layers.2.self_attn.q_norm.weight",
        "blk.2.post_attention_norm.weight": "model.layers.2.post_attention_layernorm.weight",
        "blk.2.ffn_norm.weight": "model.layers.2.pre_feedforward_layernorm.weight",
        "blk.2.post_ffw_norm.weight": "model.layers.2.post_feedforward_layernorm.weight",
    }.items():
        renamed = rename(theirs, "gemma3", 4, 1)
        assert renamed is not None
        assert renamed.name == ours
        assert renamed.change.minus_one
    plain = rename("blk.2.attn_q.weight", "gemma3", 4, 1)
    assert plain is not None
    assert plain.change == Change()


def test_gpt_oss_has_names_of_its_own_for_norms_sinks_and_the_router() -> None:
    for theirs, ours in {
        "blk.2.attn_norm.weight": "model.layers.2.input_layernorm.weight",
        "blk.2.post_attention_norm.weight": "model.layers.2.post_attention_layernorm.weight",
        "blk.2.attn_sinks.weight": "model.layers.2.self_attn.sinks",
        "blk.2.attn_output.bias": "model.layers.2.self_attn.o_proj.bias",
        "blk.2.ffn_gate_inp.bias": "model.layers.2.mlp.router.bias",
        "blk.2.ffn_up_exps.bias": "model.layers.2.mlp.experts.{}.up_proj.bias",
    }.items():
        assert rename(theirs, "gpt-oss", 4, 2) == Renamed(ours, Change())


def test_what_states_are_made_with_is_undone_by_its_name() -> None:
    plus_one, rate, filters = Change(minus_one=True), Change(flat=True, rate=True), Change(filters=True)
    for theirs, ours, change in (
        ("blk.2.ssm_a", "model.layers.2.linear_attn.A_log", rate),
        ("blk.2.ssm_dt.bias", "model.layers.2.linear_attn.dt_bias", Change()),
        ("blk.2.ssm_conv1d.weight", "model.layers.2.linear_attn.conv1d.weight", filters),
        ("blk.2.ssm_norm.weight", "model.layers.2.linear_attn.norm.weight", Change(flat=True)),
        ("blk.2.attn_q_norm.weight", "model.layers.2.self_attn.q_norm.weight", plus_one),
    ):
        assert rename(theirs, "qwen3next", 4, 2) == Renamed(ours, change)
    assert rename("blk.2.shortconv.conv.weight", "lfm2", 4, 2) == ("model.layers.2.conv.conv.weight", filters)
    assert rename("blk.2.ssm_d", "granitehybrid", 4, 2) == ("model.layers.2.mamba.D", Change(flat=True))
    assert (filters.shape((6, 3)), rate.shape((6, 1))) == ((6, 1, 3), (6,))


@pytest.mark.parametrize("name", ["blk.0.attn_q.weight\n", "blk.0.attn_q.weight\0", "\nblk.0.attn_q.weight"])
def test_a_name_with_a_line_break_is_another_name(name: str) -> None:
    assert rename(name, "llama", 4, 2) == (name, Change())


def test_each_expert_of_an_old_file_has_a_name_of_its_own_and_other_numbers_mean_nothing() -> None:
    name = "model.layers.1.block_sparse_moe.experts.6.w3.weight"
    assert rename("blk.1.ffn_up.6.weight", "llama", 4, 2) == (name, Change())
    for odd, arch in (("blk.1.attn_q.6.weight", "llama"), ("blk.1.ffn_up.6.weight", "qwen2")):
        assert rename(odd, arch, 4, 2) == (odd, Change())
