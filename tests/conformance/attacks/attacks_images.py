"""Image files that lie: the only records of an archive, which are decoded when they are read."""

import json
import struct
import zlib

import pictures
from attacks_codec import only
from catalogue import attack
from forge import Forge

TENSOR = ["imagefile", "tensor", None, False]


def record(data, said=None):
    """Of a sample that is an image file."""
    return struct.pack("<q", len(data) if said is None else said) + data


def _image(name, idea, naive, make, says, *, form="tensor", text=None, error="ImageError", call="sample 0"):
    @attack("images", idea, naive, call, error, says, forged=True)
    def forge(f: Forge):
        only(f, json.dumps(text or [TENSOR[0], form, *TENSOR[2:]], separators=(",", ":")), make())

    forge.__name__ = name


def _schema(name, idea, naive, text):
    _image(
        name, idea, naive, lambda: record(pictures.jpeg()), "schema: ", text=text, error="CorruptRecordError"
    )


_schema(
    "image_file_form", 'the form "exec"', "looks up a decoder by name", ["imagefile", "exec", None, False]
)
_schema("image_file_mode", 'the mode "F"', "passes it on to the library", ["imagefile", "pil", "F", False])
_schema("image_file_turn", "1 where true or false stands", "True is 1", ["imagefile", "pil", None, 1])
_schema("image_file_short", "a node of two items", "IndexError", ["imagefile", "pil"])
_schema(
    "image_file_long",
    "a node with a path in it",
    "opens it",
    ["imagefile", "pil", None, False, "/etc/passwd"],
)


def _lies(name, idea, naive, said):
    _image(name, idea, naive, lambda: record(pictures.jpeg(), said), "takes", error="CorruptRecordError")


_lies("image_file_longer", "a length behind the record's end", "reads the next record", 1 << 40)
_lies("image_file_negative", "a length of -1", "a slice from the end", -1)


def _text_bomb(kind, before):
    bomb = zlib.compress(bytes(100 << 20), 9)
    whole = pictures.png(1, 1, 8, 0, [b"\0"])
    return whole[:33] + pictures.chunk(kind, before + bomb) + whole[33:]


def _flipped(data, at):
    changed = bytearray(data)
    changed[at] ^= 0xFF
    return bytes(changed)


def _tall_jpeg():
    data = bytearray(pictures.jpeg(64, 8))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", 65_500, 65_500)
    return bytes(data)


def _tiff(*tags, following=0):
    """Of one directory: (tag, type, count, value) each."""
    body = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + body + struct.pack("<I", following)


_SHAPE = (256, 4, 1, 4), (257, 4, 1, 4), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)

IMAGES = [
    ("png_bomb", "a PNG of 30,000 x 30,000 pixels in 90 bytes", "allocates 2.7 GB",
     lambda: pictures.png(30_000, 30_000, 8, 2, [b""]), "larger than Pillow's limit"),
    ("jpeg_bomb", "a JPEG of 65,500 x 65,500 pixels", "allocates 12 GB", _tall_jpeg, "larger than Pillow's"),
    ("png_text", "a text that inflates to 100 MB", "inflates it for .info",
     lambda: _text_bomb(b"zTXt", b"k\0\0"), "does not decode"),
    ("png_crc", "a header whose crc32 is wrong", "believes it",
     lambda: _flipped(pictures.encoded("PNG"), 29), "does not decode"),
    ("png_pixels", "pixels that do not inflate", "grey from there on",
     lambda: _flipped(pictures.encoded("PNG"), 60), "does not decode"),
    ("jpeg_cut", "a JPEG without its last third", "grey from there on",
     lambda: pictures.jpeg(200, 150)[:4000], "image file is truncated"),
    ("gif_cut", "a GIF that ends in its pixels", "zeros from there on",
     lambda: pictures.encoded("GIF")[:900], "does not decode"),
    ("webp_size", "a WebP whose RIFF says 2 GB", "waits for them",
     lambda: b"RIFF" + struct.pack("<I", 1 << 31) + pictures.encoded("WEBP")[8:], "does not decode"),
    ("bmp_offset", "a BMP whose pixels lie behind its end", "reads what is there",
     lambda: pictures.encoded("BMP")[:10] + struct.pack("<I", 1 << 30) + pictures.encoded("BMP")[14:],
     "does not decode"),
    ("tiff_loop", "a TIFF directory that is its own successor, without pixels", "counts its pages for ever",
     lambda: _tiff(*_SHAPE, following=8), "does not decode"),
    ("tiff_count", "a TIFF tag of 2**32 - 1 values", "allocates them",
     lambda: _tiff(*_SHAPE, (273, 4, (1 << 32) - 1, 8), (279, 4, 1, 16)), "does not decode"),
    ("postscript", "PostScript", "starts Ghostscript, which runs it",
     lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) run", "of no JPEG, PNG"),
    ("svg", "an SVG that names a file", "fetches it",
     lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
     "of no JPEG, PNG"),
    ("path_for_bytes", "the path of a file where its bytes belong", "opens it", lambda: b"/etc/passwd",
     "of no JPEG, PNG"),
    ("no_bytes", "an image file of no bytes", "divides by its height", lambda: b"", "of no JPEG, PNG"),
    ("two_formats", "a JPEG's first bytes before a TIFF", "another program sees another picture",
     lambda: b"\xff\xd8\xff" + pictures.encoded("TIFF"), "does not decode"),
]  # fmt: skip
for _name, _idea, _naive, _make, _says in IMAGES:
    _image(_name, _idea, _naive, lambda make=_make: record(make()), _says)


@attack("images", "a batch whose third picture is a bomb", "allocates it in a thread", "batch", "ImageError",
        "sample 2: PNG is larger than Pillow's limit", forged=True)  # fmt: skip
def bomb_in_a_batch(f: Forge):
    bomb = record(pictures.png(30_000, 30_000, 8, 2, [b""]))
    only(f, json.dumps(TENSOR), *[bomb if i == 2 else record(pictures.jpeg()) for i in range(6)])


@attack(
    "images", "pixels of one dot that inflate to 100 MB", "inflates all of them", None, "", "", forged=True
)
def inflates_on(f: Forge):
    """The pixels that there are decode, and what comes behind them is not inflated."""
    only(f, json.dumps(TENSOR), record(pictures.png(1, 1, 8, 0, [bytes(100 << 20)])))
