"""export: what other tools read is what the samples are, or nothing was written."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import gc
import io
import json
import os
import pathlib
import tarfile
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from filled import available
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optional import Library
from scale import scaled
from systems import killed_at
from written import write, written

import edcache
from edcache import CachedDataset, CacheWriter, ImageFile
from edcache.errors import (
    ArchiveError,
    ArchiveExistsError,
    CodecError,
    EdcacheError,
    MissingSampleError,
    OptionError,
    StorageError,
    UnknownLabelError,
)
from edcache.interop.export_formats import WRITERS, new_folder

webdataset, Image = Library("webdataset"), Library("PIL.Image")

DAY = datetime.date(2024, 2, 29)


def picture(i: int, form: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 6), (i % 256, 2, 3)).save(file, form)
    return file.getvalue()


def sample(i: int) -> dict[str, Any]:
    return {
        "image": ImageFile(picture(i)),
        "x": torch.full((2, 3), i, dtype=torch.uint8),
        "ragged": np.arange(2 * i, dtype=np.float32).reshape(i, 2),
        "label": i % 3,
        "score": i / 4,
        "text": f"sämple {i}",
        "target": {"ok": i % 2 == 0, "sizes": [i, i + 1], "raw": bytes([i])},
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Thirty samples of several kinds, with a label that is a field, and one that was added."""
    path = tmp_path_factory.mktemp("archive") / "train.zip"
    write(path, map(sample, range(30)), in_memory_keys=["label"], chunk_size=7)
    CachedDataset.from_cache(path).add_labels("split", ["train", "test"] * 15)
    return path


@pytest.fixture
def ds(path):
    return CachedDataset.from_cache(path)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def shards(folder: Path) -> list[dict[str, Any]]:
    """What the package webdataset reads."""
    paths = sorted(str(file) for file in folder.iterdir())
    with warnings.catch_warnings():
        # It leaves the closing of its files to the collector.
        warnings.simplefilter("ignore", ResourceWarning)
        found = list(webdataset.WebDataset(paths, shardshuffle=False, empty_check=False).decode())
        gc.collect()
    return found


def members(folder: Path) -> dict[str, bytes]:
    """The files in the shards, by name."""
    found = {}
    for path in sorted(folder.iterdir()):
        with tarfile.open(path) as tar:
            found |= {entry.name: tar.extractfile(entry).read() for entry in tar}
    return found


# ------------------------------------------------------------------------------- what tools read


def test_webdataset_reads_every_field_and_images_are_their_own_bytes(ds, out):
    paths = edcache.export(ds, out, "webdataset", shard_size=6000)
    assert paths == [str(out / f"shard-{k:06}.tar") for k in range(len(os.listdir(out)))]
    assert len(paths) > 3
    read = shards(out)
    assert [one["__key__"] for one in read] == [f"{i:02}" for i in range(30)]
    for i, one in enumerate(read):
        expected = sample(i)
        assert one["image.jpg"] == expected["image"].data
        assert np.array_equal(one["x.npy"], expected["x"].numpy())
        assert one["x.npy"].dtype == np.uint8
        assert np.array_equal(one["ragged.npy"], expected["ragged"])
        assert (one["label.cls"], one["score.json"], one["text.txt"]) == (i % 3, i / 4, f"sämple {i}")
        assert (one["target.ok.json"], one["target.sizes.json"]) == (i % 2 == 0, [i, i + 1])
        assert one["target.raw.bin"] == bytes([i])
        assert one["labels.json"] == {"split": ["train", "test"][i % 2]}


def test_a_sample_that_is_one_leaf_is_one_file(tmp_path, out):
    ds = written(tmp_path / "a.zip", (ImageFile(picture(i, "PNG")) for i in range(3)))
    edcache.export(ds, out, "webdataset")
    assert members(out) == {f"{i}.png": picture(i, "PNG") for i in range(3)}
    assert [one["png"] for one in shards(out)] == [picture(i, "PNG") for i in range(3)]


