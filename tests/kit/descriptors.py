"""Which files this process has open, told by Linux's /proc."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="asks Linux's /proc what is open")


def open_files(part: str | Path) -> list[str]:
    """Sorted names of the open files that have `part` in them, one for each descriptor.

    A test counts the files of its own folder alone: garbage of an earlier one may go at any moment.
    """
    gc.collect()
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return sorted(name for name in names if str(part) in name)
