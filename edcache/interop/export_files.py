"""One file a field: tar shards for webdataset, and plain folders."""

from __future__ import annotations

import datetime
import io
import json
import os
import tarfile
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from edcache import storage
from edcache.base import ExportError
from edcache.interop.export_leaves import Leaves, Picture, refused
from edcache.interop.export_plan import Plan, Writer
from edcache.interop.export_targets import shard

_LABELS: Final = "labels.json"
_INTEGER: Final = {"webdataset": "cls", "files": "txt"}


def files_of(leaves: Leaves, place: str, to: str, labels: bytes | None = None) -> dict[str, bytes]:
    """The bytes of each file of a sample by its name; a leaf without a name gives only an extension.

    An image is its file, an array a .npy, text and bytes a .txt and a .bin, an int a .cls (webdataset) or a
    .txt (files), a date a .txt, and everything else a .json.

    Args:
        labels: what goes into labels.json.
    Raises:
        ExportError: a value that no file holds, a name that no file can have, or two files of one name.
    """
    files: dict[str, bytes] = {} if labels is None else {_LABELS: labels}
    for name, value in leaves.items():
        is_hidden = name.startswith((".", "__"))
        if is_hidden or "/" in name or "\\" in name or "\0" in name or len(name.encode()) > 200:
            raise ExportError(
                f'{place}: field "{name}" makes no name of a file; {to} needs names without slashes '
                "that begin with no dot and not with __; rename it with with_transform()"
            )
        extension, data = _encoded(name, value, place, to)
        file = f"{name}.{extension}" if name else extension
        # Its reader gives all names in lower case.
        file = file.lower() if to == "webdataset" else file
        if file in files:
            raise ExportError(f'{place}: two files would be called "{file}"; rename a field')
        files[file] = data
    return files


def _encoded(name: str, value: Any, place: str, to: str) -> tuple[str, bytes]:
    """The extension and the bytes of the file of a leaf."""
    if isinstance(value, Picture):
        return value.extension, value.data
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise refused(place, name, value, "a .npy of objects would be a pickle")
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        return "npy", file.getvalue()
    if isinstance(value, str):
        try:
            return "txt", value.encode()
        except UnicodeEncodeError:
            raise refused(place, name, value, "half of a surrogate pair is no UTF-8") from None
    if isinstance(value, bytes):
        return "bin", value
    if isinstance(value, datetime.date):
        return "txt", value.isoformat().encode()
    if type(value) is int:
        return _INTEGER[to], str(value).encode()
    if isinstance(value, complex):
        raise refused(place, name, value, "JSON has no complex numbers")
    return "json", json.dumps(value).encode()


def check_json_labels(plan: Plan) -> None:
    """Refuse label columns that JSON does not hold.

    Raises:
        ExportError: 'export(): label "digest" is binary, and JSON holds no bytes; ...'.
    """
    for field in plan.label_table(range(0)).schema:
        if "binary" in str(field.type):
            raise ExportError(
                f'export(): label "{field.name}" is {field.type}, and JSON holds no bytes; choose others: '
                "labels=[...]"
            )


def _named_files(plan: Plan, part: range, to: str) -> Iterator[tuple[str, bool, dict[str, bytes]]]:
    """Of each sample its number as text, whether it is one leaf without a name, and its files."""
    digits = len(str(max(len(plan) - 1, 0)))
    labels = plan.ds.labels.take(np.arange(part.start, part.stop))
    columns = [labels.to_list(name) for name in plan.labels]
    rows = zip(*columns, strict=True) if columns else iter([None] * len(part))
    for position, row, (place, leaves) in zip(part, rows, plan.samples(part), strict=True):
        own = None
        if row is not None:  # times are texts
            own = json.dumps(dict(zip(plan.labels, row, strict=True)), default=str).encode()
        yield f"{position:0{digits}}", list(leaves) == [""], files_of(leaves, place, to, own)


class Tars(Writer):
    """Writes the tar shards of a part of the samples, as the webdataset package reads them."""

    def _write(self, number: int, part: range) -> None:
        with shard(os.path.join(self.folder, f"shard-{number:06}.tar")) as stream:
            for stem, _, files in _named_files(self.plan, part, "webdataset"):
                for name, data in files.items():
                    # Without a time and an owner: the same samples make the same bytes.
                    header = tarfile.TarInfo(f"{stem}.{name}")
                    header.size = len(data)
                    padding = bytes(-len(data) % tarfile.BLOCKSIZE)
                    stream.writelines((header.tobuf(tarfile.GNU_FORMAT), data, padding))
            stream.write(bytes(2 * tarfile.BLOCKSIZE))


class Folders(Writer):
    """Writes a folder for each sample with a file for each field; one file where a sample is one leaf."""

    def _write(self, number: int, part: range) -> None:
        for name, is_leaf, files in _named_files(self.plan, part, "files"):
            stem = os.path.join(self.folder, name) + ("." if is_leaf else os.sep)
            storage.make_parent(stem)
            for file, data in files.items():
                with shard(f"{stem}{file}", sync=False) as stream:
                    stream.write(data)
