"""Classes that records name: namedtuples with methods, registered forms, enums as keys."""

from __future__ import annotations

import collections
import enum
import json
import sys
import types
import typing

import numpy as np
import pytest
import torch
from codec_samples import encode, encoded_bytes, round_trip, run_script
from likeness import same
from torch.utils.data import DataLoader, default_collate

from edcache import CachedDataset, collate
from edcache.codec import packages
from edcache.codec.classes import register
from edcache.codec.decoder import Decoder
from edcache.codec.encoder import Encoder
from edcache.errors import CodecError, CorruptRecordError, MissingDependencyError, OptionError


@register
class Span(typing.NamedTuple):
    start: int
    end: int = 9

    @property
    def length(self):
        return self.end - self.start


class Mesh:
    """A class that is none of the kinds that the codec knows by itself."""

    def __init__(self, points, faces, name=""):
        self.points, self.faces, self.name = points, faces, name


register(Mesh, encode=lambda mesh: (mesh.points, mesh.faces, mesh.name), decode=lambda tree: Mesh(*tree))


class Key(str, enum.Enum):
    IMAGE = "image"
    LABEL = "label"

    def __str__(self):
        return self.value


register(Key)


@register
class Place(str, enum.Enum):
    FIRST = "first"


def as_of(text: str, record: bytes):
    return Decoder(text).decode(memoryview(record))


def elsewhere(name: str, cls: type | None):
    """The class as a module has it that only some processes import."""
    module = types.ModuleType(name)
    if cls is not None:
        cls.__module__ = name
        setattr(module, cls.__name__, cls)
    return module


# --- namedtuples


def test_a_namedtuple_comes_back_with_its_methods():
    out = round_trip(Span(2))
    assert type(out) is Span
    assert out.length == 7


def test_a_namedtuple_class_with_other_fields_is_refused():
    class Local(typing.NamedTuple):
        n: int

        def twice(self):
            return 2 * self.n

    assert register(Local) is Local
    assert round_trip(Local(4)).twice() == 8
    text, record = encode(Local(4))
    with pytest.raises(CodecError, match=r"Local with fields m; the class here has n"):
        as_of(text.replace('["n"]', '["m"]'), record)


# --- forms


def test_an_object_comes_back_by_its_form():
    mesh = Mesh(torch.arange(6.0).view(2, 3), [np.uint8([1, 2])], "büro")
    out = round_trip({"mesh": mesh, "y": 1})["mesh"]
    assert type(out) is Mesh
    assert same([out.points, out.faces, out.name], [mesh.points, mesh.faces, mesh.name])


def test_a_subclass_has_no_form_of_its_base():
    class Fine(Mesh):
        pass

    with pytest.raises(CodecError, match=r"register its class with edcache.register\(Fine, encode="):
        encode(Fine(1, 2))


def test_objects_refuse_what_their_trees_hold_and_say_where():
    with pytest.raises(CodecError, match=r'sample\["m"\].encode\(\)\[1\]\[0\]: cannot store object'):
        encode({"m": Mesh(1, [object()])})


def test_what_a_form_raises_is_ours():
    class Odd:
        pass

    register(Odd, encode=lambda odd: odd.no_such, decode=lambda tree: tree["no"])
    with pytest.raises(CodecError, match=r"Odd; its encode= raised AttributeError"):
        encode(Odd())
    register(Odd, encode=lambda odd: [], decode=lambda tree: tree["no"])
    with pytest.raises(CorruptRecordError, match=r"Odd: its decode= raised TypeError"):
        round_trip(Odd())


def test_reading_an_object_takes_its_form():
    text, record = encode(Mesh(1, 2))
    with pytest.raises(CodecError, match=r"call edcache.register\(Net, encode=..., decode=...\)"):
        as_of(text.replace('"Mesh"', '"Net"'), record)


def test_register_wants_both_ways():
    with pytest.raises(OptionError, match=r"Mesh comes with one of encode= and decode=; pass both"):
        register(Mesh, encode=list)


def test_objects_are_batched_as_default_collate_would(tmp_path):
    class Tagged(dict):
        """default_collate knows mappings."""

    register(Tagged, encode=dict, decode=Tagged)
    samples = [{"t": Tagged(a=torch.full((2,), n)), "y": n} for n in range(6)]
    ds = CachedDataset(samples, tmp_path / "a.zip", progress=False)
    batch = default_collate(ds.__getitems__([4, 1]))
    assert type(batch["t"]) is Tagged
    assert batch["t"]["a"].tolist() == [[4, 4], [1, 1]]
    assert batch["y"].tolist() == [4, 1]


def test_objects_are_selected_and_listed(tmp_path):
    samples = [{"mesh": Mesh(torch.full((n,), n), [n]), "y": n} for n in range(6)]
    ds = CachedDataset(samples, tmp_path / "a.zip", in_memory_keys=["y"], progress=False)
    assert ds.select("mesh")[3]["mesh"].faces == [3]
    for view in (ds, ds.select("mesh"), ds.filter(y=[1, 5])):
        (batch,) = DataLoader(view, batch_size=6, collate_fn=collate(as_list=["mesh"]))
        assert [mesh.faces for mesh in batch["mesh"]] == [view[k]["mesh"].faces for k in range(len(view))]
        assert all(type(mesh) is Mesh for mesh in batch["mesh"])


# --- enums as keys


def test_enum_members_are_keys():
    sample = {Key.IMAGE: 1, Key.LABEL: {Place.FIRST: "x", "plain": Key.IMAGE}}
    out = round_trip(sample)
    assert [type(key) for key in out] == [Key, Key]
    assert [type(key) for key in out[Key.LABEL]] == [Place, str]
    assert out["image"] == 1
    assert same(out, sample)
    ordered = round_trip(collections.OrderedDict(sample))
    assert [type(key) for key in ordered] == [Key, Key]


