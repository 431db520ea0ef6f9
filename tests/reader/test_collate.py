"""edcache.collate: in bulk as of samples, and both as a plain reading of its docstring says."""

import copy
import functools
import pickle

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from likeness import outcome, same
from sample_trees import ARRAYS, DTYPES, Pair, at, trees, write
from scale import scaled
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

import edcache
from edcache import CachedDataset
from edcache.dataset.indexing import batch_of
from edcache.errors import CorruptRecordError, MissingSampleError, OptionError
from edcache.reader.ragged import Jagged, Padded

COUNT = 9


def at_most_one_is_wrong(ways, samples):
    """Whether one field alone can be wrong: of several errors either path may come upon another first."""
    return len(ways) < 2 and outcome(lambda: edcache.collate(as_list=list(ways))(samples))[1] is None


# --- samples: functions of k ------------------------------------------------------------------------


def lengthy(lengths, tail, make, dtype):
    """A tensor or an array of `lengths[k]` rows of shape `tail`, or of shapes `tail[k]` where they vary."""

    def value(k):
        rest = tail[k % len(tail)] if tail and isinstance(tail[0], tuple) else tail
        shape = (lengths[k % len(lengths)], *rest)
        numbers = (np.arange(int(np.prod(shape))) % 5 + k % 4).reshape(shape)
        return torch.from_numpy(numbers).to(dtype) if make is torch.tensor else numbers.astype(dtype)

    return value


lengths = st.lists(st.integers(0, 5), min_size=1, max_size=4)
tails = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 3), min_size=1, max_size=2).map(tuple),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2)), min_size=2, max_size=3),
)
ragged = st.one_of(
    st.builds(lengthy, lengths, tails, st.just(torch.tensor), st.sampled_from(DTYPES)),
    st.builds(lengthy, lengths, tails, st.just(np.array), st.sampled_from(ARRAYS)),
)
others = st.sampled_from(
    [
        lambda k: k,
        lambda k: k / 3,
        lambda k: "text" * (k % 3),
        lambda k: torch.tensor(k),
        lambda k: np.float32(k),
        lambda k: np.array(k),
        lambda k: torch.arange(4) + k,
        lambda k: [k] * 9,
        lambda k: bytes([k]),
        lambda k: None,
        lambda k: None if k == 4 else k,
        lambda k: torch.arange(k) if k % 4 else torch.ones(k, 2),
        lambda k: torch.arange(k, dtype=torch.int64 if k % 4 else torch.int32),
    ]
)
leaves = st.one_of(ragged, ragged, others)


def growing(make, extra):
    """Samples of several schemas: some have a field more, or are another tree."""
    return lambda k: {"all": make(k), "more": k} if extra and k % 3 == 0 else {"all": make(k)}


trees_of_samples = st.recursive(leaves, trees, max_leaves=4)
samples = st.one_of(trees_of_samples, st.builds(growing, trees_of_samples, st.booleans()))


def places(sample):
    """The paths of all leaves of a sample that is there."""
    if isinstance(sample, dict):
        return [(key, *rest) for key, value in sample.items() for rest in places(value)]
    if isinstance(sample, (list, tuple)) and len(sample) < 9:
        names = getattr(sample, "_fields", range(len(sample)))
        return [(name, *rest) for name, value in zip(names, sample, strict=True) for rest in places(value)]
    return [()]


@st.composite
def options(draw, make):
    """Options of collate() for some leaves, each with one way, and the way of each path."""
    paths = places(make(0))
    ways = {}
    for path in draw(st.lists(st.sampled_from(paths), unique=True, max_size=3)):
        ways[path] = draw(st.sampled_from(["pad", "jagged", "as_list"]))
    asked = {
        "pad": {path: draw(st.sampled_from([0, 1, 2])) for path, way in ways.items() if way == "pad"},
        "jagged": [path for path, way in ways.items() if way == "jagged"],
        "as_list": [path for path, way in ways.items() if way == "as_list"],
        "max_length": draw(st.sampled_from([None, None, 0, 1, 3])),
        "multiple_of": draw(st.sampled_from([1, 1, 2, 4])),
    }
    return asked, ways


