"""libFuzzer finds nothing that raises, hangs or kills beyond what is promised.

`scripts/fuzz` hunts longer, and puts what it finds into corpus/, which test_corpus.py tries.
"""

from __future__ import annotations

import importlib.util

import pytest
from fuzz_hunt import TARGETS, hunt
from scale import SEED, scaled, thinned

pytestmark = pytest.mark.spread

# Each group is one process, of some 30 seconds of one core.
RUNS = {"texts and values": {"where": 40_000, "codec": 10_000}, "files": {"open": 16_000}}


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris has no wheel here; test_corpus.py runs anyway",
)
@pytest.mark.parametrize("group", thinned(RUNS, 1))
def test_no_bytes_of_a_stranger_raise_what_is_not_ours_nor_hang_nor_kill(tmp_path, tally, group):
    # Seed 0 would be one from the clock.
    jobs = {name: [f"-runs={scaled(runs)}", f"-seed={SEED + 1}"] for name, runs in RUNS[group].items()}
    for found in hunt(jobs, tmp_path):
        assert not found.findings, f"{found.target}: {found.findings}\n{found.log[-4000:]}"
        assert found.executions >= scaled(RUNS[group][found.target]), found.log[-4000:]
        tally("fuzz executions", found.executions)


def test_every_target_is_run():
    assert sorted(name for runs in RUNS.values() for name in runs) == sorted(TARGETS)
