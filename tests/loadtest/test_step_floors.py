"""Floors count what a step cannot do without: chosen experts alone, and keys inside windows alone."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.step_floors import StepFloors

DENSE: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "tie_word_embeddings": True,
}  # fmt: skip
MIXTURE = DENSE | {"num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 4}
BLOCK, LAYER = 3 * 8 * 16, 2 * 8 * 4 * 3  # weights of a feed-forward block, and of attention


def floors(shape: dict[str, Any], copy_rate: float, product_rate: float) -> StepFloors:
    return StepFloors(shape, 10_000, 16, copy_rate, product_rate)


def test_a_decode_step_reads_all_weights_and_the_keys_of_its_sequences() -> None:
    assert floors(DENSE, 1e3, 1e30).decode_ms(3, 10) == pytest.approx(10_000 + 3 * 10 * 16)


def test_a_decode_step_multiplies_each_row_with_all_weights_and_each_query_with_its_keys() -> None:
    weights = 2 * (LAYER + BLOCK) + 800
    assert floors(DENSE, 1e30, 1e3).decode_ms(3, 10) == pytest.approx(3 * (2 * weights + 4 * 2 * 8 * 10))


def test_a_layer_with_a_window_reads_no_keys_outside_it() -> None:
    assert floors(DENSE | {"sliding_window": 4}, 1e3, 1e30).decode_ms(1, 10) == pytest.approx(10_000 + 16 * 7)


def test_experts_that_nobody_chooses_are_not_read() -> None:
    unread = 2 * 4 * (3 * 8 * 4) * 2  # bytes of all experts
    step = floors(MIXTURE, 1e3, 1e30)
    assert step.decode_ms(1, 0) == pytest.approx(10_000 - 3 / 4 * unread)
    assert step.decode_ms(2, 0) == pytest.approx(10_000 - 9 / 16 * unread)


def test_a_prompt_meets_the_experts_of_each_token_and_the_head_once() -> None:
    layers = 2 * (LAYER + 3 * 8 * 4 + 8 * 4)
    pairs = 10**2 / 2 * 2 * 4 * 8
    assert floors(MIXTURE, 1e30, 1e3).prefill_ms(10) == pytest.approx(2 * layers * 10 + 2 * 800 + pairs)


def test_queries_meet_latents_and_what_is_made_of_them_is_no_weight_of_a_key() -> None:
    latents = {"kv_lora_rank": 6, "qk_nope_head_dim": 3, "qk_rope_head_dim": 2, "v_head_dim": 5}
    shared = DENSE | latents | {"n_routed_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 4}
    attention = 8 * (2 * (3 + 2) + 6 + 2) + 2 * 6 * (3 + 5) + 2 * 5 * 8
    weights = 2 * (attention + 3 * (3 * 8 * 4) + 8 * 4) + 800
    found = floors(shared | {"n_shared_experts": 2}, 1e30, 1e3).decode_ms(1, 10)
    assert found == pytest.approx(2 * weights + 2 * 2 * 2 * (6 + 2 + 6) * 10)