# --- what the docstring says, in plain torch --------------------------------------------------------


def plain(asked, path, way, values):
    dtypes = [v.dtype for v in values if isinstance(v, np.ndarray)]
    if way == "as_list" and any(dtype.kind in "UM" or not dtype.isnative for dtype in dtypes):
        return values  # of dtypes that torch has not
    values = [torch.as_tensor(v) if isinstance(v, np.ndarray) else v for v in values]
    if way != "as_list" and any(isinstance(v, (list, tuple)) for v in values):
        # Of nothing but empty lists: int64, as the numbers that pad.
        lists = [v for v in values if not isinstance(v, torch.Tensor) and v]
        kinds = {type(v[0]) for v in lists} - {list} or {int}
        dtype = {int: torch.int64, float: torch.float64, bool: torch.bool}[kinds.pop()]
        tail = torch.tensor(lists[0]).shape[1:] if lists else ()
        values = [
            v if isinstance(v, torch.Tensor) else torch.tensor(v, dtype=dtype).reshape(len(v), *tail)
            for v in values
        ]
    cut = [v[: asked["max_length"]] if isinstance(v, torch.Tensor) and v.ndim else v for v in values]
    if way == "as_list":
        return cut
    if way == "jagged":
        ends = np.cumsum([0, *map(len, cut)])
        return Jagged(torch.cat(cut), torch.tensor(ends))
    multiple, fill = asked["multiple_of"], asked["pad"][path]
    sizes = [max(dims) for dims in zip(*(v.shape for v in cut), strict=True)]
    sizes[0] = -(-sizes[0] // multiple) * multiple
    out = torch.full((len(cut), *sizes), fill, dtype=cut[0].dtype)
    for k, v in enumerate(cut):
        out[(k, *map(slice, v.shape))] = v
    if len({v.shape[1:] for v in cut}) == 1:
        return Padded(out, torch.tensor([len(v) for v in cut]))
    return Padded(out, torch.tensor([list(v.shape) for v in cut]))


def matches(found, expected):
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(same, found, expected))
    return same(found, expected)


# --- in bulk as of samples --------------------------------------------------------------------------

SETTINGS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(SETTINGS, max_examples=scaled(350, 100))
@given(st.data(), samples, st.lists(st.integers(-COUNT, COUNT - 1), min_size=1, max_size=6))
def test_the_bulk_path_equals_the_collation_of_samples_and_the_docstring(tmp_path, data, make, indices):
    compression = data.draw(st.sampled_from([None, "zstd"]))
    asked, ways = data.draw(options(make))
    ds = write(tmp_path / "a.zip", [make(k) for k in range(COUNT)], compression=compression, chunk_size=4)
    collate = edcache.collate(**asked)
    expected, error = outcome(lambda: collate([ds[i] for i in indices]))
    loader = DataLoader(ds, len(indices), sampler=indices, collate_fn=collate)
    for collated in (lambda: collate([batch_of(ds, indices)]), lambda: next(iter(loader))):
        found, found_error = outcome(collated)
        assert (found_error is None) == (error is None)
        assert same(found, expected)
        if error and at_most_one_is_wrong(ways, [ds[i] for i in indices]):
            assert found_error == error
    if error is None:
        for path, way in ways.items():
            values = [at(make(range(COUNT)[i]), path) for i in indices]
            assert matches(at(expected, path), plain(asked, path, way, values))


LISTS = [
    lambda n, k: [k - 3] * n,
    lambda n, k: (k / 3,) * n,
    lambda n, k: [k % 2 == 0] * n,
    lambda n, k: [[k, n]] * n,
    lambda n, k: torch.full((n,), k) if k % 2 else [k] * n,
]


