"""What each command says: lines for a person, and the JSON form where it is not the report itself."""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from edcache.base import human_bytes, index_ranges
from edcache.cli.text import one_line, paired_lines, plural, printable, table

if TYPE_CHECKING:
    from edcache.backends.mirror import Copied
    from edcache.backends.shm import Held
    from edcache.interop import ExportReport
    from edcache.tools import CompactReport, Listed, MergeReport, Piece, RepairReport
    from edcache.tools import Report as VerifyReport

_SHOWN_SCHEMAS: Final = 8


# -------------------------------------------------------------------------------------------- info


def info_lines(info: Mapping[str, Any]) -> Iterator[str]:
    """`edcache info`, from its JSON form."""
    yield from paired_lines(_info_pairs(info))
    for schema in info["schemas"][:_SHOWN_SCHEMAS]:
        yield f"\nschema of {plural(schema['samples'], 'sample')}"
        if schema["fields"]:
            yield from table(("field", "kind", "dtype", "shape"), map(_field_row, schema["fields"]))
        else:
            yield "each record says its own, see edcache show" if info["codec"] == "native" else "pickles"
    if len(info["schemas"]) > _SHOWN_SCHEMAS:
        yield f"\n{len(info['schemas']) - _SHOWN_SCHEMAS:,} more schemas; --json lists all"


