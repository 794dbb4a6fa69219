"""Pictures from bytes: upright, in colours, on white; what is no picture, damaged or huge is refused by its number."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image as Pil

from model_svc.pictures.decode import MAX_PIXELS, decode
from tests.model_svc.vision.seeing import Seeing, png, save
from wire.errors import InvalidRequestError
from wire.messages import Image


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return save(tmp_path_factory.mktemp("seeing"))


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, shape, dtype=np.uint8)


def saved(picture: Pil.Image, form: str, **options: object) -> Image:
    out = io.BytesIO()
    picture.save(out, form, **options)
    return Image.of(f"image/{form.lower()}", out.getvalue())


RGB = Pil.fromarray(noise(21, 34, 3))
PICTURES = {
    "png": png(RGB),
    "jpeg": saved(RGB, "JPEG"),
    "webp": saved(RGB, "WEBP"),
    "gif": saved(RGB, "GIF"),
    "animated gif": saved(RGB, "GIF", save_all=True, append_images=[Pil.new("RGB", RGB.size)]),
    "grey": png(Pil.fromarray(noise(9, 14))),
    "black and white": png(Pil.fromarray(noise(9, 14)).convert("1")),
    "grey that shines through": png(Pil.fromarray(noise(9, 14, 2), "LA")),
    "colours that shine through": png(Pil.fromarray(noise(17, 8, 4), "RGBA")),
    "palette": png(RGB.convert("P")),
    "palette with a clear colour": png(RGB.convert("P"), transparency=3),
    "cmyk": saved(RGB.convert("CMYK"), "JPEG"),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_all_kinds_have_the_numbers_of_the_oracles_processor(seeing: Seeing, kind: str) -> None:
    image = PICTURES[kind]
    picture = seeing.picture(image)
    tiles = np.frombuffer(picture.tiles, dtype=np.uint8).reshape(picture.num_tiles, picture.height, picture.width, 3)
    shown = seeing.processor(
        [Pil.open(io.BytesIO(image.data))], return_tensors="np", do_rescale=False, do_normalize=False
    )["pixel_values"][0]
    assert (tiles.transpose(0, 3, 1, 2) == shown).all()


def test_a_picture_is_turned_as_its_camera_was() -> None:
    exif = Pil.Exif()
    exif[0x0112] = 6  # to be turned to the right
    turned = decode(saved(RGB, "PNG", exif=exif), 1)
    assert turned.size == (21, 34)
    assert (np.asarray(turned) == np.rot90(np.asarray(RGB), -1)).all()


@pytest.mark.parametrize(
    "data",
    [b"", b"no picture", PICTURES["png"].data[:200], PICTURES["jpeg"].data[:-300], b"BM" + bytes(60)],
    ids=["nothing", "text", "half a PNG", "half a JPEG", "a bitmap"],
)
def test_what_cannot_be_decoded_is_named(data: bytes) -> None:
    with pytest.raises(InvalidRequestError, match=r"picture 3 \(image/png\) cannot be decoded") as caught:
        decode(Image.of("image/png", data), 3)
    assert caught.value.param == "messages"


def test_a_bomb_is_refused_by_its_size_before_it_is_unpacked() -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    side = 10000
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    packed = zlib.compress(bytes(1 << 20), 9)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    assert side * side > MAX_PIXELS
    with pytest.raises(InvalidRequestError, match=f"picture 1 has 10000 x 10000 pixels; at most {MAX_PIXELS}"):
        decode(Image.of("image/png", data), 1)
