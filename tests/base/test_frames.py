"""What a warning points at: the user's line, however deep in the package it is raised."""

from __future__ import annotations

import ast
import errno
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kit.systems import Refusing
from systems import replace_system

import edcache
from edcache import CachedDataset, CacheWriter, cachable
from edcache.errors import PartialArchiveWarning

PACKAGE = Path(edcache.__file__).parent


def partial(folder: Path, name: str = "partial.zip") -> None:
    with suppress(ZeroDivisionError), CacheWriter(folder / name) as writer:
        writer.append(1)
        raise ZeroDivisionError


def with_an_open_archive(folder: Path) -> None:
    partial(folder)
    CachedDataset.from_cache(folder / "partial.zip").close()


def with_many_open_archives(folder: Path) -> None:
    partial(folder)
    partial(folder, "other.zip")
    CachedDataset.from_cache([folder / "partial.zip", folder / "other.zip"]).close()


def without_locks(folder: Path) -> None:
    with replace_system(Refusing(errno.ENOLCK, "lock", "unlock", "is_locked")):
        CachedDataset([1, 2], folder / "unlocked.zip", progress=False)


def with_another_call(folder: Path) -> None:
    @cachable(folder / "call.zip", on_stale="warn", progress=False)
    def data(a: int) -> list[int]:
        return [a]

    for a in (1, 2):
        data(a)


@pytest.mark.parametrize(
    ("use", "category"),
    [
        (with_an_open_archive, PartialArchiveWarning),
        (with_many_open_archives, PartialArchiveWarning),
        (without_locks, RuntimeWarning),
        (with_another_call, RuntimeWarning),
    ],
)
def test_a_warning_points_at_the_line_of_the_user(
    tmp_path: Path, use: Callable[[Path], None], category: type[Warning]
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use(tmp_path)
    places = {(w.category, w.filename) for w in caught if "edcache" in w.filename or w.filename == __file__}
    assert places == {(category, __file__)}


def test_a_program_without_a_file_is_the_user_too(tmp_path: Path) -> None:
    partial(tmp_path)
    program = f"import edcache; edcache.CachedDataset.from_cache({str(tmp_path / 'partial.zip')!r})"
    names: dict[str, Any] = {"__name__": "cell"}
    with pytest.warns(PartialArchiveWarning) as caught:
        exec(compile(program, "<string>", "exec"), names)
    assert (caught[0].filename, caught[0].lineno) == ("<string>", 1)


def test_all_warnings_go_through_one_function() -> None:
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("warn", "warn_explicit"):
                is_direct = isinstance(node.value, ast.Name) and node.value.id == "warnings"
                assert not is_direct or file.name == "frames.py", f"{file}:{node.lineno}"
