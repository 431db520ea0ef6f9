"""ds.select(): some fields of every sample, as they are in the whole."""

import numpy as np
import pytest
import torch
from damage import flip_record
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from likeness import outcome, same
from sample_trees import Pair, at, numbers, trees, write
from scale import scaled
from systems import WAYS, reading_by
from torch.utils.data import DataLoader, Subset, default_collate, random_split

from edcache import CachedDataset, CacheWriter
from edcache.dataset.indexing import batch_of
from edcache.errors import CodecError, CorruptRecordError, MissingSampleError, OptionError

COUNT = 8


def picked(sample, paths, as_tuple):
    values = [at(sample, steps) for steps in paths.values()]
    return tuple(values) if as_tuple else dict(zip(paths, values, strict=True))


# --- selecting equals picking -----------------------------------------------------------------------


leaves = st.one_of(
    numbers,
    st.sampled_from(
        [
            lambda k: torch.arange(k % 3),
            lambda k: np.arange(k)[:, None],
            lambda k: k,
            lambda k: k * 3,
            lambda k: k / 3,
            lambda k: k % 2 == 0,
            lambda k: "text" * (k % 3),
            lambda k: bytes([k]),
            lambda k: np.float32(k),
            lambda k: [k] * 3,
            lambda k: None,
            lambda k: None if k == 4 else k,
            lambda k: k if k % 3 else float(k),
            lambda k: k if k % 3 else bool(k),
            lambda k: 2**63 if k == 5 else k,
            lambda k: float("nan") if k == 2 else -0.0,
            lambda k: complex(k, 1),
        ]
    ),
)


samples = trees(st.recursive(leaves, trees, max_leaves=4))
several = st.one_of(
    samples,
    samples.map(lambda make: lambda k: {"x": make(k), "more": k} if k % 3 else {"x": make(k)}),
)


def places(tree):
    """The paths of everything in a sample, containers too."""
    children = []
    if isinstance(tree, dict):
        children = list(tree.items())
    elif isinstance(tree, (list, tuple)):
        children = list(zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True))
    return [()] + [(key, *rest) for key, value in children for rest in places(value)]


def is_column(make, path):
    return all(isinstance(at(make(k), path), (int, float, str, type(None))) for k in range(COUNT))


@st.composite
def selections(draw, make):
    """What to select, by the path as it is given: its keys and indices."""
    found = [path for path in places(make(0)) if path]
    found = [path for path in found if all(path in places(make(k)) for k in range(COUNT))]
    paths = {}
    for path in draw(st.lists(st.sampled_from(found), min_size=1, max_size=3, unique=True)) if found else []:
        paths[path[0] if len(path) == 1 and draw(st.booleans()) else path] = path
    return paths or {places(make(0))[1][0]: places(make(0))[1]}


SETTINGS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(SETTINGS, max_examples=scaled(300, 80))
@given(st.data(), several, st.lists(st.integers(-COUNT, COUNT - 1), min_size=1, max_size=5), st.booleans())
def test_selected_fields_are_those_of_the_samples(tmp_path, data, make, indices, as_tuple):
    compression = data.draw(st.sampled_from([None, "zstd"]))
    paths = data.draw(selections(make))
    columns = [path for path in paths.values() if is_column(make, path)]
    columns = columns if data.draw(st.booleans()) else []
    keys = {f"column {n}": path if len(path) > 1 else path[0] for n, path in enumerate(columns)}
    made = [make(k) for k in range(COUNT)]
    written, error = outcome(
        lambda: write(tmp_path / "a.zip", made, in_memory_keys=keys, compression=compression, chunk_size=3)
    )
    if error:  # labels that make no column
        written = write(tmp_path / "a.zip", made, compression=compression, chunk_size=3)
    for way in WAYS:
        with reading_by(way):
            ds = CachedDataset.from_cache(written.path)
            len(ds)
        view = ds.select(*paths, as_tuple=as_tuple)
        assert len(view) == len(ds)
        wanted = [outcome(lambda i=i: picked(made[i], paths, as_tuple)) for i in indices]
        found = [outcome(lambda i=i, view=view: view[i]) for i in indices]
        for (one, error), (other, other_error) in zip(found, wanted, strict=True):
            assert (error is None) == (other_error is None)
            assert same(one, other)
        if any(error for _, error in wanted):
            return
        expected, error = outcome(lambda view=view: default_collate([view[i] for i in indices]))
        for collated in (
            lambda view=view: view.batch(indices),
            lambda view=view: default_collate([batch_of(view, indices)]),
        ):
            batch, batch_error = outcome(collated)
            assert batch_error == error
            assert same(batch, expected)
        assert same(list(view.__getitems__(indices)), [view[i] for i in indices])


