"""Values as text for a person, a spreadsheet or a program; pure functions, nothing is printed here.

What comes out of an archive may be anybody's: text meant for a terminal goes through `printable`.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import io
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from edcache.sizes import human_bytes

if TYPE_CHECKING:
    from edcache.exporting import ExportReport
    from edcache.housekeeping import Held, Listed
    from edcache.local import Copied
    from edcache.maintain import CompactReport, MergeReport, Piece, RepairReport
    from edcache.maintain import Report as VerifyReport

_WIDEST: Final = 60
_SHOWN_ITEMS: Final = 8
_SHOWN_SCHEMAS: Final = 8
_SHOWN_RUNS: Final = 200
_DEEPEST: Final = 64
_LAYOUT_ROWS: Final = 1000
_NUMBER: Final = re.compile(r"[-+]?[\d,]+(\.\d+)?(e[-+]?\d+)?( bytes| [kMGTPE]B)?|nan|[-+]?inf")


def plural(number: int, noun: str) -> str:
    """ "1 sample", "1,000 samples"."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def printable(text: str) -> str:
    """The text with everything that could steer a terminal written as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(message: str) -> str:
    """A message of several lines as one; a line that ends with a colon runs on into the next."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    joined = "".join(line + (" " if line.endswith(":") else "; ") for line in lines[:-1])
    return printable(joined + (lines[-1] if lines else ""))


def cell(value: object) -> str:
    """A value as one cell of a table, short and on one line."""
    text = f"{value:.6g}" if isinstance(value, float) else str(plain(value))
    text = printable(text)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


def plain(value: object) -> Any:
    """A value as JSON has it.

    Times are ISO 8601, bytes are hex, floats that JSON lacks are "nan", "inf", "-inf"; an array is
    nested lists, and whatever else comes is its str().
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, np.generic):
        return str(value) if value.dtype.kind in "mMV" else plain(value.item())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value] if value.ndim else plain(value[()])
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


# ---------------------------------------------------------------------------------- rows as text


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, whole: int = 0) -> Iterator[str]:
    """Aligned columns, line by line; numbers and sizes to the right.

    The widths are those of the first thousand rows, so that millions of rows need no memory.

    Args:
        whole: in so many columns from the left nothing is shortened: they hold what is typed elsewhere.
    """
    texts = (
        [printable(str(value)) for value in row[:whole]] + [cell(value) for value in row[whole:]]
        for row in rows
    )
    first = list(islice(texts, _LAYOUT_ROWS))
    names = [cell(name) for name in header]
    widths = [max(map(len, column)) for column in zip(names, *first, strict=True)]
    columns = list(zip(*first, strict=True)) or [()] * len(names)
    right = [all(_NUMBER.fullmatch(text) for text in column) for column in columns]
    for row in chain([names], first, texts):
        padded = (
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(row, widths, right, strict=True)
        )
        yield "  ".join(padded).rstrip()


def _pairs(items: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Names and values, one pair a line, the values aligned."""
    listed = list(items)
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        yield f"{name.ljust(width)}  {printable(str(value))}".rstrip()