@settings(SETTINGS, max_examples=scaled(80, 20))
@given(
    st.sampled_from(LISTS),
    st.lists(st.integers(0, 20), min_size=3, max_size=3),
    st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=5),
    st.sampled_from(["pad", "jagged", "as_list"]),
    st.sampled_from([None, 0, 9]),
)
def test_lists_of_numbers_are_collated_as_tensors_of_them(tmp_path, make, sizes, indices, way, max_length):
    rows = [make(sizes[k % 3], k) for k in range(COUNT)]
    ds = write(tmp_path / "a.zip", [{"x": row} for row in rows])
    asked = {"max_length": max_length, "multiple_of": 4, way: {"x": 1} if way == "pad" else ["x"]}
    chosen = [rows[k] for k in indices]
    if way != "as_list":
        expected = plain(asked, "x", way, chosen)
    elif all(isinstance(row, torch.Tensor) for row in chosen):
        expected = [row[:max_length] for row in chosen]
    else:
        expected = chosen
    for batch in ([batch_of(ds, indices)], ds.__getitems__(indices)):
        assert matches(edcache.collate(**asked)(batch)["x"], expected)


@settings(SETTINGS, max_examples=60)
@given(st.data(), samples)
def test_a_sparse_archive_collates_what_it_has(tmp_path, data, make):
    present = [1, 2, 5, 8, 13]
    asked, ways = data.draw(options(make))
    indices = data.draw(st.lists(st.sampled_from(present), min_size=1, max_size=5))
    ds = write(tmp_path / "a.zip", [make(k % COUNT) for k in present], indices=present)
    collate = edcache.collate(**asked)
    expected = outcome(lambda: collate([ds[i] for i in indices]))
    found = outcome(lambda: collate([batch_of(ds, [i - len(ds) for i in indices])]))
    assert (found[1] is None) == (expected[1] is None)
    assert same(found[0], expected[0])
    if at_most_one_is_wrong(ways, [ds[i] for i in indices]):
        assert found[1] == expected[1]


def sample(k):
    return {
        "ids": torch.arange(k % 5) + k,
        "boxes": torch.full((k % 3, 4), k, dtype=torch.float32),
        "text": f"n{k}",
        "image": torch.full((2, 2), k % 256, dtype=torch.uint8),
        "target": {"mask": np.full((k % 4, k % 2 + 1), k, np.int16)},
        "label": k,
    }


@pytest.fixture
def ds(tmp_path):
    return write(tmp_path / "ds.zip", map(sample, range(40)), in_memory_keys=["label"], chunk_size=16)


ALL_WAYS = {"pad": {"ids": -1, "target.mask": 7}, "jagged": ["boxes"], "as_list": ["text", "image"]}


def test_every_way_gives_what_it_says(ds):
    batch = edcache.collate(**ALL_WAYS)([batch_of(ds, [7, 4, 11])])
    raw = [sample(k) for k in (7, 4, 11)]
    assert list(batch) == list(raw[0])
    assert type(batch["ids"]) is Padded
    assert batch["ids"].values.equal(pad_sequence([s["ids"] for s in raw], True, -1))
    assert batch["ids"].lengths.tolist() == [2, 4, 1]
    assert type(batch["boxes"]) is Jagged
    assert batch["boxes"].values.equal(torch.cat([s["boxes"] for s in raw]))
    assert batch["boxes"].offsets.tolist() == [0, 1, 2, 4]
    mask = batch["target"]["mask"]
    assert mask.lengths.tolist() == [[3, 2], [0, 1], [3, 2]]
    assert mask.values.tolist() == [[[7, 7]] * 3, [[7, 7]] * 3, [[11, 11]] * 3]
    assert batch["text"] == ["n7", "n4", "n11"]
    assert [image.tolist() for image in batch["image"]] == [s["image"].tolist() for s in raw]
    assert batch["label"].tolist() == [7, 4, 11]


@pytest.mark.skipif(not hasattr(torch.nested, "nested_tensor_from_jagged"), reason="not in torch 2.2")
def test_jagged_is_what_a_nested_tensor_takes(ds):
    batch = edcache.collate(jagged=["boxes"], as_list=["ids", "target.mask"])([batch_of(ds, [5, 3, 7])])
    nested = torch.nested.nested_tensor_from_jagged(*batch["boxes"])
    assert [piece.tolist() for piece in nested.unbind()] == [sample(k)["boxes"].tolist() for k in (5, 3, 7)]


