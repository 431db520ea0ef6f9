"""Which kind of old cache lies at a path, and an old cache to an archive."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from edcache.base import CacheKeywords, CacheOptions, ForeignCacheError, OptionError, once, takes
from edcache.dataset import CachedDataset
from edcache.interop.folders import EXTENSIONS
from edcache.interop.import_edflow import EXAMPLE, EdflowFolder, EdflowZip
from edcache.interop.import_folders import METADATA, SAMPLE, Monai, TorchXla
from edcache.interop.import_mds import INDEX, INDEX_NBYTES, Mds
from edcache.interop.import_members import listed
from edcache.interop.import_packaged import BEGUN, ENDED, STATE, HuggingFace, Images, Litdata
from edcache.interop.import_source import OldCache, read_whole
from edcache.interop.import_tensordict import META, Tensordict
from edcache.interop.import_webdataset import Webdataset
from edcache.storage import local_path

if TYPE_CHECKING:
    from typing_extensions import Unpack

_HASH = re.compile(r"[0-9a-f]{32,}\.pt")
_TAR = re.compile(r".*\.tar", re.DOTALL)
_MOST_NAMES = 10_000
_MOST_FOLDERS = 100
_OURS = b"edcache.json"  # the name of the first entry


class _Place:
    """What lies at a path, to recognise it by: the first names in a folder, or bytes of a file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_zip = self.is_tar = False
        self.names: set[str] = set()
        if os.path.isdir(path):
            with os.scandir(path) as entries:
                self.names = {entry.name for entry in islice(entries, _MOST_NAMES)}
            return
        with open(path, "rb") as file:
            first = file.read(4096)
        if first[30:].startswith(_OURS):
            raise ForeignCacheError(
                f"{path}: an archive of edcache already; CachedDataset.from_cache() opens it"
            )
        self.is_zip, self.is_tar = first.startswith(b"PK\x03\x04"), first[257:262] == b"ustar"

    def has(self, pattern: re.Pattern[str]) -> bool:
        """Whether a file is called so."""
        return any(map(pattern.fullmatch, self.names))

    @once
    def is_tensordict(self) -> bool:
        """Whether tensordict's description is in the zip or the folder."""
        return META in self.names or (self.is_zip and any(m.name == META for m in listed(self.path)[0]))

    @once
    def index(self) -> dict[str, Any]:
        """What the index.json of a folder says, which several systems write; nothing where there is none."""
        file = os.path.join(self.path, INDEX)
        try:
            index = json.loads(read_whole(file, file, INDEX_NBYTES)) if INDEX in self.names else {}
        except (RecursionError, ValueError):
            return {}
        return index if isinstance(index, dict) else {}

    def has_images(self) -> bool:
        """Whether a folder has a folder with an image file in it."""
        if not self.names:
            return False
        with os.scandir(self.path) as entries:
            folders = [entry.path for entry in entries if entry.is_dir()][:_MOST_FOLDERS]
        files = (name for folder in folders for name in os.listdir(folder))
        return any(name.lower().endswith(EXTENSIONS) for name in files)


# How each kind of old cache is recognised, and what opens it. The first that fits counts.
KINDS: Final[dict[str, tuple[Callable[[_Place], bool], Callable[..., OldCache]]]] = {
    "edflow": (
        lambda at: (at.is_zip and not at.is_tensordict) or at.has(EXAMPLE),
        lambda path, trust: (EdflowFolder if os.path.isdir(path) else EdflowZip)(path, trust),
    ),
    "torch_xla": (
        lambda at: METADATA in at.names or (bool(at.names) and all(map(SAMPLE.fullmatch, at.names))),
        TorchXla,
    ),
    "monai": (lambda at: at.has(_HASH), Monai),
    "webdataset": (lambda at: at.is_tar or at.has(_TAR), Webdataset),
    "tensordict": (lambda at: at.is_tensordict, Tensordict),
    "mds": (lambda at: "shards" in at.index, Mds),
    "litdata": (lambda at: "chunks" in at.index, Litdata),
    "huggingface": (lambda at: STATE in at.names, HuggingFace),
    "images": (lambda at: bool({BEGUN, ENDED} & at.names) or at.has_images(), Images),
}


def old_cache(
    path: str | os.PathLike[str],
    kind: str | None = None,
    *,
    trust_pickle: bool = False,
    order: Sequence[str] | None = None,
) -> OldCache:
    """A cache of another system as a source dataset.

    Args:
        kind: one of `KINDS`; by default it is recognised by the names of its files or its first bytes.
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
    if kind is None:
        place = _Place(where)
        kind = next((name for name, (fits, _) in KINDS.items() if fits(place)), None)
        if kind is None:
            raise ForeignCacheError(
                f"{where}: not recognised as one of {', '.join(KINDS)}; name its kind with kind= (--from), "
                "or the file or folder that holds the samples themselves"
            )
    elif kind not in KINDS:
        raise OptionError(f"kind={kind!r}; choose one of {', '.join(KINDS)}")
    if order is not None and kind != "monai":
        raise OptionError(f'{where}: order= is for "monai", this is "{kind}"')
    return KINDS[kind][1](where, trust_pickle, *([] if order is None else [order]))


@takes(CacheOptions)
def import_cache(
    old: str | os.PathLike[str] | OldCache,
    path: str | os.PathLike[str],
    *,
    kind: str | None = None,
    trust_pickle: bool = False,
    order: Sequence[str] | None = None,
    fingerprint: dict[str, Any] | bool | None = None,
    **keywords: Unpack[CacheKeywords],
) -> CachedDataset:
    """Fill an archive with the samples of another system's cache; the old one is only read.

    Args:
        old: where it lies; or what `old_cache` returned.
        path: the archive. One that an interrupted import left is continued.
        kind, trust_pickle, order: as for `old_cache`, which has them already where `old` comes from it.
        fingerprint: as for CachedDataset; by default what identifies the old cache.
        keywords: as for CachedDataset; the label columns are by default those of the old cache:
    Returns:
        The CachedDataset over it. Samples that the old cache lacks are missing in it too, and keep their
        indices: `CachedDataset(source, path)` with the dataset that made the old cache computes them.
    Raises:
        OptionError: one of the three comes with what `old_cache` returned.
        PickleRefusedError: "train.zip: example_3.p needs module.Class; ...".
        ForeignCacheError: the old cache is damaged; what was read before is kept, on_error="skip" goes on.

    >>> import_cache("cached/train.zip", "train.zip", num_workers=4)
    """
    if not isinstance(old, OldCache):
        source = old_cache(old, kind, trust_pickle=trust_pickle, order=order)
    elif kind is None and not trust_pickle and order is None:
        source = old
    else:
        raise OptionError(f"{old.path}: give kind=, trust_pickle= and order= to old_cache(), which opened it")
    source[source.first()]  # what it needs is said at once, and by its own error
    if len(source.missing):
        keywords.setdefault("on_error", "skip")
    if keywords.get("in_memory_keys") is None:
        keywords["in_memory_keys"] = source.in_memory_keys
    own = source.fingerprint() if fingerprint is None else fingerprint
    ds = CachedDataset(source, path, fingerprint=own, **keywords)
    more = {name: values for name, values in source.more_labels.items() if name not in ds.labels}
    if more:
        ds.add_labels(more)
    return ds
