"""Chains of views, at random, against plain lists: lengths, order, labels, samples, batches, pickles.

The lists share no code with the package. What a seed determines is computed again by numpy where it is one
call; of splits and resampling the promises are checked, and the list goes on with what the view has.
"""

from __future__ import annotations

import math
import pickle
from collections import Counter

import numpy as np
import orders
import pytest
import torch
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st
from likeness import outcome, same
from scale import SEED, scaled
from torch.utils.data import default_collate

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.dataset.indexing import batch_of
from edcache.errors import MissingSampleError

LENGTH = 23
MISSING = {4, 5, 11}
LONGEST = 400
GROUPS = [0, 0, 1, 2, 2, 2, 3, 4, 5, 5]


class Row:
    """A sample of the model: what it is, or None where it is missing, and its labels."""

    def __init__(self, uid, sample, labels):
        self.uid, self.sample, self.labels = uid, sample, labels

    def __eq__(self, other):
        return self.uid == other.uid

    def __hash__(self):
        return hash(self.uid)


def whole(k):
    return {
        "i": k,
        "y": k % 3,
        "x": torch.tensor([k, k / 2]),
        "name": f"n{k % 4}",
        "deep": {"z": np.float32(k)},
    }


def labels_of(k):
    return {
        "y": k % 3,
        "p": None if k % 5 == 2 else f"p{k % 4}",
        "g": GROUPS[k % 10],
        "s": -k / 2 if k % 7 else None,
    }


KEYS = {
    "y": "y",
    "p": lambda s: labels_of(s["i"])["p"],
    "g": lambda s: labels_of(s["i"])["g"],
    "s": lambda s: labels_of(s["i"])["s"],
}


def written(path, samples, keys):
    with CacheWriter(path, in_memory_keys=keys, chunk_size=9) as writer:
        for index, sample in samples:
            writer.write(index, sample)
    return CachedDataset.from_cache(path)


class World:
    """The archives, and what a list has of each."""

    def __init__(self, folder):
        self.full = written(folder / "full.zip", [(k, whole(k)) for k in range(LENGTH)], KEYS)
        self.rows = [Row(("full", k), whole(k), labels_of(k)) for k in range(LENGTH)]
        some = [(k, whole(k)) for k in range(LENGTH) if k not in MISSING]
        self.gaps = written(folder / "gaps.zip", some, KEYS)
        none = dict.fromkeys(KEYS)
        self.gap_rows = [
            Row(("gaps", k), None, none) if k in MISSING else Row(("gaps", k), whole(k), labels_of(k))
            for k in range(LENGTH)
        ]
        others = [{"i": 100 + k, "y": k % 2, "w": [k, k + 1]} for k in range(7)]
        self.other = written(folder / "other.zip", enumerate(others), ["y", "i"])
        self.other_rows = [
            Row(("other", k), sample, {"y": k % 2, "i": 100 + k}) for k, sample in enumerate(others)
        ]
        features = [{"feature": torch.full((2, 2), k), "note": "a" * (k % 3)} for k in range(LENGTH)]
        self.features = written(folder / "features.zip", enumerate(features), ["note"])
        self.feature_rows = [{"sample": s, "labels": {"note": s["note"]}} for s in features]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("views"))


def plus_one(sample):
    return {**sample, "i": sample["i"] + 1}


def negative(value):
    return -value


# ------------------------------------------------------------------- the steps, of a view and of a list


