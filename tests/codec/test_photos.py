"""Photos of any shape that are decoded to one size."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
import threading

import numpy as np
import pictures
import pytest
import torch
from optional import Library, needs
from pictures import FILES, as_pillow, by_library
from scale import scaled, seeded
from torch.utils.data import DataLoader, default_collate
from written import write

from edcache import CachedDataset, Decoding, ImageFile
from edcache.codec import images
from edcache.codec.images import crop_of
from edcache.errors import ImageError, OptionError

Image, ImageOps = Library("PIL.Image"), Library("PIL.ImageOps")
pytestmark = needs("PIL")


def written(path, files):
    return write(path, ({"image": ImageFile(file, "tensor"), "y": i} for i, file in enumerate(files)))


def opened(path, **options):
    return CachedDataset.from_cache(path, decode=Decoding("tensor", **options))


def array(file, form="numpy", **options):
    return np.asarray(ImageFile(file).decode(Decoding(form, **options)))


def smooth(width, height):
    """A picture of gradients and slow waves, which a reduced decode keeps."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [255 * x / width, 255 * y / height, 128 + 99 * np.sin(9 * x / width) * np.cos(7 * y / height)]
    return Image.fromarray(np.stack(planes, -1).astype(np.uint8))


# --- plain Pillow, step by step -----------------------------------------------------------------------


def squeezed(image, size):
    return np.asarray(image.resize(size[::-1], Image.BILINEAR))


def centered(image, size):
    """The largest part in the middle that has the shape of the size, resized."""
    (height, width), (w, h) = size, image.size
    factor = min(w / width, h / height)
    wide, tall = max(1, round(width * factor)), max(1, round(height * factor))
    left, top = (w - wide) // 2, (h - tall) // 2
    return squeezed(image.crop((left, top, left + wide, top + tall)), size)


def difference(found, expected):
    """The mean and the largest."""
    assert (found.dtype, found.shape) == (np.uint8, expected.shape)
    gap = np.abs(found.astype(int) - expected)
    return gap.mean(), gap.max()