# --- one archive ------------------------------------------------------------------------------------


def sample(k):
    return {
        "image": torch.full((4, 4), k, dtype=torch.uint8),
        "label": k % 5,
        "target": {"boxes": torch.full((k % 3, 4), k / 2), "area": k * 10, "name": f"n{k}"},
        "score": k / 7,
        "good": k % 2 == 0,
        "kind": "abc"[k % 3],
    }


KEYS = ["label", "target.area", "target.name", "score", "good", "kind"]


@pytest.fixture
def ds(tmp_path):
    return write(tmp_path / "a.zip", map(sample, range(40)), in_memory_keys=KEYS, chunk_size=16)


def test_a_whole_key_goes_before_a_dotted_path(tmp_path):
    made = [{"a.b": k, "a": {"b": k + 100, "c": k + 200}} for k in range(4)]
    ds = write(tmp_path / "a.zip", made, in_memory_keys={"one": "a.b", "two": ("a", "b")})
    view = ds.select("a.b", ("a", "b"), "a.c")
    assert view[1] == {"a.b": 1, ("a", "b"): 101, "a.c": 201}
    assert {key: value.tolist() for key, value in view.batch([1, 3]).items()} == {
        "a.b": [1, 3],
        ("a", "b"): [101, 103],
        "a.c": [201, 203],
    }


def test_tuples_and_lists_are_selected_by_place(tmp_path):
    made = [(torch.full((2,), k), {"a": [k, f"{k}"]}, k) for k in range(6)]
    ds = write(tmp_path / "a.zip", made, in_memory_keys={"label": 2, "text": (1, "a", 1)})
    view = ds.select(2, (1, "a", 1), (1, "a", 0), 0)
    assert same(view[3], {2: 3, (1, "a", 1): "3", (1, "a", 0): 3, 0: made[3][0]})
    assert same(view.batch([3, 1]), default_collate([view[3], view[1]]))
    assert same(ds.select("1.a.0")[4], {"1.a.0": 4})


@pytest.mark.parametrize("length", [3, 30])
def test_an_item_of_a_list_is_selected_whatever_the_lists_length(tmp_path, length):
    made = [{"numbers": list(range(k, k + length)), "x": k} for k in range(4)]
    ds = write(tmp_path / "a.zip", made)
    view = ds.select("numbers.1", ("numbers", 2))
    assert view[3] == {"numbers.1": 4, ("numbers", 2): 5}
    assert view.batch([3, 1])["numbers.1"].tolist() == [4, 2]


def test_named_tuples_are_selected_by_name_and_by_place(tmp_path):
    ds = write(tmp_path / "a.zip", [Pair(k, torch.full((2,), k)) for k in range(4)], in_memory_keys=["left"])
    assert same(ds.select("right", 0)[2], {"right": torch.full((2,), 2), 0: 2})
    assert same(ds.select("left")[2], {"left": 2})
    assert ds.select("left", as_tuple=True).batch([2, 3])[0].tolist() == [2, 3]


def test_it_composes_with_views_filters_subsets_and_splits(ds):
    wanted = [{"kind": "abc"[k % 3], "label": k % 5} for k in range(40)]
    view = ds[10:30].select("kind", "label")
    assert list(view) == wanted[10:30]
    assert list(ds.select("kind", "label")[10:30]) == wanted[10:30]
    assert list(ds.filter(label=1).select("kind", "label")[2:4]) == wanted[1::5][2:4]
    assert list(ds.select("kind", "label").filter("label == 1")) == wanted[1::5]
    assert list(ds.select("kind", "label").filter(good=True)) == wanted[::2]
    assert ds.select("kind").labels["score"].tolist() == ds.labels["score"].tolist()
    assert list(Subset(view, [3, 1])) == [wanted[13], wanted[11]]
    loaded = next(iter(DataLoader(Subset(view, [3, 1]), 2)))
    assert same(loaded, default_collate([wanted[13], wanted[11]]))
    left, right = random_split(view, [5, 15])
    both = [*left, *right]
    assert sorted(both, key=str) == sorted(wanted[10:30], key=str)
    assert view[-1] == wanted[29]
    assert view.indices.tolist() == list(range(10, 30))
    assert view[[3, 1]].batch([0])["label"].tolist() == [13 % 5]


