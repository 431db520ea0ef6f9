"""Archives that were written once open for ever, with the samples that were put in.

tests/conformance/golden/ is made by scripts/make_golden.py; what the archives hold is made anew here by
golden_samples.py, which shares nothing with the package.
"""

from __future__ import annotations

import importlib.util
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import client_reference
import golden_samples as samples
import numpy as np
import pytest
import reference
import torch
from likeness import same
from optional import Library, need

import edcache
from edcache.errors import LaterReleaseError

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
Image = Library("PIL.Image")


def _load_script() -> Any:
    spec = importlib.util.spec_from_file_location(
        "make_golden", HERE.parents[1] / "scripts" / "make_golden.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_golden = _load_script()


def _fixed(indices: Any) -> dict[int, Any]:
    return {i: samples.fixed(i) for i in indices}


def _decoded(data: bytes, form: str | None, mode: str | None, turn: bool) -> Any:
    """What is read of an image file; all that are decoded here are one PNG."""
    if form is None:
        return edcache.ImageFile(data, decode=None)
    if form == "pil":
        if find_spec("PIL") is None:
            return None  # the tests that compare it are skipped
        return Image.fromarray(np.array(samples.PIXELS, np.uint8)).convert(mode)
    pixels = np.array(samples.PIXELS, np.uint8)
    if form == "numpy":
        return pixels
    opaque = np.concatenate([pixels, np.full((2, 3, 1), 255, np.uint8)], axis=2)
    return torch.from_numpy(opaque).permute(2, 0, 1)


EXPECTED: dict[str, dict[int, Any]] = {
    "fixed": _fixed(range(24)),
    "mixed": dict(enumerate(make() for make in samples.MIXED)),
    "schemas": {i: samples.different(i) for i in range(70)},
    "zstd": {i: samples.text(i) for i in range(24)},
    "sparse": _fixed([3, 5, 9, 20, 100]),
    "grown": _fixed(range(15)) | {2: samples.fixed(202)},
    "failed": _fixed([0, 2, 3, 5]),
    "relabelled": _fixed([0, 1, 2, 4]),
    "changed": {i: samples.text(i) for i in range(24)},
    "keyed": {i: samples.fixed(k) for i, k in enumerate(samples.KEYED)},
    "parts": {i: samples.fixed(k) for i, k in {0: 9, 1: 5, 2: 7, 3: 11, 6: 0}.items()},
    "more": _fixed(range(5)),
    "torn": _fixed(range(24)),
    "empty": {},
    "large": {i: samples.large(i) for i in range(5)},
    "images": {i: samples.picture(i, _decoded) for i in range(9)},
}
LABELS: dict[str, dict[str, Any]] = {
    "fixed": {"label": lambda s: s["label"], "score": lambda s: s["score"]},
    "schemas": {"i": lambda s: s["i"]},
    "zstd": {"kind": lambda s: s["label"]},
    "sparse": {"label": lambda s: s["label"]},
    "grown": {"label": lambda s: s["label"]},
    "failed": {"label": lambda s: s["label"]},
    "changed": {"label": lambda s: s["label"], "text": lambda s: s["text"]},
    "keyed": {"label": lambda s: s["label"], "key": lambda s: s["label"]},
    "parts": {"label": lambda s: s["label"], "key": lambda s: s["label"]},
    "more": {"label": lambda s: s["label"]},
    "torn": {"label": lambda s: s["label"]},
    "images": {"label": lambda s: s["label"]},
}
RELABELLED = {"label": {0: 0, 1: 71, 2: 2, 4: 4}, "cluster": {i: f"c{i}" for i in range(5)}}
FAILED = {
    "failed": {i: [i == 4, *why] for i, why in samples.FAILED.items() if i != 3},
    "parts": {i: [True, *samples.FAILED[4]] for i in (4, 5)},
}
LENGTHS = {"failed": 7}
UNSEALED = {"torn"}
NOT_WRITABLE = {"more": "'ledger' for writing"}
# What a later release wrote, by what it needs; what is in the first samples, if these are read.
LATER = {
    "later-version": r"archive format 4 \(this release knows 3\)",
    "later-sealed-version": r"archive format 4 \(this release knows 3\)",
    "later-feature": "'long records'",
    "later-codec": "the codec 'protobuf'",
    "later-entry": "version 4 of entries, as notes/00000002 at offset .*",
    "later-kind": "the kind 7 of entries, as notes/00000002 at offset .*",
    "later-root-feature": "'long records'",
    "later-root-key": "the key 'order' of root.json",
    "later-column": "the label type .decimal128.*",
    "later-flag": "the row flag 4",
    "later-leaf": "the leaf 'ragged'",
}
OF_A_RECORD = {"later-flag", "later-leaf"}


@pytest.fixture(autouse=True)
def _registered() -> None:
    for cls in samples.TO_REGISTER:
        edcache.register(cls)


@pytest.fixture(params=list(EXPECTED))
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "images":
        need("PIL")
    return request.param


@pytest.fixture
def path(name: str) -> Path:
    return GOLDEN / f"v3-{name}.zip"


def expected_labels(name: str) -> dict[str, dict[int, Any]]:
    if name == "relabelled":
        return RELABELLED
    labels = {
        column: {i: value(sample) for i, sample in EXPECTED[name].items()}
        for column, value in LABELS.get(name, {}).items()
    }
    if name == "changed":
        labels["label"] |= {1: 71, 5: None}
    return labels


def test_every_golden_archive_is_expected_here_and_can_be_made_again() -> None:
    files = {file.name for file in GOLDEN.glob("*.zip")}
    assert files == {f"v3-{name}.zip" for name in [*EXPECTED, *LATER]}, (
        "EXPECTED in this file has its samples"
    )
    assert set(make_golden.ARCHIVES) == {*EXPECTED, *LATER}, "ARCHIVES in scripts/make_golden.py makes it"


def test_golden_archives_stay_small() -> None:
    sizes = [file.stat().st_size for file in GOLDEN.iterdir()]
    assert max(sizes) < 350_000
    assert sum(sizes) < 1_100_000


def test_the_package_reads_the_expected_samples(name: str, path: Path) -> None:
    cache = edcache.CachedDataset.from_cache(path, allow_partial=True)
    expected = EXPECTED[name]
    assert len(cache) == LENGTHS.get(name, max(expected, default=-1) + 1)
    assert cache.missing.tolist() == [i for i in range(len(cache)) if i not in expected]
    for i, sample in expected.items():
        assert same(cache[i], sample), i
    assert cache._archive.reader.session.sealed == (name not in UNSEALED)
    assert cache._archive.reader.session.head.uuid == samples.UUID


def test_the_package_and_the_reference_reader_read_the_expected_failures(name: str, path: Path) -> None:
    expected = FAILED.get(name, {})
    cache = edcache.CachedDataset.from_cache(path, allow_partial=True)
    assert {e.index: [e.final, e.error, e.message, e.traceback] for e in cache.errors} == expected
    assert reference.walk(path).failed == expected
    if name not in UNSEALED:
        assert reference.read_zip(path).failed == expected


def test_verify_finds_nothing_wrong(name: str, path: Path) -> None:
    report = edcache.verify(path)
    assert report.problems == []
    assert report.sealed == (name not in UNSEALED)


def test_the_reference_reader_finds_the_same_bytes_by_the_chain_and_by_the_zip(name: str, path: Path) -> None:
    walked = reference.walk(path)
    assert set(walked.records) == set(EXPECTED[name])
    assert known(name, walked.labels) == expected_labels(name) or name == "empty"
    if name not in UNSEALED:
        listed = reference.read_zip(path)
        assert (listed.length, listed.records, listed.schemas) == walked[:3]
        assert known(name, listed.labels) == known(name, walked.labels)


def known(name: str, labels: dict[str, dict[int, Any]]) -> dict[str, dict[int, Any]]:
    """The labels, without the nulls of samples that have no record."""
    return {
        column: {i: value for i, value in values.items() if i in EXPECTED[name] or value is not None}
        for column, values in labels.items()
        if values
    }


def test_a_schema_says_how_the_files_of_images_are_decoded() -> None:
    archive = reference.walk(GOLDEN / "v3-images.zip")
    for i in archive.records:
        nodes = samples.picture(i, lambda _, *decoding: ["imagefile", *decoding]) | {"label": "int"}
        assert json.loads(archive.schemas[i]) == ["dict", list(nodes), list(nodes.values())]


def test_writing_the_same_again_gives_the_same_bytes(name: str, path: Path, tmp_path: Path) -> None:
    again = tmp_path / path.name
    make_golden.write(name, again)
    if json.loads((GOLDEN / "v3.json").read_text()) == make_golden.VERSIONS:
        assert again.read_bytes() == path.read_bytes()
    # Another Arrow writes other metadata, another zstd other frames, but never other samples.
    assert reference.walk(again) == reference.walk(path)


def test_a_golden_archive_can_be_continued_and_sealed(name: str, path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    one_more = {"label": 1, "i": 2, "score": 0.5, "text": "more"}
    if name in NOT_WRITABLE:
        told = f"{copy}: needs {NOT_WRITABLE[name]}, which a later release of edcache wrote; upgrade edcache"
        with pytest.raises(LaterReleaseError, match=f"^{told}$"):
            edcache.CacheWriter(copy, "a")
        assert copy.read_bytes() == path.read_bytes()
        return
    with edcache.CacheWriter(copy, "a") as w:
        index = w.next_index
        w.append(one_more)
    cache = edcache.CachedDataset.from_cache(copy)
    assert same(cache[index], one_more)
    assert all(same(cache[i], sample) for i, sample in EXPECTED[name].items())
    assert edcache.verify(copy).sound
    assert cache._archive.reader.session.sealed


@pytest.mark.parametrize("name", LATER)
def test_what_a_later_release_wrote_is_named_and_a_writer_changes_no_byte_of_it(
    name: str, tmp_path: Path
) -> None:
    path, copy = GOLDEN / f"v3-{name}.zip", tmp_path / "copy.zip"
    copy.write_bytes(path.read_bytes())
    told = f"{copy}: .*needs {LATER[name]}, which a later release of edcache wrote; upgrade edcache$"
    if name in OF_A_RECORD:
        cache = edcache.CachedDataset.from_cache(copy)
        assert same(cache[0], samples.fixed(0))
        for read in (cache.__getitem__, lambda index: cache.batch([0, index]), lambda _: list(cache)):
            with pytest.raises(LaterReleaseError, match=told.replace(": .*", ": (record|sample) 1.*: ")):
                read(1)
    else:
        for options in ({}, {"allow_partial": True}, {"verify": "never"}):
            with pytest.raises(LaterReleaseError, match=told):
                edcache.CachedDataset.from_cache(copy, **options)
    if name not in OF_A_RECORD:
        with pytest.raises(LaterReleaseError, match=told):
            edcache.CacheWriter(copy, "a")
        with pytest.raises(LaterReleaseError, match=told):
            edcache.CachedDataset([1, 2, 3], copy)
    if name != "later-leaf":  # verify decodes no record
        with pytest.raises(LaterReleaseError, match=told):
            edcache.verify(copy)
    assert copy.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", LATER)
def test_the_reference_reader_refuses_what_a_later_release_wrote(name: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        client_reference.document(str(GOLDEN / f"v3-{name}.zip"))


@pytest.mark.parametrize("name", LATER)
def test_what_a_later_release_may_write_is_made_again_as_it_is(name: str, tmp_path: Path) -> None:
    again = tmp_path / "again.zip"
    make_golden.write(name, again)
    if json.loads((GOLDEN / "v3.json").read_text()) == make_golden.VERSIONS:
        assert again.read_bytes() == (GOLDEN / f"v3-{name}.zip").read_bytes()
