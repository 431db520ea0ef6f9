"""Encoded images: stored as the bytes of their files, decoded when they are read."""

from __future__ import annotations

import collections
import dataclasses
import io
import multiprocessing
import pickle
import subprocess
import sys
import threading

import numpy as np
import pictures
import pytest
import torch
from codec_samples import encoded_bytes
from filled import available
from hypothesis import given, settings
from hypothesis import strategies as st
from optional import Library, needs
from pictures import FILES, as_pillow, by_library
from scale import scaled, seeded
from systems import reading_by
from torch.utils.data import DataLoader, default_collate
from written import write

import edcache
from edcache import CachedDataset, Decoding, ImageFile
from edcache.codec import images
from edcache.codec.decoder import Decoder
from edcache.codec.encoder import Encoder
from edcache.dataset.indexing import batch_of
from edcache.errors import ImageError, MissingDependencyError, OptionError

Image = Library("PIL.Image")
pytestmark = needs("PIL")

FORMS = ("pil", "numpy", "tensor", None)
START_METHODS = [m for m in ("fork", "spawn") if m in multiprocessing.get_all_start_methods()]


def opened(path, decode="stored", **options):
    return CachedDataset.from_cache(path, decode=decode, **options)


@pytest.fixture
def archive(path):
    """Every kind of file, each with its name."""
    return write(path, [{"image": ImageFile(pictures.file(name)[0]), "name": name} for name in FILES])


# --- the leaf -----------------------------------------------------------------------------------------


@given(
    data=st.binary(max_size=300), form=st.sampled_from(FORMS), head=st.sampled_from([b"", b"\xff\xd8\xff"])
)
@settings(max_examples=scaled(60))
def test_any_bytes_come_back_as_they_were(data, form, head):
    encoder = Encoder()
    image = ImageFile(head + data, form)
    encoded = encoder.encode([image])
    decoder = Decoder(encoder.schemas[encoded.schema], decoding=Decoding(None))
    (found,) = decoder.decode(memoryview(encoded_bytes(encoded)))
    assert (type(found), found.data, found.decoding.form) == (ImageFile, head + data, None)


def test_a_path_is_read_when_it_is_encoded_and_not_kept(tmp_path):
    file = tmp_path / "a.jpg"
    file.write_bytes(pictures.jpeg())
    sample = {"image": ImageFile(file, None)}
    assert sample["image"].path == str(file)
    found = opened(write(tmp_path / "a.zip", [sample]))[0]["image"]
    file.unlink()
    assert (found.data, found.path, found.size, found.format) == (pictures.jpeg(), None, (23, 17), "JPEG")
    assert str(file).encode() not in (tmp_path / "a.zip").read_bytes()


def test_an_image_file_says_what_it_is():
    image = ImageFile(pictures.jpeg(), "tensor")
    assert repr(image) == f"ImageFile({len(pictures.jpeg()):,} bytes, decode='tensor')"
    assert repr(ImageFile("cat.jpg")) == "ImageFile('cat.jpg', decode='pil')"
    assert image == ImageFile(bytearray(pictures.jpeg()), "tensor")
    assert image != ImageFile(pictures.jpeg(), "numpy")
    assert image != pictures.jpeg()
    assert pickle.loads(pickle.dumps(image)) == image
    assert ImageFile(b"\0" * 20).format is None


def test_what_is_no_source_and_no_decoding_is_refused():
    with pytest.raises(OptionError, match="^ImageFile of a int; give a path, or the bytes of a file$"):
        ImageFile(5)
    with pytest.raises(
        OptionError, match='^decode=\'rgb\': choose "pil", "numpy", "tensor" or None, or give'
    ):
        ImageFile(b"", decode="rgb")
    with pytest.raises(OptionError, match=r"^mode='CMYK'; choose one of 'L', 'RGB', 'RGBA', None$"):
        Decoding("pil", mode="CMYK")
    with pytest.raises(OptionError, match="^exif_transpose=1 of a Decoding: give True or False$"):
        Decoding("pil", exif_transpose=1)
    with pytest.raises(OptionError, match="^decode=7: choose"):
        edcache.reader.Reader("x.zip", decode=7)


