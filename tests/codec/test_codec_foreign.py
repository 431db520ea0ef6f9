"""Pickles of other programs: what is plain data comes back exactly, and nothing that they name is called."""

import collections
import contextlib
import datetime as dt
import encodings.raw_unicode_escape  # noqa: F401 - which text of a pickle may load at its first use
import io
import os
import pathlib
import pickle
import resource
import sys
import warnings

import numpy as np
import pytest
import torch
import torch.utils.serialization  # torch imports it when a tensor of foreign memory is made
from likeness import same
from scale import scaled, seeded

from edcache.codec.foreign_pickles import restored, torch_loaded
from edcache.errors import ArchiveError, CodecError

TRUST = (
    "; if you trust its author, trust_pickle=True reads it as pickle does, which runs whatever code is in it"
)

VALUES = {
    "array": np.arange(12.0).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(12).reshape(3, 4)),
    "transposed": np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
    "empty": np.zeros((0, 3), "f4"),
    "no dimension": np.array(3.0),
    "big-endian": np.arange(3, dtype=">i2"),
    "texts": np.array(["a", "bcd"]),
    "bytes array": np.array([b"x", b""]),
    "dates": np.array(["2020-01-01", "2021-02-03"], "M8[ns]"),
    "durations": np.array([1, 2], "m8[3h]"),
    "no unit": np.array([1, 2]).view("m8"),
    "float32": np.float32(3),
    "int64": np.int64(-5),
    "bool_": np.bool_(True),
    "str_": np.str_("hé"),
    "empty str_": np.str_(""),
    "void": np.void(b"abc"),
    "datetime64": np.datetime64("2020-01-01"),
    "bytes": b"\xff\x00",
    "no bytes": b"",
    "bytearray": bytearray(b"xyz"),
    "no bytearray": bytearray(),
    "complex": 1 + 2j,
    "ordered": collections.OrderedDict(a=1, b=[1, (2,)]),
    "datetime": dt.datetime(2020, 1, 2, 3, 4, 5, 6, dt.timezone.utc),
    "timedelta": dt.timedelta(1, 2),
    "path": pathlib.PurePosixPath("/a/b"),
    "plain": {"a": [None, True, 1.5, "é", 10**40], 3: (), b"k": ((1,),)},
    "set": {1, 2},
    "frozenset": frozenset({"a"}),
}
TENSORS = {
    "tensor": torch.arange(6).reshape(2, 3),
    "a view": torch.arange(1000.0)[10:20:3],
    "transposed": torch.arange(6).reshape(2, 3).T,
    "expanded": torch.ones(1).expand(5),
    "empty": torch.zeros(0, 3),
    "scalar": torch.tensor(3.5),
    **{
        str(dtype): torch.ones(2).to(dtype)
        for dtype in (
            *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16),
            *(torch.bfloat16, torch.float64, torch.complex64, torch.complex128),
        )
    },
}


def saved(value, zipped):
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


@pytest.mark.parametrize("protocol", range(6))
def test_plain_data_comes_back_exactly(protocol, tally):
    for name, value in VALUES.items():
        found = restored(pickle.dumps(value, protocol), "x")
        assert same(found, value), name
    tally("values in foreign pickles", len(VALUES))


@pytest.mark.parametrize("protocol", range(2, 6))
def test_tensors_in_a_pickle_come_back_with_memory_of_their_own(protocol):
    for name, value in TENSORS.items():
        found = restored(pickle.dumps({"x": value}, protocol), "x")["x"]
        assert same(found, value.contiguous()), name
        assert found.untyped_storage().nbytes() == found.numel() * found.itemsize


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_files_of_torch_save_come_back_exactly(zipped):
    for name, value in {**VALUES, **TENSORS}.items():
        found = torch_loaded(saved({"x": value, "y": [value]}, zipped), "x")
        expected = value.contiguous() if isinstance(value, torch.Tensor) else value
        assert same(found["x"], expected), name
        assert same(found["y"][0], expected), name


def test_arrays_and_tensors_belong_to_the_caller():
    found = restored(pickle.dumps([np.arange(3), torch.arange(3)]), "x")
    found[0][0] = 7
    found[1][0] = 7
    assert found[0][0] == found[1][0] == 7


def test_a_tensor_loses_its_gradient_and_its_device():
    found = restored(pickle.dumps(torch.ones(2, requires_grad=True)), "x")
    assert not found.requires_grad
    data = saved(torch.ones(2), False).replace(b"cpu", b"xpu")
    assert torch_loaded(data, "x").device.type == "cpu"


def test_names_of_older_numpy_are_known():
    data = pickle.dumps([np.arange(3), np.float32(1)], 2)
    assert b"numpy._core" in data or b"numpy.core" in data
    for module in (b"numpy.core", b"numpy._core"):
        old = data.replace(b"numpy._core", b"numpy.core").replace(b"numpy.core", module)
        assert same(restored(old, "x"), [np.arange(3), np.float32(1)])