def test_selecting_from_a_selection_narrows(ds):
    once = ds.select("kind", "target.area", "label")
    twice = once.select("label", "target.area")
    assert same(twice[7], {"label": 2, "target.area": 70})
    assert same(once.select("label", as_tuple=True)[7], (2,))
    assert same(once.filter(label=2).select("label")[1], {"label": 2})
    assert same(twice.batch([7]), default_collate([twice[7]]))
    assert len(once[3:6].select("label")) == 3


def test_a_field_that_was_left_out_is_not_selected_again(ds):
    once = ds.select("kind", "target.area")
    for path in ("label", "target", ("target", "area")):
        with pytest.raises(OptionError) as caught:
            once.select("kind", path)
        assert str(caught.value) == (
            f"select() names {path!r}; what was selected before is ('kind', 'target.area')"
        )


def test_wrong_selections_are_refused(ds, tmp_path):
    with pytest.raises(OptionError) as caught:
        ds.select()
    assert str(caught.value) == 'select() takes at least one field: select("image")'
    with pytest.raises(OptionError) as caught:
        ds.select("kind", "label", "kind")
    assert str(caught.value) == "select() names 'kind' twice; give each field once"
    keys = "'image', 'label', 'target', 'score', 'good', 'kind'"
    for path in ("nope", "target.nope", ("target", 0), 0, "image.0", ("image", 0)):
        view = ds.select("kind", path)
        for read in (lambda view=view: view[0], lambda view=view: view.batch([0, 1])):
            with pytest.raises(OptionError) as caught:
                read()
            assert str(caught.value) == (
                f"select() names {path!r}, which the samples do not have; they are dicts with the keys {keys}"
            )
    ds.add_labels("fold", [0] * len(ds))
    with pytest.raises(OptionError, match=r"; it is a label: ds\.labels\['fold'\]; zip_fields\(\) adds"):
        ds.select("fold")[0]
    bare = write(tmp_path / "bare.zip", [torch.ones(3)] * 2).select("x")
    with pytest.raises(OptionError) as caught:
        bare[0]
    assert str(caught.value) == "select() names 'x', which the samples do not have; they are of type Tensor"


@pytest.mark.parametrize("path", [["label"], {"label": 1}, [0, 1]])
def test_a_list_of_fields_is_refused_with_a_message(ds, path):
    with pytest.raises(OptionError):
        ds.select(path)[0]


def test_a_field_that_some_samples_lack_is_named_where_it_lacks(tmp_path):
    ds = write(tmp_path / "a.zip", [{"x": 1, "y": 2} if k % 2 else {"x": 1} for k in range(4)])
    view = ds.select("y")
    assert view[1] == {"y": 2}
    assert view.batch([1, 3])["y"].tolist() == [2, 2]
    for read in (lambda: view[2], lambda: view.batch([1, 2])):
        with pytest.raises(OptionError, match="'y', which the samples do not have"):
            read()


def test_what_was_selected_is_the_callers_own(ds):
    view = ds.select("image", "target")
    view[3]["image"].zero_()
    view[3]["target"]["boxes"] = None
    view.batch([3, 6])["image"].zero_()
    assert same(view[3], {"image": sample(3)["image"], "target": sample(3)["target"]})


# --- labels -----------------------------------------------------------------------------------------


def test_fields_are_what_was_stored_whatever_the_labels_say(ds):
    stored = [{"label": k % 5} for k in range(40)]
    for values in (ds.labels["label"], [9] * 40):
        ds.add_labels("label", values)
        view = ds.select("label")
        assert list(view) == stored
        assert list(view[5:20:3]) == stored[5:20:3]
        assert same(view.batch([-1, 5]), default_collate([stored[39], stored[5]]))
    assert set(view.labels["label"].tolist()) == {9}
    ds.drop_labels("label")
    assert ds.select("label")[7] == {"label": 2}


