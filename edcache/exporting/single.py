"""One file a field: tar shards for webdataset, and plain folders."""

from __future__ import annotations

import datetime
import io
import json
import os
import tarfile
from typing import Any, Final

import numpy as np

from edcache import durable
from edcache.errors import ExportError
from edcache.exporting.leaves import Leaves, Picture, refused
from edcache.exporting.places import shard, write_small
from edcache.exporting.plan import Job, place_of

_LABELS: Final = "labels.json"
_INTEGER: Final = {"webdataset": "cls", "files": "txt"}


class Naming:
    """How the leaves of a sample become files: their names, and their bytes.

    An image is its file, an array a .npy, text and bytes a .txt and a .bin, an int a .cls (webdataset) or a
    .txt (files), a date a .txt, and everything else a .json.
    """

    def __init__(self, to: str) -> None:
        self._to = to

    def files(self, leaves: Leaves, place: str, labels: bytes | None = None) -> list[tuple[str, bytes]]:
        """Name and bytes of each file of a sample; a leaf without a name gives only an extension.

        Args:
            labels: what goes into labels.json.
        Raises:
            ExportError: a value that no file holds, a name that no file can have, or two files of one name.
        """
        if not leaves:
            raise ExportError(f"{place}: it has no field; leave it out with a filter")
        made: dict[str, bytes] = {} if labels is None else {_LABELS: labels}
        for name, value in leaves.items():
            self._check_name(name, place)
            extension, data = self._encoded(name, value, place)
            file = f"{name}.{extension}" if name else extension
            # Its reader gives all names in lower case.
            file = file.lower() if self._to == "webdataset" else file
            if file in made:
                raise ExportError(f'{place}: two files would be called "{file}"; rename a field')
            made[file] = data
        return list(made.items())

    def _check_name(self, name: str, place: str) -> None:
        is_hidden = name.startswith((".", "__"))
        if is_hidden or "/" in name or "\\" in name or "\0" in name or len(name.encode()) > 200:
            raise ExportError(
                f'{place}: field "{name}" makes no name of a file; {self._to} needs names without slashes '
                "that begin with no dot and not with __; rename it with with_transform()"
            )

    def _encoded(self, name: str, value: Any, place: str) -> tuple[str, bytes]:
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
            return _INTEGER[self._to], str(value).encode()
        if isinstance(value, complex):
            raise refused(place, name, value, "JSON has no complex numbers")
        return "json", json.dumps(value).encode()


def check_json_labels(job: Job) -> None:
    """Refuse label columns that JSON does not hold.

    Raises:
        ExportError: 'export(): label "digest" is binary, and JSON holds no bytes; ...'.
    """
    for name in job.labels:
        kind = str(job.ds.labels.column(name).type)
        if "binary" in kind:
            raise ExportError(
                f'export(): label "{name}" is {kind}, and JSON holds no bytes; choose others: labels=[...]'
            )


def json_labels(job: Job, part: range) -> list[bytes]:
    """The label columns of samples that go along, as a JSON object each; times are texts."""
    labels = job.ds.labels.take(np.arange(part.start, part.stop))
    columns = [labels.to_list(name) for name in job.labels]
    return [
        json.dumps(dict(zip(job.labels, values, strict=True)), default=str).encode()
        for values in zip(*columns, strict=True)
    ]


class Tars:
    """Writes the tar shards of a part of the samples, as the webdataset package reads them."""

    def __init__(self, job: Job, folder: str, digits: int) -> None:
        self._job, self._folder, self._digits = job, folder, digits
        self._naming = Naming("webdataset")

    def __call__(self, numbered: tuple[int, range]) -> int:
        """Write shard `number` of some samples; returns how many."""
        number, part = numbered
        labels = json_labels(self._job, part)
        path = os.path.join(self._folder, f"shard-{number:06}.tar")
        with shard(path) as stream:
            for position, leaves in self._job.samples(part):
                own = labels[position - part.start] if labels else None
                for name, data in self._naming.files(leaves, place_of(position), own):
                    stream.writelines(_entry(f"{position:0{self._digits}}.{name}", data))
            stream.write(bytes(2 * tarfile.BLOCKSIZE))
        return len(part)


def _entry(name: str, data: bytes) -> tuple[bytes, bytes, bytes]:
    """A file in a tar, without a time and an owner: the same samples make the same bytes."""
    header = tarfile.TarInfo(name)
    header.size = len(data)
    return header.tobuf(tarfile.GNU_FORMAT), data, bytes(-len(data) % tarfile.BLOCKSIZE)


class Folders:
    """Writes a folder for each sample with a file for each field; one file where a sample is one leaf."""

    def __init__(self, job: Job, folder: str, digits: int) -> None:
        self._job, self._folder, self._digits = job, folder, digits
        self._naming = Naming("files")

    def __call__(self, numbered: tuple[int, range]) -> int:
        """Write some samples; returns how many."""
        _, part = numbered
        labels = json_labels(self._job, part)
        for position, leaves in self._job.samples(part):
            own = labels[position - part.start] if labels else None
            stem = os.path.join(self._folder, f"{position:0{self._digits}}")
            between = "." if list(leaves) == [""] else os.sep
            durable.make_parent(f"{stem}{between}")
            for name, data in self._naming.files(leaves, place_of(position), own):
                write_small(f"{stem}{between}{name}", data)
        return len(part)