# --- decoding -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_each_form_is_what_pillow_makes_of_the_file(name, archive, tally):
    data, mode = pictures.file(name)
    place = list(FILES).index(name)
    plain = as_pillow(data)
    found = opened(archive, "pil")[place]["image"]
    assert (type(found), found.mode, found.size, found.tobytes()) == (
        Image.Image,
        plain.mode,
        plain.size,
        plain.tobytes(),
    )
    assert found.getpalette() == plain.getpalette()
    expected = np.asarray(as_pillow(data, mode))
    for library in ("pillow", "simplejpeg"):
        with by_library(library):
            array = opened(archive, "numpy")[place]["image"]
            tensor = opened(archive, "tensor")[place]["image"]
        assert (array.dtype, array.shape) == (np.uint8, expected.shape)
        assert np.array_equal(array, expected), library
        array[...] = 0  # the caller's own
        planes = expected[None] if expected.ndim == 2 else np.moveaxis(expected, 2, 0)
        assert (tensor.dtype, tensor.is_contiguous()) == (torch.uint8, True)
        assert np.array_equal(tensor.numpy(), planes), library
        tally("decoded images compared with Pillow's", 2)
    assert opened(archive, None)[place]["image"].size == plain.size


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
@pytest.mark.parametrize("name", FILES)
def test_a_mode_is_what_pillow_converts_to(name, mode, archive):
    data, first = pictures.file(name)
    place = list(FILES).index(name)
    expected = as_pillow(data, first).convert(mode)
    assert opened(archive, Decoding("pil", mode))[place]["image"].tobytes() == expected.tobytes()
    assert np.array_equal(opened(archive, Decoding("numpy", mode))[place]["image"], np.asarray(expected))


def test_of_sixteen_bits_bytes_have_the_high_one_and_pil_all(path):
    deep, values = pictures.deep_rgb()
    grey = pictures.picture("I;16")
    files = [deep, pictures.encoded("PNG", grey), pictures.encoded("TIFF", grey)]
    write(path, [ImageFile(file) for file in files])
    arrays = [opened(path, "numpy")[i] for i in range(3)]
    assert np.array_equal(arrays[0], (values >> 8).astype(np.uint8))
    expected = (np.asarray(grey) >> 8).astype(np.uint8)
    assert np.array_equal(arrays[1], expected)
    assert np.array_equal(arrays[2], expected)
    assert np.array_equal(np.asarray(opened(path, "pil")[1]), np.asarray(grey))
    assert opened(path, Decoding("tensor", "RGB"))[1].shape == (3, 17, 23)


def test_floats_and_wide_integers_have_no_form_in_bytes(path):
    files = [pictures.encoded("TIFF", Image.new(mode, (3, 2))) for mode in ("F", "I")]
    write(path, [ImageFile(file) for file in files])
    for place, mode in enumerate("FI"):
        with pytest.raises(
            ImageError, match=f"^{path}: sample {place}: TIFF of mode {mode} has no form in"
        ) as e:
            opened(path, "tensor")[place]
        assert str(e.value).endswith('form in bytes; decode="pil" gives it as it is')
        assert opened(path, "pil")[place].mode == mode


