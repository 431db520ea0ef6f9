"""Writing by columns: the same file as sample by sample, what is refused, and fills of tensors."""

import collections
import datetime
import uuid

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset, TensorDataset
from written import write

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import CodecError, LabelError, OptionError
from edcache.labels.collector import LabelCollector
from edcache.reader import Reader
from edcache.writer.source import batches_of as asking_of
from edcache.writer.source import declared

UUID = bytes(range(16))
POINT = np.dtype([("a", "u1"), ("b", ">f8")], align=True)
NUMPY = [
    "?",
    "i1",
    "u2",
    "i8",
    "f2",
    "<f4",
    ">f4",
    "f8",
    ">i8",
    "c16",
    "M8[us]",
    ">m8[s]",
    "S3",
    "U2",
    "V5",
]
TORCH = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.complex64]
LISTED = [
    ["", "ä", "text", None, 1, 2.5],
    ["", "ä", "text\0", "\ud800", "long" * 300],
    [b"", b"\0", b"bytes", bytes(70_000)],
    [1, -(2**63), 2**63 - 1],
    [1, 2**70],
    [True, False],
    [0.5, float("nan")],
    [np.float32(1), np.float32(2)],
    [np.array(7), np.array(8)],
    [np.arange(k, dtype=">i2") for k in range(4)],
    [np.ones((2, 3)), np.ones((2, 3), order="F"), np.ones((3, 2))],
    [np.zeros((0, 2**40), "u1"), np.zeros((1, 2), "u1")],
    [np.zeros(k, POINT) for k in range(3)],
    [torch.arange(3), torch.arange(3)[::2], torch.arange(0)],
    [torch.ones(k, dtype=torch.bfloat16) for k in range(3)],
    [{"a": "x", "b": (1, b"y")}, {"a": "", "b": (2, b"")}],
    [[1, 2], ["a", "b"], []],
    [list(range(9)), list(range(12))],
    [uuid.UUID(int=256), uuid.UUID(int=1)],
    [datetime.date(2020, 1, 2), datetime.date(1, 1, 1)],
    [1 + 2j, complex(0, float("inf"))],
    [None],
]
SHAPES = [(), (1,), (3,), (0,), (2, 0), (2, 3), (5, 1, 2), (300,)]


def item(tree, row):
    if isinstance(tree, dict):
        return type(tree)((key, item(child, row)) for key, child in tree.items())
    if isinstance(tree, tuple):
        return tuple(item(child, row) for child in tree)
    return None if tree is None else tree[row]


def both(folder, *batches, **options):
    """The bytes of two archives: of columns, and of the same samples one by one."""
    for path in (columns := folder / "columns.zip", single := folder / "single.zip"):
        path.unlink(missing_ok=True)
    options = {"uuid": UUID, "publish_seconds": None, **options}
    with CacheWriter(columns, **options) as w, CacheWriter(single, **options) as v:
        for count, batch in batches:
            w.extend_columns(batch)
            v.extend(item(batch, row) for row in range(count))
    return columns.read_bytes(), single.read_bytes()


