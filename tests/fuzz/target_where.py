"""Where-strings: a typed error or a mask, and no code is ever run."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from fuzz_draw import Draw

from edcache.errors import LabelError, OptionError
from edcache.labels.labels import Labels
from edcache.labels.query import matching_rows

_TOKENS = (
    "label  name  score  when  tags  odd  flag  none  day  big  col  startswith  contains  and  or  not  "
    "in  is  True  False  None  AND  ==  =  !=  <  <=  >  >=  (  )  [  ]  ,  -  .  0  1  -1  2.5  1e3  "
    "18446744073709551615  'a'  \"train\"  '2020-01-01'  '2020-01-01T00:00:00'  'odd name'  label.x  "
    "__import__  lambda  '\\n'  1e308"
)
TOKENS = _TOKENS.split("  ")
_FORBIDDEN = frozenset({"exec", "os.system", "subprocess.Popen", "pickle.find_class", "open", "import"})
_is_armed = False


def _watch(event: str, arguments: Any) -> None:
    if _is_armed and event in _FORBIDDEN:
        raise AssertionError(f"{event} {arguments!r:.200}")


@cache
def _labels() -> Labels:
    table = pa.table(
        {
            "label": pa.array([0, 1, None, 3, -4], pa.int64()),
            "name": pa.array(["a", "train", None, "", "é"]),
            "score": pa.array([0.5, float("nan"), None, -0.0, 1e300]),
            "when": pa.array([0, 1, None, 3, 2**60], pa.timestamp("us")),
            "tags": pa.array([["a"], [], None, ["b", None], []]),
            "odd name": pa.array([1, 2, 3, 4, 5], pa.uint8()),
            "flag": pa.array([True, False, None, True, True]),
            "none": pa.nulls(5),
            "day": pa.array([0, 1, None, 3, 4], pa.date32()),
            "big": pa.array([2**64 - 1, 0, 1, None, 2**63], pa.uint64()),
            "odd": pa.array(np.array([0, 1, 2, 3, 4], np.float16)),
        }
    )
    labels = Labels(table)
    matching_rows(labels, {}, "label == 1 or day < '2020-01-01'")  # imports the engine
    sys.addaudithook(_watch)
    return labels


def _text(draw: Draw) -> str:
    if draw.flag():
        return draw.rest().decode("utf-8", "replace")
    words = []
    while draw and len(words) < 400:
        words.append(draw.pick(TOKENS) if draw.below(16) else draw.text())
    return " ".join(words)


def run(data: bytes) -> None:
    global _is_armed
    draw = Draw(data)
    labels, text = _labels(), _text(draw)
    _is_armed = True
    try:
        rows = matching_rows(labels, {}, text)
    except (LabelError, OptionError):
        return
    finally:
        _is_armed = False
    assert rows.dtype == np.int64
    assert rows.tolist() == sorted(set(rows.tolist()) & set(range(5)))


def seeds() -> list[bytes]:
    texts = [
        "label == 1",
        "label in (0, 1) and name == 'train'",
        "not (score < 0.5) or flag",
        "when >= '2020-01-01' and day is not None",
        "col('odd name') != 2",
        "startswith(name, 't')",
        "0 <= label < 3",
        "name not in ['a', None]",
        "__import__('os').system('true')",
        "(" * 60 + "label == 1" + ")" * 60,
        "big == 18446744073709551615 or odd > 1.5",
    ]
    return [b"\1" + text.encode() for text in texts] + [
        bytes([0, 1, 0, 1, 24, 1, 44]),
        b"\0" + bytes(range(1, 90)),
    ]
