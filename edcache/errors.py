"""Exception tree."""

from collections.abc import Iterator

from edcache.base import errors as _errors
from edcache.base.errors import *  # noqa: F403


def _draw(kind: type[Exception], before: str = "") -> Iterator[str]:
    """Draw the classes below one, a line each, with their builtin bases and descriptions."""
    below = kind.__subclasses__()
    for each in below:
        branch, more = ("└── ", "    ") if each is below[-1] else ("├── ", "│   ")
        builtins = ", ".join(base.__name__ for base in each.__bases__ if base.__module__ == "builtins")
        name = f"{before}{branch}{each.__name__}" + f" ({builtins})" * bool(builtins)
        yield f"    {name:50} {(each.__doc__ or '').partition(chr(10))[0]}"
        yield from _draw(each, before + more)


__doc__ = "\n".join([_errors.__doc__ or "", "    EdcacheError", *_draw(_errors.EdcacheError)])
