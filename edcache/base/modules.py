"""The module of a class or a function, by one name in every process.

A script is `__main__`, and `__mp_main__` in the processes that it spawns; others import it by its name.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

MAIN_NAMES: Final = ("__main__", "__mp_main__")


def module_name(thing: Any) -> str:
    """The name by which the module of a class or a function can be imported; "?" where it has none.

    That of a program is the name after `python -m`, or its file's name without ".py"; without a file, as
    in a notebook, it is "__main__".
    """
    name = getattr(thing, "__module__", None)
    return _imported_name(name) if name in MAIN_NAMES else str(name or "?")


def module_aliases(name: str) -> tuple[str, ...]:
    """The names in `sys.modules` that a module of that `module_name` may have in this process."""
    return *(main for main in MAIN_NAMES if main in sys.modules and _imported_name(main) == name), name


def _imported_name(main: str) -> str:
    module = sys.modules.get(main) or sys.modules["__main__"]
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    return spec.name if spec else os.path.splitext(os.path.basename(file))[0] if file else "__main__"
