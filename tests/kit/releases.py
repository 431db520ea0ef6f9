"""A later release of the package: a copy of it under another name, which reads more, and writes it when told.

`edcache_later` is made of this package's source by small edits, each of which adds one thing to the format. All of
them are read always. What a writer uses of them stands in `used(release)`, a set of names of `THINGS`.
"""

from __future__ import annotations

import atexit
import importlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import edcache

NAME = "edcache_later"
# Imports, and the places of backends, which are imported by their names.
_OWN_NAME = re.compile(r'(?m)(^ *from |")edcache(?= import |\.[a-z_]+(?:\.[a-z_]+)*(?: import |:))')


class Thing(NamedTuple):
    """What a later release adds. told: how this release names it in an error, a pattern. edits: of the source: file,
    text, and what stands there instead.
    """

    told: str
    edits: tuple[tuple[str, str, str], ...]


_USES = "from edcache_later.format.entries import USES\n"


def _import(file: str, before: str) -> tuple[str, str, str]:
    """Let a file of the later release see what is used."""
    return file, before, _USES + before


_ENTRY = r"of entries, as \S+ at offset [\d,]+"

THINGS: dict[str, Thing] = {
    # --- entries
    "version": Thing(
        f"version 4 {_ENTRY}",
        (
            ("format/entries.py", "VERSION: Final = 3\n", "VERSION: Final = 3\nUSES: set[str] = set()\n"),
            ("format/entries.py", "self.version > VERSION or", "self.version > 4 or"),
            ("format/entries.py", "version == VERSION and data.starts", "version in (3, 4) and data.starts"),
            # What are zeros so far.
            (
                "format/entries.py",
                'ljust(total, b"\\0")',
                'ljust(total, b"\\0" if h.version == 3 else b"\\4")',
            ),
            _import("writer/entry_group.py", "from edcache_later.format import Chain"),
            (
                "writer/entry_group.py",
                "            headers.append(linked(header))\n",
                "            if 'version' in USES:\n"
                "                header = replace(header, version=4)\n"
                "            if 'kind' in USES and header.kind == format.CHUNK:\n"
                "                header = replace(header, stored=7)\n"
                "            headers.append(linked(header))\n",
            ),
        ),
    ),
    "kind": Thing(  # 7, of an entry with samples, which is read as a chunk
        f"the kind 7 {_ENTRY}",
        (
            (
                "format/entries.py",
                "    version: int = VERSION\n    moved: int = 0\n",
                "    version: int = VERSION\n    moved: int = 0\n"
                "    stored: int | None = field(default=None, compare=False)\n",
            ),
            (
                "format/entries.py",
                "header = Header(kind, name, uuid, *said)",
                "header = Header(CHUNK if kind == 7 else kind, name, uuid, *said, 0, kind)",
            ),
            (
                "format/entries.py",
                "private_nbytes, h.version, h.kind, *place",
                "private_nbytes, h.version, h.kind if h.stored is None else h.stored, *place",
            ),
        ),
    ),
    "kind in a seal": Thing(
        f"the kind 10 {_ENTRY}",
        (
            ("format/entries.py", "{*range(7), PART}", "{*range(7), PART, 10}"),
            _import("writer/seal.py", "from edcache_later.format import Chain"),
            (
                "writer/seal.py",
                '        group.entry(format.ROOT, "root.json").write(',
                "        if 'kind in a seal' in USES:\n"
                "            group.entry(10, 'summary.json').write(b'{}')\n"
                '        group.entry(format.ROOT, "root.json").write(',
            ),
        ),
    ),
    # --- JSON
    "version of the head": Thing(
        r"archive format 4 \(this release knows 3\)",
        (
            ("format/head.py", "header.version > VERSION", "header.version > 4"),
            ("format/head.py", "is int and version > VERSION", "is int and version > 4"),
            _import("format/head.py", "from edcache_later.format.entries import"),
            (
                "format/head.py",
                "    header = Header(HEAD, HEAD_NAME, head.uuid, 0, 0, len(payload), crc32(payload), total, 0)\n",
                "    header = Header(HEAD, HEAD_NAME, head.uuid, 0, 0, len(payload), crc32(payload), total, 0)\n"
                "    if 'version of the head' in USES:\n"
                "        header = replace(header, version=4)\n",
            ),
            (
                "format/head.py",
                "    length: int | None = None\n    codec:",
                "    version: int = VERSION\n    length: int | None = None\n    codec:",
            ),
            ("format/head.py", "    lists = {name: ", "    meta['version'] = kind[1]\n    lists = {name: "),
            ("format/head.py", 'kind == ("edcache", VERSION)', 'kind in (("edcache", 3), ("edcache", 4))'),
            ("format/head.py", "import asdict, ", "import asdict, replace, "),
        ),
    ),
    "key of the head": Thing(
        "the key 'order' of edcache.json",
        (
            (
                "format/head.py",
                "    more: Mapping[str, Any] = field(default_factory=dict)\n",
                "    more: Mapping[str, Any] = field(default_factory=dict)\n    order: Any = None\n",
            ),
            (
                "format/head.py",
                '        return {"format": "edcache", "version": VERSION, **asdict(self), "uuid": self.uuid.hex()}',
                "        said = {'format': 'edcache', 'version': VERSION, **asdict(self), 'uuid': self.uuid.hex()}\n"
                "        if self.order is None:\n"
                "            del said['order']\n"
                "        return said",
            ),
            (
                "format/head.py",
                "    check_known(meta, _KEYS, HEAD_NAME)\n",
                "    meta.setdefault('order', None)\n    check_known(meta, _KEYS, HEAD_NAME)\n",
            ),
            (
                "format/head.py",
                "    text = json.dumps(head.to_json()",
                "    head = replace(\n"
                "        head,\n"
                "        version=4 if 'version of the head' in USES else head.version,\n"
                "        order=[1] if 'key of the head' in USES else head.order,\n"
                "        codec='compact' if 'codec' in USES else head.codec,\n"
                "        compression='zstd:3 long' if 'compression' in USES else head.compression,\n"
                "        reads=['long records'] if 'reads of the head' in USES else head.reads,\n"
                "        writes=['ledger'] if 'writes of the head' in USES else head.writes,\n"
                "        more={'made by': 4} if 'more of the head' in USES else head.more,\n"
                "    )\n"
                "    text = json.dumps(head.to_json()",
            ),
        ),
    ),
    "codec": Thing(
        "the codec 'compact'",
        (("format/head.py", '"native", "pickle"\n', '"native", "pickle", "compact"\n'),),
    ),
    "compression": Thing(  # whose frames are as before
        "the compression 'zstd:3 long'",
        (("codec/compression.py", '[0-9]{1,2}))?")', '[0-9]{1,2}))?(?: long)?")'),),
    ),
    "reads of the head": Thing(
        "'long records'", (("format/head.py", "READS: Final = frozenset[str]()", "READS = {'long records'}"),)
    ),
    "writes of the head": Thing(
        "'ledger' for writing",
        (("format/head.py", "WRITES: Final = frozenset[str]()", "WRITES = {'ledger'}"),),
    ),
    "more of the head": Thing("nothing", ()),
    "key of a root": Thing(
        "the key 'order' of root.json",
        (
            (
                "format/root.py",
                "    more: Mapping[str, Any] = field(default_factory=dict)\n",
                "    more: Mapping[str, Any] = field(default_factory=dict)\n    order: Any = None\n",
            ),
            (
                "format/root.py",
                '    meta["head"] = root.head.to_json()\n',
                "    meta['head'] = root.head.to_json()\n    if root.order is None:\n        del meta['order']\n",
            ),
            (
                "format/root.py",
                "        check_known(meta, _FIELDS",
                "        meta.setdefault('order', None)\n        check_known(meta, _FIELDS",
            ),
            (
                "writer/seal.py",
                "        root = replace(root, reads=chain.reads, writes=chain.writes, more={})\n",
                "        reads, writes, more = list(chain.reads), list(chain.writes), {}\n"
                "        if 'reads of a root' in USES and 'long records' not in reads:\n"
                "            reads.append('long records')\n"
                "        if 'writes of a root' in USES and 'ledger' not in writes:\n"
                "            writes.append('ledger')\n"
                "        if 'ledger' in writes:\n"  # which a writer has to keep
                "            more['ledger'] = root.present\n"
                "        if 'more of a root' in USES:\n"
                "            more['made by'] = 4\n"
                "        order = [1] if 'key of a root' in USES else None\n"
                "        root = replace(root, reads=reads, writes=writes, more=more, order=order)\n",
            ),
        ),
    ),
    "reads of a root": Thing("'long records'", ()),
    "writes of a root": Thing("'ledger' for writing", ()),
    "more of a root": Thing("nothing", ()),
    "key of a note": Thing(
        "the key 'order' of a note",
        (
            ("format/chain.py", '"lost", MORE\n', '"lost", MORE, "order", "reads"\n'),
            _import("writer/appender.py", "from edcache_later.format import Chain"),
            (
                "writer/appender.py",
                "        text = json.dumps(changes, ",
                "        own = {'order': [1]} if 'key of a note' in USES else {}\n"
                "        own |= {'reads': ['long records']} if 'reads of a note' in USES else {}\n"
                "        own |= {'more': {'made by': 4}} if 'more of a note' in USES else {}\n"
                "        text = json.dumps({**changes, **own}, ",
            ),
        ),
    ),
    "reads of a note": Thing("'long records'", ()),
    "more of a note": Thing("nothing", ()),
    # --- samples and labels
    "flag": Thing(  # of a record all bytes of which are turned
        "the row flag 4",
        (
            ("format/records.py", "= PRESENT | COMPRESSED\n", "= PRESENT | COMPRESSED | 4\n"),
            _import("writer/builder.py", "from edcache_later.format import MAX_LENGTH"),
            (
                "writer/builder.py",
                '        rows["crc32"] = _record_crc32s(',
                "        if 'flag' in USES:\n"
                "            data = memoryview(bytearray(data))\n"
                "            for at, size in zip(list(offset), list(nbytes), strict=True):\n"
                "                data[at : at + size] = bytes(byte ^ 0x55 for byte in data[at : at + size])\n"
                "            rows['flags'] |= 4\n"
                '        rows["crc32"] = _record_crc32s(',
            ),
            (
                "reader/session.py",
                "        if row[4] != PRESENT:\n            self.checks.check_known(index, row)\n",
                "        if row[4] & 4:\n"
                "            data = memoryview(bytes(byte ^ 0x55 for byte in data))\n",
            ),
            (
                "dataset/keyed_cache.py",
                "        decoder, record = self._decoders[schema], data[:nbytes]\n",
                "        if flags & 4:\n"
                "            data = memoryview(bytes(byte ^ 0x55 for byte in data[:nbytes]))\n"
                "        decoder, record = self._decoders[schema], data[:nbytes]\n",
            ),
        ),
    ),
    "leaf": Thing(
        "the leaf 'time'",
        (
            (
                "codec/leaves.py",
                '    "str": LeafKind(',
                '    "time": LeafKind(\n'
                "        lambda data: dt.time.fromisoformat(_text(data)),\n"
                "        cls=dt.time,\n"
                "        wire=lambda value: text_bytes(value.isoformat()),\n"
                "    ),\n"
                '    "str": LeafKind(',
            ),
        ),
    ),
    "dtype": Thing("the dtype '<f16'", (("codec/dtypes.py", "f[248]", "f(?:[248]|16)"),)),
    "dtype of torch": Thing(
        "the dtype 'bits8' of torch",
        (("codec/dtypes.py", '"bfloat16": "int16"', '"bits8": "uint8", "bfloat16": "int16"'),),
    ),
    "type of a column": Thing(
        r"the label type 'time64\[us\]'",
        (
            ("format/types.py", '{"null": "null"', '{"time64[us]": "clock", "null": "null"'),
            (
                "labels/label_types.py",
                "    return _time(value)\n",
                "    if isinstance(value, dt.time):\n        return pa.time64('us'), value\n    return _time(value)\n",
            ),
            (
                "labels/label_types.py",
                "    dtype = numpy_dtype(kind)\n    missing",
                "    if kind == pa.time64('us'):\n        return pa.array(values, kind)\n"
                "    dtype = numpy_dtype(kind)\n    missing",
            ),
        ),
    ),
}
# What an archive has from its first byte on.
OF_HEAD = {name for name in THINGS if name in ("codec", "compression") or name.endswith("of the head")}
# What a sample brings along; all else is used because `used` says so.
OF_SAMPLE = {"leaf", "dtype", "dtype of torch", "type of a column"}
HARMLESS = {name for name in THINGS if name.startswith("more")}


@cache
def later_release() -> Any:
    """Make the later release, and import it; once a process."""
    folder = Path(tempfile.mkdtemp(prefix="edcache-later-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    package = folder / NAME
    shutil.copytree(
        Path(edcache.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "compat")
    )
    for file in package.rglob("*.py"):
        file.write_text(_OWN_NAME.sub(rf"\1{NAME}", file.read_text()))
    for name, thing in THINGS.items():
        for place, old, new in thing.edits:
            file = package / place
            text = file.read_text()
            assert text.count(old) == 1, f"{name}: {place} has {old!r} {text.count(old)} times"
            file.write_text(text.replace(old, new))
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(NAME)
    finally:
        sys.path.remove(str(folder))


@contextmanager
def using(*names: str) -> Iterator[None]:
    """Let the later release write these of `THINGS` in the block."""
    assert THINGS.keys() >= {*names}
    uses = importlib.import_module(f"{later_release().__name__}.format.entries").USES
    uses.update(names)
    try:
        yield
    finally:
        uses.clear()