def test_parquet_has_tensors_images_and_labels_as_columns(ds, out):
    edcache.export(ds, out, "parquet", shard_size=6000)
    assert sorted(os.listdir(out))[:2] == ["part-00000.parquet", "part-00001.parquet"]
    table = pq.read_table(out)
    assert table.column_names[:4] == ["image", "x", "ragged", "label"]
    assert table.schema.field("x").type == pa.fixed_shape_tensor(pa.uint8(), [2, 3])
    expected = [sample(i) for i in range(30)]
    x = table["x"].combine_chunks().to_numpy_ndarray()
    assert np.array_equal(x, np.stack([one["x"].numpy() for one in expected]))
    assert table["image"].to_pylist() == [one["image"].data for one in expected]
    for row, one in zip(table["ragged"].to_pylist(), expected, strict=True):
        assert np.array_equal(np.array(row["values"], np.float32).reshape(row["shape"]), one["ragged"])
    plain = {"label": "label", "score": "score", "text": "text"}
    for column, key in plain.items():
        assert table[column].to_pylist() == [one[key] for one in expected]
    for key in ("ok", "sizes", "raw"):
        assert table[f"target.{key}"].to_pylist() == [one["target"][key] for one in expected]
    assert table["split"].to_pylist() == ["train", "test"] * 15
    sums = table.group_by("split").aggregate([("label", "sum")]).to_pylist()
    assert {row["split"]: row["label_sum"] for row in sums} == {"test": 15, "train": 15}


def test_large_arrays_of_one_shape_are_bytes_in_parquet_and_the_column_says_of_what(tmp_path, out):
    made = [np.random.default_rng(i).normal(size=(3, 20, 20)).astype(np.float32) for i in range(5)]
    write(tmp_path / "a.zip", ({"x": x} for x in made))
    edcache.export(tmp_path / "a.zip", out, "parquet")
    column = pq.read_table(out).column("x")
    meta = pq.read_schema(out / "part-00000.parquet").field("x").metadata
    assert meta[b"dtype"] == b"float32"
    shape = json.loads(meta[b"shape"])
    found = [np.frombuffer(data, "<f4").reshape(shape) for data in column.to_pylist()]
    assert np.array_equal(np.stack(found), np.stack(made))


# ------------------------------------------------------------------------- which samples and fields


def test_views_of_every_kind_go_out_as_they_are(path, tmp_path):
    ds = CachedDataset.from_cache(path)
    several = CachedDataset.from_cache([path])
    views = {
        "filter": (ds.filter(split="test"), range(1, 30, 2)),
        "order": (ds[10:0:-3], range(10, 0, -3)),
        "several": (several.filter("label == 1"), range(1, 30, 3)),
        "concat": (
            edcache.concat([ds[:3], ds[20:].select("image", "label", "x")]),
            [0, 1, 2, *range(20, 30)],
        ),
        "zip": (edcache.zip_fields(ds.select("image"), ds.select("label", "x")), range(30)),
    }
    for name, (view, indices) in views.items():
        edcache.export(view, tmp_path / name, "webdataset")
        read = shards(tmp_path / name)
        assert [one["label.cls"] for one in read] == [i % 3 for i in indices]
        assert [one["image.jpg"] for one in read] == [picture(i) for i in indices]
        assert [one["x.npy"][0, 0] for one in read] == list(indices)


def test_what_a_transform_or_decode_makes_goes_out_instead_of_the_file(path, tmp_path):
    ds = CachedDataset.from_cache(path)
    pixels = [np.asarray(Image.open(io.BytesIO(picture(i)))) for i in range(4)]
    halved = ds[:4].with_transform(lambda image: image.resize((4, 3)), field="image")
    edcache.export(halved.select("image"), tmp_path / "pil", "webdataset", labels=False)
    made = members(tmp_path / "pil")
    assert list(made) == [f"{i}.image.png" for i in range(4)]
    assert all(Image.open(io.BytesIO(data)).size == (4, 3) for data in made.values())
    for form, axes in (("tensor", (2, 0, 1)), ("numpy", (0, 1, 2))):
        decoded = CachedDataset.from_cache(path, decode=form)[:4].select("image")
        edcache.export(decoded, tmp_path / form, "parquet", labels=False)
        found = pq.read_table(tmp_path / form)["image"].combine_chunks().to_numpy_ndarray()
        assert np.array_equal(found, np.stack([p.transpose(axes) for p in pixels]))


