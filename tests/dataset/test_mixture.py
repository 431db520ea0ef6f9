"""Mixtures: proportions in every stretch, orders of each dataset, epochs, ranks, schedules, and bad input."""

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import orders
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import edcache
from edcache import CachedDataset
from edcache.dataset.mixture import _counts, _round
from edcache.errors import OptionError


def part(path, name, count):
    return CachedDataset(
        [{"of": name, "n": n} for n in range(count)], path / f"{name}.zip", in_memory_keys=["of"]
    )


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    return [part(folder, name, count) for name, count in enumerate((50, 7, 23))]


def epoch_of(mixture, epoch=0):
    return mixture.which(0, batch_size=len(mixture), epoch=epoch)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any))
def test_each_prefix_and_each_stretch_of_a_round_has_its_shares(counts):
    sources = np.tile(_round(counts)[0], 2)
    total = sum(counts)
    for source, count in enumerate(counts):
        drawn = np.concatenate(([0], np.cumsum(sources == source)))
        lag = [drawn[n] - Fraction(n * count, total) for n in range(len(drawn))]
        assert max(map(abs, lag)) < 1
        assert max(lag) - min(lag) < 2  # of any stretch
        assert drawn[total] == count


@given(
    st.lists(st.floats(0, 1e3, allow_subnormal=False), min_size=1, max_size=6).filter(any),
)
def test_weights_become_whole_numbers_in_their_proportion(weights):
    exact = [Fraction(str(weight)) for weight in weights]
    if min(weight for weight in exact if weight) < sum(exact) / 65_536:
        return  # it is an error below, unless it is nearly that much
    counts = _counts(weights, [1] * len(weights))
    for weight, count in zip(exact, counts, strict=True):
        assert abs(weight / sum(exact) - Fraction(count, sum(counts))) <= Fraction(1, 65_536)
        assert bool(weight) == bool(count)


@pytest.mark.parametrize("weights", [[5, 3, 2], [0.5, 0.3, 0.2], [np.float32(0.5), np.float64(0.3), "0.2"]])
def test_decimals_mean_what_they_say(weights):
    assert _counts(weights, [1, 1, 1]) == [5, 3, 2]


