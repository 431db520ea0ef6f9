"""Pickles of other programs: what is plain data comes back exactly, and nothing that they name is called."""

import collections
import contextlib
import datetime as dt
import encodings.raw_unicode_escape  # noqa: F401 - which text of a pickle may load at its first use
import io
import os
import pathlib
import pickle
import struct
import sys
import zipfile

import numpy as np
import pytest
import torch
from likeness import same
from scale import scaled, seeded

from edcache.codec.foreign_pickles import LEGACY, restored, torch_loaded
from edcache.errors import ForeignCacheError, PickleRefusedError

TRUST = (
    "; if you trust its author, trust_pickle=True reads it as pickle does, which runs whatever code is in it"
)
STRUCT = np.dtype([("a", "<i4"), ("b", ">f8")])

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
    "no unit": np.array([1, 2], "m8"),
    "structure": np.array([(1, 2.0)], STRUCT),
    "aligned": np.zeros(2, np.dtype([("a", "u1"), ("b", "f8")], align=True)),
    "float32": np.float32(3),
    "int64": np.int64(-5),
    "bool_": np.bool_(True),
    "str_": np.str_("hé"),
    "empty str_": np.str_(""),
    "void": np.array([(1, 2.0)], STRUCT)[0],
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
    **{
        name: torch.ones(2).to(getattr(torch, name))
        for name in ("uint16", "float8_e5m2")
        if hasattr(torch, name)
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


DTYPE = part(np.dtype("f4"))
NDARRAY = named("numpy", "ndarray")
RECONSTRUCT = named("numpy.core.multiarray", "_reconstruct")
SCALAR = named("numpy.core.multiarray", "scalar")
NESTED = named("torch.storage", "_load_from_bytes")
REBUILD = named("torch._utils", "_rebuild_tensor_v2")
RUN = called(named("os", "system"), part("touch ran"))

REFUSED = {
    "os.system": whole(RUN),
    "posix.system": whole(called(named("posix", "system"), part("touch ran"))),
    "builtins.eval": whole(called(named("builtins", "eval"), part("open('ran', 'w')"))),
    "__builtin__.exec": whole(called(named("__builtin__", "exec"), part("open('ran', 'w')"))),
    "builtins.getattr": whole(called(named("builtins", "getattr"), part("a"), part("upper"))),
    "torch.load": whole(called(named("torch", "load"), part("x"))),
    "numpy.ndarray.tofile": b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",
    "tests.old.Sample": whole(b"(itests.old\nSample\n"),
    "module.Class": whole(b"(" + named("module", "Class") + b"o"),
    "an extension code of copyreg": whole(b"\x82\x01"),
    "an array of dtype 'O8'": pickle.dumps(np.array([{}], object)),
    "a subclass of numpy.ndarray": whole(called(RECONSTRUCT, part("no array"), part((0,)), part(b"b"))),
    "a numpy dtype that is not named by a text": whole(called(named("numpy", "dtype"), part(5))),
    "a tensor that is conjugated or negated by a bit": whole(
        called(
            REBUILD, part(None), part(0), part((1,)), part((1,)), part(False), part(None), part({"conj": 1})
        )
    ),
}


_SEEN = []
_LISTENING = []
ALARMING = ("os.", "subprocess.", "exec", "compile", "import", "pickle.", "shutil.", "socket.", "ctypes.")


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
    with pytest.raises(PickleRefusedError) as caught, nothing_called():
        restored(REFUSED[name], "old.zip: example_3.p")
    assert str(caught.value) == f"old.zip: example_3.p needs {name}{TRUST}"
    assert not os.listdir()


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_what_is_not_on_the_list_is_refused_in_files_of_torch_save(zipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = saved({"x": Hostile()}, zipped)
    with pytest.raises(PickleRefusedError, match=r"^0/5\.pt needs (os|posix)\.system; "), nothing_called():
        torch_loaded(data, "0/5.pt")
    assert not os.listdir()


def test_a_nested_file_of_torch_save_is_read_by_the_same_list(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = whole(called(NESTED, part(saved(Hostile(), False), 3)))
    with pytest.raises(PickleRefusedError, match=r"^x needs (os|posix)\.system; "), nothing_called():
        restored(data, "x")
    assert not os.listdir()


def test_a_pickle_names_no_attribute_of_what_is_on_the_list():
    data = whole(called(b"\x80\x04\x8c\x05numpy\x8c\x10dtype.__reduce__\x93"))
    with pytest.raises(PickleRefusedError, match=r"needs numpy\.dtype\.__reduce__"):
        restored(data, "x")


class Hostile:
    def __reduce__(self):
        return os.system, ("touch ran",)


def test_trust_reads_whatever_there_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert restored(pickle.dumps(Hostile()), "x", trust=True) == 0
    assert os.listdir() == ["ran"]
    os.remove("ran")
    assert torch_loaded(saved(Hostile(), True), "x", trust=True) == 0
    assert os.listdir() == ["ran"]
    with pytest.raises(
        ForeignCacheError, match=r"^x does not unpickle: ModuleNotFoundError: No module named"
    ):
        restored(whole(named("no_such_module", "Class")), "x", trust=True)


# ----------------------------------------------------------------------------------- hostile numbers


def array_of(*state):
    made = called(RECONSTRUCT, NDARRAY, part((0,)), part(b"b", 3))
    return whole(made, b"(", *state, b"tb")


FLOATS = called(NESTED, part(saved(torch.ones(4).untyped_storage(), False), 3))


def dtype_with(state):
    return called(named("numpy", "dtype"), part("f4")) + part(state) + b"b"


def deep(levels):
    return b"\x80\x02" + b"]" * levels + b"a" * (levels - 1) + b"."


def laughs(levels):
    """A list of two that are the same list of two that are ...: 2**levels parts in a few bytes."""
    data = b"\x80\x02]q\x00K\x01a"
    for level in range(levels):
        data += b"0]q" + bytes([level + 1]) + (b"h" + bytes([level]) + b"a") * 2
    return data + b"."


DAMAGED = {
    "cut": (pickle.dumps(np.arange(9))[:-20], "pickle data was truncated|ran out|exhausted"),
    "nothing": (b"", "EOFError"),
    "no pickle": (b"hello world", "UnpicklingError|ValueError|KeyError|IndexError|EOFError"),
    "short number": (b"\x80\x02J\x01", "error: unpack requires"),
    "long memo": (b"\x80\x02Nr\xff\xff\xff\x7fj\xff\xff\xff\x6f.", "Memo value not found|KeyError"),
    "claimed bytearray": (b"\x80\x05\x96" + struct.pack("<Q", 1 << 62) + b"ab" + b"0.", "EOFError|pop"),
    "persistent id": (b"\x80\x02K\x01Q.", "a persistent id outside a file of torch.save"),
    "a function as a value": (
        whole(named("numpy", "ndarray")),
        "a function or a class where a value should be",
    ),
    "a state for a function": (whole(named("numpy", "dtype"), part({"_make": 1}), b"b"), "a state for Name"),
    "no array": (
        whole(called(RECONSTRUCT, NDARRAY, part((0,)), part(b"b", 3))),
        "an array without its bytes",
    ),
    "few bytes": (
        array_of(part(1), part((1 << 40,)), DTYPE, part(False), part(b"abcd", 3)),
        r"whose bytes are not 4,398,046,511,104",
    ),
    "vast": (array_of(part(1), part((1 << 60,)), DTYPE, part(False), part(b"", 3)), "does not fit"),
    "negative": (array_of(part(1), part((-1,)), DTYPE, part(False), part(b"", 3)), "malformed shape"),
    "no dtype": (
        array_of(part(1), part((1,)), part("f4"), part(False), part(b"abcd", 3)),
        "a part that is none",
    ),
    "objects as bytes": (
        whole(called(SCALAR, dtype_with((3, "|", None, None, None, -1, -1)), part(b"abcd", 3))),
        "the state of a numpy dtype is malformed",
    ),
    "encoding": (
        whole(called(named("_codecs", "encode"), part("a"), part("rot13"))),
        "bytes written as 'rot13'",
    ),
    "path": (whole(called(named("pathlib", "PurePosixPath"), part(5))), "a path of parts that are no texts"),
    "deep": (deep(50_000), "RecursionError: nested too deep"),
    "laughs": (laughs(60), "refers to its own parts so often"),
    "no storage": (
        whole(called(REBUILD, part(5), part(0), part((1,)), part((1,)))),
        "a tensor without a storage",
    ),
    "nested is no storage": (whole(called(NESTED, part(saved([1], False), 3))), "that is no storage"),
    "nested zip": (
        whole(called(NESTED, part(saved(torch.ones(1), True), 3))),
        "in another format than its first",
    ),
    "nested twice": (
        whole(called(NESTED, part(LEGACY + pickle.dumps(1, 2) * 2 + whole(called(NESTED, part(b"", 3))), 3))),
        "a file of torch.save in one in a pickle",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_damaged_or_claims_too_much_is_an_error_that_says_so(name):
    data, told = DAMAGED[name]
    with pytest.raises(ForeignCacheError, match=rf"^x does not unpickle: .*({told})"), nothing_called():
        restored(data, "x")


def v3(offset, shape, strides):
    """A tensor over 16 bytes, read as float32."""
    rebuild = named("torch._utils", "_rebuild_tensor_v3")
    more = part(False) + part(None) + named("torch", "float32")
    return whole(called(rebuild, FLOATS, part(offset), part(shape), part(strides), more))


@pytest.mark.parametrize(
    ("offset", "shape", "strides", "told"),
    [
        (0, (5,), (1,), "ends at item 4 of a storage of 16 bytes"),
        (4, (1,), (1,), "ends at item 4 of"),
        (0, (2,), (9,), "ends at item 9 of"),
        (0, (2, 2), (1,), "a tensor of shape"),
        (-1, (1,), (1,), "a tensor of shape"),
        (0, (2,), (-1,), "a tensor of shape"),
        (0, ("a",), (1,), "a tensor of shape"),
        (0, (1 << 34,), (0,), "more than 2,147,483,648 bytes"),
        (0, (1 << 60,), (0,), "does not fit"),
    ],
)
def test_a_tensor_reaches_no_further_than_its_storage(offset, shape, strides, told):
    assert same(restored(v3(1, (2,), (2,)), "x"), torch.ones(2))
    with pytest.raises(ForeignCacheError, match=f"^x does not unpickle: .*{told}"):
        restored(v3(offset, shape, strides), "x")


def test_a_conjugated_tensor_of_the_newer_form_is_refused():
    rebuild = named("torch._utils", "_rebuild_tensor_v3")
    more = part(False) + part(None) + named("torch", "float32") + part({"neg": True})
    with pytest.raises(PickleRefusedError, match="needs a tensor that is conjugated or negated by a bit; "):
        restored(whole(called(rebuild, FLOATS, part(0), part((1,)), part((1,)), more)), "x")


@pytest.mark.parametrize("text", ["O", "O8", "f4,O", "(3,)f4", "a5", "i"])
def test_a_dtype_has_a_plain_name(text):
    data = whole(called(SCALAR, called(named("numpy", "dtype"), part(text)), part(b"abcd", 3)))
    with pytest.raises(PickleRefusedError) as caught:
        restored(data, "x")
    assert str(caught.value) == f"x needs an array of dtype {text!r}{TRUST}"


def test_a_dtype_that_pickles_as_an_object_array_but_says_otherwise_is_no_memory_of_pointers():
    """numpy itself takes the flags of a state as they are: bytes would be read as pointers."""
    dtype = called(named("numpy", "dtype"), part("O8")) + part((3, "|", None, None, None, -1, -1, 0)) + b"b"
    data = array_of(part(1), part((1,)), dtype, part(False), part(b"\x41" * 8, 3))
    with pytest.raises(PickleRefusedError, match="^x needs an array of dtype 'O8'"):
        restored(data, "x")


def test_a_dtype_nests_only_so_deep():
    dtype = DTYPE
    for _ in range(20):
        state = (
            b"(" + part(3) + part("|") + b"(" + dtype + part((1,)) + b"t" + part(None) * 2 + part(4) + part(1)
        )
        dtype = called(named("numpy", "dtype"), part("V4")) + state + part(0) + b"tb"
    with pytest.raises(ForeignCacheError, match="a numpy dtype that is nested too deep"):
        restored(whole(dtype), "x")


def test_the_bytes_of_all_arrays_together_are_bounded():
    data = pickle.dumps([np.zeros(100)] * 10)
    assert len(restored(data, "x", most_nbytes=9_000)) == 10
    with pytest.raises(ForeignCacheError, match="its arrays and texts have more than 7,000 bytes"):
        restored(data, "x", most_nbytes=7_000)


# ----------------------------------------------------------------------------- files of torch.save


def zipped(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as out:
        for name, data in members.items():
            out.writestr(name.replace("__", "/").replace("_pkl", ".pkl"), data)
    return file.getvalue()


def compressed():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("a/data.pkl", pickle.dumps(1) + bytes(1000))
    return file.getvalue()


def id_of(*pid):
    return whole(part(pid), b"Q")


def wrong_crc():
    data = bytearray(zipped(a__data_pkl=pickle.dumps("some text", 2)))
    data[data.index(b"some text")] ^= 1
    return bytes(data)


PART_OF_A_STORAGE = whole(
    b"(", part("storage"), named("torch", "FloatStorage"), *map(part, ("0", "cpu", 1, (1, 2))), b"tQ"
)
FLAWED = {
    "cut zip": (saved({"x": torch.ones(3)}, True)[:-30], "EOFError: File is not a zip file"),
    "cut stream": (saved({"x": torch.ones(30)}, False)[:-30], "EOFError: storage .* should end at offset"),
    "no data.pkl": (zipped(a__other=b""), "a zip without one data.pkl"),
    "two": (zipped(a__data_pkl=b"", b__data_pkl=b""), "a zip without one data.pkl"),
    "TorchScript": (zipped(a__data_pkl=b"", a__constants_pkl=b""), "TorchScript, which is a program"),
    "big-endian": (zipped(a__data_pkl=b"", a__byteorder=b"big"), "saved by a big-endian machine"),
    "compressed": (compressed(), "a/data.pkl is compressed, as torch.save never does"),
    "crc": (wrong_crc(), "Bad CRC-32"),
    "pid": (zipped(a__data_pkl=id_of("other", 1)), "a persistent id that names no storage"),
    "no tuple": (zipped(a__data_pkl=whole(part(1), b"Q")), "a persistent id that names no storage"),
    "a part": (zipped(a__data_pkl=PART_OF_A_STORAGE), "a storage that is a part of another"),
}


@pytest.mark.parametrize("name", FLAWED)
def test_a_flawed_file_of_torch_save_is_an_error_that_says_so(name):
    data, told = FLAWED[name]
    with pytest.raises(ForeignCacheError, match=f"^x does not unpickle: .*{told}"):
        torch_loaded(data, "x")


def test_what_torch_save_did_not_write_is_no_file_of_it():
    with pytest.raises(ForeignCacheError, match=r"^x begins with b'hello', as no file of torch\.save does$"):
        torch_loaded(b"hello", "x")


def test_a_storage_whose_member_is_gone_is_an_error():
    names = {}
    with zipfile.ZipFile(io.BytesIO(saved(torch.ones(3), True))) as old:
        names = {name: old.read(name) for name in old.namelist() if "/data/" not in name}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as out:
        for name, data in names.items():
            out.writestr(name, data)
    with pytest.raises(ForeignCacheError, match=r"^x does not unpickle: KeyError: .*There is no item named"):
        torch_loaded(file.getvalue(), "x")


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
        with contextlib.suppress(ForeignCacheError, PickleRefusedError), nothing_called():
            read(data, "x")
    tally("changed foreign pickles", count)
