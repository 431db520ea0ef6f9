"""scripts/train.py as a user runs it, on fewer samples: a cache, a filter, selected fields, Lightning."""

import re
from pathlib import Path

import pytest

from edcache import CachedDataset

pytestmark = pytest.mark.full
SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def train(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    import train

    return train


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec.* is deprecated")
@pytest.mark.parametrize("options", [[], ["--shuffle"]])
def test_a_network_learns_from_a_cache(train, tmp_path, capsys, options, monkeypatch):
    # 1,797 samples that need no package of the system.
    monkeypatch.setattr(train, "DEBIAN", tmp_path / "nowhere")
    drawn = []
    monkeypatch.setattr(
        train.Network,
        "on_train_batch_start",
        lambda self, batch, number: drawn.extend(batch[1].tolist()),
    )
    train.main(["--cache", str(tmp_path), "--epochs", "4", *options])
    out = capsys.readouterr().out
    counts = {int(label): int(count) for label, count in re.findall(r"(\d): (\d+)", out)}
    ds = CachedDataset.from_cache(tmp_path / "train.zip")
    chosen = [s["label"] for s in ds if s["split"] == "train" and not s["rare"]]
    assert counts == {label: chosen.count(label) for label in range(10)}
    assert len(drawn) == 4 * len(chosen)
    if options:
        assert sorted(drawn) == sorted(4 * chosen)
    else:
        counted = [drawn.count(label) for label in range(10)]
        assert max(counted) - min(counted) <= 4
        assert float(re.search(r"right: ([\d.]+)% of a class", out)[1]) > 50