@st.composite
def columns_of(draw, count, kinds=("numpy", "torch", "struct", "none", "list")):
    shape = (count, *draw(st.sampled_from(SHAPES)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    kind = draw(st.sampled_from(kinds))
    if kind == "none":
        return None
    if kind == "list":
        items = draw(st.sampled_from(LISTED))
        return [draw(st.sampled_from(items)) for _ in range(count)]
    if kind == "torch":
        values = torch.from_numpy(rng.integers(0, 2, shape)).to(draw(st.sampled_from(TORCH)))
        return values.flip(0).mT if values.ndim > 2 and draw(st.booleans()) else values
    dtype = POINT if kind == "struct" else np.dtype(draw(st.sampled_from(NUMPY)))
    values = np.empty(shape, dtype)
    raw = rng.integers(0, 256, values.nbytes, np.uint8)
    if dtype.kind in "US":
        values[...] = rng.choice(["", "a", "bc", "a\0b"], shape)
    elif dtype.kind == "b":
        values[...] = rng.integers(0, 2, shape)
    else:
        values = np.frombuffer(raw.tobytes(), dtype).reshape(shape) if values.nbytes else values
    how = draw(st.sampled_from(["plain", "reversed", "every second", "fortran"]))
    if how == "reversed":
        return values[::-1]
    if how == "every second":
        return np.repeat(values, 2, axis=0)[::2]
    return np.asfortranarray(values) if how == "fortran" else values


@st.composite
def batches_of(draw):
    count = draw(st.integers(1, 7))
    tree = {
        "first": np.arange(count),
        "texts": draw(columns_of(count, ["list"])),
        "x": draw(columns_of(count)),
        "deep": collections.OrderedDict(y=draw(columns_of(count)), z=(draw(columns_of(count)), None)),
    }
    return count, tree


@settings(max_examples=120)
@given(st.lists(batches_of(), min_size=1, max_size=3), st.sampled_from([None, 1, 3]))
def test_the_file_is_the_one_of_samples_one_by_one(tmp_path_factory, batches, chunk_size):
    folder = tmp_path_factory.mktemp("columns")
    columns, single = both(folder, *batches, in_memory_keys=["first"], chunk_size=chunk_size)
    assert columns == single


def reader_of(source):
    return asking_of(source)[0]


@pytest.mark.parametrize("compression", [None, "zstd:1"])
@pytest.mark.parametrize("nbytes", [24, 785, 150_000, 5_000_000])
def test_chunks_are_as_full_as_one_by_one(tmp_path, nbytes, compression):
    count = min(9000, 12_000_000 // nbytes)
    batch = {"x": np.arange(count * nbytes, dtype=np.uint64).astype("u1").reshape(count, nbytes)}
    batch["label"] = torch.arange(count) % 300
    odd = {"x": np.ones((3, 7), "u1"), "label": torch.tensor([-1, 2**60, 5])}
    batches = [(3, odd), (count, batch), (3, odd), (count, batch)]
    columns, single = both(tmp_path, *batches, in_memory_keys=["label"], compression=compression)
    assert columns == single
    assert edcache.verify(tmp_path / "columns.zip").sound


def test_many_texts_fill_chunks_as_one_by_one_whatever_their_lengths(tmp_path, monkeypatch):
    monkeypatch.setattr("edcache.writer.builder.CHUNK_NBYTES", 1 << 20)
    rng = np.random.default_rng(0)
    lengths = [int(n) for n in (1200 ** rng.random(9000)).tolist()] + [70_000] * 20 + [1] * 3000
    texts = ["ä" * (n // 2) + "\ud800" * (n % 7 == 0) for n in lengths]
    texts[5000] = None
    count = len(texts)
    batch = {"t": texts, "x": np.arange(count * 5).reshape(count, 5), "u": [b"z" * (n % 9) for n in lengths]}
    columns, single = both(tmp_path, (count, batch), (count, batch))
    assert columns == single
    assert edcache.verify(tmp_path / "columns.zip").sound


def test_arrays_whose_shape_varied_before_follow_texts(tmp_path):
    batches = [(n, {"t": ["a" * k for k in range(n)], "x": np.ones((n, n), "u1")}) for n in (1, 2, 7)]
    columns, single = both(tmp_path, *batches, (7, {"t": ["b"] * 7, "x": [np.ones(k) for k in range(7)]}))
    assert columns == single


@pytest.mark.parametrize("fields", ["x", "tx"])
def test_arrays_whose_shape_varied_before_come_alone_and_without_bytes(tmp_path, fields):
    """Two shapes make a schema of varying ones; then one sample comes, and then rows of no bytes."""
    batches = [
        (n, {name: ["a" * n] * n if name == "t" else np.ones((n, k), "u1") for name in fields})
        for n, k in ((2, 1), (2, 2), (1, 3), (3, 0))
    ]
    columns, single = both(tmp_path, *batches)
    assert columns == single


def test_records_without_bytes_are_as_many_as_given(tmp_path):
    columns, single = both(tmp_path, (5, {"x": np.zeros((5, 0))}), (5, {"x": [None] * 5}))
    assert columns == single


@pytest.mark.parametrize(
    "labels",
    [
        [np.arange(5, dtype="u1"), np.arange(5, dtype=">i8") - 2, None, np.arange(5)],
        [np.arange(5.0), np.array([np.nan, -0.0, 1, 2, 3], "f2"), [None, 1.5, 2.5, 3.5, 4.5], np.arange(5.0)],
        [np.arange(5) > 2, torch.ones(5, dtype=torch.bool), [True, False, None, True, False]],
        [np.ones((5, 2), "i4"), torch.ones(5, 3, dtype=torch.int64)],
        [["a", "b", None, "", "ä"], np.array(["x", "y", "zz", "", "w"])],
        [np.arange(5).astype("M8[D]"), np.arange(5).astype("M8[D]")],
    ],
)
def test_labels_are_those_of_the_samples(tmp_path, labels):
    batches = [(5, {"deep": {"y": column}, "x": np.zeros((5, 2))}) for column in labels]
    keys = {"y": "deep.y", "made": lambda sample: sample["x"][0]}
    columns, single = both(tmp_path, *batches, in_memory_keys=keys)
    assert columns == single


def test_a_label_of_another_type_is_named_and_the_samples_before_it_are_kept(tmp_path):
    path = tmp_path / "a.zip"
    w = CacheWriter(path, in_memory_keys=["y"])
    w.extend_columns({"y": np.arange(4)})
    with pytest.raises(LabelError, match=r'label "y": sample 4 is .* earlier samples are int64'):
        w.extend_columns({"y": np.array([True, False])})
    with pytest.raises(LabelError, match="sample 6 is"):
        w.extend_columns({"y": [4, 5, "six"]})
    with pytest.raises(LabelError, match='sample 6 has no field "y"'):
        w.extend_columns({"z": np.arange(3)})
    w.extend_columns({"y": np.arange(6, 9)})
    w.close()
    ds = CachedDataset.from_cache(path)
    assert ds.labels["y"].tolist() == list(range(9))
    assert [int(ds[i]["y"]) for i in range(9)] == list(range(9))


@pytest.mark.parametrize(
    ("columns", "error", "text"),
    [
        ({}, OptionError, "no column has a length; give at least one"),
        ({"a": {}, "b": None}, OptionError, "no column has a length"),
        (
            {"a": np.ones(3), "b": {"c": [1, 2]}},
            OptionError,
            r"\['b'\]\['c'\] has 2 samples, .* has 3",
        ),
        ({"a": np.ones(())}, OptionError, r"\['a'\]: an array without dimensions"),
        ({"a": np.array([{}, 1])}, CodecError, r"\['a'\]: an array of objects; give its .tolist"),
        ({"a": "text"}, CodecError, r"\['a'\]: .*is no column; give an array"),
        (np.ones(3), CodecError, "give a dict of columns"),
        ({"a": torch.ones(3, requires_grad=True)}, CodecError, r"sample 0: .*call \.detach\(\)"),
    ],
)
def test_what_is_no_column_is_refused(tmp_path, columns, error, text):
    with CacheWriter(tmp_path / "a.zip") as w:
        with pytest.raises(error, match=f"a.zip: .*{text}"):
            w.extend_columns(columns)
        assert w.next_index == 0
        w.extend_columns({"a": np.ones((0, 3))})
        assert w.next_index == 0


def test_a_pickling_archive_takes_columns(tmp_path):
    with CacheWriter(tmp_path / "a.zip", codec="pickle") as w:
        w.extend_columns({"x": np.arange(3), "y": [{1}, {2}, {3}]})
    ds = CachedDataset.from_cache(tmp_path / "a.zip", allow_pickle=True)
    assert [ds[i] for i in range(3)] == [{"x": i, "y": {i + 1}} for i in range(3)]


def test_the_columns_may_change_once_they_are_given(tmp_path):
    values = np.arange(10)
    with CacheWriter(tmp_path / "a.zip", in_memory_keys=["y"]) as w:
        w.extend_columns({"y": values})
        values[:] = 0
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    assert [int(ds[i]["y"]) for i in range(10)] == ds.labels["y"].tolist() == list(range(10))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_fill_of_tensors_is_that_of_their_samples(tmp_path, num_workers):
    x = torch.arange(900 * 5).reshape(900, 5).to(torch.float16)
    tensors = TensorDataset(x.mT.contiguous().mT, torch.arange(900) % 7)
    options = {"in_memory_keys": {"y": 1}, "num_workers": num_workers, "progress": False}
    whole = CachedDataset(tensors, tmp_path / "columns.zip", **options)
    single = CachedDataset([tensors[i] for i in range(900)], tmp_path / "single.zip", **options)
    assert whole.complete
    assert whole.labels["y"].tolist() == single.labels["y"].tolist()
    for i in range(900):
        assert type(whole[i]) is tuple
        assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(whole[i], single[i], strict=True))


def test_a_fill_of_tensors_that_are_refused_says_so_of_each(tmp_path):
    tensors = TensorDataset(torch.ones(3, 2, requires_grad=True))
    ds = CachedDataset(tensors, tmp_path / "a.zip", on_error="skip", progress=False)
    assert [failure.index for failure in ds.errors] == [0, 1, 2]
    with pytest.raises(CodecError, match="sample 0: .*requires grad"):
        CachedDataset(tensors, tmp_path / "b.zip", progress=False)


@pytest.mark.parametrize("by", ["append", "columns"])
def test_labels_of_what_an_interrupt_left_unfinished_are_taken_back(tmp_path, monkeypatch, by):
    def add(writer, low, high):
        numbers = np.arange(low, high)
        if by == "columns":
            writer.extend_columns({"y": numbers, "x": numbers / 2})
        else:
            writer.extend({"y": number, "x": number / 2} for number in numbers)

    name = "add_columns" if by == "columns" else "add"
    collect = getattr(LabelCollector, name)

    def interrupted(*arguments):
        collect(*arguments)
        raise KeyboardInterrupt

    with CacheWriter(tmp_path / "a.zip", in_memory_keys=["y"]) as writer:
        add(writer, 0, 3)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(LabelCollector, name, interrupted)
            add(writer, 3, 7)
        add(writer, 3, 5)
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    assert ds.labels["y"].tolist() == [sample["y"] for sample in ds] == [0, 1, 2, 3, 4]


def _table(seed, is_plain):
    datasets = pytest.importorskip("datasets")
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 200))
    types = {
        "image": (datasets.Array2D((2, 3), "float32"), lambda: random.random((2, 3)).tolist()),
        "label": (datasets.Value("int32"), lambda: int(random.integers(9))),
        "half": (datasets.Value("float16"), lambda: float(random.integers(9))),
        "is_new": (datasets.Value("bool"), lambda: bool(random.integers(2))),
        "perhaps": (datasets.Value("int64"), lambda: [3, None][random.integers(2)]),
        "name": (datasets.Value("string"), lambda: "ä" * int(random.integers(5))),
        "ragged": (
            datasets.Sequence(datasets.Value("int16")),
            lambda: random.integers(0, 9, random.integers(4)).tolist(),
        ),
        "box": (
            {"x": datasets.Value("float64"), "of": datasets.Value("string")},
            lambda: {"x": 0.5, "of": "a"},
        ),
    }
    chosen = [name for name in types if random.random() < 0.4] or ["label"]
    if is_plain:
        chosen = ["label", "is_new"][: 1 + seed]
    features = datasets.Features({name: types[name][0] for name in chosen})
    rows = {name: [types[name][1]() for _ in range(count)] for name in chosen}
    return datasets.Dataset.from_dict(rows, features), random


class _OneByOne:
    def __init__(self, source):
        self.source = source

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        return self.source[index]


@pytest.mark.parametrize("form", [None, "numpy", "torch", "subset", "tensors"])
@pytest.mark.parametrize("seed", range(4))
def test_a_fill_by_columns_leaves_the_bytes_of_one_by_one(tmp_path, form, seed):
    if form == "tensors":
        random = np.random.default_rng(seed)
        source = TensorDataset(torch.arange(600).reshape(200, 3).to(torch.int16), torch.randn(200))
    else:
        is_plain = form in ("numpy", "torch") and seed < 2
        source, random = _table(seed, is_plain)
        source = source.with_format(None if form == "subset" else form).shuffle(seed)
    if form in ("subset", "tensors"):
        source = Subset(source, random.integers(-len(source), len(source), 150).tolist())
    assert reader_of(declared(source)) is not None or form == "numpy" or (form == "torch" and seed >= 2)
    records = []
    for each in (source, _OneByOne(declared(source))):
        path = tmp_path / f"{len(records)}.zip"
        CachedDataset(each, path, progress=False, fingerprint=False)
        reader = Reader(path)
        records.append([bytes(reader.session.fetch(k)[0]) for k in range(len(source))])
    assert records[0] == records[1]


def test_columns_are_taken_of_a_formatted_table_and_what_a_column_would_change_is_not(tmp_path):
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"x": [1, 2, 3]})
    floats = datasets.Dataset.from_dict({"x": [0.5, 1.5]})
    holes = datasets.Dataset.from_dict({"x": [1, None, 3]})
    for form in ("numpy", "torch"):
        assert reader_of(whole.with_format(form))([1, 2]).count == 2
        assert reader_of(holes.with_format(form)) is None
    assert reader_of(floats.with_format("torch"))
    assert reader_of(floats.with_format("numpy")) is None  # a row has float64, a column float32
    assert reader_of(whole.with_transform(lambda rows: rows)) is None


