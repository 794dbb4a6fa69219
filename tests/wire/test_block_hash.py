"""Names of KV blocks: chained, salted, keyed; equal only for what is the same state."""

from __future__ import annotations

import hashlib
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire import block_hash
from wire.messages import Image, ImageSpan

token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=70)
ROOT = block_hash.root(b"secret", model="m", block_size=16)


@given(token_ids, st.integers(1, 20))
def test_a_chain_names_each_full_block_and_no_other(ids: list[int], size: int) -> None:
    names = block_hash.chain(ROOT, ids, size)
    assert len(names) == len(ids) // size
    parent = ROOT
    for at, name in enumerate(names):
        parent = block_hash.extend(parent, ids[at * size : (at + 1) * size])
        assert name == parent


@given(token_ids, token_ids)
def test_two_chains_share_names_exactly_as_far_as_their_tokens(one: list[int], other: list[int]) -> None:
    size = 4
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    pairs = zip(block_hash.chain(ROOT, one, size), block_hash.chain(ROOT, other, size), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    assert shared == same // size


def test_a_name_is_keyed_blake2b_of_the_little_endian_ids() -> None:
    wanted = hashlib.blake2b(struct.pack("<3i", 1, 2, 3), key=ROOT, digest_size=16).digest()
    assert block_hash.extend(ROOT, [1, 2, 3]) == wanted
    assert len(ROOT) == block_hash.DIGEST_BYTES == 16


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"block_size": 32},
        {"tenant": "t"},
        {"cache_salt": "t"},
        {"adapter": "t"},
        {"deterministic": True},
        {"model": "", "adapter": "m"},
        {"tenant": "ab", "cache_salt": "c"},
        {"tenant": "a", "cache_salt": "bc"},
    ],
)
def test_whatever_makes_two_states_differ_changes_the_root(change: dict[str, object]) -> None:
    known = {"model": "m", "block_size": 16}
    roots = {block_hash.root(b"secret", **{**known, **other}) for other in ({}, change)}  # type: ignore[arg-type]
    assert len(roots) == 2


def test_no_two_of_these_roots_are_equal_and_the_secret_keys_them() -> None:
    salts = [("", ""), ("ab", "c"), ("a", "bc"), ("", "abc"), ("abc", "")]
    roots = {
        block_hash.root(secret, model="m", block_size=16, tenant=tenant, cache_salt=salt)
        for tenant, salt in salts
        for secret in (b"one", b"two")
    }
    assert len(roots) == 2 * len(salts)


IDS = [7, 8, *[9] * 6, 7, 8, 7, 8]


def span(data: bytes, position: int = 2, num_tokens: int = 6) -> ImageSpan:
    return ImageSpan(position=position, num_tokens=num_tokens, digest=Image.of("image/png", data).digest)


def test_blocks_that_hold_a_part_of_a_picture_are_named_by_it() -> None:
    plain = block_hash.chain(ROOT, IDS, 4)
    one, other = (block_hash.chain(ROOT, IDS, 4, [span(data)]) for data in (b"one", b"other"))
    assert one == block_hash.chain(ROOT, IDS, 4, [span(b"one")])
    assert len({*plain, *one, *other}) == 9  # from the first token of the picture on, all names differ


def test_a_prompt_has_the_names_of_a_longer_one_as_far_as_both_go_whatever_pictures_follow() -> None:
    longer = [*IDS, *[9] * 4]
    one, other = (block_hash.chain(ROOT, longer, 4, [span(b"one"), span(data, 12, 4)]) for data in (b"a", b"b"))
    assert one[:3] == other[:3] == block_hash.chain(ROOT, IDS, 4, [span(b"one")])
    assert one[3] != other[3]


def test_a_block_where_one_picture_ends_is_not_one_where_another_of_the_same_look_goes_on() -> None:
    ids = [9] * 8
    split = [span(b"one", 0, 4), span(b"one", 4, 4)]
    whole = [span(b"one", 0, 8)]
    assert block_hash.chain(ROOT, ids, 4, split)[1] != block_hash.chain(ROOT, ids, 4, whole)[1]


@given(token_ids, st.integers(1, 9), st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=9))
def test_a_chain_with_pictures_names_what_extending_it_block_by_block_does(
    ids: list[int], size: int, lengths: list[tuple[int, int]]
) -> None:
    images, at = [], 0
    for number, (gap, num_tokens) in enumerate(lengths):
        images.append(span(bytes([number]), at + gap, num_tokens))
        at += gap + num_tokens
    parent = ROOT
    for number, name in enumerate(block_hash.chain(ROOT, ids, size, images)):
        begin, end = number * size, (number + 1) * size
        parent = block_hash.extend(parent, ids[begin:end], block_hash.pictures_in(images, begin, end))
        assert name == parent
