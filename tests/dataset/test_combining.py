"""edcache.concat and edcache.zip_fields: several archives and views as one dataset."""

import pickle

import numpy as np
import pytest
import torch
from likeness import outcome, same
from torch.utils.data import default_collate

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.dataset.indexing import batch_of
from edcache.errors import CorruptRecordError, LabelError, OptionError, SampleIndexError
from edcache.reader import Group, Session


def write(path, samples, keys=(), **options):
    with CacheWriter(path, in_memory_keys=keys, chunk_size=16) as w:
        w.extend(samples)
    return CachedDataset.from_cache(path, **options)


def sample(k):
    return {
        "image": torch.full((3, 4), k, dtype=torch.uint8),
        "half": np.full((2,), k, np.float16),
        "label": k % 5,
        "name": f"n{k}",
        "pair": (k / 2, np.float32(k)),
        "words": (f"a{k}", b"b"),
    }


@pytest.fixture
def two(tmp_path):
    first = write(tmp_path / "a.zip", map(sample, range(20)), ["label"])
    second = write(tmp_path / "b.zip", map(sample, range(20, 30)), ["label", "name"])
    return first, second


@pytest.fixture
def in_bulk(monkeypatch):
    """Samples are not read one by one."""

    def read(*_, **__):
        raise AssertionError("a sample was read by itself")

    monkeypatch.setattr(Session, "read", read)
    monkeypatch.setattr(Group, "samples", read)


# ------------------------------------------------------------------------------------------- concat


def test_samples_come_one_after_the_other(two):
    both = edcache.concat([two[0], two[1][::-1], two[0].take(2)])
    order = [*range(20), *range(29, 19, -1), 0, 1]
    assert same(list(both), [sample(k) for k in order])
    assert len(both) == 32
    assert same(both[-1], sample(1))
    assert both.indices.tolist() == list(range(32))
    assert both[18:22].indices.tolist() == [18, 19, 20, 21]
    for index in (32, -33):
        with pytest.raises(SampleIndexError, match=rf"index {index} not in \[-32, 32\)"):
            both[index]


def test_labels_are_below_each_other_with_nulls_where_a_dataset_has_none(two):
    both = edcache.concat(two)
    assert both.labels["label"].tolist() == [k % 5 for k in range(30)]
    assert both.labels["name"].tolist() == [None] * 20 + [f"n{k}" for k in range(20, 30)]
    assert both.filter(label=1, name="n21").indices.tolist() == [21]
    assert both.filter(name=None).indices.tolist() == list(range(20))
    bare = edcache.concat([ds.select("image") for ds in two])
    assert bare.labels["label"].tolist() == both.labels["label"].tolist()


def test_labels_that_change_are_those_of_what_was_put_together_before(tmp_path):
    paths = [tmp_path / f"{k}.zip" for k in (0, 1)]
    for path in paths:
        with CacheWriter(path, in_memory_keys=["y"]) as writer:
            writer.extend({"y": k, "x": k} for k in range(3))
    several = CachedDataset.from_cache(paths)
    first, second = several.parts
    both = edcache.concat([first, second.take(2)])
    side = edcache.zip_fields(first.select("y"), second.select("x"))
    outer = edcache.concat([both, side[1:]])
    part = outer.filter("y > 0")
    wholes = [several, both, side, outer, part]
    before = [whole.labels["y"].tolist() for whole in wholes]
    assert before[3:] == [[0, 1, 2, 0, 1, 1, 2], [1, 2, 1, 1, 2]]
    first.add_labels("z", ["a", "b", "c"])
    second.add_labels("y", {1: 7})
    assert [whole.labels.to_list("z") for whole in wholes] == [
        ["a", "b", "c", None, None, None],
        ["a", "b", "c", None, None],
        ["a", "b", "c"],
        ["a", "b", "c", None, None, "b", "c"],
        ["b", "c", None, "b", "c"],
    ]
    assert part.labels["y"].tolist() == [1, 2, 7, 1, 2]
    assert several.filter(y=7).indices.tolist() == [4]
    first.drop_labels("z")
    assert all("z" not in whole.labels for whole in wholes)
    with pytest.raises(edcache.errors.UnknownLabelError, match='no label "z"; this archive has: y'):
        both.filter(z="a")


def test_archives_without_labels_go_together(tmp_path):
    bare = write(tmp_path / "a.zip", ({"x": k} for k in range(3)))
    other = write(tmp_path / "b.zip", ({"x": k, "y": k} for k in range(2)), ["y"])
    assert edcache.concat([bare, bare]).filter([5, 0]).indices.tolist() == [5, 0]
    assert list(edcache.concat([bare, bare]).labels) == []
    assert edcache.concat([bare, other]).labels["y"].tolist() == [None, None, None, 0, 1]


