"""Image files made with Pillow or by hand, and what they hold; shares no code with the package."""

from __future__ import annotations

import contextlib
import functools
import io
import struct
import zlib

import numpy as np
import pytest
from optional import Library

Image = Library("PIL.Image")


def pixels(width=23, height=17, channels=3, seed=0):
    """Smooth ones, so that JPEG keeps them, with noise on them."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [128 + 90 * np.sin(x / (3 + c) + seed) * np.cos(y / (4 + c)) for c in range(channels)]
    noisy = np.stack(waves, axis=-1) + rng.normal(0, 6, (height, width, channels))
    return noisy.clip(0, 255).astype(np.uint8)


def picture(mode="RGB", width=23, height=17, seed=0):
    """A PIL image of any 8-bit mode, of "1", or of 16 bits."""
    if mode == "I;16":
        return Image.fromarray(pixels(width, height, 1, seed)[..., 0].astype(np.uint16) * 257 - 100)
    if mode in ("RGBA", "CMYK"):
        return Image.frombytes(mode, (width, height), pixels(width, height, 4, seed).tobytes())
    if mode == "LA":
        return Image.frombytes("LA", (width, height), pixels(width, height, 2, seed).tobytes())
    return Image.fromarray(pixels(width, height, 3, seed)).convert(mode)


def encoded(kind, image=None, **options):
    """The bytes of a file."""
    buffer = io.BytesIO()
    (image or picture()).save(buffer, kind, **options)
    return buffer.getvalue()


def jpeg(width=23, height=17, seed=0, **options):
    """A small JPEG."""
    return encoded("JPEG", picture("RGB", width, height, seed), **options)


def chunk(kind, data):
    """Of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, colour, rows):
    """A PNG from the bytes of its rows; dimensions may lie."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = b"".join(b"\0" + row for row in rows)
    parts = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(body, 9)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def deep_rgb():
    """16 bits a channel: the file, and the values in it, uint16 [H, W, 3]."""
    values = (pixels().astype(np.uint16) << 8) + np.arange(3, dtype=np.uint16) * 77
    rows = [row.astype(">u2").tobytes() for row in values]
    return png(values.shape[1], values.shape[0], 16, 2, rows), values


def _animated():
    frames = [picture("P", seed=seed) for seed in (1, 2)]
    return encoded("GIF", frames[0], save_all=True, append_images=frames[1:])


def _clear_palette():
    image = picture("P")
    image.info["transparency"] = 3
    return encoded("PNG", image, transparency=3)


# Name: what makes the file, and the mode that Pillow converts it to for a form in bytes; None as it is.
FILES = {
    "jpeg": (jpeg, None),
    "jpeg-444": (lambda: jpeg(subsampling=0, quality=97), None),
    "jpeg-progressive": (lambda: jpeg(progressive=True, quality=40), None),
    "jpeg-grey": (lambda: encoded("JPEG", picture("L")), None),
    "jpeg-cmyk": (lambda: encoded("JPEG", picture("CMYK")), "RGB"),
    "jpeg-of-one-pixel": (lambda: jpeg(1, 1), None),
    "png": (lambda: encoded("PNG"), None),
    "png-grey": (lambda: encoded("PNG", picture("L")), None),
    "png-grey-alpha": (lambda: encoded("PNG", picture("LA")), None),
    "png-alpha": (lambda: encoded("PNG", picture("RGBA")), None),
    "png-palette": (lambda: encoded("PNG", picture("P")), "RGB"),
    "png-palette-clear": (_clear_palette, "RGBA"),
    "png-bits": (lambda: encoded("PNG", picture("1")), "L"),
    "webp": (lambda: encoded("WEBP"), None),
    "webp-alpha": (lambda: encoded("WEBP", picture("RGBA"), lossless=True), None),
    "gif-animated": (_animated, "RGB"),
    "bmp": (lambda: encoded("BMP"), None),
    "tiff": (lambda: encoded("TIFF", picture("RGB"), compression="tiff_lzw"), None),
    "tiff-cmyk": (lambda: encoded("TIFF", picture("CMYK")), "RGB"),
}


@functools.cache
def file(name):
    """The bytes of one of FILES, and its mode."""
    make, mode = FILES[name]
    return make(), mode


def as_pillow(data, mode=None):
    """What Pillow makes of a file."""
    image = Image.open(io.BytesIO(data))
    image.load()
    return image if mode is None else image.convert(mode)


@contextlib.contextmanager
def by_library(name):
    """Decode JPEG by "pillow", as where simplejpeg is not installed, or by "simplejpeg"."""
    with pytest.MonkeyPatch.context() as patch:
        if name == "pillow":
            patch.setattr("edcache.codec.images._simplejpeg", lambda: None)
        yield
