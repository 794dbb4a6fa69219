"""The pictures of prompts: which tokens stand for what of them, and whose features the runner has at hand.

A runner looks at a picture when a step first needs its features and keeps them, so that the other chunks and choices,
and the conversation's next turns, need not. What it keeps is decided here, as plans must be the same for all ranks: the
pictures used last, up to a number of features. One that was forgotten too early is looked at again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import msgspec
import numpy as np

from model_svc.engine.plan import Picture, PictureRows, RunnerInfo
from model_svc.engine.request import EngineRequest
from model_svc.engine.rope_axes import PictureAxes, axes, shift_at
from wire import block_hash
from wire.errors import InvalidRequestError

_PARAM = "messages"


class PlacedPicture(NamedTuple):
    """A picture, and the positions (int64, ascending) of the prompt's tokens that take its features, in order.

    `axes` is how its tokens are rotated, where pictures have two dimensions for the model.
    """

    picture: Picture
    positions: np.ndarray
    axes: PictureAxes | None = None


def placed(request: EngineRequest, info: RunnerInfo) -> tuple[PlacedPicture, ...]:
    """Return where a request's pictures stand in its prompt. Raises InvalidRequestError for what does not fit together.

    A prompt that was cut, for a prefill replica, may hold the beginning of a picture only. A picture's name is keyed by
    what blocks are: nobody learns by the time that it takes whether somebody else has sent the same one.
    """
    spans = request.prompt.images
    if not spans and not request.pictures:
        return ()
    if info.image_token_id < 0:
        raise InvalidRequestError("this replica's model sees no pictures", param=_PARAM)
    root, ids = request.prompt.block_root, np.frombuffer(request.prompt.token_ids, dtype=np.int32)
    known = {picture.name: picture for picture in request.pictures}
    found: list[PlacedPicture] = []
    for number, span in enumerate(spans, start=1):
        if span.digest not in known or not 0 <= span.position < len(ids):
            raise InvalidRequestError(f"picture {number} of the prompt did not come with it", param=_PARAM)
        picture = known[span.digest]
        where = np.flatnonzero(ids[span.position : span.position + span.num_tokens] == info.image_token_id)
        is_whole = span.position + span.num_tokens <= len(ids)
        if len(where) > picture.num_features or (is_whole and len(where) < picture.num_features):
            message = f"picture {number} has {picture.num_features} features for {len(where)} tokens of the prompt"
            raise InvalidRequestError(message, param=_PARAM)
        name = block_hash.extend(root, (), picture.name)
        each = PlacedPicture(msgspec.structs.replace(picture, name=name), where + span.position)
        if info.feature_pixels:
            before = found[-1].axes if found else None
            each = each._replace(axes=_axes_of(picture, span.position, info.feature_pixels, before))
        found.append(each)
    return tuple(found)


def _axes_of(picture: Picture, begin: int, pixels: int, before: PictureAxes | None) -> PictureAxes:
    """Return how a picture's tokens are rotated, one for each square of so many pixels, behind another picture."""
    rows, columns = picture.height // pixels, picture.width // pixels
    if rows * columns != picture.num_features:
        message = f"a picture of {rows} x {columns} squares does not make {picture.num_features} features"
        raise InvalidRequestError(message, param=_PARAM)
    return PictureAxes(begin, rows, columns, before.shift_behind if before is not None else 0)


def whole(pictures: tuple[PlacedPicture, ...], start: int, num_tokens: int, room: int) -> int:
    """Return how many tokens from `start` on a step computes where it may not end within a picture.

    That is `num_tokens`, or more so that a picture is done, up to `room`, or fewer so that none is begun.
    """
    end = start + min(num_tokens, room)
    for _, positions, _ in pictures:
        first, behind = int(positions[0]), int(positions[-1]) + 1
        if first < end < behind:
            return behind - start if behind - start <= room else max(0, first - start)
    return end - start


class Pictures:
    """Whose features the runner has. `max_features` bounds them; those that one step needs are there in any case."""

    def __init__(self, max_features: int) -> None:
        self._max_features = max_features
        self._kept: OrderedDict[bytes, int] = OrderedDict()  # by name: how many features
        self._used: set[bytes] = set()  # by the step being planned
        self._new: list[Picture] = []

    def plan(self, pictures: tuple[PlacedPicture, ...], start: int, end: int) -> dict[str, Any]:
        """Return what a share from `start` to `end` is to know of a sequence's pictures: fields of SequenceStep.

        From now on the runner has those that it takes features of.
        """
        rows = []
        for picture, positions, _ in pictures:
            first, stop = np.searchsorted(positions, (start, end)).tolist()
            if first < stop:
                self._use(picture)
                where = (positions[first:stop] - start).astype(np.int32).tobytes()
                rows.append(PictureRows(name=picture.name, first=first, rows=where))
        said: dict[str, Any] = {"pictures": tuple(rows)} if rows else {}
        turned = [each.axes for each in pictures if each.axes is not None]
        if turned and rows:
            said["rope_axes"] = axes(turned, start, end).tobytes()
        elif turned and (shift := shift_at(turned, start)):
            said["rope_shift"] = shift
        return said

    def close_plan(self) -> tuple[tuple[Picture, ...], tuple[bytes, ...]]:
        """Return what the step that was planned is to look at first, and whose features go for it."""
        forgotten = []
        if self._new:
            excess = sum(self._kept.values()) - self._max_features
            for name in tuple(self._kept):
                if excess <= 0 or name in self._used:
                    break  # from here on all are of this step: the ones used last are at the end
                excess -= self._kept.pop(name)
                forgotten.append(name)
        new, self._new = tuple(self._new), []
        self._used.clear()
        return new, tuple(forgotten)

    def _use(self, picture: Picture) -> None:
        if picture.name not in self._kept:
            self._new.append(picture)
        self._kept[picture.name] = picture.num_features
        self._kept.move_to_end(picture.name)
        self._used.add(picture.name)
