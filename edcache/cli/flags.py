"""Options of several commands, by the name of their argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, get_args

import click

from edcache.base import Codec, OnError, parsed_bytes

Command = TypeVar("Command", bound=Callable[..., Any])

# Shells complete the names of files for it. It may be a URL, so the library checks it.
PATH: Final = click.Path(readable=False)
PATHS: Final = click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=PATH)


def size(text: str) -> int:
    """Parse a size in bytes."""
    nbytes = parsed_bytes(text)
    if nbytes is None:
        raise click.BadParameter(f'"{text}"; write it as in 500MB, 1.5GB or 1TiB')
    return nbytes


def _workers(text: str) -> int | str:
    if text == "auto":
        return text
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise click.BadParameter(f'"{text}"; give a number, or auto')
    return int(text)


def _label_key(text: str) -> tuple[str, str]:
    name, _, field = text.partition("=")
    if not name or text.endswith("="):
        raise click.BadParameter(f'"{text}"; write a field, as in label, or NAME=FIELD')
    return name, field or name


def _shared(name: str, help: str, *words: str, **details: Any) -> tuple[str, Callable[[Any], Any]]:
    return name, click.option(*(words or (f"--{name.replace('_', '-')}",)), name, help=help, **details)


_SHARED: Final = dict(
    (
        _shared("allow_pickle", "Read pickles, which run any code of their author.", is_flag=True),
        _shared("arguments", "Argument; repeatable.", "--arg", multiple=True, metavar="NAME=VALUE"),
        _shared("as_json", "Print one JSON document instead of text.", "--json", is_flag=True),
        _shared(
            *("batch_size", "Samples in a call of __getitems__ of a source that has it."),
            metavar="N",
            type=click.IntRange(1),
        ),
        _shared("chunk_size", "Most samples of a chunk.", metavar="N", type=click.IntRange(1)),
        _shared("codec", "Codec of samples; native by default.", type=click.Choice(get_args(Codec))),
        _shared("compression", "zstd, or zstd:19; none by default.", metavar="NAME"),
        _shared("expected_digest", "Expected SHA-256 of the archive.", "--digest", metavar="DIGEST"),
        _shared("form", "Print the rows as CSV.", "--csv", flag_value="csv"),
        _shared("grow", "Append new samples of a source that became longer.", is_flag=True, default=None),
        _shared(
            *("in_memory_keys", "Label column; repeatable. By default import takes OLD's.", "--key"),
            multiple=True,
            metavar="[NAME=]FIELD",
            type=_label_key,
            callback=lambda ctx, param, keys: dict(keys) or None,
        ),
        _shared(
            *("keep_existing", "Build anew, and replace the old archive.", "--rebuild"),
            is_flag=True,
            callback=lambda ctx, param, is_given: False if is_given else None,
        ),
        _shared("limit", "Most rows shown; of a table 20 by default.", metavar="N", type=click.IntRange(0)),
        _shared(
            "num_workers",
            "Processes that compute; -j alone, or auto: one for each processor that this process may use.",
            *("-j", "--num-workers"),
            metavar="[N]",
            is_flag=False,
            flag_value="auto",
            type=_workers,
        ),
        _shared("on_error", "Treatment of a sample that fails.", type=click.Choice(get_args(OnError))),
        _shared(
            "progress", "Show a bar; by default on a terminal.", "--progress/--no-progress", default=None
        ),
        _shared("skip_damaged", "Leave out samples that are damaged or missing.", is_flag=True),
        _shared(
            *("spot_check", "Samples to compute again and compare before more are added; 0 for none."),
            metavar="N",
            type=click.IntRange(0),
            callback=lambda ctx, param, count: False if count == 0 else count,
        ),
        _shared("timeout", "Limit of a sample.", metavar="SECONDS", type=click.FloatRange(0, min_open=True)),
        _shared("version", "Version; change it when the factory makes other samples.", metavar="VALUE"),
        _shared("where", "Only samples whose labels fulfil it.", metavar="EXPR"),
    )
)


def flags(*names: str) -> Callable[[Command], Command]:
    """Add shared options, by the names of their arguments, in the order of the help."""

    def decorate(command: Command) -> Command:
        for name in reversed(names):
            command = _SHARED[name](command)
        return command

    return decorate


def row_flags(command: Command) -> Command:
    """Add the flags of a command that prints rows, which `output.print_rows` takes."""
    as_json = click.option("--json", "form", flag_value="json", help="Print the rows as one JSON list.")
    return flags("limit", "form")(as_json(command))


def output(help: str = "Archive to fill.", **details: Any) -> Callable[[Command], Command]:
    """Add the option -o, the path that a command writes."""
    defaults: dict[str, Any] = {"required": True, "metavar": "PATH", "type": PATH}
    return click.option("-o", "--output", "output", help=help, **defaults | details)
