"""The prefix cache changes no answer and shares nothing that is not full, computed and of the same root."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.model_svc.engine.driver import Driver
from tests.model_svc.scripted_runner import hashed_reply
from wire import block_hash
from wire.messages import Image, ImageSpan

BLOCK = 4


def fresh(**sizes: Any) -> Driver:
    return Driver(hashed_reply(256), block_size=BLOCK, **sizes)


def uncached(prompt: list[int]) -> list[int]:
    driver = fresh()
    driver.ask("alone", prompt, seed=5)
    driver.run()
    return driver.ids("alone")


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_a_cached_prompt_answers_as_an_uncached_one(length: int, depth: int) -> None:
    prompt = list(range(1, length + 1))
    driver = fresh(depth=depth)
    driver.ask("first", prompt, seed=5)
    driver.run()
    driver.ask("second", prompt, seed=5)
    driver.run()
    longer = [*prompt, 99]
    driver.ask("longer", longer, seed=5)
    driver.run()
    assert driver.ids("first") == driver.ids("second") == uncached(prompt)
    assert driver.ids("longer") == uncached(longer)
    # never the whole prompt: its last token is computed for its logits
    assert driver.cached("second") == (length - 1) // BLOCK * BLOCK
    assert driver.cached("longer") == length // BLOCK * BLOCK
    assert driver.cached("first") == 0


def test_another_picture_is_another_cache_from_its_block_on() -> None:
    prompt = [*range(1, 6), *[9] * 6, *range(20, 30)]  # the picture begins in the second block
    driver = fresh(image_token_id=9)
    for number, data in enumerate([b"one", b"other", b"one"]):
        digest = Image.of("image/png", data).digest
        driver.ask(f"r{number}", prompt, images=[ImageSpan(position=5, num_tokens=6, digest=digest)], seed=1)
        driver.run()
    assert [driver.cached(f"r{number}") for number in range(3)] == [0, BLOCK, 20]


def test_another_root_is_another_cache() -> None:
    prompt = list(range(1, 20))
    roots = {
        salt: block_hash.root(b"secret", model="m", block_size=BLOCK, tenant=tenant, cache_salt=salt)
        for salt, tenant in (("a", "t"), ("b", "t"), ("", "t"))
    }
    driver = fresh()
    for number, salt in enumerate(["a", "b", "a", ""]):
        driver.ask(f"r{number}", prompt, root=roots[salt], seed=1)
        driver.run()
    assert [driver.cached(f"r{number}") for number in range(4)] == [0, 0, 16, 0]


def test_prompts_without_a_root_share_with_nobody() -> None:
    driver = fresh()
    for request_id in ("one", "two"):
        driver.ask(request_id, list(range(1, 20)), root=b"")
        driver.run()
    assert driver.cached("two") == 0


def test_the_answer_is_cached_too_for_the_next_turn() -> None:
    driver = fresh()
    driver.ask("turn1", [1, 2, 3, 4, 5], max_tokens=8)
    driver.run()
    history = [1, 2, 3, 4, 5, *driver.ids("turn1")]
    driver.ask("turn2", [*history, 7, 8])
    driver.run()
    # the last token of an answer is never computed, so of 13 tokens 12 are there
    assert driver.cached("turn2") == 12


def test_half_filled_blocks_are_not_offered_after_a_cancel_in_mid_prefill() -> None:
    driver = fresh(max_num_batched_tokens=6)
    prompt = list(range(1, 41))
    driver.ask("gone", prompt)
    driver.step()
    driver.engine.cancel("gone")
    driver.run()
    assert driver.reason("gone") == "cancelled"
    driver.ask("next", prompt, seed=5)
    driver.run()
    assert driver.cached("next") == BLOCK  # six tokens were computed: one full block
    assert driver.ids("next") == uncached(prompt)


def test_a_step_in_flight_is_not_offered() -> None:
    driver = fresh(depth=1)
    prompt = list(range(1, 13))
    driver.ask("first", prompt)
    driver.step()  # submitted, not collected
    driver.ask("second", prompt)
    driver.run()
    assert driver.cached("second") == 0


def test_running_sequences_share_a_prefix() -> None:
    driver = fresh(num_blocks=12)
    driver.ask("first", list(range(1, 30)), max_tokens=12)
    driver.step()
    free = driver.engine.load().num_free_blocks
    driver.ask("second", list(range(1, 30)), max_tokens=12)
    driver.step()
    assert driver.cached("second") == 28
    assert free - driver.engine.load().num_free_blocks <= 2
    driver.run()


def test_blocks_with_bad_values_are_never_hit_again() -> None:
    def reply(context: Sequence[int], output_index: int, seed: int) -> int | None:
        return None if seed == poisoned and output_index == 1 else 7

    driver = Driver(reply, block_size=BLOCK)
    poisoned = -1
    request = driver.ask("bad", list(range(1, 14)), seed=3)
    poisoned = driver.engine.scheduler.roster.waiting[0].seed
    driver.run()
    assert request is not None and driver.reason("bad") == "error"
    driver.ask("good", list(range(1, 14)))
    driver.run()
    assert driver.cached("good") == 0
    assert driver.reason("good") == "length"


def test_names_given_with_the_prompt_are_the_ones_the_engine_would_give() -> None:
    prompt = list(range(1, 15))
    root = block_hash.root(b"secret", model="m", block_size=BLOCK)
    given = b"".join(block_hash.chain(root, prompt, BLOCK))
    for first, second in ((given, b""), (b"", given)):
        driver = fresh()
        driver.ask("first", prompt, root=root, block_hashes=first, block_size=BLOCK)
        driver.run()
        driver.ask("second", prompt, root=root, block_hashes=second, block_size=BLOCK)
        driver.run()
        assert driver.cached("second") == 12