def test_a_dict_with_texts_is_no_dict_with_enum_members():
    encoder = Encoder()
    for sample in ({"image": 1}, {Key.IMAGE: 1}, {"image": 1}, {Key.IMAGE: 1}):
        encoded = encoder.encode(sample)
        out = as_of(encoder.schemas[encoded.schema], encoded_bytes(encoded))
        assert [type(key) for key in out] == [type(key) for key in sample]


def test_enum_keys_are_batched_as_default_collate_would(tmp_path):
    samples = [{Key.IMAGE: torch.full((3,), n), "y": n} for n in range(6)]
    ds = CachedDataset(samples, tmp_path / "a.zip", progress=False)
    batch = default_collate(ds.__getitems__([4, 1]))
    expected = default_collate([samples[4], samples[1]])
    assert list(map(type, batch)) == list(map(type, expected)) == [Key, str]
    assert torch.equal(batch[Key.IMAGE], expected[Key.IMAGE])
    assert ds.select("image")[3]["image"].tolist() == [3, 3, 3]


@pytest.mark.full
def test_enum_keys_take_their_class_only_to_be_decoded():
    text, record = encode({"a": {Key.IMAGE: 1}})
    script = (
        "from edcache.codec import *\nfrom edcache.errors import CodecError\nimport enum\n"
        f"d = Decoder({text!r}); print(*(str(p[-1]) for p in d.fields))\n"
        f"try: d.decode(memoryview({record!r}))\n"
        "except CodecError as error: print(error)\n"
        "class Key(str, enum.Enum): IMAGE = 'image'\n"
        f"Key.__module__ = {Key.__module__!r}\nregister(Key)\n"
        f"print(list(d.decode(memoryview({record!r}))['a']) == [Key.IMAGE])\n"
    )
    lines = run_script(script).splitlines()
    assert lines[0] == "Key.IMAGE"
    assert "edcache.register(Key)" in lines[1]
    assert lines[2] == "True"


@pytest.mark.parametrize(
    "key", [["enum"], ["enum", 1, "Key", "A"], ["enum", "m", "Key", 3], {}, [], 5, ["enum", "m", "K"]]
)
def test_malformed_keys_are_corrupt(key):
    with pytest.raises(CorruptRecordError):
        Decoder(json.dumps(["dict", [key], ["int"]], separators=(",", ":")))


def test_a_key_that_its_enum_lacks_is_corrupt():
    text, record = encode({Key.IMAGE: 1})
    with pytest.raises(CorruptRecordError, match="Key has no member 'IMAGO'"):
        as_of(text.replace("IMAGE", "IMAGO"), record)


# --- what a file may make a reader import


def test_a_record_imports_no_module_of_its_choice():
    names = ["antigravity", "monai.apps", "transformers.trainer", "torchvision.models", "this"]
    texts = [
        *(json.dumps(["object", name, "MetaTensor", ["none"]]) for name in names),
        *(json.dumps(["enum", name, "StrEnum"]) for name in names),
        *(json.dumps(["dict", [["enum", name, "A", "B"]], ["none"]]) for name in names),
        *(json.dumps(["namedtuple", name, "A", ["x"], ["none"]]) for name in names),
    ]
    out = run_script(
        "import sys\n"
        "from edcache.codec import *; from edcache.errors import EdcacheError\n"
        f"before = set(sys.modules)\nrefused = 0\nfor text in {texts!r}:\n"
        "    data = bytes(8) + b'' if '\"enum\"' in text[:8] else b''\n"
        "    try: Decoder(text).decode(memoryview(data))\n"
        "    except EdcacheError: refused += 1\n"
        f"print(refused, [name for name in {names!r} if name in sys.modules])\n"
    )
    assert out.split(maxsplit=1) == ["20", "[]\n"]


def test_a_package_on_the_list_that_is_not_there_is_named(monkeypatch):
    for module, package in (("monai.data", "monai"), ("torchvision.tv_tensors", "torchvision")):
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)
        packages._form.cache_clear()
        qualname = {"monai": "MetaTensor", "torchvision": "Image"}[package]
        with pytest.raises(MissingDependencyError, match=f"record holds a {module}.{qualname}.* {package}"):
            as_of(json.dumps(["object", module, qualname, ["none"]]), b"")
    packages._form.cache_clear()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "raise RuntimeError('operator nms does not exist')",
            "does not import here: RuntimeError: operator nms",
        ),
        ("import no_such_part", "does not import here: ModuleNotFoundError: No module named 'no_such_part'"),
        ("", "which the torchvision.tv_tensors installed here does not have"),
    ],
)
def test_a_package_that_is_broken_or_older_is_named(tmp_path, monkeypatch, code, message):
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(code)
    (tmp_path / "torchvision" / "tv_tensors.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    packages._form.cache_clear()
    with pytest.raises(
        MissingDependencyError, match=f"record holds a torchvision.tv_tensors.Image.*{message}"
    ):
        as_of(json.dumps(["object", "torchvision.tv_tensors", "Image", ["none"]]), b"")
    for name in ("torchvision", "torchvision.tv_tensors"):
        sys.modules.pop(name, None)
    packages._form.cache_clear()


def test_a_shape_of_torch_comes_back():
    out = round_trip({"shape": torch.Size([3, 4])})
    assert type(out["shape"]) is torch.Size
    assert out["shape"] == (3, 4)
