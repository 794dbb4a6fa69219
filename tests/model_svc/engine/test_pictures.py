"""Pictures in prompts: looked at when first needed, kept for whoever comes next, forgotten for want of room."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec
import numpy as np
import pytest

from model_svc.engine.pictures import Pictures, PlacedPicture, placed, whole
from model_svc.engine.plan import Picture, StepPlan
from tests.model_svc.engine.driver import Driver
from tests.model_svc.scripted_runner import hashed_reply
from wire.errors import InvalidRequestError
from wire.messages import Image, ImageSpan, unpack_ids

TOKEN, MARK = 9, 8  # what stands for a part of a picture, and what between its rows
PICTURE = [TOKEN, TOKEN, MARK, TOKEN, TOKEN, MARK, TOKEN, TOKEN]
TEXT = [1, 2, 3, 4, 5]


def driver(**sizes: int) -> Driver:
    all_sizes: dict[str, Any] = {"image_token_id": TOKEN, "max_features": 64} | sizes
    return Driver(hashed_reply(250), **all_sizes)


def span(data: bytes, position: int = len(TEXT)) -> ImageSpan:
    digest = Image.of("image/png", data).digest
    return ImageSpan(position=position, num_tokens=len(PICTURE), digest=digest)


_names = count()


def show(it: Driver, data: bytes, *, behind: list[int] = TEXT, **options: Any) -> str:
    """Ask about a picture between texts, up to the end of the answer; returns the request's id."""
    name = f"r{next(_names)}"
    it.ask(name, [*TEXT, *PICTURE, *behind], images=[span(data)], **options)
    it.run()
    return name


def looks(plans: list[StepPlan]) -> int:
    """Count how often a picture was looked at."""
    return sum(len(plan.pictures) for plan in plans)


@pytest.mark.parametrize("num_tokens", [3, 4, 7, 64])
def test_chunks_take_all_features_of_a_picture_in_order_and_one_look_is_enough(num_tokens: int) -> None:
    it = driver(max_num_batched_tokens=num_tokens)
    show(it, b"one")
    parts = [(item.start, part) for plan in it.runner.plans for item in plan.sequences for part in item.pictures]
    taken = [(part.first + n, start + row) for start, part in parts for n, row in enumerate(unpack_ids(part.rows))]
    stands = [len(TEXT) + n for n, token in enumerate(PICTURE) if token == TOKEN]
    assert taken == list(enumerate(stands))
    assert looks(it.runner.plans) == 1


def test_choices_and_later_turns_need_no_other_look_and_a_prefix_hit_none() -> None:
    it = driver()
    show(it, b"one", n=3, seed=1)
    show(it, b"one", behind=[6, 7])
    assert looks(it.runner.plans) == 1
    assert (
        sum(bool(item.pictures) for plan in it.runner.plans for item in plan.sequences) == 2
    )  # the last block differs


def test_what_a_prefix_hit_covers_is_not_looked_at() -> None:
    it = driver(max_features=1)
    show(it, b"one", behind=TEXT * 2)
    show(it, b"other")
    num_plans = len(it.runner.plans)
    show(it, b"one", behind=[*TEXT, 20])
    assert looks(it.runner.plans[num_plans:]) == 0


def test_the_picture_used_longest_ago_is_forgotten_for_a_new_one_and_looked_at_again() -> None:
    kept = Pictures(max_features=20)
    seen: list[tuple[list[bytes], list[bytes]]] = []
    for name in (b"a", b"b", b"a", b"c", b"b"):
        picture = Picture(name=name, tiles=b"", num_tiles=1, height=1, width=1, num_features=8)
        kept.plan((PlacedPicture(picture, np.arange(8)),), 0, 4)
        new, forgotten = kept.close_plan()
        seen.append(([each.name for each in new], list(forgotten)))
    assert seen == [([b"a"], []), ([b"b"], []), ([], []), ([b"c"], [b"b"]), ([b"b"], [b"a"])]


def test_a_step_has_all_its_pictures_however_little_room_there_is() -> None:
    it = driver(max_features=1)
    for name, data in (("a", b"one"), ("b", b"two")):
        it.ask(name, [*TEXT, *PICTURE, *TEXT], images=[span(data)])
    it.run()
    assert [len(plan.pictures) for plan in it.runner.plans if plan.pictures] == [2]


def test_a_preempted_prompt_takes_its_features_again() -> None:
    it = driver(num_blocks=12, max_num_seqs=2)
    for name, data in (("a", b"one"), ("b", b"two")):
        it.ask(name, [*TEXT, *PICTURE, *TEXT], images=[span(data)], max_tokens=16)
    it.run()
    alone = driver()
    for name, data in (("a", b"one"), ("b", b"two")):
        alone.ask(name, [*TEXT, *PICTURE, *TEXT], images=[span(data)], max_tokens=16)
        alone.run()
    assert it.engine.load().num_preemptions > 0
    assert [it.ids(name) for name in "ab"] == [alone.ids(name) for name in "ab"]


def test_others_than_may_share_blocks_do_not_share_looks() -> None:
    it = driver()
    show(it, b"one", root=b"mine")
    show(it, b"one", root=b"yours")
    assert looks(it.runner.plans) == 2


