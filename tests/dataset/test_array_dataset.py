"""edcache.numpy: the samples of the torch reader with arrays for tensors, and their batches."""

import collections
import dataclasses
import pickle
import shutil
import threading
from pathlib import Path

import codec_samples
import numpy as np
import pytest
import torch
from codec_samples import Color, Point, encode, run_script, samples
from damage import flip_record
from hypothesis import given
from likeness import same
from optional import needs
from range_server import serving
from systems import reading_by
from torch.utils.data import default_collate
from written import write

import edcache
import edcache.numpy
from edcache import CachedDataset
from edcache.codec import decoder_of
from edcache.codec.dtypes import TENSOR_DTYPES, array_dtype
from edcache.errors import (
    ArchiveError,
    CorruptRecordError,
    MissingDependencyError,
    MissingSampleError,
    OptionError,
    SampleIndexError,
)

GOLDEN = Path(__file__).parents[1] / "conformance" / "golden"


def plain(value):
    """A sample with an array for each tensor."""
    if isinstance(value, torch.Tensor):
        known = TENSOR_DTYPES[str(value.dtype).removeprefix("torch.")]
        array = value.contiguous().view(getattr(torch, known.bits or known.name)).numpy()
        return array if known.bits is None else array.view(array_dtype(known.name))
    if isinstance(value, dict):
        return type(value)((key, plain(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        items = [plain(item) for item in value]
        return tuple.__new__(type(value), items) if isinstance(value, tuple) else items
    if dataclasses.is_dataclass(value):
        copy = object.__new__(type(value))
        for field in dataclasses.fields(value):
            object.__setattr__(copy, field.name, plain(getattr(value, field.name)))
        return copy
    return value


@given(samples)
def test_a_sample_is_what_the_torch_reader_gives_with_arrays_for_tensors(sample):
    text, record = encode(sample)
    try:
        expected = plain(sample)
    except MissingDependencyError:
        with pytest.raises(MissingDependencyError, match="pip install ml_dtypes"):
            decoder_of(text, as_arrays=True)
        return
    decoder = decoder_of(text, as_arrays=True)
    assert same(decoder.decode(memoryview(record)), expected)
    assert same(decoder.decode(memoryview(record), copy=False), expected)


def test_a_schema_within_the_record_gives_arrays_too():
    text, record = encode({"x": torch.arange(3)})
    own = len(text).to_bytes(8, "little") + text.encode()
    record = own + bytes(-len(own) % 8) + record
    decoded = decoder_of('{"self":1}', as_arrays=True).decode(memoryview(record))
    assert same(decoded, {"x": np.arange(3)})


def rich(i):
    return {
        "image": torch.full((3, 5, 4), i, dtype=torch.uint8),
        "large": np.full((70, 300), i, np.float32),
        "half": np.arange(3, dtype=np.float16) + i,
        "point": torch.tensor(i / 4),
        "empty": torch.zeros(0, 2),
        "label": i,
        "score": i / 3,
        "even": i % 2 == 0,
        "scalar": np.int16(i),
        "text": f"sample {i}",
        "raw": bytes([i]),
        "ints": [i, i + 1, 7],
        "tree": collections.OrderedDict(pair=(i, np.arange(2) * i), at=Point(i, torch.arange(2) - i)),
        4: [i, "x"],
    }


def collated(batch):
    """default_collate's batch with arrays, and lists for the tuples that hold texts."""
    if isinstance(batch, torch.Tensor):
        return batch.numpy()
    if isinstance(batch, dict):
        return type(batch)((key, collated(value)) for key, value in batch.items())
    if isinstance(batch, Point):
        return Point(*map(collated, batch))
    return list(map(collated, batch)) if isinstance(batch, list | tuple) else batch


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("arrays") / "rich.zip"
    return write(path, map(rich, range(30)), in_memory_keys=["label", "even"], chunk_size=7)


CHOSEN = [3, 29, -1, 0, 3]


@pytest.mark.parametrize("way", ["mmap", "pread", "zstd", "url", "fields"])
def test_a_batch_is_that_of_default_collate(path, way, tmp_path):
    if way == "zstd":
        path = tmp_path / "zstd.zip"
        write(path, map(rich, range(30)), compression="zstd")
    expected = default_collate([rich(i % 30) for i in CHOSEN])
    with serving(path.read_bytes()) as served:
        fields = ["tree.at", 4, "image"] if way == "fields" else None
        with reading_by(way):
            opened = edcache.numpy.open(served.url if way == "url" else path, fields=fields)
        with opened as ds:
            if way == "fields":
                expected = {"tree.at": expected["tree"]["at"], 4: expected[4], "image": expected["image"]}
                assert same(
                    ds[2],
                    {"tree.at": plain(rich(2)["tree"]["at"]), 4: [2, "x"], "image": plain(rich(2)["image"])},
                )
            assert same(ds[CHOSEN], collated(expected))
            assert same(ds.batch(np.array(CHOSEN)), collated(expected))
            batch = ds[2:20:9]
            assert batch["image"].flags.writeable
            assert batch["image"][:, 0, 0, 0].tolist() == [2, 11]


def test_samples_of_several_structures_are_stacked_as_far_as_they_are_alike(tmp_path):
    path = tmp_path / "several.zip"
    # Beyond four shapes a schema has variable ones.
    boxes = [np.zeros((n, 4), np.float32) for n in (1, 2, 3, 4, 5, 6, 6, 7)]
    write(path, ({"boxes": box, "n": len(box), "maybe": None if k % 2 else k} for k, box in enumerate(boxes)))
    ds = edcache.numpy.open(path)
    with pytest.raises(OptionError, match=r"field boxes with several shapes, \(1, 4\) and \(2, 4\)"):
        ds[[0, 1]]
    assert ds[[5, 6]]["boxes"].shape == (2, 6, 4)
    batch = edcache.numpy.open(path, fields=["n", "maybe"])[:]
    assert same(
        batch, {"n": np.array([1, 2, 3, 4, 5, 6, 6, 7]), "maybe": [0, None, 2, None, 4, None, 6, None]}
    )
    write(tmp_path / "keys.zip", [{"a": 1}, {"b": 1}])
    with pytest.raises(OptionError, match="the samples with several keys"):
        edcache.numpy.open(tmp_path / "keys.zip")[:]


def test_labels_choose_indices_and_an_integer_gives_a_sample(path):
    ds = edcache.numpy.open(path)
    assert len(ds) == 30
    assert ds.labels["label"].tolist() == list(range(30))
    assert ds.where("label > 26", even=True).tolist() == [28]
    assert same(ds[ds.labels["label"] > 27]["label"], np.array([28, 29]))
    assert same(ds[np.int64(-2)], plain(rich(28)))
    assert [sample["label"] for sample in ds] == list(range(30))
    assert not edcache.numpy.open(path, zero_copy=True)[0]["image"].flags.writeable
    for wrong in (30, -31, [30]):
        with pytest.raises(SampleIndexError):
            ds[wrong]
    for wrong in ([], [True], [0.5]):
        with pytest.raises(OptionError):
            ds[wrong]
    ds.close()
    with pytest.raises(ArchiveError):
        ds[0]


def test_what_is_missing_is_named():
    ds = edcache.numpy.open(GOLDEN / "v3-relabelled.zip")
    assert ds.missing.tolist() == [3]
    with pytest.raises(MissingSampleError, match="sample 3"):
        ds[[0, 3]]
    assert ds[[0, 4]]["label"].tolist() == [0, 4]


def test_a_damaged_record_is_named_in_a_batch(path, tmp_path):
    damaged = shutil.copy(path, tmp_path / "damaged.zip")
    flip_record(damaged, 11, at=100)
    ds = edcache.numpy.open(damaged)
    with pytest.raises(CorruptRecordError, match="record 11 "):
        ds[10:13]
    assert ds[12:14]["label"].tolist() == [12, 13]


def test_threads_and_a_pickle_read_the_same(path):
    ds = pickle.loads(pickle.dumps(edcache.numpy.open(path, fields=["image", "label"])))
    batches = [None] * 4

    def read(k):
        batches[k] = ds[k::4]

    threads = [threading.Thread(target=read, args=(k,)) for k in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert [batch["label"].tolist() for batch in batches] == [list(range(k, 30, 4)) for k in range(4)]


WITHOUT_TORCH = """
import os, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "ml_dtypes"):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
import collections
import edcache.numpy
from edcache import Decoding, ImageFile
from edcache.errors import MissingDependencyError
"""


def test_nothing_of_it_imports_torch(path, tmp_path):
    zstd, own = tmp_path / "zstd.zip", tmp_path / "own.zip"
    write(zstd, map(rich, range(80)), compression="zstd")
    # So many structures that records carry their own.
    write(own, ({f"key {i}": torch.arange(i)} for i in range(1100)))
    with serving(path.read_bytes()) as served:
        script = f"""
Point = collections.namedtuple("Point", "x y")
edcache.register(Point, name="codec_samples.Point")
for path in {[str(path), str(zstd), str(own), served.url]!r}:
    for fields in ([0], None) if path == {str(own)!r} else (["image", "tree.at", "label"], None):
        ds = edcache.numpy.open(path, fields=None if path == {str(own)!r} else fields)
        assert next(iter(ds)) is not None and ds[-1] is not None
        if path != {str(own)!r}:
            assert ds[[5, 7, 1]]["image"].tolist() == [[[[i] * 4] * 5] * 3 for i in (5, 7, 1)]
assert ds.where("label > 3", even=True)[0] == 4
child = os.fork()
if not child:
    os._exit(ds[3]["label"])
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
assert not [name for name in sys.modules if name.partition(".")[0] == "torch"]
print("read")
"""
        assert run_script(WITHOUT_TORCH + script) == "read\n"


@needs("PIL")
def test_what_takes_another_package_says_which(tmp_path):
    path = tmp_path / "dtypes.zip"
    write(path, [{"x": torch.arange(3).to(torch.bfloat16)}])
    script = f"""
try:
    edcache.numpy.open({str(path)!r})[0]
except MissingDependencyError as error:
    print(error)
"""
    assert "bfloat16 as an array takes ml_dtypes; pip install ml_dtypes" in run_script(WITHOUT_TORCH + script)
    script = """
import io
from PIL import Image
file = io.BytesIO()
Image.new("RGB", (9, 9)).save(file, "PNG")
for decode in (Decoding("numpy", size=4), Decoding("numpy", size=4, crop="random")):
    try:
        ImageFile(file.getvalue()).decode(decode)
    except MissingDependencyError as error:
        print(error)
"""
    assert run_script(WITHOUT_TORCH + script).count("this decoding takes torch; pip install torch") == 2


def test_small_floats_are_those_of_ml_dtypes(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="pip install ml_dtypes")
    path = tmp_path / "dtypes.zip"
    values = [torch.arange(4.0) + i for i in range(3)]
    write(path, ({"b": v.to(torch.bfloat16), "f": v.to(torch.float8_e5m2)} for v in values))
    ds = edcache.numpy.open(path)
    assert ds[1]["b"].dtype == ml_dtypes.bfloat16
    assert ds[:]["b"].astype(np.float32).tolist() == torch.stack(values).tolist()
    assert ds[:]["f"].astype(np.float32)[2].tolist() == values[2].to(torch.float8_e5m2).float().tolist()


def test_a_dtype_that_numpy_lacks_comes_as_integers_of_its_bits(tmp_path):
    path = tmp_path / "bits.zip"
    write(path, [torch.arange(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)])
    found = edcache.numpy.open(path)[0]
    assert (found.dtype, found.tolist()) == (np.uint8, [0, 1, 2, 3])


@needs("PIL")
def test_images_that_decode_to_tensors_are_arrays_with_channels_last(tmp_path):
    path = GOLDEN / "v3-images.zip"
    ds, torch_ds = edcache.numpy.open(path), CachedDataset.from_cache(path)
    assert same(ds[0]["tensor"], torch_ds[0]["tensor"].permute(1, 2, 0).numpy())
    assert same(ds[:]["numpy"], np.stack([torch_ds[i]["numpy"] for i in range(len(ds))]))


def test_registered_classes_are_made_again(tmp_path):
    path = tmp_path / "classes.zip"
    write(path, [(codec_samples.Box(torch.arange(2), 3), Color.GREEN)])
    ds, expected = edcache.numpy.open(path), codec_samples.Box(np.arange(2), 3)
    assert same(ds[0], (expected, Color.GREEN))
    assert same(ds[[0, 0]], [[expected, expected], [Color.GREEN, Color.GREEN]])
