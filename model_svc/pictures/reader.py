"""The pictures of a prompt, from a job's record to what the engine takes. No torch here: the service does this.

It takes a large picture some 0.1 s, which steps of others must not wait for; so threads of the service's process do it.
"""

from __future__ import annotations

from pathlib import Path

import anyio
from PIL import Image as Pil

from model_svc.engine.plan import Picture
from model_svc.pictures.decode import decode
from model_svc.pictures.room import Room
from model_svc.pictures.tiles import tiles_of
from wire.bus import Bus
from wire.errors import InvalidRequestError, RequestCancelledError
from wire.messages import Image, Job, Prompt
from wire.model_files import ModelCardError
from wire.pictures import PictureForm, read_processor
from wire.threads import in_thread

_FIELDS = ("images", "recalled_images")
_MAX_OPEN = 256  # pictures; one that is cut into 17 tiles of 512 x 512 pixels takes 13 MiB
_AT_ONCE = 2  # pictures that are decoded at the same time: each may take half a gigabyte for a moment


class PictureReader:
    """Reads the pictures of prompts for a model that sees them in this `form`."""

    def __init__(self, bus: Bus, form: PictureForm, path: Path) -> None:
        """Raises ModelCardError for a checkpoint (at `path`) that resizes pictures in a way that there is not."""
        self._bus = bus
        self._form = form
        self._resample = _resample(path)
        self._limiter = anyio.CapacityLimiter(_AT_ONCE)
        self.room = Room(_MAX_OPEN)

    async def pictures_of(self, job: Job, prompt: Prompt) -> tuple[Picture, ...]:
        """Return the pictures that a job's prompt places, each once.

        Raises InvalidRequestError that names the first one that is missing or cannot be decoded, or
        RequestCancelledError.
        """
        record = await self._bus.open_record(job, *_FIELDS)
        if record is None:
            raise RequestCancelledError("the request was cancelled, or its record expired")
        known = {image.digest: image for field in record.values() for image in field.images}
        wanted = {span.digest: number for number, span in reversed(list(enumerate(prompt.images, start=1)))}
        found = []
        for digest, number in sorted(wanted.items(), key=lambda item: item[1]):
            if digest not in known:
                raise InvalidRequestError(f"picture {number} of the conversation is no longer there", param="messages")
            found.append(await in_thread(self._read, known[digest], number, limiter=self._limiter))
        return tuple(found)

    def _read(self, image: Image, number: int) -> Picture:
        pixels = decode(image, number)
        layout = self._form.layout(*pixels.size)
        tiles = tiles_of(pixels, layout, self._resample)
        return Picture(
            name=image.digest, tiles=tiles.tobytes(), num_tiles=len(tiles), height=tiles.shape[1],
            width=tiles.shape[2], num_features=layout.num_image_tokens,
        )  # fmt: skip


def _resample(path: Path) -> Pil.Resampling:
    """Return how a checkpoint resizes pictures."""
    try:
        return Pil.Resampling(read_processor(path).resample)
    except ValueError as error:
        raise ModelCardError(f"{path}: resample of the image processor: {error}") from error
