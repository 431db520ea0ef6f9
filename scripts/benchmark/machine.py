"""What the machine is, in words and numbers."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """Cores, processor, memory, system and Python; nothing that names the machine."""
    release = _pairs(Path("/etc/os-release"), "=")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _pairs(Path("/proc/cpuinfo"), ":").get("model name", platform.machine()),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": release.get("PRETTY_NAME", platform.system()),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
    }


def in_words(machine: dict[str, Any]) -> str:
    """One line of prose."""
    return (
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB of memory, "
        f"{machine['system']}, Python {machine['python']}"
    )


def memory_available() -> int:
    """Bytes that the kernel could give away now, page cache included."""
    return int(_pairs(Path("/proc/meminfo"), ":")["MemAvailable"].split()[0]) * 1024


def _pairs(file: Path, separator: str) -> dict[str, str]:
    pairs = (line.partition(separator) for line in file.read_text().splitlines())
    return {key.strip(): value.strip().strip('"') for key, _, value in pairs}