def test_columns_of_different_types_are_one_type_or_an_error(tmp_path):
    made = {
        name: write(tmp_path / f"{name}.zip", [{"y": value}], ["y"])
        for name, value in (("int", 1), ("float", 0.5), ("text", "cat"))
    }
    assert edcache.concat([made["int"], made["float"]]).labels["y"].tolist() == [1.0, 0.5]
    with pytest.raises(LabelError) as caught:
        edcache.concat([made["int"], made["text"]]).labels["y"]
    assert str(caught.value) == (
        'concat(): label "y" is int64 in one dataset and string in another; write it as one type, for '
        'example in_memory_keys={"y": lambda s: str(s["y"])}'
    )


@pytest.mark.parametrize("fields", [None, ("image",), ("name", "label"), ("pair", "words")])
@pytest.mark.parametrize("as_tuple", [False, True])
def test_a_batch_over_several_archives_is_gathered_in_bulk(two, fields, as_tuple, in_bulk, monkeypatch):
    both = edcache.concat([two[0][::-1], two[1][1:]])
    view = both.shuffle(3)
    order = [*range(19, -1, -1), *range(21, 30)]
    samples = [sample(order[k]) for k in view.indices.tolist()]
    if fields is not None:
        view = view.select(*fields, as_tuple=as_tuple)
        samples = [tuple(s[f] for f in fields) if as_tuple else {f: s[f] for f in fields} for s in samples]
    places = [0, 5, 5, -1, 20, 3]
    assert same(view.batch(places), default_collate([samples[k] for k in places]))
    assert same(default_collate([batch_of(view, places)]), default_collate([samples[k] for k in places]))


def test_a_batch_of_one_archive_of_several_is_gathered_in_bulk(two, in_bulk):
    both = edcache.concat(two)
    assert same(both.batch([3, 1]), default_collate([sample(3), sample(1)]))
    batches = list(both.loader(4, drop_last=True))
    assert same(batches[6], default_collate([sample(k) for k in range(24, 28)]))


def test_a_concat_of_concats_and_of_what_is_zipped_is_gathered_in_bulk(two, tmp_path, in_bulk):
    extra = write(tmp_path / "c.zip", ({"extra": torch.tensor([k])} for k in range(10)))
    zipped = [edcache.zip_fields(part, extra) for part in (two[0].take(10), two[1])]
    nested = edcache.concat([edcache.concat([zipped[0], zipped[1]]), zipped[0]])
    wanted = [sample(k) | {"extra": torch.tensor([k % 10])} for k in (3, 25, 4)]
    assert same(nested.batch([3, 15, 24]), default_collate(wanted))
    some = nested.select("extra", "image").batch([15, 24])
    assert same(some, default_collate([{"extra": s["extra"], "image": s["image"]} for s in wanted[1:]]))