def test_labels_of_functions_are_no_fields(tmp_path):
    keys = {"label": lambda s: s["label"] + 100, "extra": lambda s: 1}
    ds = write(tmp_path / "a.zip", map(sample, range(8)), in_memory_keys=keys)
    assert ds.select("label")[3] == {"label": 3}
    assert ds.select("label").batch([3, 4])["label"].tolist() == [3, 4]
    with pytest.raises(OptionError, match="'extra', which the samples do not have"):
        ds.select("extra")[3]


def test_a_sparse_archive_gives_what_it_has(tmp_path):
    indices = [1, 2, 5, 9]
    keys = ["label", "kind", "good", "score"]
    ds = write(tmp_path / "a.zip", [sample(k) for k in indices], indices, in_memory_keys=keys)
    view = ds.select("label", "kind", "good", "score", "image")
    wanted = {
        k: {name: sample(k)[name] for name in ("label", "kind", "good", "score", "image")} for k in indices
    }
    assert all(same(view[k], wanted[k]) for k in indices)
    assert same(view.batch([9, 1, -8]), default_collate([wanted[9], wanted[1], wanted[2]]))
    alone = ds.select("kind")
    assert alone[5] == {"kind": sample(5)["kind"]}
    for read in (lambda: alone[3], lambda: alone.batch([5, 3]), lambda: view[3], lambda: view.batch([3])):
        with pytest.raises(MissingSampleError, match="sample 3 has no record yet"):
            read()


class Source:
    def __init__(self):
        self._asked = []

    def __len__(self):
        return 10

    def __getitem__(self, k):
        self._asked.append(k)
        return sample(k)


def test_a_lazy_cache_computes_what_is_missing(tmp_path):
    source = Source()
    ds = CachedDataset(source, tmp_path / "a.zip", lazy=True, in_memory_keys=["label"])
    view = ds.select("label", "target.area")
    assert view[3] == {"label": 3, "target.area": 30}
    assert same(
        view.batch([3, 7]), default_collate([{"label": k % 5, "target.area": k * 10} for k in (3, 7)])
    )
    with pytest.raises(OptionError, match="'nope', which the samples do not have"):
        ds.select("nope")[4]
    assert [view[k]["target.area"] for k in range(10)] == list(range(0, 100, 10))
    ds.close()
    again = CachedDataset(source, tmp_path / "a.zip", lazy=True, in_memory_keys=["label"])
    asked = len(source._asked)
    assert [s["label"] for s in again.select("label")] == [k % 5 for k in range(10)]
    assert len(source._asked) == asked


def test_a_growing_archive_gives_labels_of_new_samples(tmp_path):
    w = CacheWriter(tmp_path / "a.zip", in_memory_keys=["label"])
    w.extend(map(sample, range(4)))
    w.flush()
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    assert ds.select("label").batch([3])["label"].tolist() == [3]
    w.extend(map(sample, range(4, 8)))
    w.close()
    assert ds.refresh()
    assert ds.select("label").batch([3, 7])["label"].tolist() == [3, 2]
    assert ds.select("label")[7] == {"label": 2}


def test_pickled_records_are_selected_from_where_that_is_allowed(tmp_path):
    made = [{"x": {1, k}, "label": k, "t": (torch.ones(2), k)} for k in range(4)]
    write(tmp_path / "a.zip", made, codec="pickle", in_memory_keys=["label"])
    ds = CachedDataset.from_cache(tmp_path / "a.zip", allow_pickle=True)
    view = ds.select("x", "label", ("t", 1))
    assert view[3] == {"x": {1, 3}, "label": 3, ("t", 1): 3}
    assert ds.select("label", "t.0").batch([1, 3])["label"].tolist() == [1, 3]
    with pytest.raises(OptionError, match="'nope', which the samples do not have"):
        ds.select("nope")[0]
    with pytest.raises(CodecError):
        CachedDataset.from_cache(tmp_path / "a.zip").select("x")[0]


