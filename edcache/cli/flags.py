"""The flags that commands share, made from one table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar, get_args

import click

from edcache.base import Codec, OnError, parsed_bytes

Command = TypeVar("Command", bound=Callable[..., Any])

# Shells complete the names of files for it. It may be a URL: what is there, the library says.
PATH: Final = click.Path(readable=False)
PATHS: Final = click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=PATH)


def size(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    """The bytes of an option's text."""
    nbytes = None if text is None else parsed_bytes(text)
    if text is not None and nbytes is None:
        raise click.BadParameter(f'"{text}"; write it as in 500MB, 1.5GB or 1TiB')
    return nbytes


def _workers(ctx: click.Context, param: click.Parameter, text: str | None) -> int | str | None:
    if text is None or text == "auto":
        return text
    if not text.isascii() or not text.isdigit():
        raise click.BadParameter(f'"{text}"; give a number, or auto')
    return int(text)


def _label_keys(ctx: click.Context, param: click.Parameter, keys: tuple[str, ...]) -> dict[str, str] | None:
    """What --key asks for, as `in_memory_keys` takes it."""
    named = {}
    for key in keys:
        name, _, field = key.partition("=")
        named[name] = field if "=" in key else name
        if not (name and named[name]):
            raise click.BadParameter(f'"{key}"; write a field, as in label, or NAME=FIELD')
    return named or None


def _denied(ctx: click.Context, param: click.Parameter, given: bool) -> bool | None:
    """False for a flag that stands for the argument's False."""
    return False if given else None


_Option: TypeAlias = "tuple[tuple[str, ...], dict[str, Any]]"


def _flag(name: str, help: str, *words: str, **details: Any) -> tuple[str, _Option]:
    """An option by the name of the argument that it becomes; without other words that is its own too."""
    return name, (words or (f"--{name.replace('_', '-')}",), {"help": help, **details})


_FLAGS: Final[dict[str, _Option]] = dict(
    [
        _flag("allow_partial", "Take an archive that lacks samples, without them.", is_flag=True),
        _flag("allow_pickle", "Read pickles, which run whatever code their author chose.", is_flag=True),
        _flag("arguments", "An argument; repeatable.", "--arg", multiple=True, metavar="NAME=VALUE"),
        _flag("as_json", "One JSON document instead of text.", "--json", is_flag=True),
        _flag("chunk_size", "Most samples that one publication holds.", type=click.IntRange(1)),
        _flag("codec", "native by default.", type=click.Choice(get_args(Codec))),
        _flag("compression", "zstd or zstd:19; none by default.", metavar="TEXT"),
        _flag("expected_digest", "The SHA-256 that the archive must have.", "--digest", metavar="DIGEST"),
        _flag("form", "The rows as CSV.", "--csv", flag_value="csv"),
        _flag("grow", "Add to an archive whose source has become longer.", is_flag=True, default=None),
        _flag(
            *("in_memory_keys", "A label column; repeatable. import takes those of OLD by default.", "--key"),
            multiple=True,
            metavar="[NAME=]FIELD",
            callback=_label_keys,
        ),
        _flag(
            *("keep_existing", "Build anew, in the place of what is there.", "--rebuild"),
            is_flag=True,
            callback=_denied,
        ),
        _flag("limit", "Most rows shown; of a table 20 by default.", metavar="N", type=click.IntRange(0)),
        _flag(
            "num_workers",
            "Processes that compute; -j alone, or auto: one for each processor that this process may use.",
            *("-j", "--num-workers"),
            metavar="[N]",
            is_flag=False,
            flag_value="auto",
            callback=_workers,
        ),
        _flag("on_error", "What becomes of a sample that fails.", type=click.Choice(get_args(OnError))),
        _flag("progress", "Show a bar; by default on a terminal.", "--progress/--no-progress", default=None),
        _flag("skip_damaged", "Leave out samples that are damaged or missing.", is_flag=True),
        _flag("timeout", "Seconds for one sample.", type=click.FloatRange(0, min_open=True)),
        _flag("version", "Change it when the factory makes other samples.", metavar="VALUE"),
        _flag("where", "Only samples whose labels fulfil this.", metavar="EXPR"),
    ]
)


def flags(*names: str) -> Callable[[Command], Command]:
    """Options that commands share, by the names of their arguments, in the order of the help."""

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            words, details = _FLAGS[name]
            command = click.option(*words, name, **details)(command)
        return command

    return decorate


def row_flags(command: Command) -> Command:
    """The flags of a command that prints rows, which `output.print_rows` takes."""
    as_json = click.option("--json", "form", flag_value="json", help="The rows as one JSON list.")
    return flags("limit", "form")(as_json(command))


def output(help: str = "The archive to fill.", **details: Any) -> Callable[[Command], Command]:
    """Where a command writes."""
    defaults: dict[str, Any] = {"required": True, "metavar": "PATH", "type": PATH}
    return click.option("-o", "--output", "output", help=help, **defaults | details)


def flag_of(option: str | None) -> str | None:
    """Return the flag of an option of the library: that of keep_existing is --rebuild."""
    return _FLAGS[option][0][-1] if option in _FLAGS else None
