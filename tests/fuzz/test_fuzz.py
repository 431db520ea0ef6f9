"""libFuzzer finds nothing that raises, hangs or kills beyond what is promised.

`scripts/fuzz` hunts longer, and puts what it finds into corpus/, which test_corpus.py tries.
"""

from __future__ import annotations

import importlib.util

import pytest
from fuzz_hunt import TARGETS, hunt
from scale import SEED, scaled

# Some hundred microseconds to two milliseconds each: the counts share 75 seconds of one core.
RUNS = {
    "frames": 250_000,
    "json": 90_000,
    "where": 60_000,
    "header": 45_000,
    "codec": 20_000,
    "index": 20_000,
    "open": 20_000,
}


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris has no wheel here; test_corpus.py runs anyway",
)
def test_no_bytes_of_a_stranger_raise_what_is_not_ours_nor_hang_nor_kill(tmp_path, tally):
    assert sorted(RUNS) == sorted(TARGETS)
    # 0 would take a seed from the clock.
    jobs = {name: [f"-runs={scaled(runs)}", f"-seed={SEED + 1}"] for name, runs in RUNS.items()}
    for found in hunt(jobs, tmp_path):
        assert not found.findings, f"{found.target}: {found.findings}\n{found.log[-4000:]}"
        assert found.executions >= scaled(RUNS[found.target]), found.log[-4000:]
        tally("fuzz executions", found.executions)