def test_rows_that_end_as_a_run_does_are_no_run(tmp_path):
    source = Subset(TensorDataset(torch.arange(10)), [0, 5, 2, 7, 9, 8, 9])
    ds = CachedDataset(source, tmp_path / "a.zip", batch_size=3, progress=False)
    assert [int(sample[0]) for sample in ds] == [0, 5, 2, 7, 9, 8, 9]


def test_a_sample_outside_of_a_subset_is_named(tmp_path):
    source = Subset(TensorDataset(torch.arange(9)), [3, 4, 12, 5])
    ds = CachedDataset(source, tmp_path / "a.zip", on_error="skip", progress=False)
    assert [failure.index for failure in ds.errors] == [2]
    assert [int(ds[k][0]) for k in (0, 1, 3)] == [3, 4, 5]


@pytest.mark.parametrize(
    "box",
    [
        (np.array([1, 2, 3]), np.array([30, 40, 50])),
        (np.array([1, 2, 3]), np.array([30, 40, 50]), np.array([7, 8, 9])),
        (None, np.array([1, 2, 3])),
    ],
)
def test_labels_of_a_tuple_are_its_values_of_each_sample(tmp_path, box):
    rows = [tuple(None if part is None else int(part[k]) for part in box) for k in range(3)]
    with CacheWriter(tmp_path / "a.zip", in_memory_keys=["box"]) as writer:
        writer.extend_columns({"box": box})
    write(tmp_path / "b.zip", ({"box": row} for row in rows), in_memory_keys=["box"])
    for name in ("a.zip", "b.zip"):
        labels = CachedDataset.from_cache(tmp_path / name).labels.table["box"]
        assert labels.to_pylist() == [list(row) for row in rows]