SIZES = [(32, 32), (7, 40), (30, 12)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_is_resized_as_pillow_does(name, size):
    """To a grey level. Some are smaller than the size, one is a pixel."""
    data, mode = pictures.file(name)
    plain = as_pillow(data, mode)
    ways = [({}, squeezed(plain, size)), ({"crop": "center"}, centered(plain, size))]
    for options, expected in ways:
        for library in ("simplejpeg", "pillow"):
            with by_library(library):
                found = array(data, size=size, **options)
            assert difference(found, expected)[1] <= 1, (options, library)
        assert np.array_equal(array(data, "pil", size=size, **options), array(data, size=size, **options))
        planes = array(data, "tensor", size=size, **options)
        assert np.array_equal(np.moveaxis(planes, 0, -1).reshape(found.shape), found)


@pytest.mark.parametrize("shape", [(500, 375), (375, 500), (1201, 799), (2005, 1503), (90, 61)], ids=str)
@pytest.mark.parametrize("crop", ["center", None])
def test_photos_that_are_decoded_smaller_are_those_of_pillow_to_a_grey_level(shape, crop):
    image = smooth(*shape)
    file = pictures.encoded("JPEG", image, quality=95)
    expected = (centered if crop else squeezed)(as_pillow(file), (64, 48))
    mean, most = difference(array(file, size=(64, 48), crop=crop), expected)
    # A part in the middle begins at a whole pixel of the smaller picture, which may be 7 of the file away.
    assert mean < (1.2 if crop else 0.5)
    assert most <= (8 if crop else 4)
    with by_library("pillow"):
        by_pillow = array(file, size=(64, 48), crop=crop)
    assert np.array_equal(by_pillow, array(file, size=(64, 48), crop=crop))


def test_a_decoder_is_asked_for_no_more_pixels_than_the_resize_needs(monkeypatch):
    """The half of 400 rows is less than 1.5 times 160; the eighth of 2000 is enough for 160."""
    simplejpeg = pytest.importorskip("simplejpeg")
    decode, shapes = simplejpeg.decode_jpeg, []

    def noted(*args, **options):
        found = decode(*args, **options)
        shapes.append(found.shape[:2])
        return found

    monkeypatch.setattr(simplejpeg, "decode_jpeg", noted)
    for height in (400, 480, 961, 2000):
        array(pictures.encoded("JPEG", smooth(height, height)), size=160)
    assert shapes == [(400, 400), (240, 240), (241, 241), (250, 250)]


def test_what_is_resized_keeps_its_layout():
    """torch would make planes, which takes as long as half of the resize, and the caller turn them back."""
    resized = crop_of(Decoding(size=(20, 30)), 60, 80).resized(np.asarray(smooth(80, 60)), (20, 30))
    assert resized.shape == (20, 30, 3)
    assert resized.flags.c_contiguous


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
@pytest.mark.parametrize("shape", [(40, 23), (900, 500), (960, 512)], ids=str)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
def test_what_exif_turns_is_turned_before_it_is_cut(kind, shape, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = pictures.encoded(kind, smooth(*shape), exif=exif)
    upright = ImageOps.exif_transpose(as_pillow(file))
    found = array(file, size=(20, 45), crop="center", exif_transpose=True)
    assert difference(found, centered(upright, (20, 45)))[0] < 1.2


def test_sixteen_bits_and_cmyk_and_palettes_are_bytes_before_they_are_resized():
    deep, values = pictures.deep_rgb()
    expected = squeezed(Image.fromarray((values >> 8).astype(np.uint8)), (9, 8))
    for form in ("numpy", "pil"):
        assert difference(array(deep, form, size=(9, 8)), expected)[1] <= 1
    for name in ("jpeg-cmyk", "tiff-cmyk", "png-palette", "png-bits", "jpeg-grey"):
        assert array(pictures.file(name)[0], "pil", mode="RGB", size=5).shape == (5, 5, 3)
    wide = pictures.encoded("TIFF", Image.new("F", (3, 2)))
    with pytest.raises(ImageError, match="TIFF of mode F has no form in bytes"):
        array(wide, "pil", size=5)


def test_what_is_clear_lends_its_neighbours_no_colour():
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:, :4] = 0, 255, 0, 255
    pixels[:, 4:] = 255, 0, 0, 0
    found = array(pictures.encoded("PNG", Image.fromarray(pixels)), size=3)
    seen = found[found[..., 3] > 0]
    assert len(seen)
    assert set(map(tuple, seen[:, :3])) == {(0, 255, 0)}


@pytest.mark.parametrize("shape", [(65_500, 1), (1, 65_500), (1, 1), (20_000, 30)], ids=str)
@pytest.mark.parametrize("crop", ["center", "random", None])
def test_pictures_of_extreme_shape_take_no_more_memory_than_others(shape, crop):
    file = pictures.encoded("JPEG", Image.new("RGB", shape, (40, 80, 160)))
    assert array(file, size=224, crop=crop).shape == (224, 224, 3)
    assert difference(array(file, size=(30, 50), crop=crop), np.full((30, 50, 3), (40, 80, 160)))[1] <= 4


def test_the_middle_of_a_long_picture_is_its_middle():
    strip = np.zeros((10, 1001, 3), np.uint8)
    strip[:, 480:521] = 255
    found = array(pictures.encoded("PNG", Image.fromarray(strip)), size=20, crop="center")
    assert found.min() == 255


@pytest.mark.parametrize("crop", ["center", "random", None])
def test_damaged_files_and_bombs_are_refused_at_every_size(crop, monkeypatch):
    file = pictures.encoded("JPEG", smooth(900, 700))
    assert array(file, size=20, crop=crop).shape == (20, 20, 3)
    for library in ("simplejpeg", "pillow"):
        for cut in (len(file) // 2, len(file) - 40, 200):
            with by_library(library), pytest.raises(ImageError, match="JPEG does not decode: "):
                array(file[:cut], size=20, crop=crop)
    # What is decoded at an eighth counts as what it is.
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 900 * 700 - 1)
    for library in ("simplejpeg", "pillow"):
        with by_library(library), pytest.raises(ImageError, match="JPEG is larger than Pillow's limit"):
            array(file, size=20, crop=crop)


def test_pictures_are_not_over_the_memory_of_the_next():
    files = [pictures.encoded("JPEG", Image.new("RGB", (64, 64), (c, c, c))) for c in (0, 200)]
    first, second = (ImageFile(file).decode(Decoding("numpy", size=64)) for file in files)
    assert first.flags.writeable
    assert first.flags.c_contiguous
    assert (first.max(), second.min()) == (0, 200)


# --- batches ------------------------------------------------------------------------------------------


def photo(draw):
    """A file of any shape and of most kinds."""
    width, height = (int(2 ** draw.uniform(0, 8.5)) for _ in range(2))
    mode, kind = draw.choice(
        [("RGB", "JPEG")] * 4 + [("L", "JPEG"), ("CMYK", "JPEG"), ("P", "PNG"), ("RGBA", "WEBP")]
    )
    return pictures.encoded(kind, pictures.picture(mode, width, height, draw.randrange(9)))


@pytest.mark.parametrize("case", range(3))
def test_photos_of_any_shape_are_one_batch_which_is_that_of_its_samples(path, case):
    draw = seeded(f"photos {case}")
    files = [photo(draw) for _ in range(24)]
    written(path, files)
    for _ in range(max(3, scaled(20))):
        size = draw.choice([draw.randint(1, 80), (draw.randint(1, 80), draw.randint(1, 80))])
        options = {"size": size, "crop": draw.choice(["center", None]), "mode": draw.choice(["L", "RGB"])}
        form = draw.choice(["numpy", "tensor"])
        ds = CachedDataset.from_cache(path, decode=Decoding(form, **options))
        expected = default_collate([ds[i] for i in range(24)])["image"]
        height, width = (size, size) if isinstance(size, int) else size
        planes = {"L": (1, height, width), "RGB": (3, height, width)}[options["mode"]]
        rows = {"L": (height, width), "RGB": (height, width, 3)}[options["mode"]]
        assert expected.shape == (24, *(planes if form == "tensor" else rows))
        order = draw.sample(range(24), 24)
        assert torch.equal(ds.batch(order)["image"], expected[order]), options
        batches = [b["image"].clone() for b in ds.loader(5, sampler=order, num_threads=2)]
        assert torch.equal(torch.cat(batches), expected[order]), options


@pytest.mark.parametrize("threads", [1, 3])
def test_the_threads_of_a_loader_decode_a_batch_together(path, threads, monkeypatch):
    """The first batch is made by all threads, and the others after it: each waits for the first picture of another."""
    written(path, [pictures.jpeg(40 + i, 60 + 7 * (i % 9), seed=i) for i in range(96)])
    ds = opened(path, size=16, crop="center")
    expected = torch.stack([ds[i]["image"] for i in range(96)])
    names, decode, together = [], images._pixels, threading.Barrier(threads)

    def told(*arguments):
        name = threading.current_thread().name
        if "decoder" in name and name not in names:
            together.wait(timeout=60)
        names.append(name)
        return decode(*arguments)

    monkeypatch.setattr(images, "_pixels", told)
    loader = ds.loader(48, num_threads=threads)
    assert torch.equal(torch.cat([b["image"] for b in loader]), expected)
    assert len({name for name in names if "decoder" in name}) == (threads if threads > 1 else 0)
    monkeypatch.undo()
    with pytest.raises(KeyError):
        for _ in loader:
            raise KeyError
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("edcache")]