def test_labels_go_along_where_they_are_no_fields_and_as_asked(ds, tmp_path):
    columns = {"text", "split", "label"}
    for name, labels, expected in [
        ("all", True, columns),
        ("none", False, {"text"}),
        ("some", ["split"], {"text", "split"}),
    ]:
        edcache.export(ds.select("text"), tmp_path / name, "parquet", labels=labels)
        assert set(pq.read_table(tmp_path / name).column_names) == expected
    with pytest.raises(UnknownLabelError, match='no label "lable"'):
        edcache.export(ds, tmp_path / "no", "parquet", labels=["lable"])
    changed = ds.with_transform(lambda s: {"label": 7})
    edcache.export(changed, tmp_path / "both", "parquet")
    table = pq.read_table(tmp_path / "both")
    assert table["label"].to_pylist() == [7] * 30
    assert table["labels.label"].to_pylist() == [i % 3 for i in range(30)]


def test_the_same_samples_make_the_same_bytes(ds, tmp_path):
    for to in WRITERS:
        one, two = tmp_path / f"{to}1", tmp_path / f"{to}2"
        edcache.export(ds, one, to, shard_size="6 kB")
        edcache.export(ds, two, to, shard_size=6000)
        assert contents(one) == contents(two)


def contents(path: Path) -> dict[str, bytes]:
    found = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    files = [file for file in found if file.name != ".edcache.new"]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def test_tars_have_no_time_and_no_owner(ds, out):
    edcache.export(ds, out, "webdataset")
    with tarfile.open(out / "shard-000000.tar") as tar:
        assert {(entry.mtime, entry.uid, entry.uname) for entry in tar} == {(0, 0, "")}


# --------------------------------------------------------------------------------- random samples

FIXED = {
    "a": st.builds(lambda n: np.full((2, 2), n, np.int16), st.integers(0, 99)),
    "t": st.builds(lambda n: torch.full((3,), n), st.floats(-9, 9, width=32)),
    "r": st.builds(lambda n, m: np.arange(n * m, dtype=np.uint8).reshape(n, m), *[st.integers(1, 3)] * 2),
    "i": st.integers(-(2**63), 2**63 - 1),
    "f": st.floats(allow_nan=False),
    "s": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
    "b": st.binary(max_size=5),
    "o": st.booleans(),
    "l": st.lists(st.integers(-9, 9), max_size=3),
}
SAMPLES = st.lists(st.sampled_from(sorted(FIXED)), min_size=1, unique=True).flatmap(
    lambda keys: st.lists(st.fixed_dictionaries({key: FIXED[key] for key in keys}), min_size=1, max_size=7)
)


