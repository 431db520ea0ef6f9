"""The table that compares, in the code, is the one that the documentation prints."""

from __future__ import annotations

from pathlib import Path

from edcache.identity.verdict import RULES

ROOT = Path(__file__).resolve().parents[2]
SAID = {"refuse": "`StaleCacheError`", "ask": "a sample answers", "warn": "a warning"}


def test_the_rules_are_printed_as_the_code_runs_them() -> None:
    page = (ROOT / "docs/howto/stale.md").read_text()
    head = (
        "| a part that differs | then | where no sample can be computed | "
        "where samples are random, or by `spot_check=False` |\n|---|---|---|---|\n"
    )
    rows = (
        [rule.part, *(SAID[one] for one in (rule.differs, rule.unknown, rule.unrepeated))]
        for rule in RULES.values()
    )
    table = head + "".join(f"| {' | '.join(row)} |\n" for row in rows)
    assert table in page, table
