"""Which kind of old cache lies at a path."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from edcache.durable import local_path
from edcache.errors import ForeignCacheError, OptionError
from edcache.importers.edflow import EXAMPLE, EdflowFolder, EdflowZip
from edcache.importers.images import Images, has_images, looks_like_a_copy
from edcache.importers.mds import Mds
from edcache.importers.members import listed
from edcache.importers.monai import Monai
from edcache.importers.packaged import INDEX, STATE, HuggingFace, Litdata
from edcache.importers.source import OldCache, read_whole
from edcache.importers.tensordict import META, Tensordict
from edcache.importers.torch_xla import METADATA, SAMPLE, TorchXla
from edcache.importers.webdataset import Webdataset

_HASH = re.compile(r"[0-9a-f]{32,}\.pt")
_LOOKED_AT = 10_000
_OURS = b"edcache.json"  # the name of the first entry


def old_cache(
    path: str | os.PathLike[str],
    kind: str | None = None,
    *,
    trust_pickle: bool = False,
    order: Sequence[str] | None = None,
) -> OldCache:
    """A cache of another system as a source dataset.

    Args:
        kind: one of `KINDS`; by default it is recognised by what lies there.
        trust_pickle: unpickle whatever it holds, which runs the code that its author put there. By default
            plain data, numpy arrays and torch tensors are read, and nothing else.
        order: for "monai": the names of the files, with or without ".pt", in the order of the samples.
    Raises:
        ForeignCacheError: nothing there is known, or it is damaged.
        PickleRefusedError: its labels need a class; a sample that does raises when it is read.
    Cost: lists the files, or the directory of the zip.

    >>> edcache.CachedDataset(old_cache("cached/train.zip"), "train.zip")
    """
    where = local_path(path)
    if not os.path.exists(where):
        raise ForeignCacheError(f"{where}: No such file or directory")
    chosen = recognised(where) if kind is None else kind
    if chosen not in KINDS:
        raise OptionError(f"kind={chosen!r}; choose one of {', '.join(KINDS)}")
    if order is not None and chosen != "monai":
        raise OptionError(f'{where}: order= is for "monai", this is "{chosen}"')
    return KINDS[chosen](where, trust_pickle, order)


def recognised(path: str) -> str:
    """The kind of cache that lies at a path, by the names of its files or its first bytes.

    Raises:
        ForeignCacheError: it is of no kind that is known, or an archive of edcache's own.
    """
    found = _folder_kind(path) if os.path.isdir(path) else _file_kind(path)
    if found is None:
        raise ForeignCacheError(
            f"{path}: not recognised as one of {', '.join(KINDS)}; name its kind with kind= (--from), or "
            "the file or folder that holds the samples themselves"
        )
    return found


def _file_kind(path: str) -> str | None:
    with open(path, "rb") as file:
        first = file.read(4096)
    if first[30:].startswith(_OURS):
        raise ForeignCacheError(f"{path}: an archive of edcache already; CachedDataset.from_cache() opens it")
    if first.startswith(b"PK\x03\x04"):
        return "tensordict" if _is_tensordict(path) else "edflow"
    return "webdataset" if first[257:262] == b"ustar" else None


def _is_tensordict(path: str) -> bool:
    return any(member.name == META for member in listed(path)[0])


def _folder_kind(path: str) -> str | None:
    names = _names(path)
    if INDEX in names:
        return _indexed_kind(path)
    for kind, fits in _FOLDERS:
        if fits(names):
            return kind
    return "images" if has_images(path) else None


def _indexed_kind(path: str) -> str | None:
    """The kind of a folder with an index.json, which several systems write."""
    file = os.path.join(path, INDEX)
    try:
        said = json.loads(read_whole(file, file, 1 << 28))
    except (RecursionError, ValueError):
        return None
    if not isinstance(said, dict):
        return None
    return "mds" if "shards" in said else "litdata" if "chunks" in said else None


def _names(path: str) -> set[str]:
    found: set[str] = set()
    with os.scandir(path) as entries:
        for entry in entries:
            found.add(entry.name)
            if len(found) == _LOOKED_AT:
                break
    return found


def _some(pattern: re.Pattern[str]) -> Callable[[set[str]], bool]:
    return lambda names: any(map(pattern.fullmatch, names))


_FOLDERS: Final[list[tuple[str, Callable[[set[str]], bool]]]] = [
    ("edflow", _some(EXAMPLE)),
    ("torch_xla", lambda names: METADATA in names),
    ("monai", _some(_HASH)),
    ("webdataset", lambda names: any(name.endswith(".tar") for name in names)),
    ("tensordict", lambda names: META in names),
    ("huggingface", lambda names: STATE in names),
    ("images", looks_like_a_copy),
    ("torch_xla", lambda names: bool(names) and all(map(SAMPLE.fullmatch, names))),
]


def _edflow(path: str, trust_pickle: bool, order: Any) -> OldCache:
    return (EdflowFolder if os.path.isdir(path) else EdflowZip)(path, trust_pickle)


KINDS: Final[dict[str, Callable[[str, bool, Any], OldCache]]] = {
    "edflow": _edflow,
    "torch_xla": lambda path, trust_pickle, order: TorchXla(path, trust_pickle),
    "monai": Monai,
    "webdataset": lambda path, trust_pickle, order: Webdataset(path, trust_pickle),
    "tensordict": lambda path, trust_pickle, order: Tensordict(path, trust_pickle),
    "mds": lambda path, trust_pickle, order: Mds(path, trust_pickle),
    "litdata": lambda path, trust_pickle, order: Litdata(path, trust_pickle),
    "huggingface": lambda path, trust_pickle, order: HuggingFace(path, trust_pickle),
    "images": lambda path, trust_pickle, order: Images(path, trust_pickle),
}
