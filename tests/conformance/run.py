"""Hold a reader of the format to the suite: python -m tests.conformance.run --reader "CMD {path}"

README.md beside this file says what CMD prints. It takes nothing but Python.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
SECONDS = 60.0


class Answer(NamedTuple):
    """What a reader printed of one file; why it refused it; or what it must not do."""

    document: Any = None
    refusal: str | None = None
    harm: str | None = None


def asked(reader: str, path: Path, seconds: float = SECONDS) -> Answer:
    """Run a reader on one file."""
    command = [part.replace("{path}", str(path)) for part in shlex.split(reader)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Answer(harm=f"no answer within {seconds:g} seconds")
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode > 0 and text.startswith("refused"):
        return Answer(refusal=text.partition("\n")[0])
    if done.returncode != 0:
        return Answer(harm=f"exit status {done.returncode}: {done.stderr[-300:].decode('utf-8', 'replace')}")
    try:
        document = json.loads(text)
        return Answer({name: document[name] for name in ("length", "samples", "labels")})
    except (ValueError, KeyError, TypeError) as error:
        return Answer(harm=f"no document ({error!r}): {text[:100]}")


def difference(found: Any, expected: Any, path: str = "") -> str | None:
    """Where two JSON values differ first; None where they are equal."""
    if type(found) is type(expected) and isinstance(found, (dict, list)):
        keys = expected if isinstance(expected, dict) else range(len(expected))
        if isinstance(found, dict) and found.keys() != expected.keys():
            return f"{path}: has {sorted(found)[:9]}, expected {sorted(expected)[:9]}"
        if len(found) != len(expected):
            return f"{path}: {len(found)} items, expected {len(expected)}"
        return next(filter(None, (difference(found[k], expected[k], f"{path}/{k}") for k in keys)), None)
    if type(found) is type(expected) and found == expected:
        return None
    return f"{path}: {json.dumps(found)[:200]}, expected {json.dumps(expected)[:200]}"


def digest(document: Any) -> str:
    """The sha256 of a document as compact ASCII JSON whose keys are sorted."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def golden(reader: str, only: list[str] | None = None) -> Iterator[tuple[str, str | None]]:
    """Each golden archive by name, with what is wrong with the reader's answer."""
    for path in sorted((HERE / "golden").glob("v*.zip")):
        name = path.stem.partition("-")[2]
        if only is None or name in only:
            answer = asked(reader, path)
            expected = json.loads((HERE / "expected" / f"{name}.json").read_text(encoding="ascii"))
            if "refused" in expected:
                wrong = (
                    None
                    if answer.refusal
                    else "is read, but a reader of version 3 does not know what it needs"
                )
                yield path.name, answer.harm or wrong
                continue
            found = answer.document if "sha256" not in expected else {"sha256": digest(answer.document)}
            yield path.name, answer.harm or answer.refusal or difference(found, expected)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.run", description=__doc__)
    parser.add_argument("--reader", required=True, help='a command, as "CMD {path}"')
    parser.add_argument("--only", nargs="*", help="names of golden archives, as fixed; none with no name")
    options = parser.parse_args(arguments)
    tried = [*golden(options.reader, options.only)]
    wrong = [f"{name}: {what}" for name, what in tried if what is not None]
    print(*wrong, f"{len(tried) - len(wrong)} of {len(tried)} as expected", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