@pytest.mark.parametrize("is_lazy", [False, True])
def test_it_pads_on_the_left(ds, is_lazy):
    collate = edcache.collate(
        pad={"ids": -1, "target.mask": 9}, as_list=["boxes"], multiple_of=3, side="left", max_length=3
    )
    found = collate([batch_of(ds, [4, 1, 2])] if is_lazy else [ds[4], ds[1], ds[2]])
    assert found["ids"].values.tolist() == [[4, 5, 6], [-1, -1, 1], [-1, 2, 3]]
    assert found["ids"].lengths.tolist() == [3, 1, 2]
    mask = found["target"]["mask"]
    assert mask.values.tolist() == [[[9, 9]] * 3, [[9, 9], [9, 9], [1, 1]], [[9, 9], [2, 9], [2, 9]]]
    assert mask.lengths.tolist() == [[0, 1], [1, 2], [2, 1]]


@pytest.mark.parametrize("numbers", [[1, None], [1, "a"], [[1], [1, 2]], [2**70], [1j]], ids=repr)
def test_a_list_that_no_tensor_holds_is_not_padded(tmp_path, numbers):
    ds = write(tmp_path / "a.zip", [{"x": numbers}])
    for batch in ([batch_of(ds, [0])], [ds[0]]):
        with pytest.raises(OptionError) as caught:
            edcache.collate(pad={"x": 0})(batch)
        assert str(caught.value) == f"{NOT_PADDED} list; use as_list"


def test_extreme_numbers_of_lists_are_kept_exactly(tmp_path):
    rows = [[-(2**63), 2**63 - 1], [2**53 + 1], [0.1, -0.0, float("inf"), 5e-324], [2.0**53, 1]]
    ds = write(tmp_path / "a.zip", [{"x": row * times} for times in (1, 8) for row in rows])
    for k, row in enumerate(rows * 2):
        found = edcache.collate(pad={"x": 0})([batch_of(ds, [k])])["x"].values[0].tolist()
        assert same(found, [type(found[0])(n) for n in row * (1 if k < 4 else 8)])


def test_a_batch_of_nothing_but_empty_ones_is_empty(tmp_path):
    ds = write(
        tmp_path / "a.zip", [{"p": torch.ones(k), "j": torch.ones(k, 2), "l": torch.ones(k)} for k in (0, 3)]
    )
    collate = edcache.collate(pad={"p": 0}, jagged=["j"], as_list=["l"])
    for batch in ([batch_of(ds, [0, 0])], [ds[0], ds[0]]):
        found = collate(batch)
        assert found["p"].values.shape == (2, 0)
        assert found["j"].values.shape == (0, 2)
        assert found["j"].offsets.tolist() == [0, 0, 0]
        assert [len(tensor) for tensor in found["l"]] == [0, 0]


@pytest.mark.parametrize("is_lazy", [False, True])
def test_a_list_of_several_dtypes_is_cut_too(tmp_path, is_lazy):
    made = [{"x": torch.ones(5)}, {"x": torch.ones(5, 2)}, {"x": torch.ones(5).int()}]
    ds = write(tmp_path / "a.zip", made)
    batch = [batch_of(ds, [0, 1, 2])] if is_lazy else [ds[0], ds[1], ds[2]]
    found = edcache.collate(as_list=["x"], max_length=3)(batch)
    assert [tensor.shape for tensor in found["x"]] == [(3,), (3, 2), (3,)]


def test_samples_without_a_container_are_named_by_the_empty_path(tmp_path):
    ds = write(tmp_path / "a.zip", [torch.arange(k) for k in range(6)])
    for batch in ([batch_of(ds, [3, 1])], [ds[3], ds[1]]):
        assert same(edcache.collate(jagged=[()])(batch).values, torch.tensor([0, 1, 2, 0]))


