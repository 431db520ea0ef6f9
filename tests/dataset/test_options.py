"""Options: one object of each, the same names and types for keywords, and what help() shows."""

import inspect
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import get_type_hints

import numpy as np
import pytest
from written import write

import edcache
from edcache import CachedDataset, CacheOptions, CacheWriter
from edcache.base import FillOptions, ReadOptions, WriteOptions
from edcache.base import options as room
from edcache.dataset.cached import OPENING
from edcache.errors import OptionError, SourceError
from edcache.reader import Reader
from edcache.storage.file import File

KEYWORDS = {
    ReadOptions: room.ReadKeywords,
    room.OpenOptions: room.OpenKeywords,
    WriteOptions: room.WriteKeywords,
    FillOptions: room.FillKeywords,
    CacheOptions: room.CacheKeywords,
}
DOORS = {
    CachedDataset: CacheOptions,
    CachedDataset.from_cache: room.OpenOptions,
    CachedDataset.warmup: FillOptions,
    edcache.cachable: CacheOptions,
    CacheWriter: WriteOptions,
    Reader: ReadOptions,
}


@pytest.mark.parametrize("kind", KEYWORDS, ids=lambda kind: kind.__name__)
def test_keywords_have_the_names_and_types_of_the_fields(kind):
    fields = get_type_hints(kind)
    if kind is FillOptions:  # warmup() takes it by position too
        del fields["num_workers"]
    assert get_type_hints(KEYWORDS[kind]) == fields


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__qualname__)
def test_help_names_and_describes_every_option_once(door):
    parameters = inspect.signature(door).parameters
    assert not [p for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    for field in fields(DOORS[door]):
        described = len(re.findall(rf"^ +{field.name}: ", inspect.getdoc(door), re.MULTILINE))
        if door is edcache.cachable and field.name in OPENING:
            assert (field.name in parameters, described) == (False, 0)
            continue
        if (door, field.name) != (CachedDataset.warmup, "num_workers"):
            assert (parameters[field.name].default, parameters[field.name].kind) == (field.default, 3)
        assert described == 1


def test_an_unknown_option_is_told_with_the_one_that_was_meant(tmp_path):
    path = tmp_path / "a.zip"
    for call, name in [
        (lambda: CachedDataset([1], path, verfy="open"), "CachedDataset"),
        (lambda: CachedDataset.from_cache(path, verfy="open"), "from_cache"),
        (lambda: edcache.cachable(path, verfy="open"), "cachable"),
        (lambda: Reader(path, verfy="open"), "Reader"),
    ]:
        with pytest.raises(OptionError, match=rf"^{name}\(\) takes no verfy; did you mean verify\? It"):
            call()
    with pytest.raises(OptionError, match=r"CacheWriter\(\) takes no chunksize; did you mean chunk_size"):
        CacheWriter(path, chunksize=3)
    assert not path.exists()


def test_an_object_says_what_keywords_say_and_keywords_stand_in_its_place(tmp_path):
    options = CacheOptions(chunk_size=2, in_memory_keys=["y"], transform=len)
    source = [{"y": k} for k in range(5)]
    ds = CachedDataset(source, tmp_path / "a.zip", options, transform=str)
    assert (ds._archive.reader.session.chunks, list(ds.labels), ds.transform) == (3, ["y"], str)
    assert CachedDataset(None, tmp_path / "a.zip", options).transform is len
    with CacheWriter(tmp_path / "b.zip", "x", WriteOptions(in_memory_keys=["y"])) as w:
        w.extend(source)
    assert list(dict(Reader(tmp_path / "b.zip", options).session.label_columns)) == ["y"]
    with pytest.raises(OptionError, match="verify='often'; choose one of 'touch', 'always', 'never'"):
        Reader(tmp_path / "b.zip", options, verify="often")


def test_a_fill_takes_the_options_of_its_warmup_for_that_once(tmp_path):
    class Source(list):
        def __getitem__(self, k):
            if k == 0:
                raise ValueError(k)
            return super().__getitem__(k)

    ds = CachedDataset(Source([7, 8]), tmp_path / "a.zip", lazy=True, fingerprint=False)
    assert ds.warmup(on_error="skip", progress=False).missing.tolist() == [0]
    with pytest.raises(SourceError, match="index 0"):
        ds.warmup(progress=False)


def test_what_belongs_to_a_process_stays_in_it():
    options = FillOptions(executor=ThreadPoolExecutor(), progress=lambda done, total: None, grow=True)
    assert pickle.loads(pickle.dumps(options)) == replace(options, executor=None, progress=None)


@pytest.mark.parametrize("way", ["a call", "a source"])
def test_a_finished_cache_is_opened_once(tmp_path, monkeypatch, way):
    path, opens = str(tmp_path / "a.zip"), []

    def data(count=3):
        return [{"y": k} for k in range(count)]

    def make():
        if way == "a call":
            return edcache.cachable(path, progress=False, verify="always")(data)()
        return CachedDataset(data(), path, progress=False, verify="always")

    make().close()
    opened = File.open.__func__

    def counting(cls, name, *arguments, **keywords):
        opens.append(name)
        return opened(cls, name, *arguments, **keywords)

    monkeypatch.setattr(File, "open", classmethod(counting))
    ds = make()
    assert (opens, list(ds), ds._archive.reader.options.verify) == ([path], data(), "always")


@pytest.mark.parametrize("way", ["a call", "a source"])
def test_a_warning_of_the_source_names_the_line_that_opened_the_cache(tmp_path, way):
    path = tmp_path / "a.zip"
    write(path, [1, 2])
    if way == "a source":
        with pytest.warns(RuntimeWarning, match="says nothing about the source") as caught:
            CachedDataset([1, 2], path)
    else:
        make = edcache.cachable(path, on_stale="warn")(lambda: [1, 2])
        with pytest.warns(RuntimeWarning, match="made by another call") as caught:
            make()
    assert caught[0].filename == __file__


@pytest.mark.parametrize("name", sorted(CacheOptions.names()))
def test_a_value_of_no_type_that_an_option_takes_is_refused_by_its_name_without_an_address(tmp_path, name):
    for value in (object(), np.arange(2), b"x", [object()]):
        with pytest.raises(OptionError, match=rf"^{name}|\b{name}[= ]") as caught:
            if name in OPENING or name == "storage_options":
                CachedDataset.from_cache(tmp_path / "a.zip", **{name: value})
            CachedDataset([1], tmp_path / "a.zip", **({"lazy": name == "max_bytes"} | {name: value}))
        assert "0x" not in str(caught.value)


def test_options_show_no_credentials():
    secret = {"headers": {"Authorization": "s3cr3t"}}
    assert "s3cr3t" not in repr(edcache.CacheOptions(storage_options=secret))