PAIRS = {
    "tensor and float": (lambda k: torch.tensor(k / 2, dtype=torch.float64), lambda k: k / 2),
    "int and float": (lambda k: k, lambda k: k / 2),
    "float and int": (lambda k: k / 2, lambda k: k),
    "bool and int": (lambda k: True, lambda k: 3),
    "array and tensor": (lambda k: np.full(2, k), lambda k: torch.full((2,), k)),
    "shapes": (lambda k: torch.zeros(2), lambda k: torch.zeros(3)),
    "dtypes": (lambda k: torch.zeros(2), lambda k: torch.zeros(2, dtype=torch.int32)),
    "varying shapes": (lambda k: torch.zeros(2), lambda k: torch.zeros(k)),
    "text and bytes": (lambda k: "a", lambda k: b"b"),
    "text and number": (lambda k: "a", lambda k: 1),
    "dict and dict": (lambda k: {"a": k, "b": k}, lambda k: {"b": k, "a": k}),
    "more keys": (lambda k: {"a": k}, lambda k: {"a": k, "b": k}),
    "tuple and list": (lambda k: (k, k), lambda k: [k, k]),
    "list lengths": (lambda k: [k, k], lambda k: [k]),
    "None": (lambda k: None, lambda k: k),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_batch_of_unlike_samples_is_what_default_collate_makes_of_them(tmp_path, name):
    makes = PAIRS[name]
    parts = [write(tmp_path / f"{k}.zip", ({"v": make(i)} for i in range(4))) for k, make in enumerate(makes)]
    for chosen in (parts, parts[::-1]):
        both = edcache.concat(chosen)
        for view in (both, both.select("v"), both.select("v", as_tuple=True)):
            for places in ([0, 5], [5, 0, 1], [1, 2], [6, 6]):
                expected, error = outcome(lambda p=places, v=view: default_collate([v[i] for i in p]))
                found, found_error = outcome(lambda p=places, v=view: v.batch(p))
                assert found_error == error
                assert same(found, expected)


def test_a_damaged_record_is_named_whichever_archive_it_is_in(two):
    path = two[1].path
    offset = int(two[1]._archive.reader.session.index.all_rows()["offset"][4])
    with open(path, "r+b") as file:
        file.seek(offset + 8)
        file.write(b"\xff\xff\xff\xff")
    both = edcache.concat([two[0], CachedDataset.from_cache(path)])
    for read in (lambda: both[24], lambda: both.batch([1, 24])):
        with pytest.raises(CorruptRecordError, match=r"b\.zip: record 4 at offset"):
            read()


class Halved:
    """Source of numbers, of which odd ones fail."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index % 2:
            raise ValueError(f"{index} is odd")
        return {"y": index}


def test_a_sample_that_failed_is_told_at_each_of_its_positions(tmp_path):
    ds = CachedDataset(Halved(), tmp_path / "a.zip", on_error="skip")
    twice = ds[::-1].repeat(2)
    for view in (twice, edcache.concat([twice])[:], edcache.concat([twice])[:3]):
        told = [(failure.index, failure.message) for failure in view.errors]
        wanted = [(0, "3 is odd"), (2, "1 is odd"), (4, "3 is odd"), (6, "1 is odd")]
        assert told == [pair for pair in wanted if pair[0] < len(view)]
        assert view.missing.tolist() == [index for index, _ in told]


def test_what_is_appended_afterwards_is_not_part_of_it(tmp_path):
    path = tmp_path / "a.zip"
    writer = CacheWriter(path, in_memory_keys={"y": "y", "key": "y"}, chunk_size=1)
    writer.extend({"y": k} for k in range(3))
    ds = CachedDataset.from_cache(path)
    both, sides = edcache.concat([ds, ds]), edcache.variants([ds, ds])
    writer.extend({"y": k} for k in range(3, 5))
    writer.write(6, {"y": 6})  # and none is 5
    writer.close()
    assert ds.refresh()
    assert (len(ds), len(both), len(sides)) == (7, 6, 3)
    assert [s["y"] for s in both] == both.labels["y"].tolist() == [0, 1, 2, 0, 1, 2]
    assert [s["y"] for s in sides] == sides.labels["y"].tolist() == [0, 1, 2]
    for joined in (both, sides):
        assert (len(ds.missing), len(joined.missing), joined.errors) == (1, 0, [])
        assert joined.by_key(2)["y"] == 2
        assert 3 in ds.keys
        assert 3 not in joined.keys


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda ds: edcache.concat([]), "concat() takes at least one dataset"),
        (
            lambda ds: edcache.concat([ds, [1, 2]]),
            "concat() takes datasets of edcache, not list; cache it first: "
            "edcache.CachedDataset(source, path)",
        ),
        (
            lambda ds: edcache.concat([ds, CachedDataset.from_cache(ds.path, batch_transform=len)]),
            "concat(): the datasets have different batch_transforms; open all of them with the same one, or "
            "without",
        ),
        (
            lambda ds: edcache.zip_fields(ds, ds.take(3)),
            "zip_fields(): the datasets have 20 and 3 samples; take the same ones of each",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(two, make, text):
    with pytest.raises(OptionError) as caught:
        make(two[0])
    assert str(caught.value) == text


def test_a_batch_transform_that_all_have_is_that_of_the_whole(two):
    parts = [CachedDataset.from_cache(ds.path, batch_transform=len) for ds in two]
    assert edcache.concat(parts).batch([3, 25]) == len(sample(0))
    both = edcache.concat(parts)
    assert both[5:9].batch([0]) == len(sample(0))
    both.batch_transform = lambda batch: "own"
    assert (both.batch([3]), parts[0].batch([3])) == ("own", len(sample(0)))


# --------------------------------------------------------------------------------------- zip_fields


KEYS = {"note": "note", "label": lambda s: "other", "x": ("deep", "x")}


@pytest.fixture
def features(tmp_path):
    samples = ({"feature": torch.full((2,), k / 2), "note": f"f{k}", "deep": {"x": k}} for k in range(20))
    return write(tmp_path / "features.zip", samples, KEYS)


def feature(k):
    return {"feature": torch.full((2,), k / 2), "note": f"f{k}", "deep": {"x": k}}


def test_fields_stand_side_by_side(two, features, in_bulk):
    zipped = edcache.zip_fields(two[0], features)
    wanted = [sample(k) | feature(k) for k in (4, 2, 4)]
    assert same(zipped.batch([4, 2, -16]), default_collate(wanted))
    assert same(zipped[::2].batch([2, 1, 2]), default_collate(wanted))


def test_fields_of_either_side_are_selected_in_the_order_asked(two, features):
    zipped = edcache.zip_fields(two[0], features)
    for as_tuple in (False, True):
        view = zipped.select("deep.x", "image", "note", as_tuple=as_tuple)
        values = [(k, sample(k)["image"], f"f{k}") for k in (3, 9)]
        names = ("deep.x", "image", "note")
        wanted = values if as_tuple else [dict(zip(names, value, strict=True)) for value in values]
        assert same(view.batch([3, 9]), default_collate(wanted))


def test_labels_are_those_of_all_and_of_the_first_that_has_them(two, features):
    zipped = edcache.zip_fields(two[0], features)
    assert list(zipped.labels) == ["label", "note", "x"]
    assert zipped.labels["label"].tolist() == [k % 5 for k in range(20)]
    assert zipped.filter(note=["f3", "f8"], label=3).indices.tolist() == [3, 8]
    assert list(zipped.select("note")[3:5]) == [{"note": "f3"}, {"note": "f4"}]
    assert zipped.select("deep.x")[3:5][0] == {"deep.x": 3}


def test_a_side_that_is_transformed_is_collated_beside_the_other(two, features):
    zipped = edcache.zip_fields(
        two[0].with_transform(lambda image: image[:1] * 2, field="image"), features.select("feature")
    )
    wanted = [
        sample(k) | {"image": sample(k)["image"][:1] * 2, "feature": torch.full((2,), k / 2)} for k in (1, 7)
    ]
    assert same(zipped.batch([1, 7]), default_collate(wanted))
    assert same(zipped.select("feature", "image")[7], {f: wanted[1][f] for f in ("feature", "image")})


def test_a_field_that_two_have_is_refused_at_the_first_read(two, features):
    renamed = features.with_transform(lambda s: {"name": s["note"]})
    for other in (renamed, two[0].select("name")):
        zipped = edcache.zip_fields(two[0], other)
        for read in (lambda z=zipped: z[0], lambda z=zipped: z.batch([0, 1])):
            with pytest.raises(OptionError, match="the field 'name' is in more than one dataset; take it"):
                read()


def test_samples_that_are_no_dicts_are_refused(two):
    zipped = edcache.zip_fields(two[0], two[0].select("name", as_tuple=True))
    for read in (lambda: zipped[0], lambda: zipped.batch([0, 1])):
        with pytest.raises(OptionError) as caught:
            read()
        assert str(caught.value) == (
            f"zip_fields() merges dicts; the samples of {two[0].select('name', as_tuple=True)!r} are of type "
            'tuple; use select("image", ...), whose samples are dicts'
        )


def test_a_field_that_no_side_has_is_named(two, features):
    view = edcache.zip_fields(two[0], features).select("image", "nope")
    for read in (lambda: view[0], lambda: view.batch([0, 1])):
        with pytest.raises(OptionError, match="select\\(\\) names 'nope', which the samples do not have"):
            read()


def test_they_pickle_small_and_say_what_they_are(two, features):
    both = edcache.concat([edcache.zip_fields(two[0], features).take(3), two[1], two[0], two[1]])
    data = pickle.dumps(both)
    assert len(data) < 4 * 2000
    assert same(pickle.loads(data)[2], sample(2) | feature(2))
    assert repr(both) == "Concat(4 datasets, 43 samples)"


def test_labels_without_columns_have_a_row_for_each_sample(tmp_path):
    for k, count in enumerate((3, 4, 5)):
        CachedDataset(list(range(count)), tmp_path / f"{k}.zip", progress=False, fingerprint=False)
    joined = CachedDataset.from_cache([tmp_path / f"{k}.zip" for k in range(3)])
    for view, rows in ((joined, 12), (joined[2:9], 7), (CachedDataset.from_cache(tmp_path / "1.zip"), 4)):
        assert (view.labels.table.num_rows, len(view.labels.table.to_pylist())) == (rows, rows)