def test_views_subsets_and_plain_datasets_take_it(ds):
    collate = edcache.collate(**ALL_WAYS)
    expected = collate([sample(k) for k in (9, 3)])
    assert same(collate([batch_of(ds[[3, 9]], [1, 0])]), expected)
    assert same(next(iter(DataLoader(Subset(ds, [9, 3]), 2, collate_fn=collate))), expected)

    class Source(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, k):
            return sample([9, 3][k])

    assert same(next(iter(DataLoader(Source(), 2, collate_fn=collate))), expected)


def test_selected_fields_are_named_as_they_were_selected(ds):
    view = ds.select("target.mask", "ids")
    collate = edcache.collate(pad={"target.mask": 0}, as_list=["ids"])
    assert same(collate([batch_of(view, [7, 2])]), collate([view[7], view[2]]))
    pairs = ds.select("label", "ids", as_tuple=True)
    collate = edcache.collate(jagged=[1])
    assert same(collate([batch_of(pairs, [7, 2])]), collate([pairs[7], pairs[2]]))


def test_a_batch_is_the_callers_own(ds):
    collate = edcache.collate(**ALL_WAYS)
    first = collate([batch_of(ds, [7, 8])])
    for tensor in (first["ids"].values, first["boxes"].values, *first["image"]):
        tensor.zero_()
    assert same(collate([batch_of(ds, [7, 8])]), collate([sample(7), sample(8)]))


def test_of_samples_it_leaves_the_samples_as_they_are(ds):
    given_samples = [ds[7], ds[8]]
    batch = edcache.collate(**ALL_WAYS)(given_samples)
    batch["image"][0].zero_()
    assert same(given_samples, [sample(7), sample(8)])


def brightened(collate, batch):
    for one in batch:
        one["label"] += 100
        one["image"] = one["image"].float() / 2
    return collate(batch)


def only_fixed(k):
    return {"image": torch.full((2, 2), k, dtype=torch.uint8), "label": k}


@pytest.mark.parametrize("collate", [default_collate, edcache.collate(as_list=["image"])])
def test_a_collate_function_may_change_the_samples_before_it_collates_them(tmp_path, collate):
    ds = write(tmp_path / "a.zip", map(only_fixed, range(8)))
    expected = brightened(collate, [only_fixed(k) for k in (5, 2)])
    assert same(brightened(collate, ds.__getitems__([5, 2])), expected)
    loader = DataLoader(ds, sampler=[5, 2], batch_size=2, collate_fn=functools.partial(brightened, collate))
    assert same(next(iter(loader)), expected)


def as_it_is(value):
    return value


class Episodes(Dataset):
    """Every sample is a list of batches of another loader, made in this process."""

    def __init__(self, ds, collate):
        self.ds, self.collate = ds, collate

    def __len__(self):
        return 2

    def __getitem__(self, k):
        batches = list(DataLoader(self.ds, 4, collate_fn=self.collate))
        return [type(batch).__name__ for batch in batches], batches


@pytest.mark.parametrize("collate", [None, edcache.collate(as_list=["image"])])
def test_a_loader_within_a_worker_gives_ordinary_batches(tmp_path, collate):
    ds = write(tmp_path / "a.zip", map(only_fixed, range(8)))
    for names, batches in DataLoader(Episodes(ds, collate), None, num_workers=1, collate_fn=as_it_is):
        assert names == ["dict", "dict"]
        assert same(batches, list(DataLoader(ds, 4, collate_fn=collate)))


# --- lists of views ---------------------------------------------------------------------------------


def change(batch):
    batch["image"][0] = torch.zeros(1)
    batch["ids"].append(torch.tensor([5]))
    del batch["boxes"][1]
    return batch


def listed(change_it, batch):
    made = edcache.collate(as_list=["ids", "boxes", "text", "image", "target.mask"])(batch)
    return change(made) if change_it else made