def _info_pairs(info: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    yield "archive", info["path"]
    yield "samples", f"{info['samples']:,}"
    yield "missing", f"{info['missing']:,}"
    yield "sealed", "yes" if info["sealed"] else "no"
    if info["chunks"] is not None:
        yield "chunks", f"{info['chunks']:,}"
    yield "file", f"{human_bytes(info['nbytes'])} ({info['nbytes']:,} bytes)"
    record, compression = info["record_nbytes"], info["compression"] or "none"
    if record["max"] is not None:
        yield "record", f"median {human_bytes(record['median'])}, max {human_bytes(record['max'])}"
    yield "codec", info["codec"]
    if record["uncompressed"] and record["total"]:
        compression = f"{info['compression']}, {record['uncompressed'] / record['total']:.2f} : 1"
    yield "compression", compression
    yield "labels", ", ".join(f"{name}: {kind}" for name, kind in info["labels"].items()) or "none"
    fingerprint = info["fingerprint"] or {}
    yield from _entries(fingerprint, "type", "factory")
    for key in ("arguments", "attributes"):
        if values := _named(fingerprint, key):
            yield key, ", ".join(f"{name}={value!r}" for name, value in values.items())
    yield from _entries(fingerprint, "version")
    yield "format", info["format_version"]
    yield "uuid", info["uuid"]
    yield from _entries(info, "digest")


def _field_row(field: Mapping[str, Any]) -> tuple[str, str, str, str]:
    sized = field["kind"] in ("tensor", "array", "scalar")
    shape = "varies" if field["shape"] is None else shape_text(field["shape"])
    return field["path"] or ".", field["kind"], field["dtype"] if sized else "", shape if sized else ""


def shape_text(shape: Sequence[int]) -> str:
    """ "3 x 224 x 224"."""
    return " x ".join(map(str, shape)) or "scalar"


# --------------------------------------------------------------------------------------------- why


def fingerprint_lines(path: str, fingerprint: Mapping[str, Any] | None) -> Iterator[str]:
    """What an archive says of where its samples come from, an argument a line."""
    yield from paired_lines([("archive", path), *_origin_pairs(fingerprint or {})])


def _origin_pairs(fingerprint: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    if not fingerprint:
        yield "fingerprint", "none: the archive was written without a dataset"
    yield from _entries(fingerprint, "type", "factory")
    for key in ("argument", "attribute"):
        for name, value in _named(fingerprint, f"{key}s").items():
            yield key, f"{name}={_value_text(value)}"
    if fingerprint.get("version") is not None:
        yield "version", _value_text(fingerprint["version"])
    if fingerprint.get("source") is not None:
        yield "source digest", fingerprint["source"]


def comparison_lines(call: Mapping[str, Any], different: Sequence[str]) -> Iterator[str]:
    """Whether an archive is that of a call, and where not, what differs, a line each."""
    shown = printable(call_text(call))
    yield f"differs from {shown}:" if different else f"matches {shown}"
    yield from (f"  {printable(line)}" for line in different)


def call_text(fingerprint: Mapping[str, Any] | None) -> str:
    """The call that a fingerprint describes, as Python has it: "digits:make(split='train', n=6)"."""
    if not fingerprint:
        return ""
    if "factory" not in fingerprint:
        return str(fingerprint.get("type", ""))
    arguments = (f"{name}={_value_text(value)}" for name, value in _named(fingerprint, "arguments").items())
    return f"{fingerprint['factory']}({', '.join(arguments)})"


def _value_text(value: object) -> str:
    """A value of a fingerprint: what is no plain value stands there as a list of its one text."""
    return value[0] if isinstance(value, list) and len(value) == 1 and type(value[0]) is str else repr(value)


def _entries(values: Mapping[str, Any], *keys: str) -> Iterator[tuple[str, object]]:
    return ((key, values[key]) for key in keys if values.get(key) is not None)


def _named(fingerprint: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The arguments or the attributes in a fingerprint, which may be anybody's."""
    values = fingerprint.get(key)
    return values if isinstance(values, dict) else {}


# ------------------------------------------------------------------------------------------ caches


def listing_lines(directory: str, archives: Sequence[Listed]) -> Iterator[str]:
    """A table of the archives, those that cannot be read, the total."""
    sound = [archive for archive in archives if archive.problem is None]
    if sound:
        header = ("path", "size", "present", "length", "complete", "last used", "call")
        yield from table(header, (_listing_row(directory, archive) for archive in sound), whole=1)
    yield from (one_line(archive.problem) for archive in archives if archive.problem is not None)
    broken = len(archives) - len(sound)
    unread = f", {broken:,} more cannot be read" if broken else ""
    yield f"{printable(directory)}: {sizes_text(sound)}{unread}"


def _listing_row(directory: str, archive: Listed) -> tuple[str, ...]:
    path, size, used = pruning_row(directory, archive)
    counts = f"{archive.present:,}", f"{archive.length:,}", "yes" if archive.complete else "no"
    call = call_text(archive.fingerprint) if archive.origin is None else f"copy of {archive.origin}"
    return (path, size, *counts, used, call)


def pruning_row(directory: str, archive: Listed) -> tuple[str, str, str]:
    """An archive as the cells path, size, last use."""
    used = f"{datetime.datetime.fromtimestamp(archive.used):%Y-%m-%d %H:%M}"
    path = os.path.relpath(archive.path, directory)
    return path, human_bytes(archive.nbytes), used + ("" if archive.was_read else " (written)")


def sizes_text(archives: Sequence[Listed]) -> str:
    """ "3 archives, 38.5 MB"."""
    return f"{plural(len(archives), 'archive')}, {human_bytes(sum(archive.nbytes for archive in archives))}"


def listing_object(directory: str, archives: Sequence[Listed]) -> dict[str, Any]:
    """`edcache caches` as JSON has it; the total is of the archives that can be read."""
    return {
        "directory": directory,
        "archives": [_listed_object(directory, archive) for archive in archives],
        "nbytes": sum(archive.nbytes for archive in archives if archive.problem is None),
    }


def _listed_object(directory: str, archive: Listed) -> dict[str, Any]:
    same = ("nbytes", "present", "absent", "length", "complete", "sealed", "fingerprint", "origin")
    used = datetime.datetime.fromtimestamp(archive.used, datetime.timezone.utc)
    return {name: getattr(archive, name) for name in same} | {
        "path": os.path.relpath(archive.path, directory),
        "last_used": used.isoformat(timespec="seconds"),
        "last_use": "read" if archive.was_read else "written",
        "problem": None if archive.problem is None else one_line(archive.problem),
    }


def memory_lines(archives: Sequence[Held]) -> Iterator[str]:
    """A table of the archives in shared memory, and the total."""
    if archives:
        rows = ((a.path, human_bytes(a.nbytes), " ".join(map(str, a.pids))) for a in archives)
        yield from table(("path", "size", "processes"), rows, whole=1)
    total = human_bytes(sum(archive.nbytes for archive in archives))
    yield f"{plural(len(archives), 'archive')} in memory, {total}"


def memory_object(archives: Sequence[Held]) -> dict[str, Any]:
    """`edcache caches shm://` as JSON has it."""
    listed = [{"path": a.path, "nbytes": a.nbytes, "processes": list(a.pids)} for a in archives]
    return {"archives": listed, "nbytes": sum(archive.nbytes for archive in archives)}


# ------------------------------------------------------------------------------- verify and repair


def verify_lines(path: str, report: VerifyReport) -> Iterator[str]:
    """The problems, then the result, then what compacting would give back."""
    yield from map(printable, report.problems)
    state = "sealed" if report.sealed else "being written" if report.has_writer else "not sealed"
    missing = f", {report.missing:,} missing" if report.missing else ""
    broken = plural(len(report.problems), "problem") if report.problems else "not whole"
    unread = "; records were not read" if report.quick else ""
    yield (
        f"{printable(path)}: {'OK' if report.sound else broken}: {plural(report.samples, 'sample')}{missing} "
        f"in {plural(report.chunks, 'chunk')}, {human_bytes(report.nbytes)}, {state}{unread}"
    )
    if report.is_partial:
        yield "its writer was killed, or it was cut: fill it again, or keep what is there with edcache repair"
    if report.failures:
        yield f"{plural(report.failures, 'sample')} failed when tried; they are among the missing"
    dead = report.dead
    if dead.total:
        parts = {
            "old seals": dead.old_seals,
            plural(report.superseded, "outdated record"): dead.superseded if report.superseded else 0,
            "lost in power cuts": dead.lost,
            "torn tail": dead.torn,
        }
        listed = ", ".join(f"{name} {human_bytes(nbytes)}" for name, nbytes in parts.items() if nbytes)
        yield f"{human_bytes(dead.total)} dead ({listed}); edcache compact leaves them out"


def verify_object(path: str, report: VerifyReport) -> dict[str, Any]:
    """`edcache verify` as JSON has it."""
    names = ("sound", "quick", "sealed", "samples", "missing", "failures", "chunks", "nbytes", "superseded")
    dead = {"nbytes": report.dead.total, **dataclasses.asdict(report.dead)}
    values = {name: getattr(report, name) for name in names}
    return {"path": path, **values, "dead": dead, "problems": report.problems}


def repair_lines(path: str, target: str, report: RepairReport) -> Iterator[str]:
    """The problems, a table of what became of the samples, which are lost."""
    yield from map(printable, report.problems)
    yield from paired_lines(_repair_pairs(path, target, report))
    if len(report.lost):
        yield f"lost: {index_ranges(report.lost)}"
    if len(report.unlabelled):
        yield f"without labels: {index_ranges(report.unlabelled)}"
    for name in report.lost_revisions:
        yield f"lost: what {name} said of labels; add or drop them again"
    for doubtful in report.doubtful:
        samples = "samples" if doubtful.samples is None else f"{doubtful.samples:,} samples"
        entries = f"entry {doubtful.seq:,}"
        if doubtful.entries > 1:
            entries = f"entries {doubtful.seq:,}-{doubtful.seq + doubtful.entries - 1:,}"
        place = f"doubtful: {entries} at offset {doubtful.offset:,}"
        yield f"{place}: nothing intact tells which {samples} were there"


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
    """`edcache repair` as JSON has it."""
    indices = {"lost": report.lost.tolist(), "unlabelled": report.unlabelled.tolist()}
    return {"path": path, "target": target, "whole": report.is_whole} | dataclasses.asdict(report) | indices


# --------------------------------------------------------------- copy, compact, merge, split, export


def copy_line(copied: Copied) -> str:
    """What was copied, and how much of it came now."""
    archives = f"{copied.archives:,} archives, " if copied.archives > 1 else ""
    fetched = "here already" if not copied.fetched else f"{human_bytes(copied.fetched)} fetched"
    return f"{printable(copied.path)}: {archives}{human_bytes(copied.nbytes)}, {fetched}"


def compact_line(report: CompactReport) -> str:
    """What compacting gave back."""
    place, samples = printable(report.path), plural(report.samples, "sample")
    if not report.rewritten:
        return f"{place}: compact already: {samples} in {human_bytes(report.nbytes)}, nothing was written"
    sizes = f"{human_bytes(report.nbytes_before)} -> {human_bytes(report.nbytes)}"
    chunks = f"{report.chunks_before:,} -> {plural(report.chunks, 'chunk')}"
    return f"{place}: {samples}, {sizes} ({human_bytes(report.dead_nbytes)} less), {chunks}, sealed"


def merge_line(report: MergeReport) -> str:
    """What went into the new archive."""
    missing = f", {report.length - report.samples:,} missing" if report.samples < report.length else ""
    origin = f"{plural(report.length, 'sample')}{missing} from {plural(report.archives, 'archive')}"
    return f"{printable(report.path)}: {origin}, {human_bytes(report.nbytes)}, sealed"


def split_lines(pieces: Sequence[Piece]) -> Iterator[str]:
    """A line an archive, and one for all."""
    columns = 5 if any(piece.value is not None for piece in pieces) else 4
    yield from table(
        ("path", "samples", "missing", "size", "value")[:columns],
        (
            (p.path, f"{p.length:,}", f"{p.length - p.samples:,}", human_bytes(p.nbytes), p.value)[:columns]
            for p in pieces
        ),
        whole=1,
    )
    length, nbytes = sum(piece.length for piece in pieces), sum(piece.nbytes for piece in pieces)
    yield f"{plural(length, 'sample')} in {plural(len(pieces), 'archive')}, {human_bytes(nbytes)}"


def export_line(report: ExportReport) -> str:
    """What was written."""
    files = f"{plural(report.files, 'file')}, {human_bytes(report.nbytes)}"
    return f"{printable(report.path)}: {plural(report.samples, 'sample')} as {report.to}, {files}"
