"""Numbers of bytes as people write and read them."""

from __future__ import annotations

from typing import Final

_PREFIXES: Final = ("", "k", "M", "G", "T", "P")
NBYTES: Final = {f"{prefix}B".lower(): 1000**power for power, prefix in enumerate(_PREFIXES)} | {
    f"{prefix}iB".lower(): 1024**power for power, prefix in enumerate(_PREFIXES) if prefix
}
"""Bytes by unit, in lower case: "b", "kb", "kib", ..."""


_UNITS: Final = ("kB", "MB", "GB", "TB", "PB", "EB")


def parsed_bytes(asked: object) -> int | None:
    """How many bytes an int above 0, or a text such as "20GB" or "512 MiB", means; None for anything else."""
    if type(asked) is int:
        return asked if asked > 0 else None
    if not isinstance(asked, str):
        return None
    stripped = asked.strip().replace("_", "").lower()
    digits = stripped.rstrip("kmgtpib ")
    unit = stripped[len(digits) :].strip()
    try:
        nbytes = float(digits) * NBYTES[unit if unit in NBYTES else f"{unit}b"]
    except (ValueError, KeyError):
        return None
    return int(nbytes) if 0 < nbytes < float("inf") else None


def human_bytes(nbytes: float) -> str:
    """A size in decimal units: "812 bytes", "4.1 kB", "38.5 MB"."""
    if nbytes < 1000:
        return f"{nbytes:g} bytes"
    size = nbytes / 1000
    for unit in _UNITS[:-1]:
        if size < 999.95:
            return f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {_UNITS[-1]}"