def test_a_picture_is_turned_by_its_exif_orientation_only_when_asked(path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned to the right
    file = pictures.jpeg(exif=exif)
    write(path, [ImageFile(file), ImageFile(file, Decoding("tensor", exif_transpose=True))])
    assert opened(path, "tensor")[0].shape == (3, 17, 23)
    turned = opened(path)[1]
    with by_library("pillow"):
        assert torch.equal(turned, opened(path, "tensor")[0].rot90(-1, (1, 2)))
    assert opened(path, Decoding("pil", exif_transpose=True))[0].size == (17, 23)
    assert opened(path, None)[1].size == (23, 17)


def test_simplejpeg_decodes_what_it_decodes_as_pillow_does_and_nothing_else(monkeypatch):
    simplejpeg = pytest.importorskip("simplejpeg")
    asked = []
    decode = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *a, **k: asked.append(a[1]) or decode(*a, **k))
    draw = seeded("simplejpeg")
    count = max(20, scaled(40))
    for k in range(count):
        size = draw.randint(1, 90), draw.randint(1, 90)
        options = {"quality": draw.randint(5, 100), "subsampling": draw.randint(0, 2)}
        options["progressive"] = draw.random() < 0.3
        file = pictures.encoded("JPEG", pictures.picture(draw.choice(["RGB", "L"]), *size, seed=k), **options)
        ours = ImageFile(file).decode("numpy")
        with by_library("pillow"):
            theirs = ImageFile(file).decode("numpy")
        assert np.array_equal(ours, theirs), (size, options)
    assert len(asked) == count
    assert set(asked) == {"RGB", "GRAY"}
    asked.clear()
    for name in ("jpeg-cmyk", "png"):
        ImageFile(pictures.file(name)[0]).decode("tensor")
    ImageFile(pictures.file("jpeg")[0]).decode(Decoding("tensor", "L"))
    ImageFile(pictures.file("jpeg")[0]).decode("pil")
    assert asked == []


@pytest.mark.full
def test_without_pillow_or_simplejpeg_the_error_names_what_to_install(tmp_path):
    file = tmp_path / "a.jpg"
    file.write_bytes(pictures.jpeg())
    write(tmp_path / "a.zip", [ImageFile(file)])
    code = (
        "import sys; sys.modules['PIL'] = None; sys.modules['simplejpeg'] = None\n"
        "import edcache\n"
        f"path = {str(tmp_path / 'a.zip')!r}\n"
        "print(len(edcache.CachedDataset.from_cache(path, decode=None)[0].data))\n"
        "for decode in ('stored', 'tensor'):\n"
        "    try: edcache.CachedDataset.from_cache(path, decode=decode)[0]\n"
        "    except edcache.errors.MissingDependencyError as error: print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == [
        str(len(pictures.jpeg())),
        "decoding an image file needs Pillow; pip install edcache[images]",
        "decoding an image file needs Pillow; pip install edcache[images]",
    ]
    assert issubclass(MissingDependencyError, ImportError)


# --- bytes that are no image --------------------------------------------------------------------------


def refusal(data, decode="tensor"):
    with pytest.raises(ImageError) as caught:
        ImageFile(data).decode(decode)
    return str(caught.value)


