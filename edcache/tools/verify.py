"""Prove an archive: every byte of it is checked against another."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from edcache.reader import OnProgress, check_digest, no_digest, parse_digest
from edcache.storage import located
from edcache.tools.survey import Dead, Survey


@dataclass
class Report:
    """What `verify` found.

    problems: one line each, with path and offset, what is wrong and what helps; empty when every byte
    that was looked at is proven. samples, missing, chunks, failures: of the dataset, as the chunks
    tell; failures are those of the missing that were tried. nbytes: of the file. sealed: whether it was;
    has_writer: where not, whether a process writes it now.
    superseded: records that a newer one has outdated. dead: bytes that `compact` would leave out.
    quick: the samples' records were not read.
    """

    samples: int = 0
    missing: int = 0
    chunks: int = 0
    failures: int = 0
    nbytes: int = 0
    sealed: bool = False
    has_writer: bool = False
    superseded: int = 0
    dead: Dead = field(default_factory=Dead)
    quick: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong: no damage, and it is sealed, or a process writes it still."""
        return not self.problems and not self.is_partial

    @property
    def is_partial(self) -> bool:
        """Whether it is not sealed, and nobody writes it: chunks may be missing of which nothing tells."""
        return not (self.sealed or self.has_writer)


def verify(
    path: str | os.PathLike[str],
    on_progress: OnProgress | None = None,
    *,
    quick: bool = False,
    expected_digest: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Report:
    """Check structure, every checksum, and that index, labels, directory and chunks agree.

    Args:
        path: the archive, or its URL. storage_options: for a URL, as in `edcache.Reader`.
        on_progress: called with (bytes checked, bytes of the file) now and then.
        quick: leave the samples' records unread; all that leads to them is checked.
        expected_digest: what `digest` said of the archive when it was published; compared first.
    Returns:
        A report; damage is reported, not raised, as far as the head can be read.
    Raises:
        ArchiveNotFoundError, NotAnArchiveError, FormatVersionError, CorruptArchiveError (the head).
        DigestError: the file is not the one that was published. OptionError: that is no digest.
    Cost: reads the whole file once, a second time before that for the digest; with `quick` only headers,
        tables and the seal. Some 70 bytes of memory a sample, and its labels twice.
    Safety: writes and locks nothing; others may append meanwhile, what they add is not looked at.
    """
    expected = None if expected_digest is None else parse_digest(expected_digest)
    with closing(located(path, storage_options).open()) as file:
        if expected is not None:
            check_digest(file, expected)
        size = file.size()
        advance = on_progress or (lambda done, total: None)
        survey = Survey(file, not quick, on_position=lambda offset: advance(offset, size))
        if expected is not None and survey.seal is None:
            raise no_digest(file.path)
    advance(survey.size, survey.size)
    report = Report(
        chunks=len(survey.chain.chunks),
        nbytes=survey.size,
        sealed=survey.seal is not None,
        has_writer=survey.has_writer,
        superseded=survey.superseded,
        dead=survey.dead,
        quick=quick,
        problems=survey.problems,
    )
    if survey.contents is not None:
        index = survey.contents.index
        report.samples, report.failures = index.length, len(index.failures)
        report.missing = index.length - len(index.records.offset)
    return report