def test_an_answer_that_goes_on_elsewhere_has_its_pictures() -> None:
    it = driver()
    show(it, b"one", checkpoint={0: [TOKEN, 5]})  # drawn, it is a token like all others
    rows = [unpack_ids(part.rows) for plan in it.runner.plans for item in plan.sequences for part in item.pictures]
    assert sum(map(len, rows)) == PICTURE.count(TOKEN)


@pytest.mark.parametrize(
    ("sizes", "position", "fault"),
    [
        ({"image_token_id": -1}, 5, "sees no pictures"),
        ({}, 100, "picture 1 of the prompt did not come with it"),
    ],
)
def test_pictures_that_do_not_fit_the_prompt_are_refused(sizes: dict[str, int], position: int, fault: str) -> None:
    with pytest.raises(InvalidRequestError, match=fault) as caught:
        driver(**sizes).ask("r", [*TEXT, *PICTURE], images=[span(b"one", position)])
    assert caught.value.param == "messages"


@pytest.mark.parametrize("num_features", [5, 7])
def test_a_prompt_with_other_tokens_for_a_picture_than_it_makes_is_refused(num_features: int) -> None:
    it = driver()
    request = it.ask("r", [*TEXT, *PICTURE], images=[span(b"one")])
    (picture,) = request.pictures
    other = msgspec.structs.replace(request, pictures=(msgspec.structs.replace(picture, num_features=num_features),))
    with pytest.raises(InvalidRequestError, match=f"picture 1 has {num_features} features for 6 tokens"):
        placed(other, it.runner.info)


def test_a_prompt_that_is_cut_may_hold_the_beginning_of_a_picture() -> None:
    it = driver()
    request = it.ask("r", [*TEXT, *PICTURE], images=[span(b"one")])
    cut = msgspec.structs.replace(request.prompt, token_ids=request.prompt.token_ids[: 4 * 8])
    (found,) = placed(msgspec.structs.replace(request, prompt=cut), it.runner.info)
    assert found.positions.tolist() == [5, 6]


def test_where_pictures_are_taken_whole_no_step_ends_within_one_and_all_prompts_come_to_an_end() -> None:
    it = driver(whole_pictures=True, max_num_batched_tokens=12, max_num_seqs=4)
    for number in range(6):
        images = [span(bytes([number]), 3), span(bytes([number + 10]), 14)]
        it.ask(f"r{number}", [*TEXT[:3], *PICTURE, *TEXT[:3], *PICTURE, *TEXT[:number]], images=images)
    it.run()
    parts = [part for plan in it.runner.plans for item in plan.sequences for part in item.pictures]
    assert len(parts) == 12
    assert all((part.first, len(unpack_ids(part.rows))) == (0, PICTURE.count(TOKEN)) for part in parts)


@pytest.mark.parametrize(
    ("start", "num_tokens", "room", "computed"),
    [
        (0, 4, 20, 4),  # before the picture
        (0, 6, 20, 13),  # into it: all of it
        (0, 6, 12, 5),  # no room for all of it: none
        (5, 3, 20, 8),
        (5, 3, 7, 0),
        (9, 1, 20, 4),  # its beginning was cached
        (0, 13, 20, 13),
        (0, 16, 20, 16),
        (13, 4, 2, 2),
    ],
)
def test_a_step_ends_before_a_picture_or_behind_it(start: int, num_tokens: int, room: int, computed: int) -> None:
    picture = Picture(name=b"a", tiles=b"", num_tiles=1, height=1, width=1, num_features=8)
    assert whole((PlacedPicture(picture, np.arange(5, 13)),), start, num_tokens, room) == computed


@pytest.mark.parametrize("num_tokens", [1, 3, 5, 64])
def test_positions_of_pictures_with_rows_and_columns_hang_on_what_came_before_alone(num_tokens: int) -> None:
    it = driver()
    images = [
        ImageSpan(position=at, num_tokens=6, digest=span(data).digest) for data, at in ((b"wide", 2), (b"tall", 10))
    ]
    request = it.ask("r", [1, 2, *[TOKEN] * 6, 3, 4, *[TOKEN] * 6, 5, 6, 7, 8], images=images)
    sizes = [(4, 7), (6, 4)]  # pixels: 2 x 3 and 3 x 2 tokens
    pictures = tuple(
        msgspec.structs.replace(each, height=height, width=width)
        for each, (height, width) in zip(request.pictures, sizes, strict=True)
    )
    info = msgspec.structs.replace(it.runner.info, feature_pixels=2)
    where = placed(msgspec.structs.replace(request, pictures=pictures), info)
    found: list[list[int]] = []
    for start in range(0, 20, num_tokens):
        end = min(start + num_tokens, 20)
        said = Pictures(max_features=64).plan(where, start, end)
        if "pictures" in said:
            found += np.frombuffer(said["rope_axes"], dtype=np.int32).reshape(3, -1).T.tolist()
        else:
            found += [[at + said.get("rope_shift", 0)] * 3 for at in range(start, end)]
    wide = [[2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4]]
    tall = [[7, 7, 7], [7, 7, 8], [7, 8, 7], [7, 8, 8], [7, 9, 7], [7, 9, 8]]
    assert found == [[0] * 3, [1] * 3, *wide, [5] * 3, [6] * 3, *tall, *([n] * 3 for n in range(10, 14))]
    narrow = (msgspec.structs.replace(pictures[0], width=5), pictures[1])
    with pytest.raises(InvalidRequestError, match="2 x 2 squares does not make 6 features"):
        placed(msgspec.structs.replace(request, pictures=narrow), info)