def plain(value: Any) -> Any:
    """A leaf or what a tool made of it, as nested lists and Python's own values."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def rows_of(folder: Path, to: str) -> Iterator[dict[str, Any]]:
    """What the tool of a format reads, as plain samples."""
    if to == "webdataset":
        for one in shards(folder):
            found = {
                name.split(".")[0]: plain(value) for name, value in one.items() if not name.startswith("__")
            }
            yield found
    else:
        table = pq.read_table(folder)
        columns = {key: arrow_values(table[key]) for key in table.column_names}
        for k in range(len(table)):
            yield {key: values[k] for key, values in columns.items()}


def arrow_values(column: Any) -> list[Any]:
    if isinstance(column.type, pa.FixedShapeTensorType):
        return column.combine_chunks().to_numpy_ndarray().tolist()
    return [
        np.array(value["values"], np.uint8).reshape(value["shape"]).tolist()
        if isinstance(value, dict)
        else plain(value)
        for value in column.to_pylist()
    ]


@settings(max_examples=scaled(15), suppress_health_check=list(HealthCheck))
@given(SAMPLES, st.sampled_from(list(WRITERS)), st.sampled_from([None, "zstd"]), st.integers(1, 400))
def test_random_samples_come_out_of_every_format_as_they_went_in(tally, samples, to, compression, size):
    with tempfile.TemporaryDirectory() as name:
        write(Path(name, "a.zip"), samples, compression=compression)
        out = Path(name, "out")
        edcache.export(Path(name, "a.zip"), out, to, shard_size=size)
        found = list(rows_of(out, to))
        assert found == [{key: plain(value) for key, value in one.items()} for one in samples]
        tally("samples exported", len(samples))


# ------------------------------------------------------------------------------------------ kinds


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Box:
    width: int
    names: tuple[str, ...]


def test_everything_else_that_samples_hold_has_a_form(tmp_path):
    edcache.register(Colour)
    edcache.register(Box)
    number = uuid.UUID(int=5)
    rich = {
        "colour": Colour.RED,
        "box": Box(3, ("a", "b")),
        "id": number,
        "path": pathlib.PurePosixPath("a/b"),
        "day": DAY,
        "moment": datetime.datetime(2024, 1, 2, 3, 4, 5),
        "zoned": datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone.utc),
        "span": datetime.timedelta(seconds=90),
        "scalar": np.float32(1.5),
        "none": None,
        "grey": Image.new("L", (2, 1), 7),
        "array": bytearray(b"xy"),
        "mixed": [1, torch.ones(2)],
        "empty": [],
    }
    write(tmp_path / "a.zip", [rich])
    edcache.export(tmp_path / "a.zip", tmp_path / "files", "webdataset")
    found = {name.removeprefix("0."): data for name, data in members(tmp_path / "files").items()}
    assert np.load(io.BytesIO(found.pop("scalar.npy"))) == np.float32(1.5)
    assert np.load(io.BytesIO(found.pop("mixed.1.npy"))).tolist() == [1, 1]
    assert np.asarray(Image.open(io.BytesIO(found.pop("grey.png")))).tolist() == [[7, 7]]
    assert found == {
        "colour.txt": b"RED",
        "box.width.cls": b"3",
        "box.names.0.txt": b"a",
        "box.names.1.txt": b"b",
        "id.txt": str(number).encode(),
        "path.txt": b"a/b",
        "day.txt": b"2024-02-29",
        "moment.txt": b"2024-01-02T03:04:05",
        "zoned.txt": b"2024-01-02T00:00:00+00:00",
        "span.json": b"90.0",
        "none.json": b"null",
        "array.bin": b"xy",
        "mixed.0.cls": b"1",
        "empty.json": b"[]",
    }
    edcache.export(tmp_path / "a.zip", tmp_path / "parquet", "parquet")
    row = pq.read_table(tmp_path / "parquet").to_pylist()[0]
    assert (row["day"], row["moment"], row["zoned"]) == (DAY, rich["moment"], rich["zoned"])
    assert (row["none"], row["scalar"], row["empty"]) == (None, 1.5, [])


def test_scalars_of_numpy_that_are_subclasses_of_pythons_are_plain_values(tmp_path):
    sample = {"f": np.float64(1.5), "s": np.str_("abc"), "b": np.bytes_(b"xyz")}
    path = archive_of(tmp_path, sample)
    edcache.export(path, tmp_path / "parquet", "parquet")
    assert pq.read_table(tmp_path / "parquet").to_pylist() == [{"f": 1.5, "s": "abc", "b": b"xyz"}]
    edcache.export(path, tmp_path / "files", "webdataset")
    assert members(tmp_path / "files") == {"0.f.json": b"1.5", "0.s.txt": b"abc", "0.b.bin": b"xyz"}


def test_a_label_column_that_is_named_as_a_field_is_renamed(tmp_path):
    write(tmp_path / "b.zip", ({"x": index} for index in range(2)))
    ds = CachedDataset.from_cache(tmp_path / "b.zip").add_labels("x", [5, 6]).add_labels("labels.x", [7, 8])
    edcache.export(ds, tmp_path / "b", "parquet")
    (file,) = (tmp_path / "b").glob("*.parquet")
    assert pq.read_table(file).to_pydict() == {"x": [0, 1], "labels.x": [5, 6], "labels.labels.x": [7, 8]}


def test_fields_that_some_samples_lack_are_null_in_tables_and_absent_in_files(tmp_path):
    samples = [{"x": np.ones(2), "y": 1}, {"x": None, "y": 2}, {"y": None}, {"x": np.ones((3,)), "y": 4}]
    write(tmp_path / "a.zip", samples)
    edcache.export(tmp_path / "a.zip", tmp_path / "parquet", "parquet")
    found = pq.read_table(tmp_path / "parquet").to_pylist()
    assert found == [
        {"x": [1, 1], "y": 1},
        {"x": None, "y": 2},
        {"x": None, "y": None},
        {"x": [1] * 3, "y": 4},
    ]
    edcache.export(tmp_path / "a.zip", tmp_path / "files", "webdataset")
    assert [name for name in members(tmp_path / "files") if name.startswith("2.")] == ["2.y.json"]


# --------------------------------------------------------------------------------------- refusals


def archive_of(tmp_path: Path, *samples: Any, **options: Any) -> Path:
    path = tmp_path / f"{len(os.listdir(tmp_path))}.zip"
    return write(path, samples, **options)


def refused(
    ds: Any, out: Path, to: str, text: str, kind: type[EdcacheError] = CodecError, **options: Any
) -> None:
    """Fails with these words, and leaves nothing."""
    before = sorted(os.listdir(out.parent))
    with pytest.raises(kind) as caught:
        edcache.export(ds, out, to, **options)
    assert text in str(caught.value)
    assert sorted(os.listdir(out.parent)) == before


def test_what_a_format_cannot_hold_is_named_and_nothing_is_left(tmp_path, out):
    half = torch.ones(2, dtype=torch.bfloat16)
    files, tables = ["webdataset"], ["parquet"]
    cases: list[tuple[list[Any], list[str], str]] = [
        (
            [half],
            [*WRITERS],
            'x" is a tensor of torch.bfloat16 (2,); numpy has no such type; leave it out with',
        ),
        (
            [1j],
            files,
            'field "x" is of type complex; JSON has no complex numbers; leave it out with select(), or',
        ),
        ([1j], tables, 'field "x" is of type complex; {to} holds no complex numbers; leave it out'),
        ([np.array(["a"])], tables, 'field "x" is an array of <U1 (1,); {to} holds arrays of bool, int and'),
        ([np.zeros(2, ">f4")], tables, "in the byte order of this machine"),
        ([{"a/b": 1}], files, 'field "x.a/b" makes no name of a file; {to} needs names without slashes that'),
        ([{"A": 1, "a": 2}], files, 'two files would be called "x.a.cls"; rename a field'),
        (
            [{"b": 1, "b.c": 1} | {"b": {"c": 2}}],
            [*WRITERS],
            'two fields are called "x.b.c"; rename one with',
        ),
        (
            [1, "a"],
            tables,
            'sample 1: field "x" is string, and int64 in another sample (export(): ',
        ),
        (
            [np.ones(2), np.ones((2, 2))],
            tables,
            "an array of float64 (2, 2), and an array of float64 (2,) in",
        ),
        ([[1, "a"]], tables, 'field "x" is of type list; its values are int64 and string; leave it out'),
        ([Image.new("CMYK", (1, 1))], [*WRITERS], "a PNG has no mode 'CMYK'"),
    ]
    for samples, formats, text in cases:
        path = archive_of(tmp_path, *({"x": value} for value in samples))
        for to in formats:
            refused(path, out, to, text.format(to=to))


def test_samples_without_a_field_or_with_a_hidden_one_are_refused(tmp_path, out):
    for to in WRITERS:
        refused(archive_of(tmp_path, {}), out, to, "sample 0: it has no field; leave it out")
    text = (
        'field "__key__" makes no name of a file; webdataset needs names without slashes that begin with no'
    )
    refused(archive_of(tmp_path, {"__key__": 1}), out, "webdataset", text)


def test_values_beyond_a_column_end_the_export_and_leave_nothing(tmp_path, out):
    for values in ([1, 2**63], [-(2**63) - 1], [2**80, None], [[2**63]], [[None, 3], [-(2**70), None]]):
        big = archive_of(tmp_path, *({"x": value} for value in values))
        place = f"sample {len(values) - 1 if values[0] in (1, [None, 3]) else 0}"
        text = r'field "x" is of type (int|list); a column holds integers from -2\*\*63 to '
        with pytest.raises(CodecError, match=rf"export\(\): {place}: {text}"):
            edcache.export(big, out, "parquet")
        assert not out.exists()
        assert not Path(f"{out}.edcache.new").exists()
    with pytest.raises(CodecError, match='samples 0 to 0: field "x" does not fit string: '):
        edcache.export(archive_of(tmp_path, {"x": "\ud800"}), out, "parquet")
    assert not out.exists()
    labelled = archive_of(tmp_path, {"x": 1}, {"x": 2}, in_memory_keys={"b": lambda s: b"bytes"})
    refused(
        labelled,
        out,
        "webdataset",
        'label "b" is binary, and JSON holds no bytes; choose others: labels=[...]',
    )


def test_integers_of_64_bits_are_exact_in_columns(tmp_path):
    top, bottom = np.iinfo(np.uint64).max, -(2**63)
    samples = [
        {
            "one": np.uint64(2**63 + i),
            "row": np.array([top, i], np.uint64),
            "rows": np.array([top] * i, np.uint64),
            "plane": np.full((2, 3), 2**63 + i, np.uint64),
            "planes": np.full((i, 2), 2**63, np.uint64),
            "least": bottom + i,
            "list": [2**63 - 1, bottom],
        }
        for i in (1, 2)
    ]
    out = tmp_path / "out"
    edcache.export(archive_of(tmp_path, *samples), out, "parquet")
    rows = pq.read_table(out).to_pylist()
    for row, sample in zip(rows, samples, strict=True):
        for name, value in sample.items():
            got = row[name]
            if isinstance(got, dict):
                assert got["shape"] == list(value.shape)
                got = got["values"]
            held = np.array(got, np.int64 if name in ("least", "list") else np.uint64)
            assert held.reshape(-1).tolist() == np.asarray(value).reshape(-1).tolist(), name


def test_a_transform_that_changes_its_mind_is_told_by_the_sample(path, out):
    calls: list[int] = []

    def moody(x):
        calls.append(1)
        return x if len(calls) < 35 else x[:1]

    ds = CachedDataset.from_cache(path).select("x").with_transform(moody, field="x")
    with pytest.raises(CodecError, match="sample 4: it has other fields or shapes than samples had when"):
        edcache.export(ds, out, "parquet")
    assert not Path(f"{out}.edcache.new").exists()


def test_options_are_checked(ds, out):
    cases = [
        ({"to": "parquet", "ds": ds[:0]}, "there is no sample to write"),
        ({"to": "tar"}, "to='tar'; choose one of 'webdataset', 'parquet'"),
        ({"to": "parquet", "shard_size": "big"}, "shard_size='big'; give bytes, or text such as \"500MB\""),
    ]
    for options, text in cases:
        with pytest.raises(OptionError) as caught:
            edcache.export(**{"ds": ds, "out": out} | options)
        assert text in str(caught.value)


def test_missing_samples_are_refused_and_available_leaves_them_out(tmp_path, out):
    path = tmp_path / "a.zip"
    with CacheWriter(path) as w:
        for i in (0, 1, 4):
            w.write(i, {"x": i})
    text = f"{path}: 2 of 5 samples have no record, the first is sample 2; leave out those of ds.missing"
    refused(path, out, "webdataset", text, MissingSampleError)
    edcache.export(available(CachedDataset.from_cache(path)), out, "webdataset")
    assert [one["x.cls"] for one in shards(out)] == [0, 1, 4]


# ------------------------------------------------------------------------------- all of it or nothing


def test_what_is_in_the_way_is_left_alone(ds, out):
    out.write_text("mine")
    refused(ds, out, "parquet", f"{out}: exists already; give a path where nothing is", ArchiveExistsError)
    assert out.read_text() == "mine"


def test_two_exports_to_one_place_are_told_apart(ds, out):
    with pytest.raises(StorageError, match="it ends"), new_folder(str(out)):
        text = f"{out}.edcache.new: another process is writing it; wait for it to end"
        refused(ds, out, "parquet", text, ArchiveError)
        raise StorageError("it ends")
    assert not Path(f"{out}.edcache.new").exists()
    edcache.export(ds, out, "parquet")


@pytest.mark.full
@pytest.mark.parametrize("to", ["webdataset", "parquet"])
def test_an_export_that_is_killed_leaves_nothing_at_the_path_and_the_next_one_begins_anew(
    path, tmp_path, to, tally
):
    ds = CachedDataset.from_cache(path)[:8]
    ds[0]
    edcache.export(ds, tmp_path / "whole", to, shard_size=6000)
    out, count, was_there = tmp_path / "out", 1, {False}
    while killed_at(count, lambda: edcache.export(ds, out, to, shard_size=6000)):
        tally("killed exports")
        count += 1
        assert not out.exists() or [*contents(out).values()] == [*contents(tmp_path / "whole").values()]
        was_there.add(out.exists())
        if out.exists():
            break
    assert count > 3
    assert [*contents(out).values()] == [*contents(tmp_path / "whole").values()]
    assert sorted(os.listdir(tmp_path)) == ["out", "whole"]
    assert was_there == {False, True}
