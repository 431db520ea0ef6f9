"""MONAI's PersistentDataset: a folder of torch.save files that are named by a hash of their data item."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from edcache.codec.torchsave import torch_loaded
from edcache.errors import OptionError
from edcache.importers.source import OldCache, read_whole, regular_files


class Monai(OldCache):
    """`<hash>.pt` of every data item, in the order given, else by name."""

    kind = "monai"

    def __init__(self, path: str, trust_pickle: bool = False, order: Sequence[str] | None = None) -> None:
        super().__init__(path, trust_pickle)
        found = {entry.name: entry for entry in regular_files(path) if entry.name.endswith(".pt")}
        if order is None:
            self._files = sorted(found)
            self.notes.append(
                "its samples are in the order of their file names, which are hashes; see order="
            )
        else:
            self._files = [name if name.endswith(".pt") else f"{name}.pt" for name in order]
            left_out = len(found.keys() - set(self._files))
            if left_out:
                self.notes.append(f"{left_out:,} files that the order does not name were left out")
        if len(set(self._files)) != len(self._files):
            raise OptionError(f"{path}: order= names a file twice")
        digest = hashlib.sha256()
        for name in self._files:
            stat = found[name].stat(follow_symlinks=False) if name in found else None
            digest.update(f"{name} {stat and (stat.st_size, stat.st_mtime_ns)}\n".encode())
        self._digest = digest.hexdigest()[:16]
        present = [index for index, name in enumerate(self._files) if name in found]
        self._found(np.array(present, np.int64), len(self._files))

    def _read(self, index: int) -> Any:
        name = self._files[index]
        shown = f"{self.path}: {name}"
        data = read_whole(os.path.join(self.path, name), shown, self.most_nbytes)
        return torch_loaded(data, shown, trust=self.trust_pickle, most_nbytes=self.most_nbytes)

    def _identity(self) -> dict[str, Any]:
        return {"names, sizes and times": self._digest}