def storages(tensors):
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_hand_over_what_was_made(ds, context):
    expected = [edcache.collate(**ALL_WAYS)([batch_of(ds, range(k, k + 10))]) for k in (0, 10, 20, 30)]
    loader = DataLoader(
        ds,
        10,
        num_workers=2,
        multiprocessing_context=context,
        collate_fn=edcache.collate(**ALL_WAYS),
        persistent_workers=True,
    )
    for _ in range(2):
        batches = list(loader)
        assert same(batches, expected)
        assert all(len(storages(batch["image"])) == 1 for batch in batches)


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("is_changed", [False, True])
def test_a_list_arrives_as_it_left_the_worker(ds, context, is_changed):
    collate = functools.partial(listed, is_changed)
    expected = [collate([batch_of(ds, range(k, k + 20))]) for k in (0, 20)]
    batches = list(DataLoader(ds, 20, num_workers=1, multiprocessing_context=context, collate_fn=collate))
    for batch, wanted in zip(batches, expected, strict=True):
        assert list(batch) == list(wanted)
        for name in ("ids", "boxes", "text", "image"):
            assert isinstance(batch[name], list)
            assert len(batch[name]) == len(wanted[name])
            assert all(map(same, batch[name], wanted[name]))
    assert is_changed or all(len(storages(batch["ids"])) == 1 for batch in batches)


def copies(value):
    return [
        copy.copy(value),
        copy.deepcopy(value),
        *(pickle.loads(pickle.dumps(value, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)),
    ]


def test_copies_of_a_list_are_lists_of_the_same(ds):
    tensors = listed(False, [batch_of(ds, [3, 4, 7])])["ids"]
    assert len(storages(tensors)) == 1
    for twin in copies(tensors):
        assert isinstance(twin, list)
        assert all(map(same, twin, tensors))
        assert len(storages(twin)) == 1


@pytest.mark.parametrize(
    "change_it",
    [
        lambda tensors: tensors.append(torch.zeros(2)),
        lambda tensors: tensors.pop(),
        lambda tensors: tensors.clear(),
        lambda tensors: tensors.reverse(),
        lambda tensors: tensors.__setitem__(1, torch.zeros(3)),
        lambda tensors: tensors.sort(key=len),
        lambda tensors: tensors.__setitem__(0, None),
        lambda tensors: tensors.extend(tensors[:1]),
        lambda tensors: tensors.insert(0, "text"),
    ],
)
def test_copies_of_a_changed_list_are_changed(ds, change_it):
    tensors = listed(False, [batch_of(ds, [7, 3, 4])])["ids"]
    change_it(tensors)
    for twin in copies(tensors):
        assert isinstance(twin, list)
        assert same(list(twin), list(tensors))


def test_a_tensor_written_in_a_list_is_copied_as_written(ds):
    tensors = listed(False, [batch_of(ds, [7, 3, 4])])["ids"]
    tensors[1].fill_(99)
    assert pickle.loads(pickle.dumps(tensors))[1].tolist() == [99] * 3
    assert copy.deepcopy(tensors)[1].tolist() == [99] * 3
    tensors[2].unsqueeze_(0)
    assert [tensor.shape for tensor in pickle.loads(pickle.dumps(tensors))] == [(2,), (3,), (1, 4)]


def pinned(data):
    """What torch's pin_memory does, with a copy in place of page-locked memory."""
    if isinstance(data, torch.Tensor):
        return data.clone()
    if isinstance(data, dict):
        twin = copy.copy(data)
        twin.update({key: pinned(value) for key, value in data.items()})
        return twin
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(pinned, data))
    if isinstance(data, list):
        twin = copy.copy(data)
        for place, item in enumerate(data):
            twin[place] = pinned(item)
        return twin
    return data


def test_pinning_copies_every_tensor(ds):
    made = edcache.collate(**ALL_WAYS)([batch_of(ds, [7, 3, 4])])
    twin = pinned(made)
    assert same(twin, made)
    for tensor in (made["ids"].values, made["boxes"].values, *made["image"]):
        tensor.fill_(1)
    assert same(twin, edcache.collate(**ALL_WAYS)([sample(k) for k in (7, 3, 4)]))
    assert same(pickle.loads(pickle.dumps(twin))["image"][0], twin["image"][0])


