"""Pictures on their way round the ring: their bytes, where they stand in a message, and where in a prompt.

A picture is known by its digest everywhere. Its bytes lie in a record field of their own, so that only desks that ask
for them carry them; who needs its size alone (the tokenizer desk) finds that with the message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

PICTURE_DIGEST_BYTES = 16


class Image(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A picture as it came, still encoded (PNG, JPEG, WebP, GIF: its first frame)."""

    digest: bytes
    media_type: str
    data: bytes

    @classmethod
    def of(cls, media_type: str, data: bytes) -> Image:
        """Return the picture of these bytes, with their BLAKE2b as its digest."""
        digest = hashlib.blake2b(data, digest_size=PICTURE_DIGEST_BYTES).digest()
        return cls(digest=digest, media_type=media_type, data=data)


class Images(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record fields `images` (edge) and `recalled_images` (history desk): pictures of the messages, each once."""

    images: tuple[Image, ...] = ()


class ImageRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a picture stands in a message: before the content's character `offset`.

    Several with one offset stand in their order. `width`, `height`: pixels as the picture is looked at, turned as its
    EXIF orientation says.
    """

    offset: int
    digest: bytes
    width: int
    height: int


def parts_of(content: str, images: Sequence[ImageRef]) -> list[str | ImageRef]:
    """Return what a message consists of, in order: texts, none of them empty, and pictures."""
    parts: list[str | ImageRef] = []
    at = 0
    for image in images:
        parts += [content[at : image.offset], image]
        at = image.offset
    return [part for part in (*parts, content[at:]) if part != ""]


def joined(parts: Iterable[str | ImageRef]) -> tuple[str, tuple[ImageRef, ...]]:
    """Return the content of a message of these parts, and where its pictures stand there: undo `parts_of`."""
    content, images = "", []
    for part in parts:
        if isinstance(part, str):
            content += part
        else:
            images.append(msgspec.structs.replace(part, offset=len(content)))
    return content, tuple(images)


class ImageSpan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a picture stands in a prompt: `num_tokens` from the token at `position` on.

    The first and the last of them are the model's image token; tokens between that are not (marks of rows, ends of
    lines) have embeddings of their own.
    """

    position: int
    num_tokens: int
    digest: bytes