# ------------------------------------------------------------------------------------- hostile names


def part(value, protocol=2):
    """A value as a part of a pickle: without its beginning and its end."""
    return pickle.dumps(value, protocol)[2:-1]


def named(module, name):
    return f"c{module}\n{name}\n".encode()


def called(function, *arguments):
    return function + b"(" + b"".join(arguments) + b"tR"


def whole(*parts):
    return b"\x80\x02" + b"".join(parts) + b"."


class Hostile:
    def __reduce__(self):
        return os.system, ("touch ran",)


DTYPE = part(np.dtype("f4"))
NDARRAY = named("numpy", "ndarray")
RECONSTRUCT = named("numpy.core.multiarray", "_reconstruct")
NESTED = named("torch.storage", "_load_from_bytes")
REBUILD = named("torch._utils", "_rebuild_tensor_v2")
FOUR = torch.storage.TypedStorage(
    wrap_storage=torch.ones(4).untyped_storage(), dtype=torch.float32, _internal=True
)
FLOATS = called(NESTED, part(saved(FOUR, False), 3))
RUN = called(named("os", "system"), part("touch ran"))


def tensor(offset=0, shape=(2,), strides=(1,), meta=None):
    """A tensor over 16 bytes, read as float32."""
    more = part(False) + part(None) + (b"" if meta is None else part(meta))
    return whole(called(REBUILD, FLOATS, part(offset), part(shape), part(strides), more))


REFUSED = {
    "os.system": whole(RUN),
    "builtins.eval": whole(called(named("builtins", "eval"), part("open('ran', 'w')"))),
    "__builtin__.exec": whole(called(named("__builtin__", "exec"), part("open('ran', 'w')"))),
    "builtins.getattr": whole(called(named("builtins", "getattr"), part("a"), part("upper"))),
    "torch.load": whole(called(named("torch", "load"), part("x"))),
    "numpy.ndarray.tofile": b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",
    "numpy.dtype.__reduce__": b"\x80\x04\x8c\x05numpy\x8c\x10dtype.__reduce__\x93.",
    "tests.old.Sample": whole(b"(itests.old\nSample\n"),
    "module.Class": whole(b"(" + named("module", "Class") + b"o"),
    "an array of dtype 'O8'": pickle.dumps(np.array([{}], object)),
    "an array of a dtype with fields": pickle.dumps(np.zeros(2, [("a", "<i4"), ("b", ">f8", (2,))])),
    "an array of dtype 5": whole(called(named("numpy", "dtype"), part(5))),
    "a subclass of numpy.ndarray": whole(called(RECONSTRUCT, part("no array"), part((0,)), part(b"b"))),
    "torch._utils._rebuild_tensor_v3": pickle.dumps(torch.ones(2).to(torch.float8_e5m2)),
    "a tensor that is conjugated or negated by a bit": tensor(meta={"neg": True}),
    "TorchScript, which is a program": whole(called(NESTED, part(b"PK\x03\x04constants.pkl", 3))),
}


_SEEN = []
_LISTENING = []
ALARMING = ("os.", "subprocess.", "exec", "compile", "import", "shutil.", "socket.", "ctypes.")


@contextlib.contextmanager
def nothing_called():
    """Fails where the interpreter reports a call or an import in the block that could harm."""
    _LISTENING.append(True)
    try:
        yield
    finally:
        _LISTENING.clear()
        seen = list(_SEEN)
        _SEEN.clear()
        assert not seen


def _heard(event, arguments):
    if _LISTENING and event.startswith(ALARMING):
        _SEEN.append((event, arguments))


sys.addaudithook(_heard)