# --- the bytes that are read ------------------------------------------------------------------------

MIB = 1 << 20


def large(k):
    rng = np.random.default_rng(k)
    return {
        "image": torch.from_numpy(rng.integers(0, 256, (1024, 1024), np.uint8)),
        "mask": torch.from_numpy(rng.integers(0, 2, (256, 256), np.uint8)),
        "boxes": torch.arange(8) + k,
        "label": k,
    }


def flipped(ds, index, at):
    flip_record(ds.path, index, at=at)
    return CachedDataset.from_cache(ds.path)


@pytest.fixture
def big(tmp_path):
    return write(tmp_path / "big.zip", map(large, range(3)))


def reads(view):
    return [
        lambda: view[1],
        lambda: view.batch([0, 1]),
        lambda: view.batch([1]),
        lambda: next(iter(view.loader(3))),
    ]


@pytest.mark.parametrize("place", [0, 16384, MIB // 2, MIB - 32768])
@pytest.mark.parametrize("fields", [("mask",), ("boxes",), ("label", "mask"), ("boxes", "label")])
def test_damage_far_from_the_field_is_not_met(big, place, fields):
    damaged = flipped(big, 1, place)
    for read in reads(damaged.select(*fields)):
        read()
    assert same(damaged.select(*fields)[1], {name: large(1)[name] for name in fields})
    assert same(
        damaged.select(*fields).batch([2, 1]),
        default_collate([{name: large(k)[name] for name in fields} for k in (2, 1)]),
    )
    for chosen in (("image",), ("image", "mask"), ("boxes", "image")):
        for read in reads(damaged.select(*chosen)):
            with pytest.raises(CorruptRecordError, match="record 1 at offset"):
                read()
    for read in reads(damaged):
        with pytest.raises(CorruptRecordError, match="record 1 at offset"):
            read()
    assert same(damaged.select(*fields)[1], {name: large(1)[name] for name in fields})


@pytest.mark.parametrize("field", ["mask", "boxes", "label"])
def test_damage_in_the_field_is_met(big, field):
    start = {"mask": MIB, "boxes": MIB + 65536, "label": MIB + 65536 + 64}[field]
    size = {"mask": 65536, "boxes": 64, "label": 8}[field]
    for place in (start, start + size - 1):
        damaged = flipped(big, 1, place)
        for read in reads(damaged.select(field)):
            with pytest.raises(CorruptRecordError, match="record 1 at offset"):
                read()
        assert same(damaged.select(field)[0], {field: large(0)[field]})
        assert same(damaged.select("image")[0], {"image": large(0)["image"]})
        flipped(big, 1, place)


def test_always_checks_the_whole_record_and_never_none_of_it(big):
    flip_record(big.path, 1, at=5)
    for read in reads(CachedDataset.from_cache(big.path, verify="never").select("image")):
        read()
    for read in reads(CachedDataset.from_cache(big.path, verify="always").select("mask")):
        with pytest.raises(CorruptRecordError):
            read()


def test_damage_anywhere_in_a_compressed_record_is_met(tmp_path):
    ds = write(tmp_path / "a.zip", map(large, range(2)), compression="zstd")
    damaged = flipped(ds, 1, int(ds._archive.reader.session.index.all_rows()["nbytes"][1]) - 5)
    for read in (lambda: damaged.select("label")[1], lambda: damaged.select("boxes").batch([0, 1])):
        with pytest.raises(CorruptRecordError, match="record 1 at offset"):
            read()
    assert damaged.select("label")[0] == {"label": 0}


def test_a_field_behind_a_variable_one_is_checked_with_all_of_it(tmp_path):
    made = [{"x": torch.full((1000 * (k + 1),), k), "y": torch.full((5 + k,), k)} for k in range(4)]
    ds = write(tmp_path / "a.zip", made)
    view = ds.select("y")
    assert same(list(view), [{"y": m["y"]} for m in made])
    damaged = flipped(ds, 2, 3000)
    for read in (lambda: damaged.select("y")[2], lambda: damaged.select("x")[2], lambda: damaged[2]):
        with pytest.raises(CorruptRecordError, match="record 2 at offset"):
            read()
