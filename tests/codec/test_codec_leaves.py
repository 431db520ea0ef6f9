"""Leaf by leaf: what comes back, who owns it, and how many bytes it takes."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import math
import pathlib
import struct
import sys

import numpy as np
import pytest
import torch
from codec_samples import (
    NUMPY_DTYPES,
    TORCH_DTYPES,
    Box,
    Color,
    Point,
    Renamed,
    encode,
    random_array,
    random_tensor,
    round_trip,
    run_script,
)
from likeness import bits, same

from edcache.codec.classes import register
from edcache.codec.decoder import Decoder
from edcache.codec.encoder import Encoder
from edcache.codec.leaves import LEAVES
from edcache.errors import CodecError, CorruptRecordError, OptionError


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)], ids=str)
def test_every_torch_dtype(dtype, shape):
    tensor = random_tensor(dtype, shape, 1)
    for copy in (True, False):
        out = round_trip(tensor, copy=copy)
        assert same(out, tensor)
    # Variable shapes take another way.
    encoder = Encoder()
    for n in range(6):
        text, record = encode([random_tensor(dtype, (n,), n)], encoder)
        for copy in (True, False):
            assert same(Decoder(text).decode(memoryview(record), copy=copy), [random_tensor(dtype, (n,), n)])


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)], ids=str)
def test_every_numpy_dtype(dtype, shape):
    array = random_array(dtype, shape, 1)
    for copy in (True, False):
        out = round_trip(array, copy=copy)
        assert same(out, array)
        assert out.flags.writeable is copy
        assert out.dtype.char == array.dtype.char
    scalar = random_array(dtype, (), 2)[()]
    assert same(round_trip(scalar), scalar)


@pytest.mark.parametrize("dtype", ["V0", "S0", "U0"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2)], ids=str)
def test_arrays_without_item_bytes(dtype, shape):
    array = np.ndarray(shape, dtype)
    assert same(round_trip(array), array)
    assert same(round_trip(array, copy=False), array)
    empty = np.zeros(shape, np.dtype([]))
    assert same(round_trip(empty), empty)


def test_padding_in_records_is_zero():
    """Uninitialised bytes between fields would make records differ from run to run."""
    dtype = np.dtype({"names": ["a", "b"], "formats": ["u1", "f8"], "offsets": [0, 16], "itemsize": 32})
    records = set()
    for fill in (0, 255):
        array = np.full(4 * dtype.itemsize, fill, np.uint8).view(dtype)
        array["a"] = array["b"] = 3
        text, record = encode([array, array[0]])
        assert same(Decoder(text).decode(memoryview(record)), [array, array[0]])
        records.add(record)
    assert len(records) == 1


def test_views_store_their_own_elements_only():
    base = torch.arange(10_000)
    for view in (base[:3], base[::1000], base.view(100, 100).t()[:2], base[0].expand(5), base.flip(0)[:4]):
        text, record = encode(view)
        assert len(record) == view.numel() * 8
        assert same(Decoder(text).decode(memoryview(record)), view)
    array = np.arange(10_000)
    for view in (
        array[::-1][:5],
        array[::1000],
        array.reshape(100, 100).T[:2],
        np.broadcast_to(array[:2], (3, 2)),
    ):
        text, record = encode(view)
        assert len(record) == view.size * 8
        assert same(Decoder(text).decode(memoryview(record)), view)
    fortran = np.asfortranarray(np.arange(6).reshape(2, 3))
    assert same(round_trip(fortran), fortran)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_lazy_conjugation_and_negation_are_resolved(dtype):
    tensor = torch.tensor([1 + 2j, -3j], dtype=dtype)
    out = round_trip({"conj": tensor.conj(), "neg": tensor.conj().imag})
    assert same(out["conj"], tensor.conj().resolve_conj())
    assert same(out["neg"], tensor.conj().imag.resolve_neg())


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="older numpy has 32 dimensions")
def test_a_tensor_has_at_most_64_dimensions():
    tensor = torch.ones((1,) * 64, dtype=torch.bfloat16)
    assert same(round_trip(tensor), tensor)


def test_memmap_comes_back_as_an_array(tmp_path):
    mapped = np.memmap(tmp_path / "m", np.int16, "w+", shape=(2, 3))
    mapped[:] = 7
    out = round_trip(mapped)
    assert type(out) is np.ndarray
    assert same(out, np.full((2, 3), 7, np.int16))


def test_mutating_what_was_decoded_leaves_the_record_alone():
    sample = {"t": torch.zeros(3), "n": np.zeros(3), "b": bytearray(3), "v": np.zeros(1, [("a", "i4")])[0]}
    text, record = encode(sample)
    buffer = bytearray(record)
    out = Decoder(text).decode(memoryview(buffer))
    out["t"] += 1
    out["n"] += 1
    out["b"][0] = 1
    out["v"]["a"] = 1
    assert bytes(buffer) == record
    buffer[:] = bytes(255 for _ in buffer)
    assert out["t"].tolist() == [1, 1, 1]
    assert out["n"].tolist() == [1, 1, 1]
    assert out["v"]["a"] == 1


def test_zero_copy_aliases_and_numpy_is_read_only():
    sample = {"t": torch.zeros(3), "h": torch.zeros(2, dtype=torch.bfloat16), "n": np.zeros(3), "k": [1] * 9}
    text, record = encode(sample)
    decoder = Decoder(text)
    for buffer in (record, bytearray(record)):
        out = decoder.decode(memoryview(buffer), copy=False)
        assert same(out, sample)
        assert not out["n"].flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            out["n"][0] = 1
    start = np.frombuffer(buffer, np.uint8).ctypes.data
    assert start <= out["t"].data_ptr() < start + len(record)
    buffer[:] = b"\xff" * len(record)
    assert out["t"].isnan().all()


def test_zero_copy_keeps_its_memory_alive():
    text, record = encode([torch.arange(1000), np.arange(1000)])
    out = Decoder(text).decode(memoryview(bytes(bytearray(record))), copy=False)
    noise = [bytes(range(200)) * 40 for _ in range(100)]
    assert out[0].tolist() == out[1].tolist() == list(range(1000))
    assert noise


def test_numbers_keep_their_bits():
    payload = struct.unpack("<d", bytes.fromhex("010000000000f87f"))[0]
    for value in (math.nan, payload, -math.nan, math.inf, -0.0, 5e-324):
        assert bits(round_trip(value)) == bits(value)
        assert bits(round_trip([value] * 9)[8]) == bits(value)
        assert bits(round_trip(complex(1, value)).imag) == bits(value)
    for value in (0, -1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 127, 128, -128, -129, 10**5000):
        assert round_trip(value) == value


def test_long_lists_are_one_leaf():
    encoder = Encoder()
    for n in range(8, 300, 17):
        for sample in (list(range(n)), [0.5] * n, [True] * n, ["é"] * n, tuple(range(n))):
            text, record = encode(sample, encoder)
            assert same(Decoder(text).decode(memoryview(record)), sample)
    assert len(encoder.schemas) == 5


def test_numpy_texts_of_any_length_share_a_schema():
    encoder = Encoder()
    for n in range(20):
        sample = [np.str_("x" * n), np.bytes_(b"y" * n + b"\0")]
        text, record = encode(sample, encoder)
        assert same(Decoder(text).decode(memoryview(record)), sample)
    assert len(encoder.schemas) == 1


@pytest.mark.parametrize(
    "value",
    [
        *(dt.datetime.min, dt.datetime.max, dt.date.min, dt.date.max, dt.timedelta.min, dt.timedelta.max),
        pathlib.Path(),
        Color.CRIMSON,
        np.void(b"abc"),
        Renamed(1, 2, 3),
    ],
    ids=repr,
)
def test_value(value):
    assert same(round_trip([value]), [value])


def test_dataclasses_come_back_without_their_init():
    box = Box(1)
    box.size = "explode"
    assert round_trip(box) == box


def test_dataclass_with_cached_property_drops_the_cache(monkeypatch):
    import dataclasses
    import functools

    @register
    @dataclasses.dataclass
    class Lazy:
        n: int

        @functools.cached_property
        def twice(self):
            return 2 * self.n

    value = Lazy(3)
    assert value.twice == 6
    out = round_trip(value)
    assert vars(out) == {"n": 3}
    assert out.twice == 6


@pytest.mark.full
def test_registration_is_needed_to_decode():
    module = "import enum, dataclasses\nfrom edcache.codec import *\n"
    for what in (Color.RED, Box(1)):
        text, record = encode(what)
        script = (
            f"{module}from edcache.errors import CodecError\n"
            f"try: Decoder({text!r}).decode(memoryview({record!r}))\n"
            "except CodecError as error: print(error)\n"
        )
        out = run_script(script)
        assert f"edcache.register({type(what).__name__})" in out


def test_changed_dataclass_is_refused():
    text, record = encode(Box(1))
    with pytest.raises(CodecError, match=r"with fields corner, sides; the class here has corner, size"):
        Decoder(text.replace('"size"', '"sides"')).decode(memoryview(record))


def test_unknown_enum_member_is_corrupt():
    text, record = encode(Color.RED)
    with pytest.raises(CorruptRecordError, match="has no member 'RAD'"):
        Decoder(text).decode(memoryview(record.replace(b"RED", b"RAD")))


@pytest.mark.parametrize("bad", [int, 3, tuple, enum], ids=repr)
def test_register_alone_takes_enums_dataclasses_and_namedtuples(bad):
    with pytest.raises(OptionError, match="register: "):
        register(bad)


def test_namedtuple_classes_are_registered_ones():
    text, record = encode(Point(1, 2))
    assert type(Decoder(text).decode(memoryview(record))) is Point
    for old, new in (("Point", "Elsewhere"), ("codec_samples", "no_such_module"), ("Point", "Color.RED")):
        with pytest.raises(CodecError, match=r"not registered; import it and call .*register\("):
            Decoder(text.replace(f'"{old}"', f'"{new}"')).decode(memoryview(record))
        assert "no_such_module" not in sys.modules


def test_a_namedtuple_takes_a_call_of_register():
    local = collections.namedtuple("local", "a b")
    with pytest.raises(CodecError, match=r"local; register it with edcache.register\(local\)"):
        round_trip([local(1, "x")])
    register(local)
    assert same(round_trip([local(1, "x")]), [local(1, "x")])


def test_the_specification_names_every_kind_of_leaf():
    """A new kind that only the code knows would be read by no other program."""
    text = (pathlib.Path(__file__).parents[2] / "FORMAT.md").read_text(encoding="utf-8")
    assert [kind for kind in LEAVES if f'"{kind}"' not in text] == []