def oracle(sizes, counts, seed, draws):
    """Index of each draw, by one loop over all of them."""
    starts = np.cumsum([0, *sizes])
    taken, indices = Counter(), []
    total = sum(counts)
    for draw in range(draws):
        # The due draw of which the deadline is first.
        due = [
            (-(-(taken[s] + 1) * total // counts[s]), s)
            for s in range(len(sizes))
            if counts[s] and taken[s] * total // counts[s] <= draw
        ]
        source = min(due)[1]
        epoch, place = divmod(taken[source], sizes[source])
        word = orders.derived(orders.word(seed), source, epoch)
        indices.append(int(starts[source]) + orders.order(place, sizes[source], word))
        taken[source] += 1
    return indices


@settings(max_examples=60)
@given(st.data())
def test_an_order_is_what_a_loop_over_all_draws_gives(parts, data):
    weights = data.draw(st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any))
    count, seed = data.draw(st.integers(1, 120)), data.draw(st.integers(-3, 3))
    mixture = edcache.mix(parts, weights, num_samples=count, seed=seed)
    expected = oracle([50, 7, 23], weights, seed, 3 * count)
    assert [i for epoch in range(3) for i in epoch_of(mixture, epoch).tolist()] == expected
    places = data.draw(st.lists(st.integers(0, count - 1), max_size=9))
    assert [mixture.which(p, epoch=1).item() for p in places] == [expected[count + p] for p in places]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("global_batch_size", [None, 24])
def test_it_goes_on_with_other_ranks(parts, ranks, global_batch_size):
    options = {"num_samples": 480, "seed": 7, "global_batch_size": global_batch_size}
    alone = edcache.mix(parts, [5, 3, 2], num_samples=480, seed=7)
    whole = [*alone, *alone]
    state, drawn = None, []
    for world in (ranks, 1, 3):
        samplers = [
            edcache.mix(parts, [5, 3, 2], num_replicas=world, rank=rank, **options) for rank in range(world)
        ]
        if state is not None:
            for sampler in samplers:
                sampler.load_state_dict(json.loads(json.dumps(state)))
        iterators = [iter(sampler) for sampler in samplers]
        for _ in range(3 if global_batch_size else 24):
            items = [next(iterator) for iterator in iterators]
            drawn += [i for item in items for i in (item if global_batch_size else [item])]
        state = samplers[0].state_dict()
        assert state["consumed"] == len(drawn)
    if global_batch_size is None:
        assert drawn == whole[: len(drawn)]
    else:
        steps = zip(*[iter(drawn)] * 24, strict=True)
        assert [sorted(step) for step in steps] == [
            sorted(whole[k : k + 24]) for k in range(0, len(drawn), 24)
        ]


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_draw_by_it(parts, workers):
    mixture = edcache.mix(parts, [5, 3, 2], num_samples=64, seed=1)
    expected = mixture.dataset.batch(epoch_of(mixture))
    loaded = DataLoader(mixture.dataset, batch_size=16, sampler=mixture, num_workers=workers)
    own = mixture.dataset.loader(16, sampler=edcache.mix(parts, [5, 3, 2], num_samples=64, seed=1))
    for batches in (loaded, own):
        of, n = zip(*[(batch["of"].clone(), batch["n"].clone()) for batch in batches], strict=True)
        assert np.concatenate(of).tolist() == expected["of"].tolist()
        assert np.concatenate(n).tolist() == expected["n"].tolist()


def test_views_and_one_dataset_twice_are_mixed(parts):
    few = parts[0].filter(of=0).take(4)
    mixture = edcache.mix([few, few], [1, 1])
    assert len(mixture) == 8
    assert Counter(mixture.dataset[i]["n"] for i in mixture) == dict.fromkeys(range(4), 2)
    assert mixture.which(1, batch_size=4).tolist() == epoch_of(mixture)[4:8].tolist()


def test_the_order_stays(parts):
    golden = json.loads(Path(__file__).with_name("golden_orders.json").read_text())["Mixture"]
    mixture = edcache.mix(parts, [0.5, 0.3, 0.2], num_samples=30, seed=3)
    assert {str(epoch): epoch_of(mixture, epoch).tolist() for epoch in (0, 3)} == golden


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"weights": [1, 1]},
            r"weights=\[1, 1\]; give finite numbers of 0 or more, .* one for each of 3 datasets",
        ),
        ({"weights": [1, 1, float("nan")]}, "give finite numbers"),
        ({"weights": [1, 1, float("inf")]}, "give finite numbers"),
        ({"weights": [1, 1, -0.5]}, "give finite numbers"),
        ({"weights": [0, 0, 0.0]}, "not all of them 0"),
        ({"weights": 3}, "weights=3; give finite numbers"),
        ({"weights": [1, 1e-9, 1]}, "the least is below 1 / 65,536 of all; leave it out, or give it more"),
        ({"num_samples": 0}, "num_samples=0; give an integer of 1 or more"),
        ({"seed": 0.5}, "seed=0.5; give an integer"),
    ],
)
def test_what_makes_no_mixture_is_an_error(parts, options, message):
    with pytest.raises(OptionError, match=message):
        edcache.mix(parts, **({"weights": [1, 1, 1]} | options))


def test_a_state_of_another_mixture_is_an_error(parts):
    state = edcache.mix(parts, [5, 3, 2]).state_dict()
    edcache.mix(parts, [50, 30, 20]).load_state_dict(state)
    with pytest.raises(OptionError, match="a state with weights='5/3/2', and here is weights='5/2/3'"):
        edcache.mix(parts, [5, 2, 3]).load_state_dict(state)
    swapped = [parts[0].take(30), parts[1], parts[0][30:50], parts[2]]
    with pytest.raises(OptionError, match="a state with "):
        edcache.mix(swapped, [5, 3, 1, 1]).load_state_dict(state)
    grown = edcache.mix([*parts, parts[0]], [5, 3, 2, 1])
    with pytest.raises(OptionError, match="a state with "):
        grown.load_state_dict(state)
    empty = parts[0].filter(of=99)
    with pytest.raises(OptionError, match="dataset 1 has no samples; leave it out"):
        edcache.mix([parts[0], empty], [1, 1])
    assert len(edcache.mix([parts[0], empty], [1, 0])) == 50


def test_samples_of_different_fields_make_no_batch(tmp_path):
    sources = [[{"x": 1, "i": 2}] * 4, [{"x": 3}] * 4]
    parts = [CachedDataset(one, tmp_path / f"{k}.zip", progress=False) for k, one in enumerate(sources)]
    mixture = edcache.mix(parts, [1, 1])
    assert len(mixture.dataset.select("x").batch([0, 4])["x"]) == 2
    with pytest.raises(OptionError, match=r"different fields \(x, i / x\); select\(\) the common ones"):
        mixture.dataset.batch([0, 4])
