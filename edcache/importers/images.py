"""A tree of image files, such as one that KappaData's copying left, as an old cache."""

from __future__ import annotations

import os
from typing import Any, Final

from edcache.folders import EXTENSIONS, image_folder
from edcache.importers.source import OldCache

BEGUN: Final = "autocopy_start.txt"
ENDED: Final = "autocopy_end.txt"


class Images(OldCache):
    """What `edcache.image_folder` has, with a note where KappaData's copying did not end."""

    kind = "images"

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        self._folder = image_folder(path)
        self.in_memory_keys = self._folder.in_memory_keys
        begun, ended = (os.path.exists(os.path.join(path, name)) for name in (BEGUN, ENDED))
        if begun and not ended:
            self.notes.append(
                f"its copying did not end: {BEGUN} is there, {ENDED} is not; files may be missing"
            )
        self._found_all(len(self._folder))

    def _read(self, index: int) -> Any:
        return self._folder[index]

    def _identity(self) -> dict[str, Any]:
        return self._folder.__edcache_fingerprint__()


def looks_like_a_copy(names: set[str]) -> bool:
    """Whether these are the names in a folder that KappaData copied."""
    return BEGUN in names or ENDED in names


def has_images(path: str) -> bool:
    """Whether a folder has a folder with an image file in it."""
    with os.scandir(path) as entries:
        folders = [entry.path for entry in entries if entry.is_dir()][:100]
    for folder in folders:
        with os.scandir(folder) as entries:
            if any(entry.name.lower().endswith(EXTENSIONS) for entry in entries):
                return True
    return False
