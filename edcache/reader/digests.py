"""SHA-256 of a whole file, as `sha256sum` prints it: parse, compute, compare."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Final

from edcache.base import ArchiveError, OptionError, shown
from edcache.format import came_again
from edcache.storage import ByteSource

_PIECE_NBYTES: Final = 1 << 20
_TEXT: Final = re.compile(r"(?:sha256:)?([0-9a-f]{64})")

OnProgress = Callable[[int, int], object]
"""`on_progress(done, total)`: bytes."""


def parse_digest(text: object) -> str:
    """Parse a digest; returns "sha256:" and 64 lower-case hex digits.

    Raises:
        OptionError: the text is not 64 hex digits of any case, with or without "sha256:".
    """
    matched = _TEXT.fullmatch(text.lower()) if isinstance(text, str) and text.isascii() else None
    if matched is None:
        raise OptionError(
            f'expected_digest={shown(text)}; give "sha256:" and 64 hex digits, as edcache.digest() returns '
            "it",
            option="expected_digest",
        )
    return f"sha256:{matched[1]}"


def file_digest(
    file: ByteSource, on_progress: OnProgress | None = None, *, is_doubted: bool = True
) -> tuple[str, int]:
    """Hash an open file; returns the digest in the form of `parse_digest`, and the bytes that were hashed.

    is_doubted: True believes pieces of a far file that came twice alike, as the digest does not say which one is wrong.
    """
    size, hashed = file.size(), hashlib.sha256()
    position = 0
    while part := file.pread(
        position, min(_PIECE_NBYTES, size - position), came_again() if is_doubted else None
    ):
        hashed.update(part)
        position += len(part)
        if on_progress is not None:
            on_progress(position, size)
    return f"sha256:{hashed.hexdigest()}", position


def check_digest(file: ByteSource, expected: str) -> int:
    """Compare an open file with a digest of `parse_digest`. Returns the number of bytes that were hashed.

    Raises:
        ArchiveError: "train.zip: its sha256 is ab12..., expected cd34...; it is not the file that was published".
    """
    digest, nbytes = file_digest(file, is_doubted=False)
    if digest != expected and file.tries > 1:
        digest, nbytes = file_digest(file)
    if digest != expected:
        raise ArchiveError(
            f"{file.path}: its sha256 is {digest[7:]}, expected {expected[7:]}; "
            "it is not the file that was published",
            path=file.path,
        )
    return nbytes


def no_digest(path: str) -> ArchiveError:
    """Make the error for an archive that is not sealed."""
    return ArchiveError(
        f"{path}: it is not sealed, so it may still grow and has no digest; fill it, or seal what is there: "
        f'"edcache copy {path} -o NEW --skip-damaged"',
        path=path,
    )
