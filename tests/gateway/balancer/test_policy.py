"""Placement policies: which of some replicas takes a request, by cached prefix, load and blocks."""

from __future__ import annotations

import pytest

from gateway.balancer.policy import (
    POLICIES,
    Candidate,
    choose,
    fits,
    home_of,
    least_loaded,
    prefix_and_load,
    round_robin,
)

IDLE = Candidate("idle", max_num_seqs=16, free_tokens=10_000)


def chosen(*candidates: Candidate, num_tokens: int = 1000, turn: int = 0) -> str:
    return choose(prefix_and_load, candidates, num_tokens, turn).replica_id


def test_the_longest_prefix_wins_among_equally_loaded_replicas() -> None:
    half = IDLE._replace(replica_id="half", cached_tokens=512)
    most = IDLE._replace(replica_id="most", cached_tokens=992)
    assert chosen(IDLE, half, most) == "most"
    assert chosen(most, half, IDLE) == "most"


def test_a_prefix_loses_to_an_idle_replica_once_more_waits_than_it_saves() -> None:
    cached = IDLE._replace(replica_id="cached", cached_tokens=800)
    assert chosen(IDLE, cached._replace(waiting_tokens=700)) == "cached"
    assert chosen(IDLE, cached._replace(waiting_tokens=900)) == "idle"


def test_running_sequences_count_and_stretch_the_prefill() -> None:
    cached = IDLE._replace(replica_id="cached", cached_tokens=100)
    assert chosen(IDLE, cached._replace(num_running=2)) == "idle"
    assert chosen(IDLE, cached) == "cached"
    assert chosen(IDLE, IDLE._replace(replica_id="busy", num_running=1)) == "idle"


def test_a_replica_short_of_blocks_is_dearer_by_what_it_must_push_out() -> None:
    assert chosen(IDLE._replace(replica_id="full", free_tokens=0), IDLE, turn=0) == "idle"
    cached = IDLE._replace(replica_id="cached", cached_tokens=992, free_tokens=8)
    assert chosen(cached, IDLE) == "cached"  # what is cached needs no new blocks


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_equally_good_replicas_are_used_in_turn(name: str) -> None:
    fleet = [IDLE._replace(replica_id=f"r{number}") for number in range(3)]
    picked = [choose(POLICIES[name], fleet, 100, turn).replica_id for turn in range(6)]
    assert picked == ["r0", "r1", "r2"] * 2


def test_least_loaded_and_round_robin_look_past_the_cache() -> None:
    cached = IDLE._replace(replica_id="cached", cached_tokens=999, waiting_tokens=1)
    assert choose(least_loaded, [cached, IDLE], 1000, 0).replica_id == "idle"
    assert choose(round_robin, [cached, IDLE], 1000, 0).replica_id == "cached"


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(1, True), (1023, True), (1024, True), (1025, False), (4095, False)],
)
def test_a_prompt_fits_if_its_blocks_exist_at_all(num_tokens: int, expected: bool) -> None:
    assert fits(num_tokens, max_model_len=4096, num_blocks=64, block_size=16) is expected


def test_a_prompt_needs_room_for_one_token_more_in_the_context() -> None:
    assert fits(99, max_model_len=100, num_blocks=64, block_size=16)
    assert not fits(100, max_model_len=100, num_blocks=64, block_size=16)


def test_a_home_wins_among_idle_replicas_until_it_is_half_a_prompt_behind() -> None:
    home = IDLE._replace(replica_id="home", is_home=True)
    assert [chosen(IDLE, home, turn=turn) for turn in range(2)] == ["home", "home"]
    assert chosen(IDLE, home._replace(waiting_tokens=400)) == "home"
    assert chosen(IDLE, home._replace(waiting_tokens=600)) == "idle"


def test_a_real_prefix_elsewhere_beats_a_home() -> None:
    home = IDLE._replace(replica_id="home", is_home=True)
    assert chosen(IDLE._replace(cached_tokens=992), home) == "idle"


def test_a_key_has_one_home_and_most_keep_theirs_when_a_replica_leaves() -> None:
    replicas = [f"r{number}" for number in range(8)]
    keys = [f"key{number}" for number in range(400)]
    homes = {key: home_of(key, replicas) for key in keys}
    assert homes == {key: home_of(key, reversed(replicas)) for key in keys}
    assert all(30 < list(homes.values()).count(replica) < 75 for replica in replicas)
    left = {key: home_of(key, replicas[1:]) for key in keys}
    assert all(left[key] == home for key, home in homes.items() if home != "r0")
    assert home_of("", replicas) is None
