"""What can be seen of a value, and pictures as PNG files."""

import io
import wave

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from optional import Later, Library, made

from edcache import ImageFile
from edcache.display.leaves import main_media
from edcache.display.media import Media, gray, media_of, pixels, png, thumbnail, wav

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
    (torch.zeros(4, 3, 16, 20, dtype=torch.bfloat16), "film", (4, 16, 20, 3)),
    (np.zeros((5, 16, 20, 3), np.uint8), "film", (5, 16, 20, 3)),
    (np.zeros((5, 1, 16, 20), np.uint8), "film", (5, 16, 20)),
    (np.zeros((3, 7, 16, 20), np.float32), "film", (7, 16, 20, 3)),
    (np.zeros((4, 9, 16, 20), np.float32), "volume", (9, 16, 20)),
    (np.zeros((9, 16, 20), np.int16), "volume", (9, 16, 20)),
    (np.zeros((1, 9, 16, 20), np.int16), "volume", (9, 16, 20)),
    (np.arange(50), "tokens", (50,)),
    (np.arange(50, dtype=np.uint16), "tokens", (50,)),
    (list(range(50)), "tokens", (50,)),
    (np.arange(50, dtype=np.int16), "signal", (1, 50)),
    (np.arange(50) > 9, "signal", (1, 50)),
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
NOT_SEEN = [
    3,
    2.5,
    None,
    *map(np.zeros, ARRAYS),
    np.array(["a"] * 20),
    np.zeros(20, "M8[s]"),
    b"plain",
    [1, 2.5] * 9,
    [10**30] * 9,
    [True] * 9,
]


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
    media = media_of(mask.astype(dtype).reshape(shape))
    assert (media.data.tolist(), media.classes) == (mask.tolist(), 19)
    colors = pixels(media)
    assert colors.shape == (16, 16, 3)
    assert len({tuple(colors[mask == k].flatten()[:3].tolist()) for k in range(20)}) == 20
    assert all(np.ptp(colors[mask == k], axis=0).max() == 0 for k in range(20))
    assert colors[0, 0].tolist() == [0, 0, 0]
    has_none = np.where(mask == 3, 255, mask).astype(dtype).reshape(shape)
    assert pixels(media_of(has_none))[0, 3].tolist() == [255, 255, 255]
    over = pixels(media, is_over=True)
    assert np.array_equal(over[..., :3], colors)
    assert np.array_equal(over[..., 3] == 255, mask > 0)
    assert set(over[..., 3].flatten().tolist()) == {0, 255}


def test_a_mask_of_zeros_and_ones_is_black_and_white():
    mask = np.eye(16, dtype=np.uint8)
    for one in (mask, mask > 0, mask * 255, torch.from_numpy(mask).long(), Image.fromarray(mask)):
        assert pixels(media_of(one)).tolist() == (mask * 255).tolist()
    photo = np.full((16, 16), 40, np.uint8)
    assert (media_of(photo).classes, pixels(media_of(photo)).tolist()) == (None, photo.tolist())


def test_cuts_of_a_volume_of_classes_have_the_colors_of_its_classes():
    volume = np.zeros((9, 16, 20), np.uint8)
    volume[4, 3, 2], volume[5, 3, 2], volume[6, 3, 2] = 1, 2, 255
    media = media_of(volume)
    one, two, none = (pixels(media, 0, at)[3, 2].tolist() for at in (4, 5, 6))
    assert [0, 0, 0] not in (one, two)
    assert one != two
    assert none == [255, 255, 255]
    assert pixels(media, 2, 2)[4, 3].tolist() == one
    assert pixels(media, 1, 3).shape == (9, 20, 3)
    binary = media_of((volume == 1).astype(np.uint8))
    assert pixels(binary)[3, 2] == 255


def test_frames_of_a_film_are_drawn_one_by_one():
    film = np.arange(5, dtype=np.uint8)[:, None, None, None] * 50 + np.zeros((5, 3, 16, 20), np.uint8)
    media = media_of(torch.from_numpy(film))
    assert [int(pixels(media, 0, at).max()) for at in range(5)] == [0, 50, 100, 150, 200]
    assert int(pixels(media).max()) == 100  # the middle
    masks = media_of((film[:, :1] // 50).copy())
    assert masks.classes == 4
    assert len({tuple(pixels(masks, 0, at)[0, 0].tolist()) for at in range(5)}) == 5
    wide = media_of(np.zeros((3, 3, 5_000, 10), np.uint8))
    assert pixels(wide, 0, 1).shape == (1_667, 4, 3)


@pytest.mark.parametrize("channels", [1, 2, 6])
def test_a_wav_file_has_the_samples_of_a_sound(channels):
    sound = np.random.default_rng(0).uniform(-1, 1, (channels, 4_000)).astype(np.float32)
    for data in (sound, (sound * 30_000).astype(np.int16), sound * 7, (sound * 2**30).astype(np.int32)):
        with wave.open(io.BytesIO(wav(Media("sound", data, rate=8_000)))) as file:
            assert (file.getframerate(), file.getsampwidth()) == (8_000, 2)
            frames = np.frombuffer(file.readframes(5_000), "<i2").reshape(-1, file.getnchannels()).T
        assert frames.shape == (min(channels, 2), 4_000)
        peak = np.abs(data[:2].astype(np.float64)).max()
        scale = 1 if data.dtype == np.int16 else 32_767 / max(peak, 1)
        assert np.abs(frames - data[:2] * scale).max() <= 1
    broken = Media("sound", np.array([[np.nan, np.inf, 0.5] * 99]), rate=8_000)
    with wave.open(io.BytesIO(wav(broken))) as file:
        assert np.frombuffer(file.readframes(3), "<i2").tolist() == [0, 0, 16_383]


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
    assert main_media({"mask": np.eye(16, dtype=bool), "image": np.zeros((9, 9))}).data.shape == (9, 9)
    assert main_media({"name": "cat", "label": 3}).data == "cat"
    assert main_media({"label": 3}) is None
    assert main_media({"text": "once " * 9, "tokens": np.arange(50), "wave": np.zeros(50)}).kind == "text"
    assert main_media({"name": "cat", "tokens": np.arange(50), "wave": np.zeros(50)}).data.dtype.kind == "f"
    narrow = thumbnail(media_of(np.zeros((4000, 20), np.uint8)))
    assert Image.open(io.BytesIO(narrow)).size == (1, 125)