def test_the_hook_hears_what_pickle_itself_calls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match=r"os\.system"), nothing_called():
        pickle.loads(REFUSED["os.system"])
    assert os.listdir() == ["ran"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_on_the_list_is_refused_by_name_and_not_called(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CodecError) as caught, nothing_called():
        restored(REFUSED[name], "old.zip: example_3.p")
    assert str(caught.value) == f"old.zip: example_3.p needs {name}{TRUST}"
    assert not os.listdir()


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_what_is_not_on_the_list_is_refused_in_files_of_torch_save(zipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = saved({"x": Hostile()}, zipped)
    nested = whole(called(NESTED, part(data, 3)))
    for read, pickled in ((torch_loaded, data), (restored, nested)):
        with pytest.raises(CodecError, match=r"^x needs (os|posix)\.system; "), nothing_called():
            read(pickled, "x")
    assert not os.listdir()


def test_trust_reads_whatever_there_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert restored(pickle.dumps(Hostile()), "x", trust=True) == 0
    assert os.listdir() == ["ran"]
    os.remove("ran")
    assert torch_loaded(saved(Hostile(), True), "x", trust=True) == 0
    assert os.listdir() == ["ran"]
    with pytest.raises(ArchiveError, match=r"^x does not unpickle: ModuleNotFoundError: No module named"):
        restored(whole(named("no_such_module", "Class")), "x", trust=True)


@pytest.mark.parametrize("name", ["pathlib.PosixPath", "collections.OrderedDict", "numpy.ndarray"])
def test_a_pickle_changes_no_class_of_this_process(name):
    """The opcode BUILD sets attributes, also those of a class or function that a pickle names."""
    module, _, kind = name.rpartition(".")
    for state in ((None, {"harm": 1}), {"harm": 1}):
        with pytest.raises(ArchiveError, match="a state for "):
            restored(whole(named(module, kind), part(state), b"b"), "x")
    assert not hasattr(getattr(sys.modules[module], kind), "harm")


# ----------------------------------------------------------------------------------- hostile numbers


def array_of(shape, data, dtype=DTYPE):
    made = called(RECONSTRUCT, NDARRAY, part((0,)), part(b"b", 3))
    return whole(made, b"(", part(1), part(shape), dtype, part(False), part(data, 3), b"tb")


DAMAGED = {
    "cut": pickle.dumps(np.arange(9))[:-20],
    "nothing": b"",
    "no pickle": b"hello world",
    "an extension": whole(b"\x82\x01"),
    "persistent id": b"\x80\x02K\x01Q.",
    "a class as a value": whole(NDARRAY),
    "a call of a class": whole(called(NDARRAY, part((2,)), part("O"))),
    "a dtype as a value": pickle.dumps(np.dtype("f4")),
    "no state": whole(called(RECONSTRUCT, NDARRAY, part((0,)), part(b"b", 3))),
    "few bytes": array_of((1 << 40,), b"abcd"),
    "many bytes": array_of((1,), b"abcdefgh"),
    "vast": array_of((1 << 62, 4), b""),
    "no dtype": array_of((1,), b"abcd", part("f4")),
    "encoding": whole(called(named("_codecs", "encode"), part("a"), part("rot13"))),
    "path": whole(called(named("pathlib", "PurePosixPath"), part(5))),
    "deep": b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".",
    "no storage": whole(called(REBUILD, *map(part, (5, 0, (1,), (1,), False, None)))),
    "beyond the storage": tensor(0, (5,)),
    "an offset beyond it": tensor(4, (1,)),
    "strides beyond it": tensor(0, (2,), (9,)),
    "a negative offset": tensor(-1),
    "a negative stride": tensor(0, (2,), (-1,)),
    "a shape of text": tensor(0, ("a",)),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_damaged_or_reaches_too_far_is_an_error(name):
    with pytest.raises(ArchiveError, match="^x does not unpickle: "), nothing_called():
        restored(DAMAGED[name], "x")


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_file_of_torch_save_that_was_cut_is_an_error(zipped):
    data = saved({"x": torch.ones(30)}, zipped)
    for cut in (20, len(data) // 2, len(data) - 30):
        with pytest.raises(ArchiveError, match="^x does not unpickle: "):
            torch_loaded(data[:cut], "x")


def test_what_torch_save_did_not_write_is_no_file_of_it():
    with pytest.raises(ArchiveError, match=r"^x begins with b'hello', as no file of torch\.save does$"):
        torch_loaded(b"hello", "x")
    with pytest.raises(CodecError, match="^x needs TorchScript, which is a program; "):
        torch_loaded(scripted(), "x")


def scripted():
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates it
        torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), file)
    return file.getvalue()


def changed(data, others, random):
    """A copy with a few bytes replaced, removed, put in, or taken from another."""
    data = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 4])):
        at, kind = random.randrange(len(data) + 1), random.randrange(4)
        if kind == 0:
            data[at : at + 1] = bytes([random.randrange(256)])
        elif kind == 1:
            del data[at : at + random.randrange(1, 9)]
        elif kind == 2:
            data[at:at] = random.randbytes(random.randrange(1, 5))
        else:
            other = random.choice(others)
            begin = random.randrange(len(other))
            data[at:at] = other[begin : begin + random.randrange(1, 40)]
    return bytes(data)


@pytest.fixture
def little_memory():
    """A changed number of a pickle may ask for gigabytes, which is the end of no more than the test."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 28), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("read", [restored, torch_loaded])
def test_whatever_the_bytes_there_is_a_value_or_a_typed_error(read, tally):
    values = [*VALUES.values(), *TENSORS.values()]
    if read is restored:
        seeds = [pickle.dumps(value, protocol) for value in values for protocol in (2, 4, 5)]
    else:
        seeds = [saved({"x": value}, zipped) for value in values for zipped in (True, False)]
    random, count = seeded(f"foreign {read.__name__}"), scaled(5000)
    for _ in range(count):
        data = changed(random.choice(seeds), seeds, random)
        with contextlib.suppress(ArchiveError, CodecError), nothing_called():
            read(data, "x")
    tally("changed foreign pickles", count)
