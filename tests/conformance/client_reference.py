"""The reference reader as a client of the suite: python client_reference.py PATH

It makes the document of README.md from schemas and bytes, without a class of any sample.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import resource
import struct
import sys
import zipfile
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import reference

MEMORY = 4 << 30


def integer(data: bytes) -> dict[str, str]:
    return {"int": str(int.from_bytes(data, "little", signed=True))}


def real(data: bytes) -> str:
    return data[::-1].hex()


def text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def moment(data: bytes, zone: Any) -> dict[str, Any]:
    number = int.from_bytes(data, "little", signed=True)
    return {"datetime": [str(number >> 1), number & 1, zone]}


def packed(kind: str, data: bytes) -> list[Any]:
    if kind == "bools":
        return [[False, True][byte] for byte in data]
    if kind == "strs":
        count = int.from_bytes(data[:8], "little")
        lengths = struct.unpack_from(f"<{count}q", data, 8)
        return [text(data[a:b]) for a, b in pairwise(accumulate(lengths, initial=8 * (count + 1)))]
    items = [data[k : k + 8] for k in range(0, len(data), 8)]
    return [integer(item) if kind == "ints" else {"float": real(item)} for item in items]


PLAIN = {
    "bool": lambda data: [False, True][data[0]],
    "int": integer,
    "bigint": integer,
    "float": lambda data: {"float": real(data)},
    "complex": lambda data: {"complex": [real(data[:8]), real(data[8:])]},
    "uuid": lambda data: {"uuid": data.hex()},
    "date": lambda data: {"date": integer(data)["int"]},
    "timedelta": lambda data: {"timedelta": list(struct.unpack("<3i", data))},
    "str": text,
    "numpy.str": lambda data: {"numpy.str": text(data)},
    **{kind: (lambda data, kind=kind: {kind: coded(data)}) for kind in ("bytes", "bytearray", "numpy.bytes")},
}


def leaf(node: Any, data: bytes, dims: Any) -> Any:
    """The canonical value of a leaf."""
    if isinstance(node, str):
        return PLAIN[node](data)
    kind, *rest = node
    if kind in ("array", "tensor"):
        return {kind: [rest[0], list(rest[1] if dims is None else dims), digest(data)]}
    if kind == "scalar":
        return {kind: [rest[0], data.hex()]}
    if kind == "datetime":
        return moment(data, rest[0])
    if kind in ("path", "enum"):
        return {kind: [*rest, text(data)]}
    if kind == "imagefile":
        return {kind: digest(data)}
    return {rest[0]: packed(kind, data)}


def key(node: Any) -> Any:
    """The canonical value of the key of a dict."""
    if isinstance(node, str):
        return node
    kind, *rest = node
    return {kind: str(rest[0]) if kind == "int" else rest}


def container(node: Any, values: Any) -> Any:
    """The canonical value of a tree of leaves."""
    kind = node if isinstance(node, str) else node[0]
    if kind == "none":
        return None
    if kind in ("list", "tuple"):
        return {kind: [container(child, values) for child in node[1]]}
    if kind in ("dict", "OrderedDict"):
        return {kind: [[key(k), container(child, values)] for k, child in zip(*node[1:], strict=True)]}
    if kind in ("namedtuple", "dataclass"):
        fields = [[name, container(child, values)] for name, child in zip(*node[3:], strict=True)]
        return {kind: [*node[1:3], fields]}
    return next(values)


def sample(schema: str, record: bytes) -> Any:
    """The canonical value of a record."""
    tree, parts = reference.parts(schema, record)
    return container(tree, iter([leaf(part.node, part.data, part.dims) for part in parts]))


def label(value: Any) -> Any:
    """The canonical value of a label, as Arrow gives it to Python."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return {"int": str(value)}
    if isinstance(value, float):
        return {"float": struct.pack(">d", value).hex()}
    if isinstance(value, dt.datetime):
        return {
            "datetime": [
                str((value.replace(tzinfo=None) - dt.datetime.min) // dt.timedelta(0, 0, 1)),
                0,
                None,
            ]
        }
    if isinstance(value, list) and not any(isinstance(item, list) for item in value):
        return {"list": [label(item) for item in value]}
    raise AssertionError(f"a label of {type(value)}")


def kinds(column: list[Any]) -> set[str]:
    """The kinds of the labels of a column: numbers are one."""
    named = {next(iter(value)) if isinstance(value, dict) else type(value).__name__ for value in column}
    return {"number" if kind in ("bool", "int", "float") else kind for kind in named - {"NoneType"}}


def document(path: str) -> dict[str, Any]:
    archive = reference.walk(path)
    if zipfile.is_zipfile(path):
        listed = reference.read_zip(path)
        assert (listed.length, listed.records, listed.schemas) == archive[:3]
    samples = {
        str(index): sample(archive.schemas[index], record)
        for index, record in sorted(archive.records.items())
    }
    assert archive.length <= Path(path).stat().st_size
    labels = {
        name: [label(column.get(index)) for index in range(archive.length)]
        for name, column in archive.labels.items()
    }
    assert all(len(kinds(column)) <= 1 for column in labels.values()), "a column of several types"
    return {"length": archive.length, "samples": samples, "labels": labels}


def main(path: str) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        print(json.dumps(document(path)))
    except Exception as error:  # it asserts all that it relies on
        print("refused", repr(error)[:200].replace("\n", " "))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