def csv_lines(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Lines of RFC 4180 with a header; a missing value is an empty field, a list its JSON."""
    for row in chain([header], rows):
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="").writerow([_csv_value(value) for value in row])
        yield buffer.getvalue()


def _csv_value(value: object) -> object:
    value = plain(value)
    return json.dumps(value) if isinstance(value, (list, dict)) else value


def json_lines(objects: Iterable[object]) -> Iterator[str]:
    """One JSON array, an element a line."""
    before = "["
    for item in objects:
        yield f"{before}{json.dumps(item)}" if before == "[" else f",{json.dumps(item)}"
        before = ","
    yield "]" if before == "," else "[]"


# ------------------------------------------------------------------------------- one sample's tree


def describe_sample(sample: object) -> list[dict[str, Any]]:
    """The leaves of a sample in tree order, each a JSON object.

    Keys: path, type, dtype, shape, value (what is short), min, mean, max (of numbers), items (of a
    long list) and nonfinite (how many are nan or infinite); each only where it applies.
    """
    return [{"path": ".".join(map(str, path)), **_leaf(value)} for path, value in _leaves(sample, ())]


def leaf_row(leaf: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """A described leaf as the cells path, type, dtype, shape, value."""
    shape = "" if "shape" not in leaf else _shape_text(leaf["shape"])
    return leaf["path"] or ".", leaf["type"], leaf.get("dtype", ""), shape, _value_text(leaf)


def _shape_text(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _value_text(leaf: Mapping[str, Any]) -> str:
    if "value" in leaf:
        return repr(leaf["value"]) if leaf["type"] == "str" else _short(leaf["value"])
    said = [f"{name} {cell(leaf[name])}" for name in ("min", "mean", "max") if name in leaf]
    said += [plural(leaf["items"], "item")] if "items" in leaf else []
    said += [f"{leaf['nonfinite']:,} not finite"] if "nonfinite" in leaf else []
    return ", ".join(said)


def _short(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _leaves(value: Any, path: tuple[object, ...]) -> Iterator[tuple[tuple[object, ...], Any]]:
    children = _children(value) if len(path) < _DEEPEST else None
    if not children:
        yield path, value
        return
    for key, child in children:
        yield from _leaves(child, (*path, key))


def _children(value: Any) -> list[tuple[object, Any]] | None:
    """Key and value of each child; None for a leaf, which a long list of plain values is too."""
    if isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, (list, tuple)):
        atoms = all(item is None or isinstance(item, (bool, int, float, str, bytes)) for item in value)
        return None if atoms and len(value) > _SHOWN_ITEMS else list(enumerate(value))
    return None


def _leaf(value: Any) -> dict[str, Any]:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _array_leaf(value)
    if hasattr(value, "mode") and hasattr(value, "getpixel"):
        return {"type": "PIL.Image", "dtype": value.mode, "shape": [value.height, value.width]}
    described: dict[str, Any] = {"type": type(value).__qualname__}
    if isinstance(value, (bytes, bytearray, list, tuple, Mapping)):
        return described | {"items": len(value)}
    if value is None or isinstance(value, (bool, int, float)):
        return described | {"value": plain(value)}
    text = value if isinstance(value, str) else str(plain(value))
    return described | {"value": text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."}


def _array_leaf(value: Any) -> dict[str, Any]:
    described: dict[str, Any] = {
        "type": f"{type(value).__module__}.{type(value).__qualname__}",
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": [int(size) for size in value.shape],
    }
    array = _as_array(value)
    if array is None or not array.size:
        return described
    if array.size <= _SHOWN_ITEMS and array.dtype.kind != "O":
        return described | {"value": plain(array)}
    return described | _statistics(array)


def _as_array(value: Any) -> npt.NDArray[Any] | None:
    """The numbers as numpy; a float type that numpy lacks becomes float64."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    try:
        tensor = value.detach().cpu()
        if tensor.is_floating_point():
            tensor = tensor.double()
        array: npt.NDArray[Any] = tensor.numpy()
    except (AttributeError, TypeError, RuntimeError, ValueError, NotImplementedError):
        return None  # sparse, quantized, or no tensor at all
    return array


def _statistics(array: npt.NDArray[Any]) -> dict[str, Any]:
    if array.dtype.kind not in "biuf":
        return {}
    finite = array
    if array.dtype.kind == "f":
        finite = array[np.isfinite(array)]
    lost = {"nonfinite": array.size - finite.size} if finite.size < array.size else {}
    if not finite.size:
        return lost
    with np.errstate(over="ignore"):
        mean = plain(finite.mean(dtype=np.float64))
    return {"min": plain(finite.min()), "mean": mean, "max": plain(finite.max()), **lost}


# ---------------------------------------------------------------------------------------- schemas


def describe_fields(fields: Iterable[Any]) -> list[dict[str, Any]]:
    """The leaves that a schema promises: path, kind, dtype and shape (null where it varies).

    Args:
        fields: with the attributes path, kind, dtype and shape, as a decoder lists them.
    """
    return [
        {
            "path": ".".join(map(str, field.path)),
            "kind": field.kind,
            "dtype": None if field.dtype is None else str(field.dtype).removeprefix("torch."),
            "shape": None if field.shape is None else list(field.shape),
        }
        for field in fields
    ]


def _field_row(field: Mapping[str, Any]) -> tuple[str, str, str, str]:
    sized = field["kind"] in ("tensor", "array", "scalar")
    shape = "varies" if field["shape"] is None else _shape_text(field["shape"])
    return field["path"] or ".", field["kind"], field["dtype"] if sized else "", shape if sized else ""


# -------------------------------------------------------------------------------------- an archive


def info_lines(said: Mapping[str, Any]) -> Iterator[str]:
    """What `edcache info` says: from its JSON form to lines for a person."""
    yield from _pairs(_info_pairs(said))
    for schema in said["schemas"][:_SHOWN_SCHEMAS]:
        yield f"\nschema of {plural(schema['samples'], 'sample')}"
        if schema["fields"]:
            yield from table(("field", "kind", "dtype", "shape"), map(_field_row, schema["fields"]))
        else:
            yield "each record says its own, see edcache show" if said["codec"] == "native" else "pickles"
    if len(said["schemas"]) > _SHOWN_SCHEMAS:
        yield f"\n{len(said['schemas']) - _SHOWN_SCHEMAS:,} more schemas; --json lists all"


def _info_pairs(said: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    yield "archive", said["path"]
    yield "samples", f"{said['samples']:,}"
    yield "missing", f"{said['missing']:,}"
    yield "sealed", "yes" if said["sealed"] else "no"
    if said["chunks"] is not None:
        yield "chunks", f"{said['chunks']:,}"
    yield "file", f"{human_bytes(said['nbytes'])} ({said['nbytes']:,} bytes)"
    record = said["record_nbytes"]
    if record["max"] is not None:
        yield "record", f"median {human_bytes(record['median'])}, max {human_bytes(record['max'])}"
    yield "codec", said["codec"]
    yield "compression", _compression_text(said)
    yield "labels", ", ".join(f"{name}: {kind}" for name, kind in said["labels"].items()) or "none"
    yield from _fingerprint_pairs(said["fingerprint"] or {})
    yield "format", said["format_version"]
    yield "uuid", said["uuid"]
    if "digest" in said:
        yield "digest", said["digest"]


def _compression_text(said: Mapping[str, Any]) -> str:
    record = said["record_nbytes"]
    if not (record["uncompressed"] and record["total"]):
        return said["compression"] or "none"
    return f"{said['compression']}, {record['uncompressed'] / record['total']:.2f} : 1"


def _fingerprint_pairs(fingerprint: dict[str, Any]) -> Iterator[tuple[str, object]]:
    for key in ("type", "factory"):
        if key in fingerprint:
            yield key, fingerprint[key]
    arguments = _arguments(fingerprint)
    if arguments:
        yield "arguments", ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    if fingerprint.get("version") is not None:
        yield "version", fingerprint["version"]


def _arguments(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in a fingerprint, which may be anybody's."""
    found = fingerprint.get("arguments")
    return found if isinstance(found, dict) else {}


def report_lines(path: str, report: VerifyReport) -> Iterator[str]:
    """What `edcache verify` says: the problems, then the result, then what compacting would give back."""
    yield from map(printable, report.problems)
    state = "sealed" if report.sealed else "not sealed"
    missing = f", {report.missing:,} missing" if report.missing else ""
    result = "OK" if report.sound else plural(len(report.problems), "problem")
    unread = "; records were not read" if report.quick else ""
    yield (
        f"{printable(path)}: {result}: {plural(report.samples, 'sample')}{missing} in "
        f"{plural(report.chunks, 'chunk')}, {human_bytes(report.nbytes)}, {state}{unread}"
    )
    if report.failures:
        yield f"{plural(report.failures, 'sample')} failed when tried; they are among the missing"
    if report.dead.total:
        parts = ", ".join(_dead_parts(report))
        yield f"{human_bytes(report.dead.total)} dead ({parts}); edcache compact leaves them out"


def _dead_parts(report: VerifyReport) -> Iterator[str]:
    dead = report.dead
    if dead.old_seals:
        yield f"old seals {human_bytes(dead.old_seals)}"
    if report.superseded:
        yield f"{plural(report.superseded, 'outdated record')} {human_bytes(dead.superseded)}"
    if dead.lost:
        yield f"lost in power cuts {human_bytes(dead.lost)}"
    if dead.torn:
        yield f"torn tail {human_bytes(dead.torn)}"


def report_object(path: str, report: VerifyReport) -> dict[str, Any]:
    """What `edcache verify` says, as JSON has it."""
    names = ("sound", "quick", "sealed", "samples", "missing", "failures", "chunks", "nbytes", "superseded")
    said = {name: getattr(report, name) for name in names}
    dead = {"nbytes": report.dead.total, **dataclasses.asdict(report.dead)}
    return {"path": path, **said, "dead": dead, "problems": report.problems}


def copied_lines(copied: Copied) -> Iterator[str]:
    """What `edcache copy` says, in one line."""
    what = human_bytes(copied.nbytes)
    if copied.archives > 1:
        what = f"{copied.archives:,} archives, {what}"
    fetched = "here already" if not copied.fetched else f"{human_bytes(copied.fetched)} fetched"
    yield f"{printable(copied.path)}: {what}, {fetched}"


def compact_lines(report: CompactReport) -> Iterator[str]:
    """What `edcache compact` says, in one line."""
    place, samples = printable(report.path), plural(report.samples, "sample")
    if not report.rewritten:
        yield f"{place}: compact already: {samples} in {human_bytes(report.nbytes)}, nothing was written"
        return
    sizes = f"{human_bytes(report.nbytes_before)} -> {human_bytes(report.nbytes)}"
    chunks = f"{report.chunks_before:,} -> {plural(report.chunks, 'chunk')}"
    yield f"{place}: {samples}, {sizes} ({human_bytes(report.dead_nbytes)} less), {chunks}, sealed"


def merge_line(report: MergeReport) -> str:
    """What `edcache merge` says."""
    missing = f", {report.length - report.samples:,} missing" if report.samples < report.length else ""
    samples = f"{plural(report.length, 'sample')}{missing}"
    came = f"from {plural(report.archives, 'archive')}"
    return f"{printable(report.path)}: {samples} {came}, {human_bytes(report.nbytes)}, sealed"


def split_lines(pieces: Sequence[Piece]) -> Iterator[str]:
    """What `edcache split` says: a line an archive, and one for all."""
    has_values = any(piece.value is not None for piece in pieces)
    header = ("path", "samples", "missing", "size", *(["value"] if has_values else []))
    yield from table(header, (_piece_row(piece, has_values) for piece in pieces), whole=1)
    length, nbytes = sum(piece.length for piece in pieces), sum(piece.nbytes for piece in pieces)
    yield f"{plural(length, 'sample')} in {plural(len(pieces), 'archive')}, {human_bytes(nbytes)}"


def _piece_row(piece: Piece, has_value: bool) -> tuple[object, ...]:
    missing = f"{piece.length - piece.samples:,}"
    row = (piece.path, f"{piece.length:,}", missing, human_bytes(piece.nbytes))
    return (*row, piece.value) if has_value else row


def export_line(report: ExportReport) -> str:
    """What `edcache export` says."""
    files = f"{plural(report.files, 'file')}, {human_bytes(report.nbytes)}"
    return f"{printable(report.path)}: {plural(report.samples, 'sample')} as {report.to}, {files}"


def repair_lines(path: str, target: str, report: RepairReport) -> Iterator[str]:
    """What `edcache repair` says: what was found, a table of what became of the samples, which are lost."""
    yield from map(printable, report.problems)
    yield from _pairs(_repair_pairs(path, target, report))
    if len(report.lost):
        yield f"lost: {index_ranges(report.lost)}"
    if len(report.unlabelled):
        yield f"without labels: {index_ranges(report.unlabelled)}"
    for name in report.lost_revisions:
        yield f"lost: what {name} said of labels; add or drop them again"
    for doubtful in report.doubtful:
        held = "samples" if doubtful.samples is None else f"{doubtful.samples:,} samples"
        entries = f"entry {doubtful.seq:,}"
        if doubtful.entries > 1:
            entries = f"entries {doubtful.seq:,}-{doubtful.seq + doubtful.entries - 1:,}"
        place = f"doubtful: {entries} at offset {doubtful.offset:,}"
        yield f"{place}: nothing intact tells which {held} were there"


def _repair_pairs(path: str, target: str, report: RepairReport) -> Iterator[tuple[str, object]]:
    yield "damaged", path
    yield "repaired", f"{target}, {human_bytes(report.nbytes)}"
    yield "samples", f"{report.length:,}"
    yield "kept", f"{report.kept:,}"
    yield "lost", f"{len(report.lost):,}"
    if len(report.unlabelled):
        yield "without labels", f"{len(report.unlabelled):,}"
    if report.lost_revisions:
        yield "labels lost", plural(len(report.lost_revisions), "revision")
    if report.doubtful:
        yield "doubtful", plural(sum(doubtful.entries for doubtful in report.doubtful), "chunk")
    if report.head_lost:
        yield "head", "lost: the fingerprint is unknown, the options are guessed"


def repair_object(path: str, target: str, report: RepairReport) -> dict[str, Any]:
    """What `edcache repair` says, as JSON has it."""
    return {
        "path": path,
        "target": target,
        "whole": report.is_whole,
        "length": report.length,
        "kept": report.kept,
        "lost": report.lost.tolist(),
        "unlabelled": report.unlabelled.tolist(),
        "lost_revisions": report.lost_revisions,
        "doubtful": [dataclasses.asdict(doubtful) for doubtful in report.doubtful],
        "head_lost": report.head_lost,
        "nbytes": report.nbytes,
        "problems": report.problems,
    }


def index_ranges(indices: npt.NDArray[np.int64]) -> str:
    """Sorted indices as "17, 40-63"; the first two hundred runs."""
    breaks = np.flatnonzero(np.diff(indices) != 1)
    starts = indices[np.append(0, breaks + 1)].tolist()
    ends = indices[np.append(breaks, len(indices) - 1)].tolist()
    runs = [f"{low}" if low == high else f"{low}-{high}" for low, high in zip(starts, ends, strict=True)]
    more = len(runs) - _SHOWN_RUNS
    return ", ".join(runs[:_SHOWN_RUNS]) + (f", and {more:,} more runs; --json lists all" if more > 0 else "")


# ------------------------------------------------------------------------------------ fingerprints


def call_text(fingerprint: Mapping[str, Any] | None) -> str:
    """The call that a fingerprint describes, as Python has it: "digits:make(split='train', n=6)"."""
    if not fingerprint:
        return ""
    if "factory" not in fingerprint:
        return str(fingerprint.get("type", ""))
    arguments = (f"{name}={_value_said(value)}" for name, value in _arguments(fingerprint).items())
    return f"{fingerprint['factory']}({', '.join(arguments)})"


def _value_said(value: object) -> str:
    """A value of a fingerprint: what is no plain value stands there as a list of its one text."""
    return value[0] if isinstance(value, list) and len(value) == 1 and type(value[0]) is str else repr(value)


def fingerprint_lines(path: str, fingerprint: Mapping[str, Any] | None) -> Iterator[str]:
    """What an archive says of where its samples come from, an argument a line."""
    yield from _pairs([("archive", path), *_origin_pairs(fingerprint or {})])


def _origin_pairs(fingerprint: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    if not fingerprint:
        yield "fingerprint", "none: the archive was written without a dataset"
    for key in ("type", "factory"):
        if key in fingerprint:
            yield key, fingerprint[key]
    for name, value in _arguments(fingerprint).items():
        yield "argument", f"{name}={_value_said(value)}"
    if fingerprint.get("version") is not None:
        yield "version", _value_said(fingerprint["version"])
    if fingerprint.get("source") is not None:
        yield "source digest", fingerprint["source"]


def comparison_lines(call: Mapping[str, Any], different: Sequence[str]) -> Iterator[str]:
    """Whether an archive is that of a call, and where not, what differs, a line each."""
    shown = printable(call_text(call))
    yield f"differs from {shown}:" if different else f"matches {shown}"
    yield from (f"  {printable(line)}" for line in different)


# --------------------------------------------------------------------------------- archives as files


def listing_lines(directory: str, archives: Sequence[Listed]) -> Iterator[str]:
    """What `edcache caches` says: a table of the archives, those that cannot be read, the total."""
    sound = [archive for archive in archives if archive.problem is None]
    if sound:
        header = ("path", "size", "present", "length", "complete", "last used", "call")
        yield from table(header, (_listing_row(directory, archive) for archive in sound), whole=1)
    yield from (one_line(archive.problem) for archive in archives if archive.problem is not None)
    broken = len(archives) - len(sound)
    unread = f", {broken:,} more cannot be read" if broken else ""
    yield f"{printable(directory)}: {sizes_text(sound)}{unread}"


def memory_lines(archives: Sequence[Held]) -> Iterator[str]:
    """What `edcache caches shm://` says: a table of the archives in memory, and the total."""
    if archives:
        rows = ((a.path, human_bytes(a.nbytes), " ".join(map(str, a.pids))) for a in archives)
        yield from table(("path", "size", "processes"), rows, whole=1)
    total = human_bytes(sum(archive.nbytes for archive in archives))
    yield f"{plural(len(archives), 'archive')} in memory, {total}"


def memory_object(archives: Sequence[Held]) -> dict[str, Any]:
    """What `edcache caches shm://` says, as JSON has it."""
    listed = [{"path": a.path, "nbytes": a.nbytes, "processes": list(a.pids)} for a in archives]
    return {"archives": listed, "nbytes": sum(archive.nbytes for archive in archives)}


def _listing_row(directory: str, archive: Listed) -> tuple[str, ...]:
    return (
        *pruning_row(directory, archive)[:2],
        f"{archive.present:,}",
        f"{archive.length:,}",
        "yes" if archive.complete else "no",
        _use_text(archive),
        call_text(archive.fingerprint) if archive.origin is None else f"copy of {archive.origin}",
    )


def pruning_row(directory: str, archive: Listed) -> tuple[str, str, str]:
    """An archive as the cells path, size, last use."""
    path = os.path.relpath(archive.path, directory)
    return path, human_bytes(archive.nbytes), _use_text(archive)


def _use_text(archive: Listed) -> str:
    when = datetime.datetime.fromtimestamp(archive.used)
    return f"{when:%Y-%m-%d %H:%M}" + ("" if archive.was_read else " (written)")


def sizes_text(archives: Sequence[Listed]) -> str:
    """ "3 archives, 38.5 MB"."""
    return f"{plural(len(archives), 'archive')}, {human_bytes(sum(archive.nbytes for archive in archives))}"


def listing_object(directory: str, archives: Sequence[Listed]) -> dict[str, Any]:
    """What `edcache caches` says, as JSON has it; the total is of the archives that can be read."""
    return {
        "directory": directory,
        "archives": [_listed_object(directory, archive) for archive in archives],
        "nbytes": sum(archive.nbytes for archive in archives if archive.problem is None),
    }


def _listed_object(directory: str, archive: Listed) -> dict[str, Any]:
    used = datetime.datetime.fromtimestamp(archive.used, datetime.timezone.utc)
    return {
        "path": os.path.relpath(archive.path, directory),
        "nbytes": archive.nbytes,
        "last_used": used.isoformat(timespec="seconds"),
        "last_use": "read" if archive.was_read else "written",
        "present": archive.present,
        "absent": archive.absent,
        "length": archive.length,
        "complete": archive.complete,
        "sealed": archive.sealed,
        "fingerprint": archive.fingerprint,
        "origin": archive.origin,
        "problem": None if archive.problem is None else one_line(archive.problem),
    }