def test_what_another_thread_cannot_decode_is_named_at_its_batch(path):
    files = [pictures.jpeg(30, 20, seed=i) for i in range(40)]
    files[33] = files[33][:200]
    written(path, files)
    loader = iter(opened(path, size=8).loader(20, num_threads=2))
    assert next(loader)["image"].shape == (20, 3, 8, 8)
    with pytest.raises(ImageError, match="sample 33: JPEG does not decode|record 33"):
        next(loader)


def test_workers_give_the_batches_of_this_process(path):
    written(path, [pictures.jpeg(40 + 9 * i, 120 - 7 * i, seed=i) for i in range(12)])
    ds = opened(path, size=32, crop="center")
    found = torch.cat([b["image"] for b in DataLoader(ds, 5, num_workers=1)])
    assert torch.equal(found, torch.stack([ds[i]["image"] for i in range(12)]))
    assert torch.equal(pickle.loads(pickle.dumps(ds))[3]["image"], found[3])


def test_grey_among_colours_takes_a_mode(path):
    written(path, [pictures.file(name)[0] for name in ("jpeg", "jpeg-grey")])
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        opened(path, size=8).batch([0, 1])
    assert opened(path, size=8, mode="RGB").batch([0, 1])["image"].shape == (2, 3, 8, 8)


# --- random parts -------------------------------------------------------------------------------------

SIDE = 240


def places():
    """A picture whose pixels tell where they are, in red the column and in green the row."""
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    return pictures.encoded("PNG", Image.fromarray(np.stack([x, y, y], -1).astype(np.uint8)))


