"""A sealed archive is an ordinary zip file to everybody who reads zip files."""

from __future__ import annotations

import io
import shutil
import subprocess
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import client_edcache
import client_reference
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
import reference
import torch

import edcache

UUID = bytes(range(16))


def sample(i: int) -> dict[str, object]:
    text = f"sample number {i} of a family of similar samples " * 4
    return {
        "image": torch.full((3, 8), i % 256, dtype=torch.uint8),
        "x": np.arange(5.0) + i,
        "text": text,
        "y": i % 7,
    }


def _dense(path: Path, start: int, count: int = 40, chunk_size: int = 16, **options: object) -> None:
    with edcache.CacheWriter(
        path, "a", uuid=UUID, chunk_size=chunk_size, publish_seconds=None, **options
    ) as w:
        w.extend(sample(i) for i in range(start, start + count))


def _sparse(path: Path, start: int) -> None:
    with edcache.CacheWriter(
        path, "a", uuid=UUID, in_memory_keys=["y"], chunk_size=4, publish_seconds=None
    ) as w:
        for i in range(start, start + 30, 3):
            w.write(i, sample(i))


def _empty(path: Path, start: int) -> None:
    _dense(path, start, count=0 if start == 0 else 3)


CONTENTS: dict[str, Callable[[Path, int], None]] = {
    "plain": lambda path, start: _dense(path, start),
    "labels": lambda path, start: _dense(path, start, in_memory_keys=["y", "text"]),
    "zstd": lambda path, start: _dense(path, start, compression="zstd", in_memory_keys=["y"]),
    "empty": _empty,
    "300 chunks": lambda path, start: _dense(path, start, 300 if start == 0 else 10, 1, in_memory_keys=["y"]),
    "sparse": _sparse,
}
TOOLS = {"unzip": "unzip", "7z": "p7zip-full", "bsdtar": "libarchive-tools", "zip": "zip"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, int], Path]]:
    folder = tmp_path_factory.mktemp("archives")

    def build(content: str, growths: int) -> Path:
        path = folder / f"{content.replace(' ', '-')}-{growths}.zip"
        if not path.exists():
            for growth in range(growths + 1):
                CONTENTS[content](path, growth * 1000 if content == "sparse" else growth * 300)
        return path

    yield build
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=list(CONTENTS))
def content(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[0, 1, 2], ids=["sealed", "grown", "grown-twice"])
def archive(request: pytest.FixtureRequest, built: Callable[[str, int], Path], content: str) -> Path:
    return built(content, request.param)


def run(*command: object, binary: bool = False) -> bytes | str:
    """Output of a tool that must succeed and say nothing on stderr."""
    tool = str(command[0])
    if tool in TOOLS and shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed; on Debian: apt install {TOOLS[tool]}")
    done = subprocess.run([str(part) for part in command], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stderr == b""
    return done.stdout if binary else done.stdout.decode(errors="replace")  # tools print the comment


def test_zipfile_reads_every_member_without_a_warning(archive: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with zipfile.ZipFile(archive) as z:
            assert z.testzip() is None
            assert z.comment.startswith(b"edcache 3 root.json ")
            for info in z.infolist():
                assert info.compress_type == zipfile.ZIP_STORED
                assert info.date_time == (1980, 1, 1, 0, 0, 0)
                assert len(z.read(info)) == info.file_size
            names = z.namelist()
    assert len(set(names)) == len(names)
    assert names[0] == "edcache.json"
    assert names[-1] == "root.json"
    assert "index.rows" in names


def test_unzip_tests_it_without_a_warning(archive: Path) -> None:
    output = run("unzip", "-t", archive)
    assert output.splitlines()[-1] == f"No errors detected in compressed data of {archive}."
    assert "warning" not in output.lower()
    assert "error" not in "\n".join(output.splitlines()[:-1]).lower()


def test_7z_tests_it_without_a_warning(archive: Path) -> None:
    output = run("7z", "t", archive)
    assert "Everything is Ok" in output
    for word in ("warning", "error", "tail", "headers"):
        assert word not in output.lower().replace(str(archive).lower(), ""), output


def test_zip_tests_it_without_a_warning(archive: Path) -> None:
    output = run("zip", "-T", archive)
    assert output.strip() == f"test of {archive} OK"


def test_all_tools_list_the_same_unique_names(archive: Path) -> None:
    with zipfile.ZipFile(archive) as z:
        names = z.namelist()
    assert run("unzip", "-Z1", archive).splitlines() == names
    assert run("bsdtar", "-tf", archive).splitlines() == names
    listed = run("7z", "l", "-ba", "-slt", archive)
    assert [line[7:] for line in listed.splitlines() if line.startswith("Path = ")] == names


def test_bsdtar_and_unzip_extract_the_bytes_that_zipfile_reads(archive: Path) -> None:
    with zipfile.ZipFile(archive) as z:
        everything = b"".join(z.read(name) for name in z.namelist())
    assert run("bsdtar", "-xOf", archive, binary=True) == everything
    assert run("unzip", "-p", archive, binary=True) == everything


def test_extracted_labels_open_with_arrow_and_pandas(archive: Path, content: str, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    run("unzip", "-q", archive, "-d", tmp_path)
    expected = reference.read_zip(archive).labels
    files = sorted(path.name for path in tmp_path.glob("labels/*"))
    assert files == sorted(f"{name}.arrow" for name in expected)
    for name, column in expected.items():
        path = tmp_path / "labels" / f"{name}.arrow"
        table = pa.ipc.open_file(io.BytesIO(path.read_bytes())).read_all()
        assert table.to_pydict() == {name: list(column.values())}
        assert pyarrow.feather.read_table(path).equals(table)
        assert list(pandas.read_feather(path).columns) == [name]
    assert ("y" in expected) == (content not in ("plain", "empty"))


def test_both_ways_of_reading_agree_with_the_reference_reader(archive: Path) -> None:
    walked, listed = reference.walk(archive), reference.read_zip(archive)
    assert walked == listed
    cache = edcache.CachedDataset.from_cache(archive)
    assert len(cache) == listed.length
    for i, record in listed.records.items():
        assert client_reference.sample(listed.schemas[i], record) == client_edcache.canonical(cache[i])
