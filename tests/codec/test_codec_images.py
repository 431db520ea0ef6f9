"""PIL images: every mode, palettes, info, and what is refused."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from codec_samples import encode, round_trip, run_script

from edcache.codec.decoder import Decoder
from edcache.codec.encoder import Encoder
from edcache.errors import CodecError, CorruptRecordError

Image = pytest.importorskip("PIL.Image")

MODES = [
    *("1", "L", "P", "PA", "LA", "La", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I"),
    "F",
]
MODES += ["I;16", "I;16B", "I;16L"]


def alike(a, b):
    assert type(a) is Image.Image
    assert (a.mode, a.size, a.info) == (b.mode, b.size, b.info)
    assert a.getpalette() == b.getpalette()
    assert a.getpalette(None) == b.getpalette(None)
    assert a.tobytes() == b.tobytes()
    assert list(map(type, a.info.values())) == list(map(type, b.info.values()))


def noise(mode, size):
    image = Image.new(mode, size)
    data = np.random.default_rng(3).integers(0, 255, len(image.tobytes()), np.uint8).tobytes()
    if not data:
        return image
    made = Image.frombytes(mode, size, data)
    if mode in ("P", "PA"):
        made.putpalette(bytes(range(256)) * 3)
    return made


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(5, 3), (9, 1), (0, 4), (4, 0), (0, 0)], ids=str)
def test_mode(mode, size):
    image = noise(mode, size)
    alike(round_trip({"image": image})["image"], image)


@pytest.mark.parametrize("rawmode", ["RGB", "RGBA", "BGR", "RGBX", "CMYK", "RGB;L"])
def test_palettes(rawmode):
    image = noise("P", (4, 4))
    image.putpalette(bytes(range(len(rawmode.rstrip(";L")) * 20)), rawmode)
    alike(round_trip(image), image)
    bare = Image.new("P", (3, 3))
    alike(round_trip(bare), bare)
    quantized = noise("RGB", (8, 8)).quantize(5)
    alike(round_trip(quantized), quantized)


@pytest.mark.parametrize("transparency", [3, bytes(range(10)), (1, 2, 3)], ids=repr)
def test_transparency(transparency):
    image = noise("RGB" if isinstance(transparency, tuple) else "P", (4, 4))
    image.info["transparency"] = transparency
    alike(round_trip(image), image)
    assert round_trip(image).convert("RGBA").tobytes() == image.convert("RGBA").tobytes()


@pytest.mark.parametrize("name", ["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP"])
def test_opened_files(name):
    """An image from a file keeps its info; TIFF leaves rationals there, which become floats."""
    buffer = io.BytesIO()
    noise("RGB", (16, 8)).save(buffer, name, dpi=(72, 144))
    opened = Image.open(buffer)
    out = round_trip([opened])[0]
    opened.info = {k: tuple(map(float, v)) if k == "dpi" else v for k, v in opened.info.items()}
    alike(out, opened)


def test_images_of_many_sizes_share_a_schema():
    encoder = Encoder()
    for n in range(1, 9):
        image = noise("L", (n, 2))
        text, record = encode(image, encoder)
        alike(Decoder(text).decode(memoryview(record)), image)
    assert len(encoder.schemas) == 1
    text, record = encode(noise("RGB", (2, 2)), encoder)
    assert len(encoder.schemas) == 1


def test_refused_info_names_its_place():
    image = noise("L", (2, 2))
    image.info["dpi"] = (1, {2})
    with pytest.raises(
        CodecError, match=r'^sample\["image"\]\.encode\(\)\[6\]\["dpi"\]\[1\]: cannot store set; '
    ):
        encode({"image": image})


def test_pixels_that_do_not_fit_are_corrupt():
    text, record = encode(noise("L", (4, 2)))
    for at, value in ((0, 5), (0, 1 << 40), (8, 0), (8, (1 << 64) - 1)):
        lie = bytearray(record)
        lie[at : at + 8] = value.to_bytes(8, "little")
        with pytest.raises(CorruptRecordError, match="8 bytes of pixels, of mode L and size "):
            Decoder(text).decode(memoryview(lie))


def test_an_image_without_pixels_allocates_nothing():
    text, record = encode(Image.new("L", (0, 3)))
    lie = bytearray(record)
    lie[8:16] = (1 << 30).to_bytes(8, "little")
    with pytest.raises(CorruptRecordError, match="0 bytes of pixels, of mode L"):
        Decoder(text).decode(memoryview(lie))


@pytest.mark.full
def test_pillow_is_imported_only_for_images():
    text, record = encode(noise("L", (2, 2)))
    script = (
        "import sys\nfrom edcache.codec import *\nEncoder().encode({'a': 1})\n"
        "assert 'PIL' not in sys.modules\nsys.modules['PIL'] = None\n"
        "from edcache.errors import MissingDependencyError\n"
        f"try: Decoder({text!r}).decode(memoryview({record!r}))\n"
        "except MissingDependencyError as error: print(error)\n"
    )
    out = run_script(script)
    assert "pip install Pillow" in out


def test_an_image_whose_file_is_cut_is_refused():
    buffer = io.BytesIO()
    noise("RGB", (16, 8)).save(buffer, "PNG")
    opened = Image.open(io.BytesIO(buffer.getvalue()[:-40]))
    message = r'^sample\["image"\]: cannot store PIL.*PngImageFile; its encode= raised OSError\(.*\); mend it'
    with pytest.raises(CodecError, match=message):
        encode({"image": opened})


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF", "MPO"])
def test_a_file_of_several_pictures_is_refused_unless_it_is_one_of_a_telephone(kind):
    buffer = io.BytesIO()
    noise("RGB", (16, 8)).save(buffer, kind, save_all=True, append_images=[Image.new("RGB", (16, 8))])
    opened = Image.open(buffer)
    if kind != "MPO":
        message = r"PIL.*ImageFile of several pictures; .copy\(\) has the shown one, edcache.ImageFile all"
        with pytest.raises(CodecError, match=message):
            encode(opened)
    alike(round_trip(opened.copy()), opened.copy())
    buffer = io.BytesIO()
    noise("RGB", (16, 8)).save(buffer, "JPEG" if kind == "MPO" else kind)
    alike(round_trip(Image.open(buffer)), Image.open(buffer).copy())


def test_an_attribute_of_an_image_is_refused():
    image = noise("RGB", (2, 2))
    image.label = 3
    message = r"cannot store PIL.Image.Image with the attribute 'label'; store that beside it, and its .copy"
    with pytest.raises(CodecError, match=message):
        encode([image])
    alike(round_trip(image.copy()), image)


def test_an_image_without_pixels_may_not_be_long():
    text = r'of mode L and size \(0, 65537\); call .convert\("RGB"\) or numpy.asarray\(\)'
    with pytest.raises(CodecError, match=text):
        encode(Image.new("L", (0, (1 << 16) + 1)))


def test_a_palette_beside_a_mode_without_one_is_corrupt():
    image = Image.new("P", (1, 1))
    image.putpalette(bytes(range(12)))
    text, record = encode(image)
    with pytest.raises(CorruptRecordError, match="its decode= raised ValueError.'illegal image mode"):
        Decoder(text).decode(memoryview(record.replace(b"P\0\0\0", b"1\0\0\0")))


def test_where_pillow_is_blocked_what_cannot_be_stored_is_refused_as_ever(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(CodecError, match=r'sample\["a"\]: cannot store object'):
        Encoder().encode({"a": object()})


def test_info_without_end_is_refused():
    image, info = Image.new("L", (1, 1)), {}
    for _ in range(5000):
        info = {"deeper": info}
    image.info = info
    with pytest.raises(
        CodecError, match=r'sample\["im"\]: cannot store PIL.Image.Image; its encode= raised Recursion'
    ):
        Encoder().encode({"im": image})
