"""What was found or done: verified, repaired, copied, compacted, merged, split, exported."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from edcache.present.text import index_ranges, paired_lines, plural, printable, table
from edcache.sizes import human_bytes

if TYPE_CHECKING:
    from edcache.exporting import ExportReport
    from edcache.local import Copied
    from edcache.maintain import CompactReport, MergeReport, Piece, RepairReport
    from edcache.maintain import Report as VerifyReport


def report_lines(path: str, report: VerifyReport) -> Iterator[str]:
    """What `edcache verify` says: the problems, then the result, then what compacting would give back."""
    yield from map(printable, report.problems)
    state = "sealed" if report.sealed else "being written" if report.has_writer else "not sealed"
    missing = f", {report.missing:,} missing" if report.missing else ""
    result = (
        "OK" if report.sound else plural(len(report.problems), "problem") if report.problems else "not whole"
    )
    unread = "; records were not read" if report.quick else ""
    yield (
        f"{printable(path)}: {result}: {plural(report.samples, 'sample')}{missing} in "
        f"{plural(report.chunks, 'chunk')}, {human_bytes(report.nbytes)}, {state}{unread}"
    )
    if report.is_partial:
        yield "its writer was killed, or it was cut: fill it again, or keep what is there with edcache repair"
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
    yield from paired_lines(_repair_pairs(path, target, report))
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