def part(found):
    """Left, top, width and height of what a picture of `places` shows, from the slope within it."""
    columns, rows = found[..., 0].mean(0), found[..., 1].mean(1)
    last, inner = len(columns) - 3, slice(2, -2)
    width, height = (len(v) * (v[last] - v[2]) / (last - 2) for v in (columns, rows))
    return columns[inner].mean() - width / 2, rows[inner].mean() - height / 2, width, height


def drawn(count):
    file, decoding = ImageFile(places()), Decoding("numpy", size=64, crop="random")
    return np.array([part(file.decode(decoding).astype(float)) for _ in range(count)])


def test_parts_are_drawn_as_by_random_resized_crop():
    """Against the same drawn by numpy, step by step: the means agree within what chance allows."""
    torch.manual_seed(3)
    scale, ratio, found = (0.08, 1.0), (3 / 4, 4 / 3), drawn(400)
    width, height = found[:, 2:].T
    assert (scale[0] - 0.03 <= width * height / SIDE**2).all()
    assert (width * height / SIDE**2 <= scale[1] + 0.03).all()
    assert (ratio[0] * 0.94 <= width / height).all()
    assert (width / height <= ratio[1] * 1.06).all()
    rng, expected = np.random.default_rng(0), []
    while len(expected) < 4000:
        for _ in range(10):
            area = rng.uniform(*scale) * SIDE**2
            shape = math.exp(rng.uniform(*map(math.log, ratio)))
            w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if w <= SIDE and h <= SIDE:
                expected.append((rng.integers(0, SIDE - w + 1), rng.integers(0, SIDE - h + 1), w, h))
                break
        else:
            expected.append((0, 0, SIDE, SIDE))
    error = np.std(expected, axis=0) / math.sqrt(len(found))
    assert (np.abs(found.mean(0) - np.mean(expected, axis=0)) < 4 * error + 1.5).all()


def test_parts_come_from_torchs_generator():
    torch.manual_seed(7)
    first = drawn(4)
    assert len(np.unique(first.round(), axis=0)) == 4
    torch.manual_seed(7)
    assert np.array_equal(drawn(4), first)


def test_each_worker_draws_parts_of_its_own(path):
    written(path, [places()] * 8)
    ds = opened(path, size=16, crop="random")
    shown = torch.cat([b["image"] for b in DataLoader(ds, 2, num_workers=2)])
    assert len({image.numpy().tobytes() for image in shown}) == 8


# --- options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size=0 of a Decoding: give height and width in pixels, or one number for both"),
        ({"size": True}, "size=True of a Decoding: give height and width"),
        ({"size": (3, 4, 5)}, r"size=\(3, 4, 5\) of a Decoding: give height"),
        ({"size": 2.5}, "size=2.5 of a Decoding: give height"),
        ({"form": None, "size": 3}, "size=.* of a Decoding: form=None decodes nothing"),
        ({"size": 9, "crop": "top"}, "crop='top'; choose one of 'center', 'random', None"),
        ({"crop": "center"}, "crop of a Decoding: goes with size="),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(OptionError, match=f"^{message}"):
        Decoding(**{"form": "tensor"} | options)


def test_a_decoding_is_a_key_however_its_size_is_given():
    pair = Decoding("tensor", size=[np.int64(9), 9], crop="random")
    assert pair == Decoding("tensor", size=9, crop="random")
    assert len({pair, Decoding("tensor", size=9, crop="random")}) == 1
    assert pickle.loads(pickle.dumps(pair)) == pair


def test_no_size_is_stored():
    with pytest.raises(OptionError) as caught:
        ImageFile(b"", Decoding("tensor", size=9))
    assert str(caught.value) == (
        "size=(9, 9) of the Decoding of an ImageFile: an archive stores none; the reader gives it: "
        "from_cache(path, decode=Decoding(size=...))"
    )


@pytest.mark.full
def test_without_simplejpeg_pillow_decodes_and_nothing_is_said(path):
    file = pictures.encoded("JPEG", smooth(500, 375))
    written(path, [file])
    code = (
        "import sys; sys.modules['simplejpeg'] = None\n"
        "import edcache\n"
        "decode = edcache.Decoding('tensor', size=64, crop='center')\n"
        f"ds = edcache.CachedDataset.from_cache({str(path)!r}, decode=decode)\n"
        "sys.stdout.buffer.write(ds.batch([0])['image'].numpy().tobytes())"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, check=True)
    assert done.stderr == b""
    assert done.stdout == np.moveaxis(array(file, size=64, crop="center"), -1, 0).tobytes()
