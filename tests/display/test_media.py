"""What can be seen of a value, and pictures as PNG files."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from optional import Later, Library, made

from edcache import ImageFile
from edcache.display.media import gray, main_media, media_of, png, thumbnail

Image = Library("PIL.Image")


def pillow_bytes(mode, size, kind="PNG"):
    file = io.BytesIO()
    Image.new(mode, size, 7).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("channels", [None, 1, 3, 4])
@given(data=st.data())
def test_pillow_reads_the_pixels_of_a_png(channels, data):
    height, width = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    shape = (height, width) if channels in (None, 1) else (height, width, channels)
    pixels = data.draw(arrays(np.uint8, shape))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(pixels)))), pixels)


SEEN = [
    (torch.zeros(3, 16, 16), "image", (16, 16, 3)),
    (torch.zeros(1, 16, 16, dtype=torch.uint8), "image", (16, 16)),
    (np.zeros((16, 20, 3), np.uint8), "image", (16, 20, 3)),
    (np.zeros((16, 20), np.float32), "image", (16, 20)),
    (torch.zeros(4, 3, 16, 20, dtype=torch.bfloat16), "image", (16, 20, 3)),
    (np.zeros((9, 16, 20), np.int16), "volume", (9, 16, 20)),
    (np.zeros((1, 9, 16, 20), np.int16), "volume", (9, 16, 20)),
    (np.arange(50), "signal", (1, 50)),
    (np.zeros((12, 500)), "signal", (12, 500)),
    (np.zeros((500, 2)), "signal", (2, 500)),
    (Later(lambda: Image.new("P", (20, 16))), "image", (16, 20, 3)),
    (Later(lambda: ImageFile(pillow_bytes("RGB", (20, 16)))), "image", (16, 20, 3)),
    (Later(lambda: pillow_bytes("L", (20, 16), "JPEG")), "image", (16, 20)),
]


@pytest.mark.parametrize(("value", "kind", "shape"), SEEN)
def test_what_looks_like_a_picture_is_one(value, kind, shape):
    media = media_of(made(value))
    assert (media.kind, media.data.shape) == (kind, shape)
    assert kind != "image" or media.data.dtype == np.uint8


ARRAYS = [(3,), (3, 4), (2, 2, 2), (0,), (0, 16, 16)]
NOT_SEEN = [3, 2.5, None, *map(np.zeros, ARRAYS), np.array(["a"] * 20), np.zeros(20, "M8[s]"), b"plain"]


@pytest.mark.parametrize("value", [*NOT_SEEN, torch.zeros(16, 16).to_sparse()])
def test_what_is_no_picture_is_none(value):
    assert media_of(value) is None


def test_files_of_sound_and_film_go_by_a_type_of_a_fixed_list():
    assert media_of(b"RIFF\x00\x00\x00\x00WAVEfmt ") is None
    assert media_of(b"<svg onload=alert(1)>") is None


def test_an_image_that_is_damaged_or_too_large_is_a_note():
    whole = pillow_bytes("RGB", (64, 64), "JPEG")
    assert media_of(ImageFile(whole[: len(whole) // 2])).kind == "note"
    assert media_of(pillow_bytes("1", (9000, 9000))).data.startswith(
        "An image of 9,000 x 9,000 pixels is too large"
    )


def test_shades_go_from_the_least_to_the_greatest_number_that_is_finite():
    assert gray(np.array([[0.0, 0.5, 1.0]])).tolist() == [[0, 127, 255]]
    assert gray(np.array([[-1e308, 0, 1e308, np.nan, np.inf]])).tolist() == [[0, 127, 255, 0, 0]]
    assert gray(np.array([[-5, 0, 5]], np.int16)).tolist() == [[0, 127, 255]]
    assert gray(np.array([[True, False]])).tolist() == [[255, 0]]
    assert gray(np.array([[7, 40]], np.uint8)).tolist() == [[7, 40]]
    assert gray(np.full((2, 2), np.nan)).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
@pytest.mark.parametrize("shape", [(16, 16), (16, 16, 1), (1, 16, 16)])
def test_classes_of_a_mask_are_told_apart(dtype, shape):
    mask = np.arange(256).reshape(16, 16) % 20
    colors = media_of(mask.astype(dtype).reshape(shape)).data
    assert colors.shape == (16, 16, 3)
    assert len({tuple(colors[mask == k].flatten()[:3].tolist()) for k in range(20)}) == 20
    assert all(np.ptp(colors[mask == k], axis=0).max() == 0 for k in range(20))
    assert colors[0, 0].tolist() == [0, 0, 0]
    has_none = np.where(mask == 3, 255, mask).astype(dtype).reshape(shape)
    assert media_of(has_none).data[0, 3].tolist() == [255, 255, 255]


def test_a_mask_of_zeros_and_ones_is_black_and_white():
    mask = np.eye(16, dtype=np.uint8)
    assert media_of(mask).data.tolist() == (mask * 255).tolist()
    photo = np.full((16, 16), 40, np.uint8)
    assert media_of(photo).data.tolist() == photo.tolist()


def test_a_thumbnail_is_of_the_first_leaf_that_is_more_than_text():
    sample = {
        "name": "cat",
        "score": 3.5,
        "image": torch.full((3, 500, 300), 0.5),
        "other": np.zeros((16, 16)),
    }
    picture = Image.open(io.BytesIO(thumbnail(main_media(sample))))
    assert picture.size == (75, 125)
    assert picture.getpixel((0, 0)) == (127, 127, 127)
    assert main_media({"name": "cat", "label": 3}).data == "cat"
    assert main_media({"label": 3}) is None
    assert main_media({"text": "once " * 9, "tokens": np.arange(50), "wave": np.zeros(50)}).kind == "text"
    assert main_media({"name": "cat", "tokens": np.arange(50), "wave": np.zeros(50)}).data.dtype.kind == "f"
    narrow = thumbnail(media_of(np.zeros((4000, 20), np.uint8)))
    assert Image.open(io.BytesIO(narrow)).size == (1, 125)