@pytest.mark.parametrize("form", FORMS[:3])
@pytest.mark.parametrize("name", [n for n in FILES if n not in ("jpeg-of-one-pixel", "gif-animated")])
def test_half_a_file_is_refused_in_every_form(name, form):
    """Of the animated one, the picture that is decoded is whole in that."""
    data = pictures.file(name)[0]
    assert "does not decode: " in refusal(data[: len(data) // 2], form)
    assert refusal(data[:4], form)


def test_what_is_cut_off_anywhere_is_refused_or_decodes_to_the_whole_picture(tally):
    """A file that ends within what no picture needs, as a trailer, may decode; never to other pixels."""
    for name in ("jpeg", "jpeg-progressive", "png", "webp", "gif-animated", "bmp"):
        data, mode = pictures.file(name)
        whole = np.asarray(as_pillow(data, mode))
        for end in range(3, len(data), max(1, len(data) // scaled(60))):
            try:
                found = ImageFile(data[:end]).decode("numpy")
            except ImageError:
                continue
            finally:
                tally("cut image files", 1)
            assert np.array_equal(found, whole), (name, end)


def test_bytes_of_another_format_are_not_tried():
    tga = pictures.encoded("TGA")
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"
    ico, ppm = pictures.encoded("ICO"), pictures.encoded("PPM")
    for data in (tga, eps, ico, ppm, b"", b"<html>"):
        text = refusal(data)
        assert text == (
            f"its first bytes are {data[:8]!r}, of no JPEG, PNG, WebP, GIF, BMP or TIFF file; "
            "decode=None gives the bytes as they are"
        )


def test_a_decompression_bomb_is_refused_within_pillows_limit(path, monkeypatch):
    bombs = [pictures.png(30_000, 30_000, 8, 2, [b""]), pictures.encoded("JPEG", Image.new("L", (65_500, 1)))]
    tall = bytearray(bombs[1])
    at = tall.index(b"\xff\xc0") + 5
    tall[at : at + 2] = (65_500).to_bytes(2, "big")
    write(path, [ImageFile(bombs[0]), ImageFile(bytes(tall))])
    for form in FORMS[:3]:
        for place, kind in enumerate(("PNG", "JPEG")):
            with pytest.raises(ImageError) as caught:
                opened(path, form)[place]
            assert str(caught.value).startswith(
                f"{path}: sample {place}: {kind} is larger than Pillow's limit, PIL.Image.MAX_IMAGE_PIXELS "
                "(Image size ("
            )
            assert str(caught.value).endswith(
                "; set that if you trust the file; decode=None gives the bytes as they are"
            )
    assert opened(path, None)[0].data == bombs[0]
    # The limit is the user's to set, for simplejpeg too; half of it is Pillow's warning, an error here.
    file = pictures.jpeg(20, 20)
    for limit in (100, 300):
        monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", limit)
        assert f"exceeds limit of {limit * (2 if limit == 100 else 1)} pixels" in refusal(file)
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", None)
    assert ImageFile(file).decode("tensor").shape == (3, 20, 20)


def test_damaged_jpegs_are_pillows_to_judge(tally):
    """Whatever flips, both libraries end alike: an error, or the pixels of Pillow."""
    pytest.importorskip("simplejpeg")
    draw, data = seeded("damaged"), pictures.jpeg(40, 30, quality=60)
    refused = 0
    for _ in range(scaled(150)):
        damaged = bytearray(data)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(2, len(data))] = draw.randrange(256)
        ends = []
        for library in ("pillow", "simplejpeg"):
            try:
                with by_library(library):
                    ends.append(ImageFile(bytes(damaged)).decode("numpy").tobytes())
            except ImageError:
                ends.append("refused")
        assert ends[0] == ends[1]
        refused += ends[0] == "refused"
    assert refused
    tally("damaged JPEGs", scaled(150))


def test_lack_of_memory_is_a_typed_error(monkeypatch):
    def fails(*_, **__):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("PIL.Image.open", fails)
        assert refusal(pictures.file("png")[0]) == (
            "PNG does not fit into the memory of this process when it is decoded; "
            "decode=None gives the bytes as they are"
        )

    with pytest.raises(ImageError) as caught:
        images.decoded_together([pictures.jpeg()] * 2, Decoding("tensor"), fails)
    assert str(caught.value) == "2 pictures of 1,173 bytes do not fit into the memory of this process"


# --- failures of a fill, and names of samples -----------------------------------------------------------


class Files:
    def __init__(self, *sources):
        self.sources = sources

    def __len__(self):
        return len(self.sources)

    def __getitem__(self, i):
        return {"image": ImageFile(self.sources[i], "tensor"), "y": i}


def test_a_missing_or_foreign_file_fails_its_sample_alone(tmp_path, path):
    good, html = tmp_path / "good.jpg", tmp_path / "html.jpg"
    good.write_bytes(pictures.jpeg())
    html.write_bytes(b"<html>404</html>")
    source = Files(good, tmp_path / "gone.jpg", html, tmp_path, good)
    with pytest.raises(ImageError) as caught:
        CachedDataset(source, path)
    assert str(caught.value) == (
        f"""{path}: sample 1: sample["image"]: cannot store image file '{tmp_path / "gone.jpg"}' """
        f"(No such file or directory); mend it or leave it out; {path} keeps 1 of 5 samples; the same call "
        "computes the rest"
    )
    ds = CachedDataset(source, path, on_error="skip")
    assert [(e.index, e.error) for e in ds.errors] == [(i, "ImageError") for i in (1, 2, 3)]
    assert ds.errors[1].message == (
        f"""sample 2: sample["image"]: cannot store image file '{html}', which begins with b'<html>40', """
        "as no JPEG, PNG, WebP, GIF, BMP or TIFF does; leave it out, or store its bytes"
    )
    assert "Is a directory" in ds.errors[2].message
    assert [s["y"] for s in available(ds)] == [0, 4]


def test_every_way_of_reading_names_the_sample_that_does_not_decode(path):
    good, bad = pictures.jpeg(), pictures.jpeg()[:-100]
    write(path, [{"image": ImageFile(bad if i == 5 else good, "tensor"), "y": i} for i in range(8)])
    ds = opened(path)
    ways = {
        "item": lambda: ds[5],
        "slice": lambda: list(ds[4:7]),
        "batch": lambda: ds.batch(range(8)),
        "select": lambda: ds.select("image")[5],
        "select batch": lambda: ds.select("image", "y").batch([4, 5]),
        "items": lambda: ds.__getitems__([4, 5])[1],
        "loader": lambda: list(ds.loader(4)),
        "DataLoader": lambda: list(DataLoader(ds, 4)),
        "collate": lambda: edcache.collate(as_list=["image"])([batch_of(ds, [4, 5])]),
    }
    for way, read in ways.items():
        with pytest.raises(ImageError) as caught:
            read()
        text = str(caught.value)
        assert text.startswith(f"{path}: sample 5: JPEG does not decode: image file is truncated"), way
        assert text.endswith("; mend or leave out the file; decode=None gives the bytes as they are"), way
    assert ds.batch([0, 1, 2])["image"].shape == (3, 3, 17, 23)


# --- batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}], ids=["plain", "zstd"])
@pytest.mark.parametrize("form", ["numpy", "tensor"])
def test_a_batch_is_default_collate_of_the_samples(path, form, options):
    names = ["jpeg", "jpeg-444", "png", "webp", "tiff"]
    samples = [{"image": ImageFile(pictures.file(names[i % 5])[0]), "y": i} for i in range(20)]
    ds = opened(write(path, samples, **options), form)
    order = seeded("batch").sample(range(20), 20)
    expected = default_collate([ds[i] for i in order])
    assert torch.equal(ds.batch(order)["image"], expected["image"])
    for num_threads in (1, 2):
        found = [b["image"].clone() for b in ds.loader(8, sampler=order, num_threads=num_threads)]
        assert torch.equal(torch.cat(found), expected["image"])
    assert torch.equal(ds.select("image", as_tuple=True).batch(order)[0], expected["image"])


def test_greys_make_batches_of_one_channel(path):
    grey = pictures.file("jpeg-grey")[0]
    write(path, [ImageFile(grey)] * 3)
    assert opened(path, "tensor").batch([0, 1]).shape == (2, 1, 17, 23)
    assert opened(path, "numpy").batch([0, 1]).shape == (2, 17, 23)


def test_pictures_of_several_sizes_are_refused_by_default_collate_and_taken_by_ours(path):
    write(path, [{"image": ImageFile(pictures.jpeg(20 + i, 10), "tensor")} for i in range(4)])
    ds = opened(path)
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        ds.batch(range(4))
    collated = edcache.collate(as_list=["image"])([batch_of(ds, [0, 3])])["image"]
    assert [tuple(t.shape) for t in collated] == [(3, 10, 20), (3, 10, 23)]
    padded = edcache.collate(pad={"image": 0})([batch_of(ds, [0, 3])])["image"]
    assert padded.values.shape == (2, 3, 10, 23)


def test_a_grey_picture_is_not_spread_over_the_colours_of_a_batch(path):
    write(path, [ImageFile(pictures.file(name)[0], "tensor") for name in ("jpeg", "jpeg-grey", "jpeg")])
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        opened(path).batch(range(3))
    assert opened(path, Decoding("tensor", "RGB")).batch(range(3)).shape == (3, 3, 17, 23)


def test_files_and_pil_images_are_left_to_the_collate_function(path):
    write(path, [{"image": ImageFile(pictures.jpeg())}] * 3)
    for decode, kind in ((None, ImageFile), ("pil", Image.Image)):
        with pytest.raises(TypeError, match="default_collate: batch must contain tensors"):
            opened(path, decode).batch([0, 1])
        loader = DataLoader(opened(path, decode), 3, collate_fn=lambda batch: [s["image"] for s in batch])
        assert all(type(image) is kind for image in next(iter(loader)))


def test_threads_of_a_loader_decode_at_once(path, monkeypatch):
    """Two decoders meet, which they could not if one waited for the other's batch."""
    write(path, [{"image": ImageFile(pictures.jpeg(), "tensor")}] * 64)
    ds, meeting, met = opened(path), threading.Barrier(2, timeout=60), set()
    decode = images._pixels

    def meets(data, decoding):
        thread = threading.get_ident()
        if len(met) < 2 and thread not in met:
            met.add(thread)
            meeting.wait()
        return decode(data, decoding)

    monkeypatch.setattr(images, "_pixels", meets)
    assert sum(len(b["image"]) for b in ds.loader(16, num_threads=2)) == 64
    assert len(met) == 2


@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("decode", ["tensor", Decoding("numpy", "L")], ids=["tensor", "L"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_workers_decode_as_the_reader_chose(path, method, decode):
    write(path, [{"image": ImageFile(pictures.jpeg(seed=i)), "y": i} for i in range(12)])
    ds = opened(path, decode)
    view = pickle.loads(pickle.dumps(ds.select("image", "y")[2:]))
    loader = DataLoader(view, 5, num_workers=1, multiprocessing_context=method)
    found = torch.cat([batch["image"] for batch in loader])
    assert torch.equal(found, torch.stack([torch.as_tensor(ds[i]["image"]) for i in range(2, 12)]))


# --- the reader's choice --------------------------------------------------------------------------------


def test_the_reader_chooses_over_the_writer_for_every_schema(path):
    samples = [{f"image{i}": ImageFile(pictures.jpeg(), FORMS[i % 4])} for i in range(70)]
    write(path, samples)  # more schemas than a chunk lists: records that say their own
    kinds = {"pil": Image.Image, "numpy": np.ndarray, "tensor": torch.Tensor, None: ImageFile}
    ds = opened(path)
    assert [type(ds[i][f"image{i}"]) for i in range(70)] == [kinds[FORMS[i % 4]] for i in range(70)]
    for form in FORMS:
        ds = opened(path, form)
        assert {type(ds[i][f"image{i}"]) for i in (0, 1, 2, 3, 67, 68, 69)} == {kinds[form]}


@dataclasses.dataclass
class Pair:
    image: object
    y: int


def shown(value):
    """A text for a sample, with the pixels of PIL images."""
    if isinstance(value, Image.Image):
        return f"{value.mode} {value.size} {value.tobytes().hex()}"
    if isinstance(value, Pair):
        return f"Pair({shown(value.image)}, {value.y})"
    if isinstance(value, dict):
        return f"{type(value)} { {k: shown(v) for k, v in value.items()} }"
    if isinstance(value, (list, tuple)):
        return f"{type(value)} {list(map(shown, value))}"
    return repr(value)


Named = edcache.register(collections.namedtuple("Named", "image y"))


def test_a_lazy_cache_gives_the_same_before_and_after_it_is_stored(path, tmp_path):
    edcache.register(Pair)
    file = pictures.jpeg()
    samples = [
        {"image": ImageFile(file, "tensor"), "y": 1},
        [ImageFile(file, "numpy"), (ImageFile(file, None), 2)],
        collections.OrderedDict(image=ImageFile(file)),
        Named(ImageFile(file, "numpy"), 3),
        Pair(ImageFile(file, "tensor"), 4),
        {"plain": [1, 2]},
    ]
    for decode in ("stored", "tensor"):
        target = tmp_path / f"{decode}.zip"
        lazy = CachedDataset(samples, target, lazy=True, decode=decode)
        first = [lazy[i] for i in range(6)]
        lazy.close()
        assert list(map(shown, opened(target, decode))) == list(map(shown, first))
        assert decode == "tensor" or shown(first[:2]) != shown(samples[:2])


@pytest.mark.parametrize("codec", ["native", "pickle"])
def test_a_lazy_cache_gives_a_computed_sample_as_its_record_reads(path, codec):
    """An ImageFile in a pickle stays one; the samples of a source are not edited through those of the cache."""
    samples = [{"image": ImageFile(pictures.jpeg(), "numpy"), "x": np.asfortranarray(np.ones((2, 3)))}]
    lazy = CachedDataset(samples, path, lazy=True, codec=codec)
    first = lazy[0]
    lazy.close()
    later = CachedDataset.from_cache(path, allow_pickle=codec == "pickle")[0]
    assert type(first["image"]) is type(later["image"]) is (np.ndarray if codec == "native" else ImageFile)
    assert first["x"].flags.c_contiguous == later["x"].flags.c_contiguous
    first["x"][:] = 7
    assert np.all(samples[0]["x"] == 1)


def test_labels_beside_images_are_read_without_them(path):
    samples = [{"image": ImageFile(b"no image", "tensor"), "y": i % 3} for i in range(9)]
    ds = opened(write(path, samples, in_memory_keys=["y"]))
    assert ds.select("y").batch(range(9))["y"].tolist() == [0, 1, 2] * 3
    assert len(ds.filter(y=1)) == 3


@pytest.mark.full
def test_image_files_read_without_pillow_never_import_it(path):
    write(path, [ImageFile(pictures.jpeg())])
    code = (
        "import sys, edcache\n"
        f"print(edcache.CachedDataset.from_cache({str(path)!r}, decode=None)[0].format)\n"
        "assert 'PIL' not in sys.modules and 'simplejpeg' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"JPEG\n"


def test_a_file_that_is_not_mapped_decodes_alike(path):
    write(path, [{"image": ImageFile(pictures.jpeg(seed=i))} for i in range(4)])
    expected = opened(path, "tensor").batch(range(4))["image"]
    with reading_by("pread"):
        ds = opened(path, "tensor")
    assert torch.equal(ds.batch(range(4))["image"], expected)
    ds[0]["image"][...] = 0
    assert torch.equal(ds[0]["image"], expected[0])
    with edcache.numpy.open(path, decode=None, zero_copy=True) as views:
        assert io.BytesIO(views[0]["image"].data).read() == pictures.jpeg(seed=0)


def test_archives_of_one_schema_that_decode_in_two_ways_are_no_batch_together(tmp_path):
    image = {"image": ImageFile(pictures.jpeg())}
    caches = [opened(write(tmp_path / f"{form}.zip", [image]), form) for form in ("tensor", "numpy")]
    both = edcache.concat(caches)
    assert [type(both[i]["image"]) for i in (0, 1)] == [torch.Tensor, np.ndarray]
    with pytest.raises(TypeError) as general:
        default_collate([both[0], both[1]])
    with pytest.raises(TypeError) as bulk:
        both.batch([0, 1])
    assert str(bulk.value).startswith(f"{general.value}; field 'image' is of Tensor, ndarray; ")


def test_a_file_that_does_not_decode_is_named_and_no_address(tmp_path):
    bad = tmp_path / "bad.bmp"
    bad.write_bytes(b"BM" + b"x" * 60)
    for image in (ImageFile(bad), ImageFile(bad.read_bytes())):
        with pytest.raises(ImageError, match="BMP does not decode: ") as caught:
            image.decode()
        assert "0x" not in str(caught.value)
        assert (repr(str(bad)) in str(caught.value)) == (image.path is not None)