class Chain:
    """A view and the list that it must be."""

    def __init__(self, world, has_gaps):
        self.world = world
        self.view = world.gaps if has_gaps else world.full
        self.rows = list(world.gap_rows if has_gaps else world.rows)
        self.fields = None
        self.is_zipped = False
        self.names = ["y", "p", "g", "s"]

    def go(self, kind, a, b):
        getattr(self, kind)(a, b)
        assert len(self.view) == len(self.rows)

    def adopt(self, view, rows=None):
        """Go on with what a view has of these rows; gives which they are."""
        known = dict(zip(self.view.indices.tolist(), self.rows, strict=True))
        found = [known[index] for index in view.indices.tolist()]
        self.view, self.rows = view, found if rows is None else rows
        return found

    def column(self, name):
        return [row.labels.get(name) for row in self.rows]

    def cut(self, a, b):
        ends = [None, a % 30 - 10][a % 2], [None, b % 40 - 5][b % 3 > 0]
        part = slice(*ends, [None, 2, -1, -3][(a + b) % 4])
        # Of one selected label a slice is a column.
        if self.fields is None or len(self.fields) > 1:
            self.view, self.rows = self.view[part], self.rows[part]

    def take(self, a, b):
        self.view, self.rows = self.view.take(a % 30), self.rows[: a % 30]

    def pick(self, a, b):
        n = len(self.rows)
        places = [(a + k * b) % n for k in range(a % 12)] if n else []
        self.view = self.view[[place - n if place % 3 == 0 else place for place in places]]
        self.rows = [self.rows[place] for place in places]

    def mask(self, a, b):
        flags = [(k * (a | 1) + b) % 5 < 3 for k in range(len(self.rows))]
        self.view = self.view.filter(np.array(flags, bool)) if a % 2 else self.view[np.array(flags, bool)]
        self.rows = [row for row, flag in zip(self.rows, flags, strict=True) if flag]

    def keep(self, a, b):
        wanted = [a % 4, b % 3]
        chosen = [row for row in self.rows if row.labels.get("y") in wanted]
        self.view, self.rows = self.view.filter(y=wanted), chosen

    def where(self, a, b):
        def fits(row):
            return row.labels.get("y") is not None and row.labels["y"] >= a % 3

        self.view = self.view.filter(f"y >= {a % 3}")
        self.rows = [row for row in self.rows if fits(row)]

    def shuffle(self, a, b):
        count = len(self.rows)
        self.view = self.view.shuffle(a)
        self.rows = [self.rows[place] for place in orders.permutation(count, orders.word(count, a))]

    def repeat(self, a, b):
        n = len(self.rows)
        if a % 2 and n:
            times = math.ceil((b % 60) / n)
            self.view = self.view.repeat(min_size=b % 60)
        else:
            times = b % 4
            if n * times > LONGEST:
                return
            self.view = self.view.repeat(times)
        self.rows = self.rows * times

    def sort(self, a, b):
        name, descending = self.names[a % len(self.names)], bool(b % 2)
        there = [row for row in self.rows if row.labels.get(name) is not None]
        gone = [row for row in self.rows if row.labels.get(name) is None]
        # Stable in either direction, as sorted(reverse=True) is.
        ordered = sorted(there, key=lambda row: row.labels[name], reverse=descending)
        self.view, self.rows = self.view.sort_by(name, descending=descending), ordered + gone

    def oversample(self, a, b):
        name = self.names[a % len(self.names)]
        counts = Counter(self.column(name))
        most = max(counts.values(), default=0)
        if most * len(counts) > LONGEST:
            return
        before = list(self.rows)
        found = self.adopt(self.view.oversample(name, strategy=["exact", "multiply"][b % 2], seed=a))
        if b % 2:
            assert found == [row for row in before for _ in range(most // counts[row.labels.get(name)])]
        else:
            assert Counter(row.labels.get(name) for row in found) == dict.fromkeys(counts, most)
            often, rare = Counter(found), Counter(before)
            times = {row: most // counts[row.labels.get(name)] for row in rare}
            assert all(rare[row] * times[row] <= often[row] <= rare[row] * (times[row] + 1) for row in rare)

    def split(self, a, b):
        n = len(self.rows)
        shares = [(0.8, 0.1, 0.1), (0.5, 0.5), (1 / 3, 1 / 3, 1 / 3), (n // 3, n - n // 3)][a % 4]
        stratify, group = [None, "y", "p"][a % 3], [None, None, "g"][b % 3]
        views = self.view.split(*shares, seed=None if b % 5 == 0 else b, stratify=stratify, group=group)
        parts = self.disjoint(views)
        wanted = [share if isinstance(share, int) else n * share for share in shares]
        if group is None:
            assert all(abs(len(part) - want) < 1 for part, want in zip(parts, wanted, strict=True))
        if group is None and stratify is not None and n:
            for value, count in Counter(self.column(stratify)).items():
                for part, want in zip(parts, wanted, strict=True):
                    has = sum(row.labels.get(stratify) == value for row in part)
                    assert abs(has - count * want / n) < 2
        if group is not None:
            self.whole_groups(parts, group)
        self.adopt(views[b % len(views)])

    def kfold(self, a, b):
        n, stratify, group = 2 + a % 3, [None, "y"][a % 2], [None, "g"][b % 2]
        groups = len(set(self.column("g"))) if group else len(self.rows)
        if groups < n:
            return
        folds = self.view.kfold(n, seed=b, stratify=stratify, group=group)
        parts = self.disjoint([test for _, test in folds])
        for train, test in folds:
            self.disjoint([train, test])
        if group is not None:
            self.whole_groups(parts, group)
        else:
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
        self.adopt(folds[b % n][a % 2])

    def disjoint(self, views):
        """The rows of each; they share none, and are together everything."""
        known = dict(zip(self.view.indices.tolist(), self.rows, strict=True))
        parts = [[known[index] for index in view.indices.tolist()] for view in views]
        assert Counter(row for part in parts for row in part) == Counter(self.rows)
        return parts

    def whole_groups(self, parts, group):
        owners = [{row.labels.get(group) for row in part} for part in parts]
        assert sum(map(len, owners)) == len(set().union(*owners))

    def concat(self, a, b):
        if len(self.rows) > LONGEST:
            return
        if a % 3 == 0:
            other, rows = self.world.other, self.world.other_rows
        elif a % 3 == 1:
            other, rows = self.world.full[b % 20 : 20], self.world.rows[b % 20 : 20]
        else:
            other, rows = self.view.take(b % 5), self.rows[: b % 5]
        if self.fields is not None and a % 3 < 2:
            other = other.select(*self.fields)
            rows = [self.selected(row) for row in rows]
        parts = [(self.view, self.rows), (other, rows)][:: 1 if b % 2 else -1]
        self.view = edcache.concat([part for part, _ in parts])
        # A row of a dataset that stands in twice is two rows from here on.
        self.rows = [
            Row((k, *row.uid), row.sample, row.labels) for k, (_, some) in enumerate(parts) for row in some
        ]

    def zip(self, a, b):
        if (
            self.is_zipped
            or self.fields is not None
            or not self.rows
            or not all(row.sample is None or isinstance(row.sample, dict) for row in self.rows)
        ):
            return
        self.is_zipped = True
        n = len(self.rows)
        features = self.world.features.repeat(min_size=n).take(n)
        beside = [self.world.feature_rows[k % LENGTH] for k in range(n)]
        self.view = edcache.zip_fields(self.view, features)
        self.rows = [
            Row(
                (k,),
                None if row.sample is None else row.sample | other["sample"],
                row.labels | other["labels"],
            )
            for k, (row, other) in enumerate(zip(self.rows, beside, strict=True))
        ]

    def select(self, a, b):
        if self.fields is not None:
            return
        self.fields = [("i", "y"), ("x", "y", "i"), ("i",), ("y",), ("name", "deep.z")][a % 5]
        self.view = self.view.select(*self.fields)
        self.rows = [self.selected(row) for row in self.rows]

    def selected(self, row):
        sample = row.sample
        if sample is not None and all(field in sample or field == "deep.z" for field in self.fields):
            if "deep.z" in self.fields and "deep" not in sample:
                return Row(row.uid, None, row.labels)
            return Row(
                row.uid,
                {f: sample["deep"]["z"] if f == "deep.z" else sample[f] for f in self.fields},
                row.labels,
            )
        return Row(row.uid, None, row.labels)

    def transform(self, a, b):
        has_i = all(row.sample is None or "i" in row.sample for row in self.rows)
        if not has_i or len(self.rows) > LONGEST:
            return
        rows = []
        for row in self.rows:
            sample = row.sample
            if sample is not None:
                sample = {**sample, "i": sample["i"] + 1 if a % 2 else -sample["i"]}
            rows.append(Row(row.uid, sample, row.labels))
        self.view = (
            self.view.with_transform(plus_one) if a % 2 else self.view.with_transform(negative, field="i")
        )
        self.rows = rows


KINDS = [
    *("cut", "cut", "take", "pick", "mask", "keep", "where", "shuffle", "repeat", "sort"),
    *("oversample", "split", "kfold", "concat", "concat", "zip", "select"),
    "transform",
]
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=6
)


def check(chain, places):
    """Everything that is asked of a view, at some places."""
    view, rows = chain.view, chain.rows
    for name in view.labels:
        assert view.labels.table[name].to_pylist() == chain.column(name)
    wanted = [rows[place].sample for place in places]
    found = [outcome(lambda place=place: view[place]) for place in places]
    for (one, error), sample in zip(found, wanted, strict=True):
        assert (error is None) == (sample is not None)
        assert same(one, sample)
    if any(sample is None for sample in wanted):
        assert outcome(lambda: view.batch(places))[1] is not None
        return
    assert same(list(view.__getitems__(places)), wanted)
    expected, error = outcome(lambda: default_collate(wanted))
    for collated in (lambda: view.batch(places), lambda: default_collate([batch_of(view, places)])):
        batch, batch_error = outcome(collated)
        assert (batch_error is None) == (error is None), batch_error
        assert same(batch, expected)


@seed(SEED)
@settings(
    max_examples=scaled(2000),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.booleans(), STEPS, st.lists(st.integers(-500, 500), min_size=1, max_size=5))
@example(False, [("concat", 1, 3), ("zip", 0, 0), ("concat", 2, 4), ("select", 1, 0)], [0, 30, -1, 7])
def test_a_chain_of_views_is_what_a_list_is(world, tally, has_gaps, steps, numbers):
    chain = Chain(world, has_gaps)
    for kind, a, b in steps:
        chain.go(kind, a, b)
    tally("chains of views")
    n = len(chain.rows)
    assert len(chain.view) == n
    places = [number % n - n * (number < 0) for number in numbers] if n else []
    if places:
        check(chain, places)
    if None not in (expected := [row.sample for row in chain.rows]):
        assert same(list(chain.view), expected)
    again = pickle.loads(pickle.dumps(chain.view))
    assert (len(again), repr(again)) == (n, repr(chain.view))
    assert again.indices.tolist() == chain.view.indices.tolist()
    if places:
        one, other = outcome(lambda: again[places[0]]), outcome(lambda: chain.view[places[0]])
        assert one[1] == other[1]
        assert same(one[0], other[0])
    for outside in (n, -n - 1):
        with pytest.raises(IndexError):
            chain.view[outside]


def test_a_missing_sample_stops_an_iteration_of_a_view(world):
    with pytest.raises(MissingSampleError, match="sample 4 has no record yet"):
        list(edcache.concat([world.full, world.gaps])[20:])