def test_it_pickles(ds):
    collate = edcache.collate(**ALL_WAYS, max_length=2, multiple_of=4)
    twin = pickle.loads(pickle.dumps(collate))
    assert same(twin([batch_of(ds, [3, 7])]), collate([batch_of(ds, [3, 7])]))
    assert repr(twin) == repr(collate)


# --- errors -----------------------------------------------------------------------------------------

WRONG_OPTIONS = [
    ({"max_length": -1}, "max_length=-1; give a length of 0 or more, or None"),
    ({"multiple_of": 0}, "multiple_of=0; give an integer of 1 or more"),
    ({"multiple_of": -8}, "multiple_of=-8; give an integer of 1 or more"),
    ({"pad": {"a": 0}, "jagged": ["a"]}, "collate() names 'a' twice; give each field once"),
    ({"as_list": ["a", "b", "a"]}, "collate() names 'a' twice; give each field once"),
    ({"pad": {"ids": 0}, "side": "top"}, 'side=\'top\'; give "right" or "left"'),
    ({"jagged": "boxes"}, "jagged='boxes'; give a list of field paths: jagged=['boxes']"),
    ({"as_list": 1}, "as_list=1; give a list of field paths: as_list=[1]"),
    ({"pad": ["x"]}, "pad=['x']; give what to pad with, by field path: pad={\"input_ids\": 0}"),
    ({"as_list": None}, "as_list=None; give a list of field paths: as_list=[None]"),
    ({"max_length": 2.5}, "max_length=2.5; give a length of 0 or more, or None"),
    ({"multiple_of": 0.5}, "multiple_of=0.5; give an integer of 1 or more"),
]


@pytest.mark.parametrize(("asked", "text"), WRONG_OPTIONS)
def test_wrong_options_are_refused(asked, text):
    with pytest.raises(OptionError) as caught:
        edcache.collate(**asked)
    assert str(caught.value) == text


NOT_PADDED = "collate(): tensors, arrays and lists of numbers are padded or jagged, not"
DIFFER = "collate(): the samples differ in dtype or dimensions: [('torch.float32', 1), "
NO_LENGTH = "collate(): a 0-d tensor has no length; leave it to the default, or use as_list"
LACKS = "which the samples do not have; they are"
KEYS = "dicts with the keys 'ids', 'boxes', 'text', 'image', 'target', 'label'"
WRONG_FIELDS = [
    (sample, {"pad": {"nope": 0}}, f"collate() names 'nope', {LACKS} {KEYS}"),
    (sample, {"jagged": ["target.nope"]}, f"collate() names 'target.nope', {LACKS} {KEYS}"),
    (sample, {"as_list": [("target", 3)]}, f"collate() names ('target', 3), {LACKS} {KEYS}"),
    (sample, {"pad": {"text": 0}, "as_list": ["ids", "boxes"]}, f"{NOT_PADDED} str; use as_list"),
    (sample, {"jagged": ["label"]}, f"{NOT_PADDED} int; use as_list"),
    (sample, {"jagged": ["target"]}, f"{NOT_PADDED} dict; use as_list"),
    (
        lambda k: {"x": torch.ones(2, k)},
        {"jagged": ["x"]},
        "jagged: the samples differ beyond the first dimension: [(2,), (3,)]; use pad or as_list",
    ),
    (lambda k: {"x": torch.tensor(k)}, {"pad": {"x": 0}}, NO_LENGTH),
    (lambda k: {"x": np.array(k)}, {"jagged": ["x"]}, NO_LENGTH),
    (
        lambda k: {"x": torch.ones(k, dtype=torch.float32 if k % 2 else torch.int64)},
        {"pad": {"x": 0}},
        f"{DIFFER}('torch.int64', 1)]; use as_list",
    ),
    (
        lambda k: {"x": torch.ones(*[k] * (k % 2 + 1))},
        {"jagged": ["x"]},
        f"{DIFFER}('torch.float32', 2)]; use as_list",
    ),
    (lambda k: (k, torch.ones(k)), {"pad": {2: 0}}, f"collate() names 2, {LACKS} tuples of 2"),
    (
        lambda k: Pair(k, torch.ones(k)),
        {"pad": {"top": 0}},
        f"collate() names 'top', {LACKS} Pair with the fields left, right",
    ),
    (lambda k: torch.ones(3), {"pad": {"x": 0}}, f"collate() names 'x', {LACKS} of type Tensor"),
    (
        lambda k: {"x": torch.ones(k)} | ({"y": torch.ones(k)} if k == 2 else {}),
        {"pad": {"x": 0, "y": 0}},
        f"collate() names 'y', {LACKS} dicts with the keys 'x'",
    ),
]


@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize(("make", "asked", "text"), WRONG_FIELDS)
def test_what_cannot_be_collated_so_says_why(tmp_path, make, asked, text, is_lazy):
    ds = write(tmp_path / "a.zip", [make(k) for k in range(6)])
    with pytest.raises(OptionError) as caught:
        edcache.collate(**asked)([batch_of(ds, [2, 3])] if is_lazy else [ds[2], ds[3]])
    assert str(caught.value) == text


@pytest.mark.parametrize("is_lazy", [False, True])
def test_as_list_takes_whatever_it_is(tmp_path, is_lazy):
    """A dict, a list, None, numbers and texts of numpy, as the samples have them."""
    made = [
        {
            "d": {"x": k},
            "l": [k, "a"],
            "n": None,
            "f": np.float32(k),
            "u": np.array(["a", "bc"]),
            "b": b"x" * k,
        }
        for k in range(4)
    ]
    ds = write(tmp_path / "a.zip", made)
    for name in made[0]:
        only = write(tmp_path / f"{name}.zip", [{name: m[name]} for m in made])
        batch = [batch_of(only, [2, 1])] if is_lazy else [only[2], only[1]]
        found = edcache.collate(as_list=[name])(batch)
        assert same(found, {name: [made[2][name], made[1][name]]}), name
    assert len(ds) == 4


@pytest.mark.parametrize("is_lazy", [False, True])
def test_pictures_are_listed(tmp_path, is_lazy):
    image = pytest.importorskip("PIL.Image")
    made = [{"picture": image.new("L", (2 + k, 3), k), "label": k} for k in range(4)]
    ds = write(tmp_path / "a.zip", made)
    batch = [batch_of(ds, [2, 1])] if is_lazy else [ds[2], ds[1]]
    found = edcache.collate(as_list=["picture"])(batch)
    assert [picture.tobytes() for picture in found["picture"]] == [
        made[k]["picture"].tobytes() for k in (2, 1)
    ]
    assert found["label"].tolist() == [2, 1]


def test_damaged_and_missing_samples_are_named_as_in_a_single_read(tmp_path, ds):
    with open(ds.path, "r+b") as file:
        file.seek(int(ds._archive.reader.session.index.all_rows()["offset"][7]))
        file.write(b"\xff")
    with pytest.raises(CorruptRecordError, match="record 7 at offset .*: it fails its crc32"):
        edcache.collate(**ALL_WAYS)([batch_of(CachedDataset.from_cache(ds.path), [1, 7])])
    sparse = write(tmp_path / "s.zip", [{"x": torch.ones(k)} for k in (1, 3)], indices=[1, 3])
    with pytest.raises(MissingSampleError, match="sample 2 has no record yet"):
        edcache.collate(pad={"x": 0})([batch_of(sparse, [1, 2])])


@pytest.mark.parametrize(
    ("value", "dtype"), [(-1, torch.uint8), (0.5, torch.int64), (300, torch.uint8), (None, torch.float32)]
)
def test_what_a_dtype_cannot_hold_does_not_pad(tmp_path, value, dtype):
    ds = write(tmp_path / "a.zip", [{"x": torch.zeros(k + 1, dtype=dtype)} for k in range(3)])
    for batch in ([batch_of(ds, [1, 2])], [ds[1], ds[2]]):
        with pytest.raises(
            OptionError, match=f"^pad: {value} does not fit into {dtype}; give a value that does$"
        ):
            edcache.collate(pad={"x": value})(batch)
